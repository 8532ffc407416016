"""Programs drawn at random at the sizes of layers: table "drawn", in which nobody chose what stands beside what.

    python benchmarks/operators.py --table drawn --names 'seed .*[0-4]'
    python benchmarks/gpu_programs.py --tables drawn --jobs 14 --budget 500 --json rows.jsonl
    python benchmarks/drawn_programs.py 17        # prints the program of seed 17

A program is a few statements over one to three inputs of random ranks and sizes. A statement is drawn as text, tried
on tensors without data, and kept where it runs and gives neither too little nor too much. What no statement reads is
returned.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

SIZES = (2, 3, 4, 5, 7, 8, 8, 12, 16, 16, 20, 27, 32, 32, 48, 49, 50, 64, 64, 77, 96, 100, 128, 128, 128, 196, 197, 200)
LARGE = (256, 256, 300, 384, 500, 512, 512, 640, 768, 1000, 1024, 1500, 2048, 3072, 4096, 5000, 8192, 32000)
FEWEST, MOST = 1 << 14, 1 << 21  # elements of an input; a value may have four times as many
COUNT = 2000
TRIES = 40

POINTWISE = """
{x} * torch.sigmoid({x})
F.gelu({x})
F.silu({x}) * {y}
F.relu({x}) + {y}
torch.tanh({x} * 0.5 + 1)
({x} - {x}.abs()).exp()
{x}.abs().add(1e-3).log()
{x}.square().add(1).rsqrt()
torch.sin({x}) + torch.cos({y})
{x} + {y}
{x} * {y} - {x}
{x} / (1 + {y}.abs())
torch.where({x} > {y}, {x}, {y} * 0.1)
torch.maximum({x}, {y})
{x}.clamp(-1, 1)
F.leaky_relu({x}, 0.1)
F.softplus({x})
F.mish({x})
F.hardswish({x})
torch.erf({x})
torch.lerp({x}, {y}, 0.3)
torch.addcmul({x}, {x}, {y}, value=0.5)
{x}.masked_fill({y} > 1, 0.0)
({x} > 0.5).to({x}.dtype) * {y}
{x}.to(torch.float16).to({x}.dtype)
({x} * 17).floor() % 8
{x} ** 3
torch.atan2({x}, {y})
"""
FOLDS = """
{x}.sum({d})
{x}.mean({d}, keepdim=True)
{x} - {x}.mean({d}, keepdim=True)
({x} - {x}.mean({d}, keepdim=True)) / ({x}.var({d}, keepdim=True) + 1e-5).sqrt()
{x}.amax({d})
{x}.amin({d}, keepdim=True)
{x}.argmax({d})
{x}.std({d})
{x}.logsumexp({d})
{x}.norm(dim={d})
F.normalize({x}, dim={d})
{x}.softmax({d})
{x}.log_softmax({d})
({x} * {y}).softmax({d}) * {x}
{x}.cumsum({d})
{x}.cummax({d})[0]
{x}.sum(({d}, {e}))
{x}.mean(({d}, {e}), keepdim=True) * {x}
{x}.var(({d}, {e}))
{x}.max({d})[0]
({x} > 0).sum({d})
({x} > 1).any({d})
F.layer_norm({x}, {x}.shape[-1:])
F.layer_norm({x} + {y}, {x}.shape[-2:])
F.rms_norm({x}, {x}.shape[-1:])
F.instance_norm({x})
F.group_norm({x}, 4)
{x}.sum()
({x} * {y}).sum({d})
({x} - {y}).square().mean()
{x}.topk(3, {d})[0]
{x}.sort({d})[0]
{x}.prod({d})
{x}.diff(dim={d})
F.glu({x}, {d})
"""
VIEWS = """
{x}.transpose({d}, {e})
{x}.transpose({d}, {e}).contiguous()
{x}.flip({d})
{x}.roll(3, {d})
{x}.flatten({d}, {e})
{x}.flatten(0, -2)
{x}.flatten(1)
{x}.movedim({d}, {e})
{x}.unflatten({d}, (-1, 4))
{x}.unflatten({d}, (2, -1)).transpose(-1, -2)
{x}.unsqueeze({d})
{x}[..., ::2]
{x}[..., 1:]
{x}[:, ::3]
{x}.narrow({d}, 1, {x}.shape[{d}] // 2)
{x}.chunk(2, {d})[1]
torch.cat([{x}, {y}], {d})
torch.cat([{x}[..., 1:], {x}[..., :1]], -1)
torch.stack([{x}, {x} * 2], {d})
{x}.unfold({d}, 4, 2)
F.pad({x}, (1, 2))
F.pad({x}, (1, 1, 2, 2), value=0.5)
F.pad({x}, (2, 2), mode="reflect")
F.pad({x}, (3, 1), mode="circular")
{x}.repeat_interleave(2, {d})
torch.cat([{x}, {x}.flip({d})], {e})
{x}.diagonal(0, {d}, {e})
{x}.tril()
F.pixel_shuffle({x}.unflatten(-3, (-1, 4)).flatten(-4, -3), 2)
F.pixel_unshuffle({x}, 2)
F.channel_shuffle({x}, 4)
{x}.unsqueeze(-1) * {x}.unsqueeze(-2)
{x}.unsqueeze(1) - {x}.unsqueeze(0)
torch.complex({x}.float(), {y}.float()).abs()
torch.view_as_real(torch.complex({x}.float(), {y}.float())).sum(-1)
"""
PLACES = """
{x}[{i} % {x}.shape[0]]
{x}.index_select({d}, {i} % {x}.shape[{d}])
{x}[:, {i} % {x}.shape[1]]
torch.gather({x}, {d}, {x}.argsort({d}))
torch.take_along_dim({x}, {x}.argmax({d}, keepdim=True), {d})
torch.zeros_like({x}).index_add({d}, {i}[: {x}.shape[{d}]] % {x}.shape[{d}], {x})
torch.zeros_like({x}).scatter_add({d}, ({x} * 99).long() % {x}.shape[{d}], {y})
F.one_hot({i} % 10, 10).to({x}.dtype) * {x}.mean()
torch.bucketize({x}, {y}.flatten()[:9].sort()[0])
{x}.index_copy(0, {i}[:2] % {x}.shape[0], {x}[:2] * 2)
{x}.new_zeros({x}.shape).index_put(({i} % {x}.shape[0],), {x}[0], accumulate=True)
torch.searchsorted({y}.flatten()[:50].sort()[0], {x})
"""
WINDOWS = """
F.max_pool2d({x}, 2)
F.max_pool2d({x}, 3, 2, 1)
F.avg_pool2d({x}, 3, 1, 1)
F.avg_pool1d({x}, 4)
F.max_pool1d({x}, 3, 1, 1)
F.adaptive_avg_pool2d({x}, (3, 5))
F.adaptive_max_pool2d({x}, 4)
F.interpolate({x}, scale_factor=2)
F.interpolate({x}, scale_factor=2, mode="bilinear")
F.interpolate({x}, size=(17, 30), mode="bilinear", align_corners=True)
F.unfold({x}, 3, padding=1)
F.lp_pool2d({x}, 2, 2)
"""
PRODUCTS = """
{x} @ {x}.transpose(-1, -2)
{x} @ {y}
F.linear({x}, {x}.flatten(0, -2)[:64])
torch.einsum("...i,...i->...", {x}, {y})
torch.cdist({x}[..., :16].float(), {x}[..., :16].float())
F.cosine_similarity({x}, {y}, dim={d})
"""
GROUPS = [(POINTWISE, 34), (FOLDS, 26), (VIEWS, 26), (PLACES, 6), (WINDOWS, 5), (PRODUCTS, 2)]
GROUPS_OF_LINES = [[line for line in text.splitlines() if line] for text, _ in GROUPS]
Values = dict[str, torch.Tensor]


def input_sizes(source: random.Random) -> list[int]:
    """Sizes of an input, of one to five dims."""
    while True:
        rank = source.choice((1, 2, 2, 3, 3, 3, 4, 4, 4, 5))
        sizes = [source.choice(SIZES if rank > 2 or source.random() < 0.3 else LARGE) for _ in range(rank)]
        if rank > 2 and source.random() < 0.4:
            sizes[-1] = source.choice(LARGE)
        if FEWEST <= math.prod(sizes) <= MOST:
            return sizes


def companion(source: random.Random, sizes: list[int]) -> list[int]:
    """Sizes that broadcast with others: the same, or some dims left out or of size 1."""
    kind = source.random()
    if kind < 0.5:
        return sizes
    if kind < 0.7:
        return sizes[-1:]
    return [size if source.random() < 0.5 else 1 for size in sizes]


def filled(source: random.Random, line: str, values: Values) -> str | None:
    """A statement with values in its places; None where there are none to put."""
    floats = [name for name, value in values.items() if value.is_floating_point()]
    large = [name for name in floats if values[name].numel() >= FEWEST]
    chosen = large if large and source.random() < 0.9 else floats
    x = source.choice(chosen[-3:] if source.random() < 0.7 else chosen)
    alike = [name for name in floats if broadcasts(values[name], values[x])]
    places = {
        "x": x, "y": source.choice(alike), "i": "i", "d": str(source.randrange(max(values[x].dim(), 1))),
        "e": str(source.randrange(max(values[x].dim(), 1))),
    }  # fmt: skip
    return re.sub(r"\{([a-z])\}", lambda hole: places[hole[1]], line)


def broadcasts(y: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether `y` broadcasts to the sizes of `x`."""
    return y.dim() <= x.dim() and all(
        a in (1, b) for a, b in zip(reversed(y.shape), reversed(x.shape), strict=False)
    )  # fmt: skip


def tried(expression: str, values: Values) -> torch.Tensor | None:
    """The result, without data; None where it is refused, or has too few or too many elements."""
    try:
        result = eval(expression, {"torch": torch, "F": F}, dict(values))
    except (RuntimeError, ValueError, IndexError, NotImplementedError, TypeError):
        return None
    return result if 0 < result.numel() <= 4 * MOST and result.dim() < 7 else None


def drawn(seed: int) -> tuple[str, list[list[int]]]:
    """The source of a program, and the sizes of its inputs; the last input is of 300 integers."""
    source = random.Random(seed)
    sizes = [input_sizes(source)]
    sizes += [companion(source, sizes[0]) for _ in range(source.choice((0, 1, 1, 2)))]
    values: Values = {f"x{k}": torch.empty(given, device="meta") for k, given in enumerate(sizes)}
    values["i"] = torch.empty(300, dtype=torch.int64, device="meta")
    names = list(values)
    lines: list[str] = []
    wanted = source.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 10))
    for _ in range(TRIES):
        if len(lines) == wanted:
            break
        group = source.choices(GROUPS_OF_LINES, [weight for _, weight in GROUPS])[0]
        expression = filled(source, source.choice(group), values)
        result = tried(expression, values) if expression else None
        if result is not None:
            values[f"v{len(lines)}"] = result
            lines.append(f"v{len(lines)} = {expression}")
    unread = [f"v{k}" for k in range(len(lines)) if not any(f"v{k}" in re.findall(r"\w+", s) for s in lines[k + 1 :])]
    body = "\n".join(f"    {line}" for line in [*lines, f"return {', '.join(unread) or 'x0'}"])
    return f"def drawn({', '.join(names)}):\n{body}\n", sizes


class Drawn:
    """The program of a seed, drawn when it is first asked for, as a pair of a function and what makes its inputs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.pair: list[Any] = []

    def __iter__(self) -> Any:
        if not self.pair:
            text, sizes = drawn(self.seed)
            space: dict[str, Any] = {"torch": torch, "F": F}
            exec(compile(text, f"<seed {self.seed}>", "exec"), space)
            self.pair = [space["drawn"], made(sizes)]
        return iter(self.pair)


def made(sizes: list[list[int]]) -> Callable[[], list[torch.Tensor]]:
    """Inputs of these sizes, and 300 integers."""
    return lambda: [*(torch.randn(given) for given in sizes), torch.randint(0, 1 << 20, (300,))]


PROGRAMS: dict[str, dict[str, Any]] = {"drawn": {f"seed {seed}": Drawn(seed) for seed in range(COUNT)}}

if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        text, sizes_of_inputs = drawn(number)
        print(f"# {', '.join(map(str, sizes_of_inputs))}\n{text}")
