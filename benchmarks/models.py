"""Whole models, side by side and in turns: eager, aot_eager, regraft, and any other torch.compile backend.

    python benchmarks/models.py hf:bert hf:gpt2 hf:vit --runs eager,aot_eager,regraft --threads 1

For each run: median ms, speed over the first run of the same model, seconds of the first (cold) call, and the relative
error of the first output against the first run. Ends with the geometric means. Measured decisions are not taken from
earlier runs: the cache is a new folder.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="regraft-benchmark-")

import torch
import typer
from rich.console import Console
from rich.table import Table

from regraft.compiler.tools.targets.load import load
from regraft.compiler.tools.targets.target import ModelWithInputs


@dataclass
class Run:
    """One backend on one model: how to step it, what it gave first, and its times in seconds."""

    name: str
    step: Callable[[], torch.Tensor]
    first: torch.Tensor
    cold: float
    times: list[float] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.times) * 1e3


def first_tensor(out: Any) -> torch.Tensor:
    """The first floating-point tensor of a model's output."""
    leaves = torch.utils._pytree.tree_leaves(out.to_tuple() if hasattr(out, "to_tuple") else out)
    return next(x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point())


def start(target: ModelWithInputs, backend: str) -> Run:
    """Compile (unless eager) and call once."""
    torch.compiler.reset()
    model = target.model if backend == "eager" else torch.compile(target.model, backend=backend)

    def step() -> torch.Tensor:
        with torch.set_grad_enabled(target.choices.train):
            out = first_tensor(model(*target.args, **target.kwargs))
            if target.choices.train:
                target.model.zero_grad(set_to_none=True)
                out.float().square().mean().backward()
        return out.detach()

    begin = time.perf_counter()
    first = step().clone()
    return Run(backend, step, first, time.perf_counter() - begin)


def main(
    targets: Annotated[list[str], typer.Argument()] = ("hf:bert", "hf:gpt2", "hf:vit"),  # type: ignore[assignment]
    runs: str = "eager,aot_eager,regraft",
    threads: int = 1,
    rounds: int = 9,
    layers: int | None = None,
    mask: bool = False,
    train: bool = False,
) -> None:
    """Time every run on every target."""
    torch.set_num_threads(threads)
    table = Table("model", "run", "ms", "speed", "cold s", "error")
    speeds: dict[str, list[float]] = {}
    for name in targets:
        started = [start(load(name, layers=layers, mask=mask, train=train), backend) for backend in runs.split(",")]
        for _ in range(rounds):
            for run in started:
                begin = time.perf_counter()
                run.step()
                run.times.append(time.perf_counter() - begin)
        base = started[0]
        for run in started:
            speed = base.milliseconds / run.milliseconds
            error = ((run.first - base.first).norm() / base.first.norm()).item()
            speeds.setdefault(run.name, []).append(speed)
            table.add_row(name, run.name, f"{run.milliseconds:.2f}", f"{speed:.2f}x", f"{run.cold:.1f}", f"{error:.1e}")
    for backend, ratios in speeds.items():
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        table.add_row("geometric mean", backend, "", f"{mean:.2f}x", "", "")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
