"""Kernels from templates on a GPU beside the libraries: attention in training and decoding, convolutions, products.

    python benchmarks/gpu_templates.py                        all
    python benchmarks/gpu_templates.py decoding "conv 56"     those whose names begin so
    python benchmarks/gpu_templates.py training               convolutions of single channels, forward and backward
    python benchmarks/gpu_templates.py --peer inductor        TorchInductor beside them, too

Programs are spelled out, in bfloat16, and each is recorded as one CUDA graph, so that times are the GPU's; ours have
every legal template (`profit="always"`). Attention is timed forward and backward, next to each kernel of
`scaled_dot_product_attention`; errors are relative to float64, next to those of eager. Exit status: how many have more
than 1.5 times eager's error.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="regraft-benchmark-")

import torch
import torch.nn.functional as F
from gpu_kernels import leaves, milliseconds
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16, WORSE = torch.bfloat16, 1.5
LIBRARIES = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
Step = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A program and its inputs; `step` makes of a program what is timed, `libraries` are other ways to compute that."""

    program: Step
    inputs: list[torch.Tensor]
    step: Callable[[Step], Step] = lambda program: program
    libraries: Mapping[str, Step] = field(default_factory=dict)


def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(BF16)


def trained_with(above: torch.Tensor) -> Callable[[Step], Step]:
    """Forward and backward of a program, given the gradient of its result."""

    def trained(function: Step) -> Step:
        def step(*given: torch.Tensor) -> list[torch.Tensor]:
            with torch.enable_grad():
                wanted = [x.detach().requires_grad_() for x in given]
                out = function(*wanted)
                return [out.detach(), *torch.autograd.grad(out, wanted, above.to(out.dtype))]

        return step

    return trained


def attention(kind: str, batch: int, heads: int, rows: int, depth: int) -> Case:
    """Forward and backward, with the libraries that take such scores."""
    inputs = [randn(batch, heads, rows, depth) for _ in range(3)] + [randn(1, heads, rows, rows)] * (kind == "bias")
    above = randn(batch, heads, rows, depth)

    def scores(s: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        if kind == "causal":
            places = torch.arange(rows, device=s.device)
            return torch.where(places <= places[:, None], s, -math.inf)
        return torch.tanh(s / 30.0) * 30.0 if kind == "softcap" else s + bias[0] if bias else s

    def spelled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores(torch.matmul(q, k.transpose(-1, -2)) * depth**-0.5, *bias), -1).to(v.dtype) @ v

    def library(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        mask = bias[0].expand(batch, -1, -1, -1) if bias else None
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")

    trained = trained_with(above)

    def by(backend: SDPBackend) -> Step:
        def step(*given: torch.Tensor) -> list[torch.Tensor]:
            with sdpa_kernel(backend):
                return trained(library)(*given)

        return step

    known = {} if kind == "softcap" else {name: by(backend) for name, backend in LIBRARIES.items()}
    return Case(spelled, inputs, trained, known)


def decoding(batch: int, depth: int, cache: int, filled: int, layers: int) -> Case:
    """One query a head over caches of several layers, four heads to a key; a mask hides what is not filled."""
    caches = [randn(batch, 8, cache, depth) for _ in range(2 * layers)]
    inputs = [randn(batch, 32, 1, depth), torch.tensor(filled - 1, device="cuda"), *caches]

    def through(attend: Step) -> Step:
        def step(q: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
            seen = torch.arange(cache, device=q.device) <= position
            for k, v in zip(caches[::2], caches[1::2], strict=True):
                q = attend(q, k, v, seen)
            return q

        return step

    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None].expand(batch, 8, 4, cache, depth).reshape(batch, 32, cache, depth)

    def spelled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        mask = torch.where(seen, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
        scores = torch.matmul(q, repeated(k).transpose(2, 3)) * depth**-0.5 + mask
        return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), repeated(v))

    def library(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        mask = seen.expand(batch, 1, 1, -1)
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    return Case(through(spelled), inputs, libraries={"sdpa": through(library)})


def convolution(image: tuple[int, ...], weight: tuple[int, ...], residual: bool = False, **how: int) -> Case:
    """A bias, maybe a sum, and a rectifier after it."""
    x = randn(*image).to(memory_format=torch.channels_last)
    w = randn(*weight, scale=math.prod(weight[1:]) ** -0.5).to(memory_format=torch.channels_last)
    inputs = [x, w, randn(weight[0])]

    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, **how) + b.view(-1, 1, 1)
        return torch.relu(y + more[0] if more else y)

    with torch.no_grad():
        inputs += [torch.randn_like(block(*inputs))] if residual else []
    return Case(block, inputs)


