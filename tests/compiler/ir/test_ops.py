"""The table of operations against what it says of itself."""

import ast
import itertools
from pathlib import Path

import pytest
import torch

from regraft.compiler.ir import ops
from regraft.compiler.ir.op_info import Laws
from regraft.compiler.ir.ops import OPS

SAMPLES = {
    torch.float32: [0.0, -0.0, 1.5, -2.5, float("inf"), float("nan")],
    torch.float64: [0.0, 0.5, -3.0],
    torch.int64: [0, 1, -7, 5],
    torch.int32: [0, 1, -7, 5],
    torch.bool: [True, False],
}
BITS = {"philox": torch.int64, "hash": torch.int32}


def results(name):
    """(operand dtype, result) of an operation, for every dtype that it takes."""
    info = OPS[name]
    for dtype, numbers in SAMPLES.items():
        if dtype != BITS.get(name.rstrip("0123456789"), dtype):
            continue
        args = [torch.tensor(numbers, dtype=dtype)] * info.arity
        if name == "where":
            args[0] = args[0].bool()
        if not dtype.is_floating_point and dtype != torch.bool:
            args[-1] = torch.where(args[-1] == 0, 1, args[-1]) if name not in ("lshift", "rshift") else args[-1].abs()
        try:
            yield dtype, info.reference(*args, dtype) if info.result == "given" else info.reference(*args)
        except (RuntimeError, NotImplementedError):
            assert not (info.floating and dtype.is_floating_point), f"{name} must take {dtype}"


@pytest.mark.parametrize("name", OPS)
def test_results_are_of_the_dtype_that_the_table_says(name):
    info, seen = OPS[name], 0
    for dtype, result in results(name):
        if info.floating and not dtype.is_floating_point:
            continue
        seen += 1
        assert result.dtype == (torch.bool if info.result == "bool" else dtype), (name, dtype)
    assert seen, f"{name} takes nothing"


def test_rounding_goes_through_the_half_and_back():
    x = torch.tensor([1.0, 1.001, 3.4e38, float("nan")])
    assert torch.equal(OPS["round_bfloat16"].reference(x)[:2], torch.tensor([1.0, 1.0]))
    assert OPS["round_bfloat16"].reference(x)[2] == torch.inf
    assert OPS["round_float16"].reference(x)[2] == torch.inf
    assert OPS["round_float16"].reference(x)[3].isnan()


def test_divisions_of_integers():
    a, b = torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2])
    assert OPS["floordiv"].reference(a, b).tolist() == [3, -4, -4, 3]
    assert OPS["truncdiv"].reference(a, b).tolist() == [3, -3, -3, 3]
    assert OPS["remainder"].reference(a, b).tolist() == [1, 1, -1, -1]
    assert OPS["fmod"].reference(a, b).tolist() == [1, -1, 1, -1]


COMPILER = Path(ops.__file__).parents[1]
# Files whose lists are of ATen's operators, which have the same names; and where zeros show their sign.
OF_ATEN = (
    "lowering/", "tools/", "normal/", "templates/gemm/epilogue.py", "codegen/wrapper/memory_plan.py",
    "codegen/cpp_wrapper/",
)  # fmt: skip
ELSEWHERE = ("ir/ops.py", "ir/reducers.py", "schedule/zeros.py")


def listed(file):
    """The strings in the collections of a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        items = node.elts if isinstance(node, ast.Set | ast.Tuple | ast.List) else getattr(node, "keys", [])
        yield from (item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str))


def test_functions_are_listed_in_the_table_alone():
    """What is to be known of a function (a costly operation) stands in its entry."""
    functions = {name for name, info in OPS.items() if info.costly}
    found = {}
    for file in sorted(COMPILER.rglob("*.py")):
        path = file.relative_to(COMPILER).as_posix()
        if path not in ELSEWHERE and not path.startswith(OF_ATEN) and (named := functions.intersection(listed(file))):
            found[path] = sorted(named)
    assert not found


def test_the_table_is_closed():
    """Whatever makes an operation by its name makes one of the table: it can be printed, checked, run and compiled."""
    unknown = set()
    for file in COMPILER.rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
        for call in calls:
            made = isinstance(call.func, ast.Name) and call.func.id == "Op" and call.args
            if made and isinstance(call.args[0], ast.Constant) and call.args[0].value not in OPS:
                unknown.add((file.name, call.args[0].value))
    assert not unknown
    named = {info.fast for info in OPS.values() if info.fast}
    assert named <= OPS.keys() and all(OPS[name].floating for name in named)


@pytest.mark.parametrize("name", sorted(name for name, info in OPS.items() if info.derivative is not None))
def test_derivatives_are_those_of_autograd(name):
    """By the operand, at some points where they exist."""
    x = torch.tensor([0.25, 0.5, 1.5, 3.0], dtype=torch.float64, requires_grad=True)
    y = OPS[name].reference(x)
    expected = torch.autograd.grad(y.sum(), x)[0]

    class Tensors:
        one, minus_one = torch.tensor(1.0), torch.tensor(-1.0)
        times = staticmethod(torch.mul)

        @staticmethod
        def op(name, *args):
            return OPS[name].reference(*args)

    torch.testing.assert_close(OPS[name].derivative(Tensors, y, x).expand_as(x).double(), expected)


@pytest.mark.parametrize("name", sorted(name for name, info in OPS.items() if info.bounded))
def test_bounds_hold(name):
    x = torch.cat([torch.linspace(-20, 20, 999), torch.tensor([0.0, 1e30, -1e30])])
    assert OPS[name].reference(x).abs().max() <= 1


@pytest.mark.parametrize("name", sorted(name for name, info in OPS.items() if info.span is not None))
def test_spans_hold_and_are_reached(name):
    """For all whole numbers of two ranges."""
    ranges = [(-3, 2), (-1, 4), (2, 5)]
    info = OPS[name]
    for spans in itertools.product(ranges, repeat=min(info.arity, 2)):
        points = torch.cartesian_prod(*(torch.arange(low, high + 1) for low, high in spans)).reshape(-1, len(spans))
        columns = list(points.T)
        if name == "where":
            columns.insert(0, torch.arange(len(points)) % 2 == 0)
        made = info.reference(*columns)
        low, high = info.span(*spans)
        assert low <= made.min() and made.max() <= high


@pytest.mark.parametrize("name", sorted(name for name, info in OPS.items() if info.laws != Laws()))
def test_laws_hold(name):
    """On special values, to the sign of zero."""
    info, laws = OPS[name], OPS[name].laws
    for kind, dtype in enumerate((torch.float32, torch.int64, torch.bool)):
        if (info.floating and kind) or (info.bits and not kind) or (name.endswith("shift") and kind == 2):
            continue
        x = torch.tensor(SAMPLES[dtype], dtype=dtype)
        for law, expected in ((laws.neutral, x), (laws.absorbing, None)):
            if law is not None and law[kind] is not None:
                constant = torch.full_like(x, law[kind])
                made = info.reference(x, constant)
                assert torch.equal(spelled(made), spelled(constant if expected is None else x)), (name, dtype, law)
                if laws.commutes or expected is None:
                    assert torch.equal(spelled(info.reference(constant, x)), spelled(made)), (name, dtype, law)
        if laws.idempotent:
            assert torch.equal(spelled(info.reference(x, x)), spelled(x)), (name, dtype)


def spelled(x):
    """The bits of numbers; all NaN alike."""
    return torch.where(x.isnan(), 7e7, x).view(torch.int32) if x.is_floating_point() else x
