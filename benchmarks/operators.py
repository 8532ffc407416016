"""Small programs side by side and in turns: eager, regraft, and any other torch.compile backend.

    python benchmarks/operators.py --runs eager,inductor,regraft --only 'images|reductions'
    python benchmarks/operators.py --names 'unfold|fmod' --device cuda
    python benchmarks/operators.py --table models --json found.jsonl
    python benchmarks/operators.py --table blocks --train
    python benchmarks/operators.py --table nets --dtype bfloat16
    python benchmarks/operators.py --table odd

For each: median microseconds of each run (the call of `torch.compile` included), and how many times as fast as each
other run the last one is: the median of what the turns gave, so that a busy machine slows both alike. Ends with
medians, and lists what is slower than `--slow` times the best of the others. Results are compared; kinds whose name
begins with "gradients" are run with their backward, and with `--train` all that have gradients are.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="regraft-benchmark-")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-benchmark-"))

import torch
import typer
from rich.console import Console
from rich.table import Table

TABLES = {
    "operators": ["operator_programs"],
    "models": ["model_programs", "data_programs"],
    "blocks": ["block_programs", "block_tokens", "block_steps"],
    "nets": ["net_programs"],
    "odd": ["odd_programs"],
}
RANDOM = {"rand", "randn", "dropout", "bernoulli"}


def main(  # noqa: PLR0913
    runs: Annotated[str, typer.Option(help="Backends, the one to judge last.")] = "eager,inductor,regraft",
    table: Annotated[str, typer.Option(help=f"What to run: {', '.join(TABLES)}.")] = "operators",
    only: Annotated[str, typer.Option(help="A regular expression of kinds.")] = ".*",
    names: Annotated[str, typer.Option(help="A regular expression of programs.")] = ".*",
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long each program is timed.")] = 1.0,
    train: Annotated[bool, typer.Option(help="Gradients of all programs that have them.")] = False,
    dtype: Annotated[str, typer.Option(help="What floating inputs are cast to.")] = "float32",
    slow: Annotated[float, typer.Option(help="What counts as slower, as a share of the other's speed.")] = 0.97,
    to: Annotated[str, typer.Option("--json", help="A file to which each program adds a line.")] = "",
) -> None:
    """Time all programs that are asked for."""
    torch.set_num_threads(threads)
    backends = runs.split(",")
    shown = Table("kind", "program", *[f"{b} us" for b in backends], *[f"over {b}" for b in backends[:-1]])
    ratios: dict[str, list[float]] = {b: [] for b in backends[:-1]}
    behind = []
    chosen = [(kind, name, *p) for kind, name, p in programs(table) if re.fullmatch(only, kind)]
    for kind, name, function, inputs in chosen:
        if not re.fullmatch(names, name):
            continue
        try:
            called = prepared(function, inputs, device, dtype, train, train or kind.startswith("gradients"))
            if train and not called[2]:
                continue
            fixed = kind != "random" and name not in RANDOM
            times = timed(*called, backends, seconds, compared=fixed)
        except Exception as error:  # the others are still worth knowing
            shown.add_row(kind, name, f"{type(error).__name__}: {error}"[:60])
            continue
        middle = {b: 1e6 * statistics.median(t) for b, t in times.items()}
        speeds = [
            statistics.median(x / y for x, y in zip(times[b], times[backends[-1]], strict=True)) for b in backends[:-1]
        ]
        for backend, speed in zip(backends, speeds, strict=False):
            ratios[backend].append(speed)
        if speeds and min(speeds) < slow:
            behind.append((min(speeds), name))
        shown.add_row(kind, name, *[f"{x:.1f}" for x in middle.values()], *[f"{s:.2f}x" for s in speeds])
        if to:
            best = {b: 1e6 * min(t) for b, t in times.items()}
            write(to, {"kind": kind, "name": name, "us": middle, "least": best, "over": speeds})
    console = Console(width=140)
    console.print(shown)
    for backend, found in ratios.items():
        if found:
            console.print(f"{backends[-1]} over {backend}: median {statistics.median(found):.2f}x of {len(found)}")
    slower = ", ".join(f"{name} {speed:.2f}x" for speed, name in sorted(behind))
    console.print(f"slower than {slow} of the best other: {slower or 'none'}" if len(backends) > 1 else "")


def programs(table: str) -> list[tuple[str, str, Any]]:
    """Kinds, names and programs of a table."""
    modules = [importlib.import_module(name) for name in TABLES[table]]
    kinds = [pair for module in modules for pair in module.PROGRAMS.items()]
    return [(kind, name, program) for kind, found in kinds for name, program in found.items()]


def write(to: str, row: dict[str, Any]) -> None:
    """Add a line to a file."""
    with Path(to).open("a") as file:
        file.write(json.dumps(row) + "\n")


def prepared(
    function: Callable[..., Any],
    inputs: Callable[[], list[torch.Tensor]],
    device: str,
    dtype: str,
    train: bool,
    differentiated: bool,
) -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """What is called, its arguments, and those of them whose gradients are computed."""
    torch.manual_seed(0)
    given = [cast(x.to(device), getattr(torch, dtype)) for x in inputs()]
    leaves = [x.requires_grad_() for x in given if differentiated and x.is_floating_point()]
    if isinstance(function, torch.nn.Module):
        function.train(train).to(getattr(torch, dtype))
        leaves += list(function.parameters()) if train else []
    if not train:
        return function, given, leaves
    function = squares(function)
    return function, given, reached(function, given, leaves)


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floating numbers in another dtype, anything else as it is."""
    return x.to(dtype) if x.dtype == torch.float32 else x


