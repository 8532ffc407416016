"""The tables of small programs on a GPU: the time of their kernels beside eager's and Inductor's, and their results.

    python benchmarks/gpu_programs.py --tables blocks,nets --jobs 14 --budget 400 --json rows.jsonl
    python benchmarks/gpu_programs.py --tables blocks,nets --train --dtype float32 --names '.*U-Net.*'
    python benchmarks/gpu_programs.py --host --tables blocks,nets --budget 400

Many processes share the GPU, so that hundreds of programs take minutes. What each kernel took is the profiler's, least
of two runs of a few calls: others that wait for the GPU hardly count in it. Programs that seem slow are measured again
by few processes. A program that takes too long, or breaks the GPU, is left out, and its process started anew. Tensors
that programs make are on the GPU, too.

The host's part is not measured, but with `--host`: then one process measures the host's time for a call, in which the
GPU is not waited for. Both compilers have CUDA graphs (`reduce-overhead`), backends take turns, and the median counts.
"dynamo" is the time of a call whose graph gives results that are there already: guards, and the frame. Without a GPU,
calls on the CPU are measured.

Printed: programs whose results are further from eager's than a rounding and than Inductor's, programs whose kernels
take longer than Inductor's, and the median of all.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from operators import RANDOM, prepared, stepping
from program_tables import Budget, Dtype, Jobs, Json, Names, Tables, Train, rows_file, shuffled
from rich.console import Console
from rich.table import Table

import regraft

CALLS, RUNS, SECONDS = 6, 2, 120
QUEUED, TURNS = 20, 40  # calls that the GPU is not waited for, and how often
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ("eager", "inductor", "regraft")
Row = dict[str, Any]


class LateError(Exception):
    """A program has taken too long."""


def kernels_of(step: Callable[[], Any]) -> tuple[float, int]:
    """Microseconds that the kernels of a call take, and how many there are."""
    found = []
    for _ in range(RUNS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(CALLS):
                step()
            torch.cuda.synchronize()
        rows = [row for row in profiler.key_averages() if row.device_time_total > 0]
        found.append((sum(r.device_time_total for r in rows) / CALLS, sum(r.count for r in rows) // CALLS))
    return min(found)


def tensors_of(results: Any) -> list[torch.Tensor]:
    """The tensors among results, in order."""
    return [x for x in torch.utils._pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]


def error_of(ours: Any, eagers: Any) -> float:
    """The largest difference, over the largest magnitude of its tensor; infinite where sizes, dtypes or NaN differ."""
    worst = 0.0
    for x, y in zip(tensors_of(ours), tensors_of(eagers), strict=True):
        if x.shape != y.shape or x.dtype != y.dtype or not torch.equal(torch.isnan(x), torch.isnan(y)):
            return float("inf")
        finite = torch.isfinite(y)
        if finite.any():
            difference = (x.to(torch.complex128) - y.to(torch.complex128))[finite].abs().max()
            worst = max(worst, float(difference / (y[finite].abs().max() + 1e-6)))
    return worst


def measured(module: str, kind: str, name: str, train: bool, dtype: str, dynamic: bool) -> Row | None:
    """One program under all backends; None where nothing is differentiated."""
    function, inputs = importlib.import_module(module).PROGRAMS[kind][name]
    if isinstance(function, torch.nn.Module):
        function = function.cuda()
    function, given, leaves = prepared(function, inputs, "cuda", dtype, train, train or kind.startswith("gradients"))
    if train and not leaves:
        return None
    step = stepping(function, given, leaves)
    expected = step()
    row: Row = {"kind": kind, "name": name, "us": {}, "launches": {}, "error": {}}
    for backend in BACKENDS:
        called = step
        if backend != "eager":
            torch._dynamo.reset()
            compiler = regraft.backend if backend == "regraft" else backend
            compiled = torch.compile(function, backend=compiler, dynamic=dynamic or None)
            called = stepping(compiled, given, leaves)
            called()
            row["error"][backend] = error_of(called(), expected)
        row["us"][backend], row["launches"][backend] = kernels_of(called)
    return row


def host_of(steps: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of the host for a call of each, the GPU not waited for: medians of turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for name in [name for _ in range(TURNS) for name in steps]:
        wait()
        start = time.perf_counter()
        for _ in range(QUEUED):
            steps[name]()
        found[name].append((time.perf_counter() - start) / QUEUED * 1e6)
    wait()
    return {name: statistics.median(times) for name, times in found.items()}


def wait() -> None:
    """Until the GPU is done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def with_known_results(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """A backend that computes results once, and gives them in each call."""
    known: list[Any] = []

    def run(*inputs: Any) -> Any:
        if not known:
            known.append(graph(*inputs))
        return known[0]

    return run


def measured_on_host(module: str, kind: str, name: str, train: bool, dtype: str, dynamic: bool) -> Row | None:
    """One program under all backends, and Dynamo alone in inference: the host's time for a call."""
    function, inputs = importlib.import_module(module).PROGRAMS[kind][name]
    if isinstance(function, torch.nn.Module):
        function = function.to(DEVICE)
    function, given, leaves = prepared(function, inputs, DEVICE, dtype, train, train or kind.startswith("gradients"))
    if train and not leaves:
        return None
    torch._dynamo.reset()
    mode = {"mode": "reduce-overhead"} if DEVICE == "cuda" else {}
    steps = {"eager": stepping(function, given, leaves)}
    expected, errors = steps["eager"](), {}
    for backend in BACKENDS[1:]:
        compiled = torch.compile(function, backend=backend, dynamic=dynamic or None, **mode)  # type: ignore[call-overload]
        steps[backend] = stepping(compiled, given, leaves)
        for _ in range(3):
            errors[backend] = error_of(steps[backend](), expected)
    if not leaves:
        alone = torch.compile(function, backend=with_known_results, dynamic=dynamic or None)
        steps["dynamo"] = stepping(alone, given, leaves)
        steps["dynamo"]()
    del expected
    return {"kind": kind, "name": name, "us": host_of(steps), "launches": dict.fromkeys(BACKENDS, 0), "error": errors}


def work(measure: Callable[..., Row | None], queue: Any, to: str, end: float, *how: Any) -> None:
    """A process: measures one program after the other, and writes a line for each."""
    folder = tempfile.mkdtemp()
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "REGRAFT_CACHE_DIR"):
        os.environ[variable] = f"{folder}/{variable}"
    torch.set_num_threads(1)
    torch.set_default_device(DEVICE)

    def late(*_: Any) -> None:
        raise LateError

    signal.signal(signal.SIGALRM, late)
    while time.time() < end:
        try:
            module, kind, name = queue.get(timeout=2)
        except Exception:  # nothing is left
            return
        signal.alarm(SECONDS)
        try:
            row = measure(module, kind, name, *how)
        except BaseException as error:
            row = {"kind": kind, "name": name, "failed": f"{type(error).__name__}: {error}"[:200]}
        signal.alarm(0)
        if row is not None:
            with Path(to).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        if "CUDA error" in json.dumps(row):
            os._exit(3)  # the GPU's state is lost for this process