def single_channels(channels: int, side: int, kernel: int, dtype: torch.dtype, stride: int) -> Case:
    """A convolution of single channels of 64 images, forward and backward."""
    x = randn(64, channels, side, side).to(dtype, memory_format=torch.channels_last)
    w = randn(channels, 1, kernel, kernel, scale=1 / kernel).to(dtype, memory_format=torch.channels_last)

    def spelled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=kernel // 2, stride=stride, groups=channels)

    return Case(spelled, [x, w], trained_with(torch.randn_like(spelled(x, w))))


# Channels, sides of images, of windows, the dtype, and how far windows are apart.
SINGLE_CHANNELS: list[tuple[int, int, int, torch.dtype, int]] = [
    (96, 56, 7, BF16, 1), (384, 14, 7, BF16, 1), (768, 7, 7, BF16, 1), (240, 28, 5, BF16, 1), (144, 56, 3, BF16, 1),
    (96, 112, 3, BF16, 2), (96, 56, 7, torch.float32, 1), (240, 28, 5, torch.float32, 1),
    (144, 56, 3, torch.float32, 1),
]  # fmt: skip


def named(channels: int, side: int, kernel: int, dtype: torch.dtype, stride: int) -> str:
    """The name of one of them."""
    more = f", {str(dtype).removeprefix('torch.')}" * (dtype != BF16) + f", by {stride}" * (stride > 1)
    return f"single channels, {kernel}x{kernel}, {side}x{side}x{channels}{more}"


def few_rows(rows: int, depth: int, columns: int, bits: int = 16) -> Case:
    """A linear layer and a residual; weights of 8 bits come with a scale for each column."""
    x, r = randn(rows, depth), randn(rows, columns)
    if bits == 16:
        return Case(lambda x, w, r: F.linear(x, w) + r, [x, randn(columns, depth, scale=depth**-0.5), r])
    w = torch.randint(-127, 128, (columns, depth), dtype=torch.int8, device="cuda")
    scale = randn(columns, 1, scale=depth**-0.5 / 64)
    return Case(lambda x, w, s, r: F.linear(x, w.to(x.dtype) * s) + r, [x, w, scale, r])


