"""Every pointwise operation in every dtype it has, on special values, against eager: on every target."""

import functools
import itertools
import math

import pytest
import torch
from support.kernels import (
    avx512_text,
    compiled_agrees,
    flat_buffer,
    instructions,
    loop_kernel,
    one_unit,
    run_compiled_all,
)
from support.thorough import one_row_in

from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp.compiler import find_compiler
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.ir.index.index import add, mul
from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.value import Const, Load, Op, compute_dtype

FLOATS, INTEGERS = (torch.float32, torch.float64), (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
TARGETS = list(dict.fromkeys([cpp.host_target().name, "generic", "scalar"]))
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -7.3, 10.0, 88.0, -87.0, 104.0, 1e-3, -1e-5, 1e-40, 1e10,
    -1e10, 3e38, math.inf, -math.inf, math.nan, 0.93, -0.61, 0.25, 127.0, 255.0,
]  # fmt: skip
INTEGRAL = [0, 1, -1, 2, -3, 5, 7, -8, 63, 64, 100, 127, -128]
ORDERED = ("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum")
LOGICAL = ("logical_and", "logical_or", "logical_xor", "logical_not")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
WHOLE = ("add", "sub", "mul", "floordiv", "truncdiv", "remainder", "fmod", "neg", "abs", "sign", "signbit", "pow")
REALS = (
    "add",
    "sub",
    "mul",
    "floordiv",
    "truncdiv",
    "remainder",
    "fmod",
    "pow",
    "neg",
    "abs",
    "sign",
    "signbit",
    "where",
)
FAST = {info.fast for info in OPS.values() if info.fast} | {"fast_tanh"}  # these are for float32 alone
DIVIDING = ("floordiv", "truncdiv", "remainder", "fmod")


def names_for(dtype):
    if dtype.is_floating_point:
        floating = [name for name, info in OPS.items() if info.floating]
        floating = [name for name in floating if dtype == torch.float32 or name not in FAST]
        return [*floating, *REALS, *ORDERED, *LOGICAL, "round_bfloat16", "round_float16"]
    if dtype == torch.bool:
        return [*ORDERED, *LOGICAL, *BITWISE, "add", "mul", "where"]
    return [*WHOLE, *ORDERED, *LOGICAL, *BITWISE, "lshift", "rshift", "where"]


def operands(name, dtype):
    """All pairs of special values (all values, for one operand), truth values first for `where`."""
    if dtype == torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        values = torch.tensor(SPECIAL, dtype=dtype)
    else:
        limits = torch.iinfo(dtype)
        values = torch.tensor([v for v in INTEGRAL if limits.min <= v], dtype=dtype)
        # The smallest integer over -1 overflows: eager crashes.
        values = (
            values if name in DIVIDING else torch.cat([values, torch.tensor([limits.min, limits.max], dtype=dtype)])
        )
    pairs = torch.cartesian_prod(values, values) if OPS[name].arity > 1 else values.unsqueeze(1)
    if name in DIVIDING and not dtype.is_floating_point:
        pairs = pairs[pairs[:, 1] != 0]
    if name in ("fmod", "remainder"):
        # Eager's vector code gives NaN for large quotients.
        quotients = (pairs[:, 0].double() / pairs[:, 1].double()).abs()
        pairs = pairs[~((quotients > 1e30) & quotients.isfinite())]
    if name == "pow" and not dtype.is_floating_point:
        pairs = pairs[pairs[:, 1] >= 0]
    columns = [column.contiguous() for column in pairs.T]
    if name == "where":
        columns.insert(0, torch.arange(len(columns[0])) % 3 == 0)
    return columns


