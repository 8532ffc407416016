"""Functions of the library that are written for speed, interpreted, against float64: no worse than eager's formulas."""

import math
import re
from itertools import pairwise

import pytest

pytest.importorskip("triton")

import numpy as np
import torch
from support.triton_kernels import compile_for, interpreter, kernel_source, run_interpreted

from regraft.compiler.codegen.triton.source import module_text
from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.value import Const, Load, Op

from ..cpp.test_operations import flat_buffer, loop_kernel

SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, -3e38, 1e-40, -1e-40, 1e-30, 5.5, -5.5, 40.0]


def computed(x, value):
    """A kernel that computes `value` of each element, interpreted."""
    size = len(x)
    load = lambda i: Load("x", (i,), torch.float32)  # noqa: E731
    buffers = [flat_buffer("x", size, torch.float32)]
    kernel = loop_kernel("made", size, buffers, flat_buffer("out", size, torch.float32), lambda i: value(load(i)))
    return run_interpreted(kernel, {"x": x})["out"]


def all_bfloat16():
    """Every number that bfloat16 has, NaN and infinities too."""
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16).float()


def test_operands_of_tensor_cores_are_rounded_to_the_nearest():
    source = module_text(["@triton.jit\ndef made(x_ptr, out_ptr):\n    i = tl.arange(0, 16)\n"
                          "    tl.store(out_ptr + i, tensor_float(tl.load(x_ptr + i)))\n"])  # fmt: skip
    unit = 2.0**-10
    given = [1 + 0.4 * unit, 1 + 0.5 * unit, 1 + 0.6 * unit, -1 - 0.6 * unit, 0.0, -0.0, math.inf, -math.inf]
    wanted = [1.0, 1 + unit, 1 + unit, -1 - unit, 0.0, -0.0, math.inf, -math.inf]
    x = torch.tensor([*given, math.nan, *[1.0] * 7])
    x[9] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # what GPUs make for NaN
    ((_, out),) = interpreter().run(source, [("made", 1, [x, torch.zeros(16)])])
    assert torch.equal(out[:8].view(torch.int32), torch.tensor(wanted).view(torch.int32))
    assert out[8:10].isnan().all()


def dense():
    return torch.cat([torch.linspace(-14, 14, 200001), torch.logspace(-38, 1, 2001), -torch.logspace(-38, 1, 2001)])


def gelu(x):
    return Op("mul", (x, Op("normal_cdf", (x,), torch.float32)), torch.float32)


def slope(x):
    density = Op("mul", (x, Op("normal_pdf", (x,), torch.float32)), torch.float32)
    return Op("add", (Op("normal_cdf", (x,), torch.float32), density), torch.float32)


def eager_slope(x):
    return torch.ops.aten.gelu_backward(torch.ones_like(x), x)


def cdf(x):
    """Not `torch.special.ndtr`: in the left tail nothing is left of that."""
    return torch.erfc(x * -math.sqrt(0.5)) * 0.5


def pdf(x):
    return torch.exp(x * x * -0.5) * math.sqrt(0.5 / math.pi)


EXACT = {"gelu": lambda x: x * cdf(x), "slope": lambda x: cdf(x) + x * pdf(x)}
EAGER = {"gelu": lambda x: x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5))), "slope": eager_slope}
OURS = {"gelu": gelu, "slope": slope}


def ranges(x):
    """Parts of the line, each of which has errors of one size."""
    edges = [-math.inf, -9, -7, -6, -5.5, -5, -4, -3, -2, -1, -0.1, 0, 0.1, 1, 2, 3, 6, math.inf]
    return [(low, (x >= low) & (x < high)) for low, high in pairwise(edges)]