def squares(function: Callable[..., Any]) -> Callable[..., Any]:
    """A number to differentiate: the sum of squares of all floating results, nothing if there is none."""

    def total(*given: Any) -> Any:
        out = function(*given)
        out = [t for t in (out if isinstance(out, (list, tuple)) else [out]) if t.requires_grad]
        return sum(t.float().square().mean() for t in out) if out else None

    return total


def reached(function: Callable[..., Any], given: list[Any], leaves: list[Any]) -> list[Any]:
    """Leaves that have a gradient."""
    loss = function(*given) if leaves else None
    if loss is None:
        return []
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [x for x, g in zip(leaves, found, strict=True) if g is not None]


def timed(
    function: Callable[..., Any],
    given: list[Any],
    leaves: list[Any],
    backends: list[str],
    seconds: float,
    compared: bool,
) -> dict[str, list[float]]:
    """Seconds of each backend, in turns, of the gradients of `leaves` if any; a result unlike eager's is an error."""
    step = stepping(function, given, leaves)
    steps = {b: step if b == "eager" else started(function, b, given, leaves) for b in backends}
    if compared:
        for other in steps.values():
            torch.testing.assert_close(other(), step(), equal_nan=True, rtol=2e-2, atol=2e-2)
    times: dict[str, list[float]] = {b: [] for b in backends}
    end = time.perf_counter() + seconds
    # One thread is charged for what it runs, whoever else the processor works for meanwhile.
    clock = time.thread_time if torch.get_num_threads() == 1 and not given[0].is_cuda else time.perf_counter
    order = list(steps)
    while time.perf_counter() < end:
        order = order[1:] + order[:1]  # nobody always comes after the same one, whose memory caches hold
        for backend in order:
            start = clock()
            steps[backend]()
            if given[0].is_cuda:
                torch.cuda.synchronize()
            times[backend].append(clock() - start)
    return times


def stepping(function: Callable[..., Any], given: list[Any], leaves: list[Any]) -> Callable[[], Any]:
    """One call, or where there are leaves, the gradients of its result for them."""

    def forward() -> Any:
        with torch.no_grad():
            return function(*given)

    return (lambda: torch.autograd.grad(function(*given), leaves)) if leaves else forward


def started(function: Callable[..., Any], backend: str, given: list[Any], leaves: list[Any]) -> Callable[[], Any]:
    """The function compiled, and called twice."""
    torch._dynamo.reset()
    step = stepping(torch.compile(function, backend=backend), given, leaves)
    step()
    step()
    return step


if __name__ == "__main__":
    typer.run(main)
