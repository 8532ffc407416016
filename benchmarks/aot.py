"""What a call of an artifact costs beside the work: regraft's, AOTInductor's and eager's, taking turns.

python benchmarks/aot.py --calls 2000        a linear layer of a few numbers: all that is left is overhead
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import regraft

ROUNDS = 15


def microseconds(call: Callable[[], Any], calls: int) -> float:
    """Of one call, over so many."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def main(calls: Annotated[int, typer.Option(help="In each of the rounds.")] = 1000, width: int = 8) -> None:
    """Print medians of one call in microseconds."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()).eval()
    x = torch.randn(4, width)
    shapes = ({0: torch.export.Dim("rows", min=1, max=64)},)
    exported = torch.export.export(model, (x,), dynamic_shapes=shapes)
    with tempfile.TemporaryDirectory() as folder:
        ours = regraft.load(regraft.aot_compile(exported, None, Path(folder) / "model.rgx"))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(Path(folder) / "model.pt2"))
        theirs = torch._inductor.aoti_load_package(package)
        runs: dict[str, Callable[[], Any]] = {
            "eager": lambda: model(x),
            "regraft": lambda: ours(x),
            "AOTInductor": lambda: theirs(x),
            "AOTInductor, its loader alone": lambda: theirs.loader.run([x]),
        }
        for name, run in runs.items():
            torch.testing.assert_close(run()[0] if name.endswith("alone") else run(), model(x), msg=name)
        times = [[microseconds(run, calls) for run in runs.values()] for _ in range(ROUNDS)]
    for name, taken in zip(runs, zip(*times, strict=True), strict=True):
        typer.echo(f"{name:32} {statistics.median(taken):8.2f} us")


if __name__ == "__main__":
    typer.run(main)
