"""The table of operations against what it says of itself."""

import pytest
import torch

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