def test_the_normal_distribution_function():
    x = torch.cat([dense(), all_bfloat16()])
    x = x[~x.isnan()]
    exact = cdf(x.double())
    ours = computed(x, lambda v: Op("normal_cdf", (v,), torch.float32)).double()
    assert (ours - exact).abs().max() < 1.2e-7
    tail = (x < 0) & (x > -5.5)
    assert ((ours - exact).abs() / exact)[tail].max() < 4e-3
    beyond = x <= -5.5
    assert (ours[beyond] >= 0).all() and (ours[beyond] <= 2 * exact[beyond] + 1e-38).all()
    assert (ours[x >= 6] == 1).all()


@pytest.mark.parametrize("name", OURS)
def test_gelu_is_no_worse_than_eagers(name):
    x = torch.cat([dense(), all_bfloat16()])
    x = x[x.isfinite()]
    ours, theirs, exact = computed(x, OURS[name]).double(), EAGER[name](x).double(), EXACT[name](x.double())
    unit = torch.finfo(torch.float32).eps
    for low, part in ranges(x):
        error, bound = ((y - exact).abs()[part] for y in (ours, theirs))
        scale = exact[part].abs().clamp_min(1e-38)
        # Two units in the last place of the result more than eager's: interpreters round where a GPU fuses.
        assert (error / scale).max() <= (bound / scale).max() + 2 * unit, low
        assert error.max() <= bound.max() * 1.3 + unit * scale.max() / 2, low


@pytest.mark.parametrize("name", OURS)
def test_gelu_of_every_bfloat16_rounded_to_it(name):
    x = all_bfloat16()
    ours, theirs = computed(x, OURS[name]).bfloat16(), EAGER[name](x).bfloat16()
    exact = EXACT[name](x.double())
    assert torch.equal(ours.isnan(), theirs.isnan())
    keep = exact.isfinite()
    error, bound = ((y.double() - exact).abs()[keep] for y in (ours, theirs))
    assert error.max() <= bound.max()
    unit = exact.bfloat16().double().abs()[keep].clamp_min(2**-125) * 2**-8  # of rounding
    near = (x > -5.5)[keep]
    assert (error / unit)[near].max() <= 1.25
    assert error.mean() <= bound.mean()


@pytest.mark.parametrize("name", OURS)
def test_gelu_of_what_is_special(name):
    x = torch.tensor(SPECIAL)
    ours, theirs = computed(x, OURS[name]), EAGER[name](x)
    torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-6, atol=2e-7)
    keep = ~theirs.isnan() & (theirs == 0)
    assert torch.equal(ours.signbit()[keep], theirs.signbit()[keep])


def test_the_hyperbolic_tangent():
    x = torch.cat([dense(), all_bfloat16()])
    x = x[~x.isnan()]
    ours, exact = computed(x, lambda v: Op("tanh", (v,), torch.float32)).double(), x.double().tanh()
    unit = torch.finfo(torch.float32).eps
    assert ((ours - exact).abs() <= exact.abs() * 2 * unit + 2**-149).all()
    special = torch.tensor(SPECIAL)
    made = computed(special, lambda v: Op("tanh", (v,), torch.float32))
    torch.testing.assert_close(made, special.tanh(), equal_nan=True, rtol=2e-7, atol=1e-44)
    keep = ~special.isnan()
    assert torch.equal(made.signbit()[keep], special.signbit()[keep])


