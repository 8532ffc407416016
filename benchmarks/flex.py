"""`flex_attention` by backends that take turns: time, error against float64, and what regraft found.

python benchmarks/flex.py --lengths 512,1024
python benchmarks/flex.py --device cuda --dtype bfloat16 --heads 16 --lengths 2048,8192 --train
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import regraft

Program = Callable[..., torch.Tensor]


def variants(length: int, heads: int, device: str) -> dict[str, tuple[Any, Any]]:
    """Score and mask functions by name."""
    slopes = 0.5 ** torch.arange(1, heads + 1, device=device)
    table = torch.randn(heads, 2 * length, device=device)
    document = torch.arange(length, device=device) // max(length // 6, 1)

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:  # noqa: ARG001 - as masks are called
        return i >= j

    return {
        "nothing": (None, None),
        "causal": (None, causal),
        "alibi": (lambda s, b, h, i, j: s + slopes[h] * (j - i), causal),
        "softcap": (lambda s, b, h, i, j: torch.tanh(s / 20) * 20, causal),
        "relative": (lambda s, b, h, i, j: s + table[h, i - j + length], None),
        "window": (None, lambda b, h, i, j: (i >= j) & (i - j < 128)),
        "documents": (None, lambda b, h, i, j: document[i] == document[j]),
        "causal documents": (None, lambda b, h, i, j: (document[i] == document[j]) & (i >= j)),
        "prefix": (None, lambda b, h, i, j: (i >= j) | (j < length // 4)),
    }


def timed(runs: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, float]:
    """Medians in milliseconds; the runs take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(some) * 1e3 for name, some in times.items()}


def step(program: Program, inputs: list[torch.Tensor], gradient: torch.Tensor | None) -> list[torch.Tensor]:
    if gradient is None:
        with torch.no_grad():
            return [program(*inputs)]
    out = program(*inputs)
    return [out, *torch.autograd.grad(out, inputs, gradient.to(out.dtype))]


def main(  # noqa: PLR0913 - a command line
    lengths: str = "512,1024",
    device: str = "cpu",
    dtype: str = "float32",
    batch: int = 1,
    heads: int = 8,
    width: int = 64,
    train: bool = False,
    only: str = "",
    backends: str = "inductor,regraft",
    seconds: Annotated[float, typer.Option(help="for each backend of a row")] = 1.0,
) -> None:
    """Time eager and backends on each variant and length."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    names = backends.split(",")
    table = Table("length", "variant", "eager ms", *(f"{name} ms" for name in names), "error of eager's", "found")
    for length in map(int, lengths.split(",")):
        for variant, (score, mask) in variants(length, heads, device).items():
            if only and variant not in only.split(","):
                continue
            table.add_row(str(length), variant, *row(score, mask, names, length, locals()))
    Console().print(table)


def row(score: Any, mask: Any, names: list[str], length: int, options: dict[str, Any]) -> list[str]:
    device, train = options["device"], options["train"]
    shape = options["batch"], options["heads"], length, options["width"]
    made = [torch.randn(shape, device=device, dtype=getattr(torch, options["dtype"])) for _ in range(4)]
    inputs, gradient = [x.requires_grad_(train) for x in made[:3]], made[3] if train else None
    blocks = mask and create_block_mask(mask, 1, 1, length, length, device=device)

    def program(q, k, v):
        return flex_attention(q, k, v, score, blocks)

    compiled: dict[str, Program] = {"eager": program}
    with regraft.coverage() as found:
        for name in names:
            torch._dynamo.reset()
            compiled[name] = torch.compile(program, backend=name)
            step(compiled[name], inputs, gradient)
    best = step(program, [x.detach().double().requires_grad_(train) for x in inputs], gradient)
    errors = {name: error(step(run, inputs, gradient), best) for name, run in compiled.items()}
    times = timed({k: (lambda f=f: step(f, inputs, gradient)) for k, f in compiled.items()}, device, options["seconds"])
    kernels = ", ".join(f"{match.rule}: {match.candidate}" for match in found.applied if "attention" in match.family)
    ratio = f"{errors.get('regraft', 0.0) / errors['eager']:.2f}"
    return [*(f"{times[name]:.2f}" for name in compiled), ratio, kernels or "nothing"]


def error(results: list[torch.Tensor], best: list[torch.Tensor]) -> float:
    return max(float((one.double() - other).abs().max()) for one, other in zip(results, best, strict=True))


if __name__ == "__main__":
    typer.run(main)
