"""Small programs side by side and in turns: eager, regraft, and any other torch.compile backend.

    python benchmarks/operators.py --runs eager,inductor,regraft --only 'images|reductions'
    python benchmarks/operators.py --names 'unfold|fmod' --device cuda
    python benchmarks/operators.py --table models --json found.jsonl
    python benchmarks/operators.py --table blocks --train
    python benchmarks/operators.py --table nets --dtype bfloat16
    python benchmarks/operators.py --table odd
    python benchmarks/operators.py --table fields --json found.jsonl
    python benchmarks/operators.py --table layouts --names '(?!.*large).*'

For each: median microseconds of each run (the call of `torch.compile` included), and how many times as fast as each
other run the last one is: the median of what the turns gave, so that a busy machine slows both alike. Ends with
medians, and lists what is slower than `--slow` times the best of the others. Results are compared; kinds whose name
begins with "gradients" are run with their backward, and with `--train` all that have gradients are.

A line of `--json` has the median and the least time, the seconds of the first call, and the error: the largest
difference from eager's result in double precision, over the largest number of that result.
"""

from __future__ import annotations

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
from program_tables import Dtype, Json, Names, Tables, Train, programs
from rich.console import Console
from rich.table import Table

RANDOM = {"rand", "randn", "dropout", "bernoulli"}


def main(  # noqa: PLR0913
    runs: Annotated[str, typer.Option(help="Backends, the one to judge last.")] = "eager,inductor,regraft",
    table: Tables = "operators",
    only: Annotated[str, typer.Option(help="A regular expression of kinds.")] = ".*",
    names: Names = ".*",
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long each program is timed.")] = 1.0,
    train: Train = False,
    dtype: Dtype = "float32",
    slow: Annotated[float, typer.Option(help="What counts as slower, as a share of the other's speed.")] = 0.97,
    to: Json = "",
) -> None:
    """Time all programs that are asked for."""
    torch.set_num_threads(threads)
    backends = runs.split(",")
    shown = Table("kind", "program", *[f"{b} us" for b in backends], *[f"over {b}" for b in backends[:-1]])
    ratios: dict[str, list[float]] = {b: [] for b in backends[:-1]}
    behind = []
    chosen = [(kind, name, *p) for _, kind, name, p in programs(table, names) if re.fullmatch(only, kind)]
    for kind, name, function, inputs in chosen:
        try:
            called = prepared(function, inputs, device, dtype, train, train or kind.startswith("gradients"))
            if train and not called[2]:
                continue
            fixed = kind != "random" and name not in RANDOM
            steps, first = all_started(*called, backends)
            times = timed(steps, called[1], seconds, compared=fixed)
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
            row = {"kind": kind, "name": name, "us": middle, "least": best, "over": speeds, "first": first}
            write(to, {**row, "error": errors(*called, steps) if fixed else None})
    console = Console(width=140)
    console.print(shown)
    for backend, found in ratios.items():
        if found:
            console.print(f"{backends[-1]} over {backend}: median {statistics.median(found):.2f}x of {len(found)}")
    slower = ", ".join(f"{name} {speed:.2f}x" for speed, name in sorted(behind))
    console.print(f"slower than {slow} of the best other: {slower or 'none'}" if len(backends) > 1 else "")


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


def all_started(
    function: Callable[..., Any], given: list[Any], leaves: list[Any], backends: list[str]
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """A step of each backend, and the seconds that its first call took."""
    steps = {b: stepping(function, given, leaves) for b in backends if b == "eager"}
    first = {}
    for backend in backends:
        if backend != "eager":
            start = time.perf_counter()
            steps[backend] = started(function, backend, given, leaves)
            first[backend] = time.perf_counter() - start
            steps[backend]()
    return {b: steps[b] for b in backends}, first


def timed(
    steps: dict[str, Callable[[], Any]], given: list[Any], seconds: float, compared: bool
) -> dict[str, list[float]]:
    """Seconds of each backend, in turns; a result unlike the first one's is an error."""
    if compared:
        expected = next(iter(steps.values()))
        for other in steps.values():
            torch.testing.assert_close(other(), expected(), equal_nan=True, rtol=2e-2, atol=2e-2)
    times: dict[str, list[float]] = {b: [] for b in steps}
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


def errors(
    function: Callable[..., Any], given: list[Any], leaves: list[Any], steps: dict[str, Callable[[], Any]]
) -> dict[str, float] | None:
    """The error of each backend, nothing if eager cannot run in double precision."""
    if isinstance(function, torch.nn.Module):
        return None
    wide = {id(x): x.detach().double() if x.is_floating_point() else x for x in given}
    wanted = [wide[id(x)].requires_grad_() for x in leaves]
    torch.set_default_dtype(torch.float64)
    try:
        exact = floats(stepping(function, [wide[id(x)] for x in given], wanted)())
    except Exception:  # a program that is about one dtype
        return None
    finally:
        torch.set_default_dtype(torch.float32)
    return {
        b: max([far(*pair) for pair in zip(floats(step()), exact, strict=True)], default=0.0)
        for b, step in steps.items()
    }


def floats(out: Any) -> list[torch.Tensor]:
    """The floating tensors of a result."""
    return [t.detach() for t in (out if isinstance(out, (list, tuple)) else [out]) if t.is_floating_point()]


def far(x: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, over the largest number."""
    kept = exact.isfinite()
    if x.shape != exact.shape or not kept.any():
        return 0.0
    return float(((x.double() - exact)[kept].abs().max() / exact[kept].abs().max().clamp(min=1e-30)).nan_to_num())


def stepping(function: Callable[..., Any], given: list[Any], leaves: list[Any]) -> Callable[[], Any]:
    """One call, or where there are leaves, the gradients of its result for them."""

    def forward() -> Any:
        with torch.no_grad():
            return function(*given)

    return (lambda: torch.autograd.grad(function(*given), leaves)) if leaves else forward


def started(function: Callable[..., Any], backend: str, given: list[Any], leaves: list[Any]) -> Callable[[], Any]:
    """The function compiled, and called."""
    torch._dynamo.reset()
    step = stepping(torch.compile(function, backend=backend), given, leaves)
    step()
    return step


if __name__ == "__main__":
    typer.run(main)