def test_references_are_eagers():
    x = torch.tensor(SPECIAL)
    torch.testing.assert_close(x * OPS["normal_cdf"].reference(x), EAGER["gelu"](x), equal_nan=True, rtol=0, atol=1e-38)
    assert torch.equal(OPS["normal_pdf"].reference(x).isnan(), x.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_sign_of_a_zero_that_is_chosen_is_kept(dtype):
    """NVIDIA's assembler takes a choice of the numbers 1.0 and -0.0 for one of 1.0 and 0.0: it must not see them."""
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    buffers = [flat_buffer("x", 6, dtype)]
    number = lambda n: Const(n, wide)  # noqa: E731

    def chosen(i):
        x = Load("x", (i,), dtype)
        x = x if dtype == wide else Op("cast", (x,), wide)
        made = Op("where", (Op("gt", (x, number(0.0)), torch.bool), number(1.0), number(-0.0)), wide)
        return made if dtype == wide else Op("cast", (made,), dtype)

    kernel = loop_kernel("made", 6, buffers, flat_buffer("out", 6, dtype), chosen)
    x = torch.tensor([1.0, 0.0, -1.0, -0.0, math.nan, math.inf], dtype=dtype)
    out = run_interpreted(kernel, {"x": x})["out"]
    assert torch.equal(out.signbit(), x.signbit() | ~(x > 0)) and torch.equal(out, (x > 0).to(dtype))
    (code,) = compile_for(kernel_source(kernel), 90)
    assert "mov.b32 %r" in code and "0x80000000;" in code
    assert not re.search(r"selp\.f\d+ .*0f80000000|selp\.f64 .*0d8000000000000000", code)


@pytest.mark.parametrize("read", ["n", "8"])
def test_what_is_touched_beside_the_arguments_stops_the_interpreter(read):
    source = module_text(["@triton.jit\ndef copy(x_ptr, y_ptr, n):\n    i = tl.arange(0, 16)\n"
                          f"    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < {read}), mask=i < n)\n"])  # fmt: skip
    ((_, copied, _),) = interpreter().run(source, [("copy", 1, [torch.arange(8.0), torch.zeros(8), 8])])
    assert torch.equal(copied, torch.arange(8.0))
    with pytest.raises(AssertionError, match="IndexError"):
        interpreter().run(source, [("copy", 1, [torch.arange(8.0), torch.zeros(8), 9])])


DIVISORS = [0.3, -0.3, 3.0, 1.0, -1.0, 7e-20, 2.0**-126, -1e-40, 3e38, -3e38, math.inf, -math.inf, 0.0, -0.0, math.nan]


def rest(x, y):
    """What a GPU's eager gives, exact: a CPU's is NaN where a quotient overflows."""
    return torch.from_numpy(np.fmod(x.numpy(), y.numpy()))


def remainder(x, y):
    left = rest(x, y)
    return torch.where((left != 0) & ((left < 0) != (y < 0)), left + y, left)


QUOTIENTS = {"floordiv": torch.floor_divide, "fmod": rest, "remainder": remainder}


@pytest.mark.parametrize("name", QUOTIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_quotients_and_what_they_leave_are_eagers(name, dtype):
    """To the last bit: few quotients go through the library's loops, in which whole warps would wait."""
    torch.manual_seed(0)
    near = torch.arange(-40, 41)[:, None] * torch.tensor([0.3, 3.0, 0.1])  # whole quotients, rounded up or down
    x = torch.cat([torch.tensor(SPECIAL), near.flatten(), torch.randn(500) * 10, torch.randn(500) * 1e7]).to(dtype)
    x = torch.cat([x, x.nextafter(torch.tensor(math.inf, dtype=dtype)), x.nextafter(torch.tensor(-1e9, dtype=dtype))])
    y = torch.tensor([*DIVISORS, *torch.randn(9)], dtype=dtype)
    x, y = (part.flatten() for part in torch.broadcast_tensors(x[:, None], y))
    size = len(x)
    buffers = [flat_buffer("x", size, dtype), flat_buffer("y", size, dtype)]
    value = lambda i: Op(name, (Load("x", (i,), dtype), Load("y", (i,), dtype)), dtype)  # noqa: E731
    kernel = loop_kernel("made", size, buffers, flat_buffer("out", size, dtype), value)
    ours, eagers = run_interpreted(kernel, {"x": x, "y": y})["out"], QUOTIENTS[name](x, y)
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    wrong = (ours.view(bits) != eagers.view(bits)) & ~(ours.isnan() & eagers.isnan())
    assert not wrong.any(), [(x[i], y[i], ours[i], eagers[i]) for i in wrong.nonzero()[:5, 0]]
