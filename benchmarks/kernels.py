"""Memory-bound kernels, side by side and in turns: eager, regraft, and any other torch.compile backend.

    python benchmarks/kernels.py --runs eager,inductor,regraft --threads 1

Each program runs at a size that fits the caches and at one that does not. For each: median microseconds, speed over the
first run, and for the last run the share of the machine's copy bandwidth at that size, counting what the program must
read and write at least. Ends with the geometric means. Caches of compiled code are new folders.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Annotated, Any

os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="regraft-benchmark-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-benchmark-")

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table

Program = tuple[Callable[..., Any], tuple[Any, ...], int]  # function, arguments, bytes it must move at least
SIZES = {"in cache": (128, 768), "out of cache": (8192, 4096)}


def layer_norm(rows: int, width: int) -> Program:
    x, w, b = torch.randn(rows, width), torch.randn(width), torch.randn(width)
    return lambda x, w, b: F.layer_norm(x, (width,), w, b), (x, w, b), 8 * rows * width


def rms_norm(rows: int, width: int) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    return program, (torch.randn(rows, width), torch.randn(width)), 8 * rows * width


def softmax(rows: int, width: int) -> Program:
    return lambda x: torch.softmax(x, -1), (torch.randn(rows, width),), 8 * rows * width


def bias_gelu(rows: int, width: int) -> Program:
    return lambda x, b: F.gelu(x + b), (torch.randn(rows, width), torch.randn(width)), 8 * rows * width


def rotary(rows: int, width: int) -> Program:
    heads, half = width // 64, 32

    def program(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * cos + turned * sin

    x = torch.randn(1, rows, heads, 64).transpose(1, 2)
    return program, (x, torch.randn(rows, 64), torch.randn(rows, 64)), 8 * rows * width


def cross_entropy(rows: int, width: int) -> Program:
    return F.cross_entropy, (torch.randn(rows, width), torch.randint(0, width, (rows,))), 4 * rows * width


def dropout_residual(rows: int, width: int) -> Program:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(y, 0.1)

    return program, (torch.randn(rows, width), torch.randn(rows, width)), 12 * rows * width


def adam_step(rows: int, width: int) -> Program:
    def program(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: torch.Tensor) -> None:
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        rate = 1e-3 * (1 - 0.999**step).sqrt() / (1 - 0.9**step)
        p.sub_(rate * m / (v.sqrt() + 1e-8))

    tensors = [torch.randn(rows, width) for _ in range(3)]
    return program, (*tensors, torch.rand(rows, width), torch.tensor(3.0)), 28 * rows * width


PROGRAMS = (layer_norm, rms_norm, softmax, bias_gelu, rotary, cross_entropy, dropout_residual, adam_step)


def seconds(step: Callable[[], Any], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - begin) / repeats


def copy_bandwidth(moved: int) -> float:
    """Bytes a second that copying reaches, for as many bytes read and written."""
    source = torch.randn(max(moved // 8, 1))
    target = torch.empty_like(source)
    times = [seconds(lambda: target.copy_(source), max(1, int(1e7 // moved))) for _ in range(9)]
    return moved / statistics.median(times)


def start(program: Program, backend: str) -> Callable[[], Any]:
    """Compile (unless eager) and call twice."""
    torch.compiler.reset()
    function, arguments, _ = program
    run = function if backend == "eager" else torch.compile(function, backend=backend)

    def step() -> Any:
        with torch.no_grad():
            return run(*arguments)

    step(), step()
    return step


def measure(program: Program, backends: list[str], rounds: int) -> list[float]:
    """Median seconds of each backend, all in turns."""
    steps = [start(program, backend) for backend in backends]
    repeats = max(1, int(0.02 / seconds(steps[0], 3)))
    times = [[seconds(step, repeats) for step in steps] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def main(
    programs: Annotated[list[str], typer.Argument()] = tuple(p.__name__ for p in PROGRAMS),  # type: ignore[assignment]
    runs: str = "eager,regraft",
    threads: int = 1,
    rounds: int = 9,
) -> None:
    """Time every run of every program at both sizes."""
    torch.set_num_threads(threads)
    backends = runs.split(",")
    table = Table("program", "size", *(f"{b} us" for b in backends), *(f"{b} speed" for b in backends[1:]), "of copy")
    speeds: dict[str, list[float]] = {}
    for make in (p for p in PROGRAMS if p.__name__ in programs):
        for size, (rows, width) in SIZES.items():
            program = make(rows, width)
            times = measure(program, backends, rounds)
            ratios = [times[0] / t for t in times[1:]]
            for backend, ratio in zip(backends[1:], ratios, strict=True):
                speeds.setdefault(backend, []).append(ratio)
            share = program[2] / times[-1] / copy_bandwidth(program[2])
            cells = [f"{t * 1e6:.1f}" for t in times] + [f"{r:.2f}x" for r in ratios] + [f"{share:.0%}"]
            table.add_row(make.__name__, size, *cells)
    for backend, ratios in speeds.items():
        table.add_row("geometric mean", backend, f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}x")
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
