"""Programs with attentions are compiled anew where other kernels may compute them, or in another order; only there."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from regraft.rewrites.compat.attention import allowed_backends, backends_in_order, guard_backends, same_backends_after

Q = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
FEW = [SDPBackend.MATH]
OTHER_ORDER = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


def counted(program):
    """The program, compiled, and what counts its compilations."""
    compiled = []

    def backend(gm, inputs):
        guard_backends(gm)
        compiled.append(gm)
        return gm.forward

    return torch.compile(program, backend=backend), compiled


@pytest.mark.parametrize(
    "program",
    [lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), lambda q: (q @ q.mT).softmax(-1) @ q],
    ids=["call", "written out"],
)
@pytest.mark.parametrize(
    ("backends", "in_order"), [(FEW, False), (OTHER_ORDER, True)], ids=["other kernels", "another order"]
)
def test_what_may_be_chosen_is_guarded(program, backends, in_order):
    run, compiled = counted(program)
    run(Q)
    run(Q)
    assert len(compiled) == 1
    with sdpa_kernel(backends, set_priority=in_order):
        run(Q)
        run(Q)
    assert len(compiled) == 2
    run(Q)
    assert len(compiled) == 2


def test_programs_without_attentions_are_not_guarded():
    run, compiled = counted(lambda q: q.sin())
    run(Q)
    with sdpa_kernel(FEW):
        run(Q)
    assert len(compiled) == 1


def test_what_may_be_chosen_is_set_back():
    before = backends_in_order()
    with same_backends_after(), sdpa_kernel(FEW):
        assert allowed_backends() == {"MATH"}
    with same_backends_after():
        torch._C._set_sdp_priority_order([0, 1, 2, 3, 4])
    assert backends_in_order() == before