def run_all(
    measure: Callable[..., Row | None], programs: list[tuple[str, str, str]], to: str, jobs: int, budget: float,
    *how: Any,
) -> None:  # fmt: skip
    """Measure programs by `jobs` processes, for `budget` seconds at most; `how` is passed to `measure`."""
    context, end = multiprocessing.get_context("spawn"), time.time() + budget
    queue = context.Queue()
    for program in programs:
        queue.put(program)

    def started() -> Any:
        process = context.Process(target=work, args=(measure, queue, to, end, *how), daemon=True)
        process.start()
        return process

    workers = [started() for _ in range(jobs)]
    while time.time() < end and any(worker.is_alive() for worker in workers):
        time.sleep(1)
        workers = [started() if worker.exitcode == 3 else worker for worker in workers]
    for worker in workers:
        worker.kill()


def speed_of(row: Row) -> float:
    """Inductor's time over regraft's."""
    return float(row["us"]["inductor"] / row["us"]["regraft"])


def read(path: str) -> list[Row]:
    """The last line of each program."""
    lines = Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
    return list({(row["kind"], row["name"]): row for row in map(json.loads, lines)}.values())


def shown(rows: list[Row], slow: float, tolerance: float) -> None:
    """Print what is wrong, what is slow, and the median."""
    console = Console(width=140)
    done = [row for row in rows if "us" in row]
    fixed = [row for row in done if row["kind"] != "random" and row["name"] not in RANDOM]
    for row in fixed:
        ours, theirs = row["error"]["regraft"], row["error"]["inductor"]
        if not ours <= max(tolerance, 2 * theirs):
            console.print(f"unlike eager: {row['kind']}, {row['name']}: {ours:.1e} (Inductor {theirs:.1e})")
    names = [*BACKENDS, *(["dynamo"] if any("dynamo" in row["us"] for row in done) else [])]
    table = Table("kind", "program", *[f"{b} us" for b in names], "over inductor", "launches: inductor, regraft")
    speeds = [(speed_of(row), row) for row in done if row["us"]["regraft"]]
    for speed, row in sorted(speeds, key=lambda pair: pair[0]):
        if speed < slow:
            times = [f"{row['us'][b]:.1f}" if b in row["us"] else "" for b in names]
            launches = f"{row['launches']['inductor']}, {row['launches']['regraft']}"
            table.add_row(row["kind"], row["name"], *times, f"{speed:.2f}x", launches)
    console.print(table)
    if speeds:
        console.print(f"regraft over inductor: median {statistics.median(s for s, _ in speeds):.2f}x of {len(speeds)}")
    console.print(f"not measured: {len(rows) - len(done)}")


def main(  # noqa: PLR0913
    tables: Tables = "blocks,nets,models,operators",
    names: Names = ".*",
    train: Train = False,
    dtype: Dtype = "bfloat16",
    dynamic: Annotated[bool, typer.Option(help="All sizes of inputs are symbolic.")] = False,
    jobs: Jobs = 8,
    budget: Budget = 1e9,
    again: Annotated[int, typer.Option(help="Processes that measure slow programs again; 0: they do not.")] = 3,
    slow: Annotated[float, typer.Option(help="What counts as slower, as a share of Inductor's speed.")] = 0.9,
    to: Json = "",
    host: Annotated[
        bool, typer.Option(help="The host's time for a call instead, by one process; all are shown.")
    ] = False,
) -> None:
    """Run the tables and print what is wrong or slow."""
    chosen = shuffled(tables, names)
    if host:
        with rows_file(to) as path:
            run_all(measured_on_host, chosen, path, 1, budget, train, dtype, dynamic)
            shown(read(path), float("inf"), 2e-3 if dtype == "float32" else 3e-2)
        return
    with rows_file(to) as path:
        end = time.time() + budget
        run_all(measured, chosen, path, jobs, budget, train, dtype, dynamic)
        late = {(r["kind"], r["name"]) for r in read(path) if r.get("us", {}).get("regraft") and speed_of(r) < slow}
        if again and late and time.time() < end:
            run_all(
                measured, [p for p in chosen if p[1:] in late], path, again, end - time.time(), train, dtype, dynamic
            )
        rows = read(path)
    shown(rows, slow, 2e-3 if dtype == "float32" else 3e-2)


if __name__ == "__main__":
    typer.run(main)