CASES: dict[str, Callable[[], Case]] = {
    **{
        f"attention {kind} {rows}x{depth}": lambda k=kind, s=(batch, heads, rows, depth): attention(k, *s)
        for kind in ("plain", "causal", "bias", "softcap")
        for batch, heads, rows, depth in ((16, 12, 512, 64), (8, 16, 1024, 64), (4, 16, 2048, 128))
    },
    **{
        f"decoding {layers} x {batch}x{filled} of {cache}, {depth}": lambda s=(batch, depth, cache, filled, layers): (
            decoding(*s)
        )
        for batch, depth, cache, filled, layers in (
            (1, 64, 2048, 1024, 16),
            (16, 64, 2048, 1024, 8),
            (1, 128, 8192, 8192, 8),
            (16, 128, 8192, 8192, 4),
        )
    },
    "conv 56x56x64": lambda: convolution((64, 64, 56, 56), (64, 64, 3, 3), padding=1),
    "conv 56x56x64, residual": lambda: convolution((64, 64, 56, 56), (64, 64, 3, 3), residual=True, padding=1),
    "conv 28x28x128": lambda: convolution((64, 128, 28, 28), (128, 128, 3, 3), padding=1),
    "conv 14x14x256": lambda: convolution((64, 256, 14, 14), (256, 256, 3, 3), padding=1),
    "conv 28x28x128, stride 2": lambda: convolution((64, 128, 56, 56), (128, 128, 3, 3), padding=1, stride=2),
    "conv 7x7, 3 channels": lambda: convolution((64, 3, 224, 224), (64, 3, 7, 7), padding=3, stride=2),
    "conv 7x7, single channels": lambda: convolution((64, 96, 56, 56), (96, 1, 7, 7), padding=3, groups=96),
    "conv 3x3, single channels": lambda: convolution((64, 144, 28, 28), (144, 1, 3, 3), padding=1, groups=144),
    **{f"training {named(*case)}": lambda case=case: single_channels(*case) for case in SINGLE_CHANNELS},
    **{
        f"product {rows}x{depth}x{columns}, {bits} bits": lambda s=(rows, depth, columns, bits): few_rows(*s)
        for rows in (1, 16, 64)
        for depth, columns in ((4096, 4096), (4096, 14336), (14336, 4096))
        for bits in (16, 8)
    },
}


def error(found: Any, exact: Any) -> float:
    """The largest of the results' relative errors."""
    pairs = zip(leaves(found), leaves(exact), strict=True)
    return max(float((a.double() - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)


def compiled(case: Case, backend: str) -> Step:
    """The program by a backend; of what is trained, the forward is compiled."""
    how: dict[str, Any] = {"options": {"profit": "always"}} if backend == "regraft" else {}
    return case.step(torch.compile(case.program, backend=backend, dynamic=False, **how))


def replayed(step: Step, inputs: list[torch.Tensor]) -> Callable[[], None]:
    """A step on these inputs, recorded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(*inputs)
    return graph.replay


def rows(case: Case, peers: list[str]) -> Iterator[tuple[str, float, float]]:
    """Name, milliseconds and error of each way to run a program."""
    eager = case.step(case.program)
    exact = eager(*(x.double() if x.is_floating_point() else x for x in case.inputs))
    ways: dict[str, Callable[[], Step]] = {"eager": lambda: eager}
    ways |= {name: lambda step=step: step for name, step in case.libraries.items()}
    ways |= {name: lambda name=name: compiled(case, name) for name in (*peers, "regraft")}
    for name, make in ways.items():
        try:
            step = make()
            found = [leaf.clone() for leaf in leaves(step(*case.inputs))]
            yield name, milliseconds(replayed(step, case.inputs)), error(found, exact)
        except RuntimeError as refusal:
            yield f"{name}: {str(refusal).splitlines()[0][:40]}", math.nan, math.nan


def main() -> int:
    """Time the cases that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="how names of cases begin")
    parser.add_argument("--peer", action="append", default=[], help="another backend to time")
    given = parser.parse_args()
    table, worse = Table("program", "by", "ms", "error"), 0
    for name, make in CASES.items():
        if given.names and not name.startswith(tuple(given.names)):
            continue
        torch.compiler.reset()
        torch.manual_seed(0)
        with nullcontext() if name.startswith("attention") else torch.no_grad():
            measured = list(rows(make(), given.peer))
        allowed = WORSE * next(e for by, _, e in measured if by == "eager") + 1e-6
        for by, ms, wrong in measured:
            worse += by == "regraft" and not wrong <= allowed
            table.add_row(name, by, f"{ms:.4f}", f"{wrong:.1e}")
        torch.cuda.empty_cache()
    Console().print(torch.cuda.get_device_name(), table)
    return worse


if __name__ == "__main__":
    sys.exit(main())