def case(name, dtype, label=""):
    """A kernel of one operation, its operands, and what eager makes of them."""
    columns = operands(name, dtype)
    size = len(columns[0])
    inputs = [flat_buffer(f"x{k}", size, column.dtype) for k, column in enumerate(columns)]
    expected = OPS[name].reference(*columns)
    kernel = loop_kernel(
        f"{name}_{label}", size, inputs, flat_buffer("out", size, expected.dtype),
        lambda i: Op(name, tuple(Load(b.name, (i,), b.dtype) for b in inputs), expected.dtype),
    )  # fmt: skip
    return kernel, {f"x{k}": column for k, column in enumerate(columns)}, expected


@functools.cache
def outputs(target, dtype):
    cases = {name: case(name, dtype) for name in names_for(dtype)}
    made = run_compiled_all([kernel for kernel, _, _ in cases.values()], [x for _, x, _ in cases.values()], target)
    return {name: (made_one["out"], cases[name][1:]) for name, made_one in zip(cases, made, strict=True)}


@one_row_in(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations_are_eagers(target, dtype):
    wrong = {}
    for name, (ours, (_, expected)) in outputs(cpp.target(target), dtype).items():
        precision = {torch.float32: 1e-6, torch.float64: 1e-14}.get(expected.dtype, 0)
        if name in ("lgamma", "digamma", "erfinv", "pow"):
            precision *= 8
        tolerance = {"rtol": precision, "atol": 1e-38 if precision else 0}
        try:
            torch.testing.assert_close(ours, expected, equal_nan=True, **tolerance)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


@pytest.mark.parametrize("target", TARGETS)
def test_signs_of_zero_are_kept(target):
    for name in ("neg", "abs", "mul", "round", "trunc", "ceil", "maximum", "copysign", "tanh", "erf", "sign"):
        ours, (_, expected) = outputs(cpp.target(target), torch.float32)[name]
        keep = ~expected.isnan()
        assert torch.equal(ours.signbit()[keep], expected.signbit()[keep]), name


@one_row_in(2)
@pytest.mark.parametrize("target", TARGETS)
def test_casts_are_eagers(target):
    pairs = [(a, b) for a, b in itertools.product(DTYPES, DTYPES) if a != b]
    kernels, inputs, expected = [], [], []
    for source, to in pairs:
        x = torch.tensor([0, 1, 2, 3, 5, 64, 100, 120, 127] * 3).to(source)
        if source.is_floating_point:
            x = torch.cat([x + 0.7, -x[:5]]) if to not in (torch.uint8,) else x + 0.7
        kernels.append(
            loop_kernel(
                f"{source}_{to}", len(x), [flat_buffer("x", len(x), source)], flat_buffer("out", len(x), to),
                lambda i, source=source, to=to: Op("cast", (Load("x", (i,), source),), to),
            )
        )  # fmt: skip
        inputs.append({"x": x})
        expected.append(x.to(to))
    for pair, made, want in zip(pairs, run_compiled_all(kernels, inputs, cpp.target(target)), expected, strict=True):
        assert torch.equal(made["out"], want), pair


@pytest.mark.optimized
@one_row_in(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", [1, 5])
def test_casts_to_integers_and_back_are_no_truncations(step, target):
    """gcc makes truncations of them, which keep -0 and what no integer holds."""
    values = [-0.7, -0.0, 0.2, 3.7, -2.5, 1e5, -1e5, 1e10, 3e19, -3e19, math.inf, math.nan] * 3
    pairs = list(itertools.product(FLOATS, INTEGERS))
    kernels, inputs, expected = [], [], []
    for source, to in pairs:
        x = torch.tensor(values).to(source).repeat_interleave(step)
        cast = lambda i, source=source, to=to: Op("cast", (Load("x", (mul(step, i),), source),), to)  # noqa: E731
        name, kept = f"{source}_{to}_{step}", [flat_buffer("x", len(x), source)]
        back = lambda i, source=source, cast=cast: Op("cast", (cast(i),), source)  # noqa: E731
        kernels.append(loop_kernel(name, len(values), kept, flat_buffer("out", len(values), source), back))
        inputs.append({"x": x})
        expected.append(x[::step].to(to).to(source))
    for pair, made, want in zip(pairs, run_compiled_all(kernels, inputs, cpp.target(target)), expected, strict=True):
        assert torch.equal(made["out"], want) and torch.equal(made["out"].signbit(), want.signbit()), pair


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("half", (torch.bfloat16, torch.float16), ids=str)
def test_sixteen_bit_floats_round_to_nearest_even(target, half):
    bits = torch.arange(2**16, dtype=torch.int32)
    exact = bits.to(torch.int16).view(half)
    between = torch.cat(
        [exact.float(), (exact.float() + exact.float().nextafter(torch.tensor(9e9))) / 2, exact.float() * 1.001]
    )
    size = len(between)
    narrow = loop_kernel(
        "narrow", size, [flat_buffer("x", size, torch.float32)], flat_buffer("out", size, half),
        lambda i: Load("x", (i,), torch.float32),
    )  # fmt: skip
    wide = loop_kernel(
        "wide", 2**16, [flat_buffer("x", 2**16, half)], flat_buffer("out", 2**16, torch.float32),
        lambda i: Load("x", (i,), torch.float32),
    )  # fmt: skip
    made = run_compiled_all([narrow, wide], [{"x": between}, {"x": exact}], cpp.target(target))
    torch.testing.assert_close(made[0]["out"], between.to(half), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(made[1]["out"], exact.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
def test_exp_log_tanh_erf_are_within_two_units_in_the_last_place(target):
    x = torch.cat([torch.linspace(-110, 95, 40001), torch.logspace(-38, 3, 20001), -torch.logspace(-38, 1, 20001)])
    names = ("exp", "log", "tanh", "erf", "sigmoid")
    kernels = [
        loop_kernel(
            name, len(x), [flat_buffer("x", len(x))], flat_buffer("out", len(x)),
            lambda i, name=name: Op(name, (Load("x", (i,), torch.float32),), torch.float32),
        )
        for name in names
    ]  # fmt: skip
    for name, made in zip(names, run_compiled_all(kernels, [{"x": x}] * len(names), cpp.target(target)), strict=True):
        exact = getattr(torch, name)(x.double())
        unit = (torch.nextafter(exact.float().abs(), torch.tensor(math.inf)) - exact.float().abs()).double()
        # Where exp(-x) is infinite, eager's sigmoid is 0 too.
        counts = exact.float().isfinite() & ((name != "sigmoid") | (x > -88))
        error = ((made["out"].double() - exact).abs() / unit)[counts]
        assert error.max() <= 2.5, (name, error.max())


def test_random_bits_are_philox():
    size = 37
    seed, offset = torch.full((size,), 1234567890123), torch.arange(size) * 987654321987
    inputs = [flat_buffer(name, size, torch.int64) for name in ("seed", "offset")]
    for word in range(4):
        name = f"philox{word}"
        kernel = loop_kernel(
            name, size, inputs, flat_buffer("out", size, torch.int64),
            lambda i, name=name: Op(name, tuple(Load(b.name, (i,), torch.int64) for b in inputs), torch.int64),
        )  # fmt: skip
        for target in TARGETS:
            (made,) = run_compiled_all([kernel], [{"seed": seed, "offset": offset}], cpp.target(target))
            assert torch.equal(made["out"], OPS[name].reference(seed, offset)), (name, target)


@pytest.mark.parametrize("target", TARGETS)
def test_words_that_are_drawn_together(target):
    """One seed for all lanes and one for each, words of one draw added up: a draw is written once."""
    size = 37
    seeds, places = torch.arange(size) * 1234567890123 - 2**40, torch.arange(size) * 987654321987
    inputs = [flat_buffer("seeds", size, torch.int64), flat_buffer("places", size, torch.int64)]

    def total(i, seed):
        words = (Op(f"philox{w}", (seed, Load("places", (i,), torch.int64)), torch.int64) for w in (0, 1, 3))
        return functools.reduce(lambda a, b: Op("add", (a, b), torch.int64), words)

    out = flat_buffer("out", size, torch.int64)
    one = loop_kernel("one", size, inputs, out, lambda i: total(i, Load("seeds", (5,), torch.int64)))
    each = loop_kernel("each", size, inputs, out, lambda i: total(i, Load("seeds", (i,), torch.int64)))
    given = {"seeds": seeds, "places": places}
    made = run_compiled_all([one, each], [given, given], cpp.target(target))
    for found, seed in zip(made, (seeds[5].expand(size), seeds), strict=True):
        expected = sum(OPS[f"philox{w}"].reference(seed, places) for w in (0, 1, 3))
        assert torch.equal(found["out"], expected)
    text = kernel_text(one, cpp.target(target)).partition('extern "C"')[0]
    assert text.count("philox<") <= 2  # of whole vectors, of a tail


@pytest.mark.parametrize("target", TARGETS)
def test_lgamma_of_both_signs(target):
    """As near to the exact value as C's function, zeros at 1 and 2 and poles among them."""
    x = torch.cat([torch.linspace(-30, 40, 20011), torch.logspace(-38, 38, 3001), -torch.logspace(-38, 1, 3001)])
    x = torch.cat([x, torch.tensor([1.0, 2.0]).nextafter(torch.tensor(9.0)), torch.arange(-9.0, 4.0)])
    kernel = loop_kernel(
        "lgamma", len(x), [flat_buffer("x", len(x))], flat_buffer("out", len(x)),
        lambda i: Op("lgamma", (Load("x", (i,), torch.float32),), torch.float32),
    )  # fmt: skip
    (made,) = run_compiled_all([kernel], [{"x": x}], cpp.target(target))
    exact = torch.lgamma(x.double())
    torch.testing.assert_close(made["out"], exact.float(), rtol=3e-7, atol=1e-14)


def test_hashes_are_the_references():
    size = 37
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randint(-(2**31), 2**31, (size,), generator=generator).int() for name in ("n", "k0", "k1")}
    inputs = [flat_buffer(name, size, torch.int32) for name in made]
    kernel = loop_kernel(
        "hash32", size, inputs, flat_buffer("out", size, torch.int32),
        lambda i: Op("hash32", tuple(Load(b.name, (i,), torch.int32) for b in inputs), torch.int32),
    )  # fmt: skip
    for target in TARGETS:
        (drawn,) = run_compiled_all([kernel], [made], cpp.target(target))
        assert torch.equal(drawn["out"], OPS["hash32"].reference(*made.values())), target


@pytest.mark.parametrize("target", TARGETS)
def test_remainders_are_exact_at_any_scale(target):
    generator = torch.Generator().manual_seed(0)
    sign = torch.randint(0, 2, (4000,), generator=generator) * 2 - 1
    far = torch.pow(2.0, torch.rand(4000, generator=generator) * 60 - 30)  # quotients up to 2**60
    divisor = (torch.rand(4000, generator=generator) + 0.5) * torch.pow(2.0, torch.rand(4000, generator=generator) * 8)
    multiples = (divisor * torch.randint(1, 4000, (4000,), generator=generator)).nextafter(torch.tensor(0.0))
    for x, y in ((far * sign, divisor), (multiples * sign, divisor), (divisor, far * sign)):
        kernels = [
            loop_kernel(
                f"fmod{bits}", len(x), [flat_buffer("x", len(x), dtype), flat_buffer("y", len(x), dtype)],
                flat_buffer("out", len(x), dtype),
                lambda i, dtype=dtype: Op("fmod", (Load("x", (i,), dtype), Load("y", (i,), dtype)), dtype),
            )
            for bits, dtype in ((32, torch.float32), (64, torch.float64))
        ]  # fmt: skip
        inputs = [{"x": x.to(dtype), "y": y.to(dtype)} for dtype in (torch.float32, torch.float64)]
        exact = torch.tensor(
            [math.fmod(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)], dtype=torch.float64
        )
        for made in run_compiled_all(kernels, inputs, cpp.target(target)):
            assert torch.equal(made["out"].double(), exact)


@one_row_in(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_divided_exactly(dtype, target):
    """In lanes quotients are found in floating point: multiples and their neighbours of all sizes, and constants."""
    limits, generator = torch.iinfo(dtype), torch.Generator().manual_seed(0)
    bits = torch.randint(0, limits.bits, (2, 6000), generator=generator)
    b, q = (torch.randint(limits.min, limits.max, (2, 6000), generator=generator) >> bits).to(dtype).unbind(0)
    a = torch.stack([b * q - 1, b * q, b * q + 1, q, torch.full_like(q, limits.min), torch.full_like(q, limits.max)])
    a, b = a.flatten(), torch.where(b == 0, 1, b).to(dtype).repeat(6)
    keep = (a != limits.min) | (b != torch.tensor(-1).to(dtype))  # eager crashes
    given = {"a": a[keep], "b": b[keep]}
    size, kernels, expected = int(keep.sum()), [], []
    inputs = [flat_buffer("a", size, dtype), flat_buffer("b", size, dtype)]
    for name, by in itertools.product(DIVIDING, (None, 1, 7, 8, 64, 100)):
        divisor = given["b"] if by is None else torch.tensor(by, dtype=dtype)
        expected.append(OPS[name].reference(given["a"], divisor))
        kernels.append(
            loop_kernel(
                f"{name}_{by}", size, inputs[: 1 + (by is None)], flat_buffer("out", size, dtype),
                lambda i, name=name, by=by: Op(
                    name, (Load("a", (i,), dtype), Load("b", (i,), dtype) if by is None else Const(by, dtype)), dtype
                ),
            )
        )  # fmt: skip
    for one, made, want in zip(
        kernels, run_compiled_all(kernels, [given] * len(kernels), cpp.target(target)), expected, strict=True
    ):
        assert torch.equal(made["out"], want), one.name


@pytest.mark.skipif(TARGETS[0] != "avx512", reason="other processors have other instructions")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extrema_are_an_instruction_each(dtype):
    """Beside it is a comparison, for NaN, and no choice between two vectors."""
    made = instructions(lambda x, y: torch.maximum(torch.minimum(x, y), x + 1), *torch.ones(2, 640, dtype=dtype))
    assert "vmaxp" in made and "vminp" in made
    assert "blend" not in made or "clang" in find_compiler().version


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@one_unit()
def test_extrema_beside_wide_integers(dtype):
    """Half as many lanes, of which some are NaN on either side."""
    x, y = torch.randn(2, 77, dtype=dtype)
    x[::3], y[::4] = math.nan, math.nan
    compiled_agrees(lambda x, y, i: (torch.maximum(x, y) * i, torch.minimum(x, y) * i), x, y, torch.arange(77))


@pytest.mark.skipif(TARGETS[0] != "avx512", reason="other processors have other instructions")
def test_no_lane_is_divided_alone():
    x, y = torch.zeros(640, dtype=torch.int32), torch.ones(640, dtype=torch.int32)
    assert "idivl" not in instructions(lambda x, y: (x // y, x % y, x % 7, torch.fmod(x, y)), x, y)
    text = avx512_text(lambda x: (x // 8, x % 16), x)
    assert "op_" not in text and ">> 3" in text and "& 15" in text


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int32, torch.float64, torch.bfloat16], ids=str)
def test_every_few_elements(dtype):
    size, kernels, inputs = 83, [], []  # whole vectors and a tail; the last element is the buffer's last
    for step, first in ((2, 0), (2, 1), (3, 0), (3, 2), (4, 0), (4, 3), (5, 1), (7, 2), (8, 0)):
        buffer = flat_buffer("x", step * (size - 1) + first + 1, dtype)
        kernels.append(
            loop_kernel(
                f"every{step}_{first}", size, [buffer], flat_buffer("out", size, dtype),
                lambda i, step=step, first=first: Load("x", (add(mul(i, step), first),), compute_dtype(dtype)),
            )
        )  # fmt: skip
        inputs.append({"x": torch.arange(buffer.sizes[0]).to(dtype)})
    for target in TARGETS:
        for one, given, made in zip(
            kernels, inputs, run_compiled_all(kernels, inputs, cpp.target(target)), strict=True
        ):
            step, first = map(int, one.name.removeprefix("every").split("_"))
            assert torch.equal(made["out"], given["x"][first::step]), (target, one.name)


@one_row_in(3)
@pytest.mark.parametrize("mode", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_rows_are_combined_with_memory(mode, dtype):
    rows, width, source = 5, 37, torch.tensor([0, 3, 3, 1, 3])  # whole vectors and a tail; rows that meet
    x, y = (values.to(dtype) for values in (torch.randn(rows, width) * 4, torch.randn(rows, width) * 4))
    if dtype.is_floating_point:
        y[2, 5] = math.nan
    reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[mode]

    def function(x, source, y):
        return x.scatter_reduce(0, source[:, None].expand(rows, width), y, reduce)

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    for target in TARGETS:
        compiled_agrees(function, x, source, y, target=cpp.target(target), **tolerance)


def test_bytes_of_numbers_out_of_range():
    edges = [
        0.0,
        -0.0,
        1.9,
        -1.5,
        255.0,
        300.7,
        -300.0,
        2.0**31 - 1,
        2.0**31,
        2.0**33 + 512,
        -(2.0**33),
        1e20,
        math.inf,
    ]
    x = torch.tensor((edges + [-v for v in edges] + [math.nan]) * 3)
    for target in TARGETS:
        compiled_agrees(lambda x: x.to(torch.uint8), x, target=cpp.target(target))


LIMITED = {
    "both ends": (lambda x: (x * 255).round().clamp(0, 255), True),
    "then rounded": (lambda x: (x * 255).clamp(0, 255).floor(), True),
    "beyond bytes": (lambda x: x.clamp(-70000, 2**30), True),
    "beyond i32": (lambda x: x.clamp(0, 2**40), False),
    "one end": (lambda x: x.clamp(min=0), False),
    "one end, then used": (lambda x: x.clamp(-1, 255) * 2, False),
    "by a tensor": (lambda x: x.clamp(0).minimum(x.abs() + 4), False),
}


@one_unit()
def test_limited_numbers_as_bytes():
    """Those that constants keep in 32 bits need no test of their size."""
    x = torch.tensor([*SPECIAL, 256.0, 300.0, -300.0, 2.0**31, -(2.0**31), 2.0**35 + 2**14, 1e20] * 3)
    for function, fits in LIMITED.values():
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            bytes_of = lambda x, f=function: f(x).to(torch.uint8)  # noqa: E731
            given = x.to(dtype)
            given = given[function(given).isfinite()]
            compiled_agrees(bytes_of, given, rtol=0, atol=0)
        assert ("to_bytes" in avx512_text(bytes_of, x)) != fits


def test_exponentials_at_the_ends_of_their_range():
    below = torch.tensor([-87.0, -88.5, -103.2, -103.9, -104.0, -104.1, -1e9, -3.4e38, -float("inf")])
    x = torch.cat([below, -below, torch.tensor([float("nan"), 0.0, 1.0])]).repeat(3)
    torch.compiler.reset()
    with torch.no_grad():
        got = torch.compile(torch.exp, backend="regraft")(x)
    torch.testing.assert_close(got, x.exp(), rtol=1e-6, atol=2e-45, equal_nan=True)
    assert (got[x < -104.0] == 0).all()
