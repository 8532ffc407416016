"""Peak memory of a training (or inference) step, one process a run: eager, regraft, and any torch.compile backend.

    python benchmarks/memory.py hf:bert hf:gpt2 --runs eager,inductor,regraft --batch 2 --seq 128

The peak is the process's own (VmHWM, reset after two steps, so that compiling does not count), less what it holds
between steps with its gradients dropped. Linux only.
"""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def status(field: str) -> float:
    """A field of the process's memory status in MiB: `VmRSS` now, `VmHWM` at its peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, field
    return int(found[1]) / 1024


def peak(name: str, backend: str, train: bool, batch: int, seq: int) -> float:
    """MiB that a step takes at its peak beyond what is held between steps."""
    import torch

    from regraft.compiler.tools.targets.load import load
    from regraft.compiler.tools.targets.target import Choices

    target = load(name, Choices(train=train, batch=batch, seq=seq))
    for module in target.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model = target.model if backend == "eager" else torch.compile(target.model, backend=backend)

    def step() -> None:
        target.model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(train):
            out = model(*target.args, **target.kwargs)
            first = next(x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
            if train:
                first.float().square().mean().backward()

    step(), step()
    target.model.zero_grad(set_to_none=True)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the heap keeps for later would hide what a step takes
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step(), step()
    return status("VmHWM") - before


def main(
    targets: Annotated[list[str], typer.Argument()] = ("hf:bert", "hf:gpt2"),  # type: ignore[assignment]
    runs: str = "eager,regraft",
    train: bool = True,
    batch: int = 2,
    seq: int = 128,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure every run of every target in a process of its own."""
    if worker:
        print(peak(targets[0], worker, train, batch, seq))
        return
    table = Table("model", "run", "peak MiB", "of the first")
    for name in targets:
        base = 0.0
        for run in runs.split(","):
            command = [sys.executable, __file__, name, "--worker", run, "--batch", str(batch), "--seq", str(seq)]
            command.append("--train" if train else "--no-train")
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            value = float(done.stdout.split()[-1])
            base = base or value
            table.add_row(name, run, f"{value:.0f}", f"{value / base:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
