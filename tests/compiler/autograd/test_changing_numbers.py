"""Numbers of Python that change between calls, learning rates above all: compiled once, and eager's results."""

import copy

import pytest
import torch
from support.thorough import one_row_in, takes_turns
from support.versions import not_in_old_torch
from torch._dynamo.testing import CompileCounterWithBackend

import regraft

CALLS = {
    "add": lambda x, y, n: torch.add(x, y, alpha=n),
    "sub": lambda x, y, n: torch.sub(x, y, alpha=-n),
    "addcmul": lambda x, y, n: torch.addcmul(x, y, y, value=n),
    "addcdiv": lambda x, y, n: torch.addcdiv(x, y, y.abs() + 1, value=n),
    "lerp": lambda x, y, n: torch.lerp(x, y, n) + torch.lerp(x, y, 1 - n),
    "pow": lambda x, y, n: torch.pow(n, y.abs()),
    "full_like": lambda x, y, n: torch.full_like(x, n) * y,
    "remainder": lambda x, y, n: x * (n % 0.03) + y * (0.5 % n),
    "lists": lambda x, y, n: torch.stack(torch._foreach_add([x, y], [y, x], alpha=n)),
    "lists by a number": lambda x, y, n: torch.stack(torch._foreach_mul([x, y], n) + torch._foreach_lerp([x], [y], n)),
    "lists of quotients": lambda x, y, n: torch.stack(torch._foreach_addcdiv([x], [y], [y.abs() + 1], value=n)),
}


def compilations_of(call):
    counter = CompileCounterWithBackend("regraft")
    return torch.compile(call, backend=counter), counter


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_number_that_changes_is_compiled_once(dtype):
    def program(x, y, n):
        return [call(x, y, n) for call in CALLS.values()]

    torch._dynamo.reset()
    compiled, counter = compilations_of(program)
    x, y = torch.randn(2, 33).to(dtype).unbind()
    atol = 1e-5 if dtype is torch.float32 else 2e-2  # eager rounds the number itself to 16 bits
    for n in (0.1, 0.07, 0.6, 1e-3):
        right = [value.to(dtype) for value in program(x.double(), y.double(), n)]
        for name, found, expected in zip(CALLS, compiled(x, y, n), right, strict=True):
            rtol = 1e-4 if dtype is torch.float32 else 1e-2
            told = f"{name}: {found} is not {expected}"
            torch.testing.assert_close(found, expected, atol=atol, rtol=rtol, msg=told)
    assert counter.frame_count == 2  # for the first number, then for any


# Torch traces `addcdiv` as a quotient and a sum, which integers have.
INTEGER_CALLS = {
    **{name: call for name, call in CALLS.items() if name not in ("lists by a number", "full_like", "addcdiv")},
    "shrunk": lambda x, y, n: torch.nn.functional.hardshrink(x, n),
    "lists of means": lambda x, y, n: torch.stack(torch._foreach_lerp([x], [y], n)),
}


def outcome(call, *inputs):
    try:
        return call(*inputs)
    except Exception as error:
        return str(error)[:40]


@takes_turns("dtype")
@pytest.mark.parametrize("name", INTEGER_CALLS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers_times_a_float_are_what_eager_makes_of_them(name, dtype):
    call, whole = INTEGER_CALLS[name], torch.arange(6).reshape(2, 3)
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="regraft", dynamic=True)
    for n in (1.5, 2.5, -1.25):
        expected, found = (outcome(f, *whole.to(dtype).unbind(), n) for f in (call, compiled))
        assert type(found) is type(expected), (n, found, expected)
        assert isinstance(expected, str) or (found.dtype == expected.dtype and torch.equal(found, expected))


@pytest.mark.parametrize("name", ["add", "sub", "full_like", "lists", "addcmul"])
def test_numbers_that_float16_does_not_hold(name):
    """Eager refuses what it converts; infinity it takes, and `addcmul` computes in float32."""
    torch._dynamo.reset()
    call, pair = CALLS[name], torch.linspace(0.5, 4, 6).half().reshape(2, 3)
    compiled = torch.compile(call, backend="regraft", dynamic=True)
    for n in (1.5, 2.5, 65504.0, 7e4, -7e4, float("inf"), 1.5):
        expected, found = (outcome(f, *pair.unbind(), n) for f in (call, compiled))
        assert type(found) is type(expected), (n, found, expected)
        if not isinstance(expected, str):
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2, equal_nan=True)


