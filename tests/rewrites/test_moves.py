"""The table of operators that only move elements, held against ATen's schemas and what eager does."""

import pytest
import torch

from regraft.rewrites import moves

TABLE = moves.VIEWS | moves.RESHAPES | moves.ALIASES | moves.COPIES
ARGUMENTS = {
    "view": ([3, 2],), "_unsafe_view": ([3, 2],), "_reshape_alias": ([3, 2], [2, 1]), "unsqueeze": (0,),
    "unflatten": (1, [3, 1]), "view_as": (torch.ones(3, 2),), "reshape": ([3, 2],), "reshape_as": (torch.ones(3, 2),),
    "permute": ([1, 0],), "transpose": (0, 1), "swapaxes": (0, 1), "swapdims": (0, 1), "movedim": ([0], [1]),
    "moveaxis": ([0], [1]),
    "expand": ([4, 2, 3],), "expand_as": (torch.ones(4, 2, 3),), "broadcast_to": ([4, 2, 3],), "slice": (1, 1, 3),
    "select": (1, 0),
}  # fmt: skip


def called(name):
    x = torch.arange(6.0).view(2, 3)
    packet = getattr(torch.ops.aten, name.removeprefix("aten."))
    return x, packet(x, *ARGUMENTS.get(name.removeprefix("aten."), ()))


@pytest.mark.parametrize("name", sorted(TABLE))
def test_results_consist_of_the_operands_elements(name):
    x, result = called(name)
    assert set(result.flatten().tolist()) <= set(x.flatten().tolist())
    if name not in moves.CUTS | moves.EXPANDS:
        assert sorted(result.flatten().tolist()) == sorted(x.flatten().tolist())
    if name in moves.RESHAPES | moves.ALIASES | moves.COPIES:
        assert torch.equal(result.flatten(), x.flatten())
    if name in moves.ALIASES | moves.COPIES:
        assert result.shape == x.shape


@pytest.mark.parametrize("name", sorted(moves.VIEWS | moves.ALIASES))
def test_views_share_the_operands_memory(name):
    x, result = called(name)
    assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


# Views of ATen that conjugate or negate, take a part of another form, have several results, or are of sparse tensors.
OTHERS = """
    adjoint mH matrix_H conj resolve_conj resolve_neg imag real view_as_real view_as_complex
    as_strided slice_inverse narrow diagonal linalg_diagonal unfold
    chunk split split_with_sizes hsplit vsplit dsplit tensor_split unbind
    ccol_indices coalesce col_indices crow_indices indices row_indices values
    align_to refine_names rename lift_fresh numpy_T pin_memory positive ravel to
"""


def test_the_table_has_all_of_atens_views_of_one_tensor():
    """A view that ATen adds is to be sorted in here."""
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    packets = {name.removeprefix("aten::").partition(".")[0] for name in names}
    found = {f"aten.{name}" for name in packets if not name.startswith("_") and is_view(name)}  # private ones change
    unknown = found - TABLE - {f"aten.{name}" for name in OTHERS.split()}
    assert not unknown, sorted(unknown)


def is_view(name):
    packet = getattr(torch.ops.aten, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    plain = [s for s in schemas if not s.is_mutable and s.arguments and len(s.returns) == 1]
    return any(s.arguments[0].alias_info is not None and s.returns[0].alias_info is not None for s in plain)
