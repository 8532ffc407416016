"""Convolutions of quantized images with and without rule `byte_convolution`, on a CPU.

    python benchmarks/byte_convolutions.py
    python benchmarks/byte_convolutions.py --names 64x64x3,3x64x7/2

One image, a weight of bytes with a scale for each filter, a bias, a ReLU; results become bytes again, as PT2E writes.
Printed for each: microseconds of one thread's time with the rule, also where it would decline, and without it, the
least of all turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table

SHAPES = {  # channels, filters, window, step, padding, pixels a side
    "3x64x7/2": (3, 64, 7, 2, 3, 224), "3x32x3/2": (3, 32, 3, 2, 1, 160), "3x128x3/2": (3, 128, 3, 2, 1, 112),
    "3x192x16/16": (3, 192, 16, 16, 0, 224), "3x64x3": (3, 64, 3, 1, 1, 56), "1x16x5": (1, 16, 5, 1, 2, 28),
    "2x32x3": (2, 32, 3, 1, 1, 64), "6x16x5": (6, 16, 5, 1, 0, 14), "8x8x3": (8, 8, 3, 1, 1, 64),
    "8x64x3": (8, 64, 3, 1, 1, 56), "8x32x5": (8, 32, 5, 1, 2, 28), "16x16x3": (16, 16, 3, 1, 1, 32),
    "16x32x3": (16, 32, 3, 1, 1, 56), "16x128x1": (16, 128, 1, 1, 0, 56), "24x24x3": (24, 24, 3, 1, 1, 28),
    "32x2x1": (32, 2, 1, 1, 0, 64), "32x32x1": (32, 32, 1, 1, 0, 56), "64x16x3": (64, 16, 3, 1, 1, 28),
    "64x64x1": (64, 64, 1, 1, 0, 56), "64x64x3": (64, 64, 3, 1, 1, 56), "64x256x1": (64, 256, 1, 1, 0, 56),
    "128x32x1": (128, 32, 1, 1, 0, 28), "128x128x3": (128, 128, 3, 1, 1, 28), "256x8x3": (256, 8, 3, 1, 1, 28),
    "256x64x1": (256, 64, 1, 1, 0, 56), "256x512x1/2": (256, 512, 1, 2, 0, 28), "512x512x3": (512, 512, 3, 1, 1, 7),
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {"with": {"profit": "always"}, "without": {"without": ["byte_convolution"]}}
TURNS = 15


def program(step: int, padding: int) -> Callable[..., torch.Tensor]:
    """A layer of a quantized network."""

    def layer(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = F.conv2d((x.float() - 3) * 0.05, w.float() * scale, bias, stride=step, padding=padding)
        return torch.clamp(torch.round(F.relu(y) * 20.0) + 3, 0, 255).to(torch.uint8)

    return layer


def microseconds(runs: dict[str, Any], inputs: list[torch.Tensor]) -> dict[str, float]:
    """The least time of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(TURNS + 2):
        for name, run in runs.items():
            start = time.thread_time()
            run(*inputs)
            if turn >= 2:
                times[name].append(time.thread_time() - start)
    return {name: min(took) * 1e6 for name, took in times.items()}


def main(
    names: Annotated[str, typer.Option(help="of shapes, separated by commas")] = ",".join(SHAPES),
) -> None:
    """Print a table."""
    torch.set_num_threads(1)
    table = Table("convolution", "products a pixel", "with us", "without us", "speed")
    for name in names.split(","):
        channels, filters, window, step, padding, side = SHAPES[name]
        x = torch.randint(0, 256, (1, channels, side, side)).to(torch.uint8)
        w = torch.randint(-127, 128, (filters, channels, window, window)).to(torch.int8)
        inputs = [x, w, torch.rand(filters, 1, 1, 1) * 0.01, torch.randn(filters)]
        runs = {}
        for kind, options in KINDS.items():
            torch._dynamo.reset()
            runs[kind] = torch.compile(program(step, padding), backend="regraft", options=options)
            with torch.no_grad():
                runs[kind](*inputs)
        with torch.no_grad():
            found = microseconds(runs, inputs)
        speed = found["without"] / found["with"]
        table.add_row(name, str(w[0].numel() * filters), *(f"{found[k]:.0f}" for k in runs), f"{speed:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