@takes_turns("dtype")
@pytest.mark.parametrize("name", ["add", "sub", "full_like", "lists", "addcmul", "lerp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_numbers_that_no_element_holds(name, dtype):
    torch._dynamo.reset()
    call, pair = CALLS[name], torch.linspace(0.5, 4, 6).to(dtype).reshape(2, 3)
    compiled = torch.compile(call, backend="regraft", dynamic=True)
    for n in (1.5, 2.5, 1e300, -1e39, float("inf"), 1.5):
        expected, found = (outcome(f, *pair.unbind(), n) for f in (call, compiled))
        assert type(found) is type(expected), (n, found, expected)
        if not isinstance(expected, str):
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2, equal_nan=True)


BEYOND = {
    "hardshrink": torch.nn.functional.hardshrink, "norm": lambda x, n: x.norm(n), "rows": lambda x, n: x.norm(n, 1),
    "distance": lambda x, n: torch.nn.functional.pairwise_distance(x, x * 0.5, p=n), "celu": torch.nn.functional.celu,
    "normalize": lambda x, n: torch.nn.functional.normalize(x, n),
    "lists": lambda x, n: torch._foreach_lerp([x], [x], n),
    "least": lambda x, n: torch._foreach_clamp_min([x], n),
    "copysign": torch.copysign,
    "spread": lambda x, n: x.std(1, correction=n), "powers": lambda x, n: torch._foreach_pow([x.abs() + 0.5], n),
    "margins": lambda x, n: torch.nn.functional.multi_margin_loss(x.half(), torch.tensor([0, 3, 2]), margin=n),
}  # fmt: skip


@one_row_in(4)
@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize(
    "values", [(1.5, 2.5, 3.3e38, 3.5e38, 1e39), (2.0, 3.5, -1e39, 1e-45, 1e-310, float("nan"))], ids=str
)
def test_numbers_of_other_operators(name, values):
    """Orders beyond the dtype are infinite there; other numbers are refused as in eager."""
    torch._dynamo.reset()
    call, x = BEYOND[name], torch.linspace(-0.5, 4, 60).reshape(3, 20)
    compiled = torch.compile(call, backend="regraft")
    for n in values:
        expected, found = (outcome(f, x, n) for f in (call, compiled))
        assert type(found) is type(expected), (n, found, expected)
        if not isinstance(expected, str):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_bases_of_powers(dtype):
    """Eager rounds them to 16 bits: 1e-45 is 0 there, and 7e4 infinite in float16."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, n: n**x, backend="regraft")
    x = torch.tensor([0.0, 1, -1, 0.5, -0.5, 2, 3] * 5).to(dtype)
    for n in (1.5, 0.75, 1e-45, 7e4, 3.3e38, 0.1):
        torch.testing.assert_close(compiled(x, n), n**x, equal_nan=True)


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)], ids=str)
def test_zeros_of_both_signs_among_other_numbers(zeros):
    """Dynamo has the number as a symbol, and torch makes 0.0 of -0.0 where it is fixed."""
    torch._dynamo.reset()

    def call(x, n):
        return torch.copysign(x, n), x.masked_fill(x > 0, n), x / n

    compiled, x = torch.compile(call, backend="regraft"), torch.linspace(-1, 1, 20)
    for n in (1.5, 2.5, *zeros, 3.5, *zeros, 4.5):
        for a, b in zip(compiled(x, n), call(x, n), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
            assert torch.equal(a.signbit()[a == 0], b.signbit()[b == 0])


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)], ids=str)
def test_zeros_of_both_signs(zeros):
    """Dynamo takes them for equal."""
    torch._dynamo.reset()

    def call(x, n, inside):
        return torch.copysign(x, n), x.masked_fill(x > 0, inside["numbers"][0]), x / n

    compiled, x = torch.compile(call, backend="regraft"), torch.linspace(-1, 1, 20)
    for n in (*zeros, *zeros):
        found, expected = (f(x, n, {"numbers": [n]}) for f in (compiled, call))
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a.signbit(), b.signbit()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def _chosen(x, n):
    """Python asks for the number, which is a constant then."""
    return (x * n if n == 0 else x + n), torch.full_like(x, n)


def test_zeros_of_both_signs_that_python_asks_for():
    torch._dynamo.reset()
    compiled, x = torch.compile(_chosen, backend="regraft"), torch.linspace(-1, 1, 20)
    for n in (1.5, 2.5, 0.0, -0.0, 3.5, -0.0, 0.0):
        for a, b in zip(compiled(x, n), _chosen(x, n), strict=True):
            assert torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


def test_a_constant_of_one_program_changes_in_another():
    """Dynamo keeps the names of floats that it has fixed."""
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 20)
    for n in (1.5, 2.5, 0.0):
        torch.compile(_chosen, backend="regraft")(x, n)
    with regraft.coverage() as found:
        compiled = torch.compile(lambda x, n: x * n + torch.full_like(x, n), backend="regraft")
        for n in (1.5, 2.5, 3.5, 4.5):
            torch.testing.assert_close(compiled(x, n), x * n + n)
    assert len(found.graphs) == 2


OPTIMIZERS = {
    "sgd": lambda p, foreach: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=foreach),
    "rmsprop": lambda p, foreach: torch.optim.RMSprop(p, lr=0.1, foreach=foreach),
    "adamw": lambda p, foreach: torch.optim.AdamW(p, lr=0.1, foreach=foreach),
}


@one_row_in(2)
@not_in_old_torch("guards on the values of some optimizers' learning rates")
@pytest.mark.parametrize(("kind", "foreach"), [("sgd", True), ("rmsprop", False), ("adamw", True)])
def test_schedulers_do_not_recompile_a_step(kind, foreach):
    torch._dynamo.reset()
    torch.manual_seed(0)
    ours = torch.nn.Linear(4, 3)
    theirs = copy.deepcopy(ours)
    counters = []
    for model in (ours, theirs):
        optimizer = OPTIMIZERS[kind](model.parameters(), foreach)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=8)
        counter = CompileCounterWithBackend("regraft" if model is ours else "eager")
        step = torch.compile(optimizer.step, backend=counter)
        counters.append(counter)
        for k in range(6):
            optimizer.zero_grad()
            model(torch.full((2, 4), 0.1 * k)).square().sum().backward()
            step()
            scheduler.step()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert counters[0].frame_count <= 2, [c.frame_count for c in counters]
