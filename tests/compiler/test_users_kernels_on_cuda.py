"""Programs with Triton kernels of their own on a GPU: what they read and write is eager's, in every mode."""

from __future__ import annotations

import pytest
import torch

import regraft

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

BLOCK = 64


@triton.jit
def sum_kernel(x, y, out, count, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i, i < count) + tl.load(y + i, i < count), i < count)


@triton.jit
def scale_kernel(x, count, factor, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(x + i, tl.load(x + i, i < count) * factor, i < count)


@triton.jit
def waves_kernel(x, sines, cosines, count, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + i, i < count)
    tl.store(sines + i, tl.sin(value), i < count)
    tl.store(cosines + i, tl.cos(value), i < count)


@triton.jit
def softmax_kernel(x, out, stride, out_stride, columns, SIZE: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, SIZE)
    value = tl.load(x + row * stride + i, i < columns, other=-float("inf"))
    powers = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * out_stride + i, powers / tl.sum(powers, 0), i < columns)


@triton.autotune(configs=[triton.Config({"SIZE": 64}), triton.Config({"SIZE": 128})], key=["count"])
@triton.jit
def tuned_kernel(x, out, count, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i, i < count) * 2 + 1, i < count)


def grid(count):
    return (triton.cdiv(count, BLOCK),)


def added(x, y):
    out = torch.empty_like(x)
    sum_kernel[grid(x.numel())](x, y, out, x.numel(), SIZE=BLOCK)
    return out


def scaled_in_place(x, factor):
    scale_kernel[grid(x.numel())](x, x.numel(), factor, SIZE=BLOCK)


def between(x, y):
    return (added(x * 2, y.relu()) + 1).sum(-1), added(added(x, y), y)


def by_function(x, y):
    out = torch.zeros_like(x)
    sum_kernel[lambda meta: (triton.cdiv(x.numel(), meta["SIZE"]),)](x, y, out, x.numel(), SIZE=BLOCK)
    return out * 2


def writes_input(x, y):
    scaled_in_place(x, 3.0)
    return x + y


def writes_view(x, y):
    z = x + y
    scaled_in_place(z[2:4], 3.0)
    return z * 2


def writes_view_of_input(x, y):
    scaled_in_place(x[1], 3.0)
    return y + x


def writes_twice(x, y):
    z = x.clone()
    scaled_in_place(z, 3.0)
    kept = z + y
    scaled_in_place(z, 0.5)
    return kept, z


def one_of_two(x, y):
    sines, cosines = torch.empty_like(x), torch.empty_like(x)
    waves_kernel[grid(x.numel())](x, sines, cosines, x.numel(), SIZE=BLOCK)
    return sines + y


def tuned(x, y):
    out = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["SIZE"]),)](x, out, x.numel())
    return out + y


def strided(x, y):
    scores = torch.cat([x, y], 1)[:, : x.shape[1]]
    out = torch.empty(x.shape, device=x.device)
    softmax_kernel[(x.shape[0],)](scores, out, scores.stride(0), out.stride(0), x.shape[1], SIZE=BLOCK)
    return out @ y.t()


PROGRAMS = [
    between,
    by_function,
    writes_input,
    writes_view,
    writes_view_of_input,
    writes_twice,
    one_of_two,
    tuned,
    strided,
]


class Waves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        sines, cosines = torch.empty_like(x), torch.empty_like(x)
        waves_kernel[grid(x.numel())](x, sines, cosines, x.numel(), SIZE=BLOCK)
        ctx.save_for_backward(cosines)
        return sines + y

    @staticmethod
    def backward(ctx, gradient):
        (cosines,) = ctx.saved_tensors
        return added(gradient * cosines, torch.zeros_like(gradient)), gradient


def trained(x, y):
    return Waves.apply(x * 2, y.tanh()).square().mean()


def ran(f, given, train=False):
    """Results, and what the inputs hold afterwards, or their gradients."""
    inputs = [x.clone().requires_grad_(train) for x in given]
    results = f(*inputs)
    results = list(results) if isinstance(results, tuple) else [results]
    if train:
        results[0].backward()
    return [x.detach().clone() for x in [*results, *((x.grad for x in inputs) if train else inputs)]]


@pytest.mark.parametrize(
    "given", [{"options": {"strict": True}}, {"mode": "reduce-overhead"}, {"dynamic": True}], ids=str
)
@pytest.mark.parametrize("f", [*PROGRAMS, trained], ids=lambda f: f.__name__)
def test_kernels_of_users_read_and_write_what_eager_does(f, given, tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    compiled = torch.compile(f, backend=regraft.backend, fullgraph=True, **given)
    for rows, columns in ((8, 48), (8, 48), (16, 32), (8, 48)):
        inputs = [torch.randn(rows, columns, device="cuda") for _ in range(2)]
        wanted, have = ran(f, inputs, f is trained), ran(compiled, inputs, f is trained)
        torch.testing.assert_close(have, wanted, rtol=1e-4, atol=1e-5)
        assert [x.stride() for x in have] == [x.stride() for x in wanted]
