"""What a program asserts of its data is asserted when it runs, before anything relies on it, with its own message."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft

FOUR = torch.tensor([1.0, 0, 2, 3, 0, 4])
THREE = torch.tensor([1.0, 0, 2, 0, 0, 4])


@pytest.fixture(autouse=True)
def whole_graphs():
    """Sizes and numbers that depend on data break no graph."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def size_of_a_result(x):
    z = x.nonzero()
    torch._check(z.size(0) == 4, lambda: "not four")
    return z + 3


def size_asserted_before_a_write(x):
    z = x.nonzero()
    torch._check(z.size(0) == 4, lambda: "not four")
    return x.clone().mul_(2)


def count_of_elements(x):
    z = x.nonzero()
    torch._check(z.numel() == 4, lambda: "not four")
    return z * 2


def one_of_several_results(x):
    values, places = torch.unique(x.detach(), return_inverse=True)
    torch._check(values.shape[0] == 5, lambda: "not four")  # and zero
    return values + 1, places


def size_that_a_view_needs(x):
    return x[x > 0].view(2, 2) * 2


def size_that_a_sum_needs(x):
    return x[x > 0] * 2 + torch.ones(4)


def equal_sizes(x):
    a, b = x.nonzero(), (x - 3).clamp(max=0).nonzero()  # 4 and 4; 3 and 5
    torch._check(a.size(0) == b.size(0), lambda: "not four")
    return a + b


def number(x):
    n = x.sum().item()
    torch._check(n == 10)
    return x + n


def tensor(x):
    torch.ops.aten._assert_async.msg(x.sum() > 9, "not four")
    return x * 2


def tensor_without_message(x):
    torch.ops.aten._assert_async(x.sum() > 9)
    return x * 2


FAILED = "assertion failed"  # by Dynamo, which does not know eager's words
SAYS = {
    size_that_a_view_needs: FAILED, size_that_a_sum_needs: FAILED, number: FAILED,
    tensor_without_message: "single nonzero",
}  # fmt: skip
OF_SIZES = (size_of_a_result, size_asserted_before_a_write, count_of_elements, one_of_several_results, equal_sizes)
if torch.__version__ < (2, 12):  # there Dynamo drops the messages of what is asserted of sizes
    SAYS |= dict.fromkeys(OF_SIZES, FAILED)
PROGRAMS = [
    size_of_a_result, size_asserted_before_a_write, count_of_elements, one_of_several_results, size_that_a_view_needs,
    size_that_a_sum_needs, equal_sizes, number, tensor, tensor_without_message,
]  # fmt: skip


@one_row_in(2)
@takes_turns("training")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_assertions_stay(program, training):
    with regraft.coverage() as cov:
        compiled = torch.compile(program, backend="regraft", fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(given(FOUR, training)), program(FOUR))
            with pytest.raises(RuntimeError, match=SAYS.get(program, "not four")):
                compiled(given(THREE, training))
    assert not cov.faults


def given(x, training):
    return (x.clone().requires_grad_() * 1) if training else x.clone()
