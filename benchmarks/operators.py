"""Programs of one or two operators, side by side and in turns: eager, regraft, and any other torch.compile backend.

    python benchmarks/operators.py --runs eager,inductor,regraft --only 'images|reductions'
    python benchmarks/operators.py --names 'unfold|fmod' --device cuda

For each: median microseconds of each run (the call of `torch.compile` included), the last run over each of the
others. Ends with medians, and lists what is slower than `--slow` times the run before the last. Results are compared.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Annotated, Any

os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="regraft-benchmark-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-benchmark-")

import torch
import typer
from operator_programs import PROGRAMS
from rich.console import Console
from rich.table import Table

RANDOM = {"rand", "randn", "dropout", "bernoulli"}


def main(
    runs: Annotated[str, typer.Option(help="Backends, the one to judge last.")] = "eager,inductor,regraft",
    only: Annotated[str, typer.Option(help="A regular expression of kinds.")] = ".*",
    names: Annotated[str, typer.Option(help="A regular expression of programs.")] = ".*",
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long each program is timed.")] = 1.0,
    slow: Annotated[float, typer.Option(help="What counts as slower, as a share of the other's speed.")] = 0.97,
) -> None:
    """Time all programs that are asked for."""
    torch.set_num_threads(threads)
    backends = runs.split(",")
    table = Table("kind", "program", *[f"{b} us" for b in backends], *[f"over {b}" for b in backends[:-1]])
    ratios: dict[str, list[float]] = {b: [] for b in backends[:-1]}
    behind = []
    for kind, programs in PROGRAMS.items():
        for name, (function, inputs) in programs.items():
            if not re.fullmatch(only, kind) or not re.fullmatch(names, name):
                continue
            torch.manual_seed(0)
            given = [x.to(device) for x in inputs()]
            times = timed(function, given, backends, device, seconds, compared=name not in RANDOM)
            speeds = [times[b] / times[backends[-1]] for b in backends[:-1]]
            for backend, speed in zip(backends, speeds, strict=False):
                ratios[backend].append(speed)
            if speeds and speeds[-1] < slow:
                behind.append(f"{name} {speeds[-1]:.2f}x")
            table.add_row(kind, name, *[f"{times[b]:.1f}" for b in backends], *[f"{s:.2f}x" for s in speeds])
    console = Console(width=140)
    console.print(table)
    for backend, found in ratios.items():
        if found:
            console.print(f"{backends[-1]} over {backend}: median {statistics.median(found):.2f}x of {len(found)}")
    console.print(f"slower than {slow} of {backends[-2]}: {', '.join(behind) or 'none'}" if len(backends) > 1 else "")


def timed(
    function: Callable[..., Any], given: list[Any], backends: list[str], device: str, seconds: float, compared: bool
) -> dict[str, float]:
    """Median microseconds of each backend, in turns; a result that is not eager's is an error."""
    steps = {b: function if b == "eager" else started(function, b, given) for b in backends}
    if compared:
        for step in steps.values():
            torch.testing.assert_close(step(*given), function(*given), equal_nan=True, rtol=1e-3, atol=1e-3)
    times: dict[str, list[float]] = {b: [] for b in backends}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for backend, step in steps.items():
            start = time.perf_counter()
            with torch.no_grad():
                step(*given)
            if device == "cuda":
                torch.cuda.synchronize()
            times[backend].append(time.perf_counter() - start)
    return {b: 1e6 * statistics.median(t) for b, t in times.items()}


def started(function: Callable[..., Any], backend: str, given: list[Any]) -> Callable[..., Any]:
    """The function compiled, and called twice."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)
    with torch.no_grad():
        compiled(*given)
        compiled(*given)
    return compiled


if __name__ == "__main__":
    typer.run(main)
