"""A forward keeps no value that its backward can compute again as it reads what is kept anyway."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._functorch import partitioners

from regraft.compiler.autograd.fused import fused
from regraft.rewrites.compat.min_cut import knowing

from ...support.joint_pass import JointPass

X = torch.randn(4, 8, 6, 6)

PROGRAMS = {
    "an activation that torch's list lacks": lambda x: F.silu(F.hardswish(x)).sin(),
    "a value that an activation's backward reads": lambda x: F.elu(x.sin() * 2),
    "padding": lambda x: F.pad(x.sin(), (1, 1)).square(),
    "reflection": lambda x: F.pad(x.sin(), (1, 1, 1, 1), mode="reflect").square(),
    "a roll": lambda x: x.sin().roll(1, 2).square(),
    "a transpose": lambda x: x.sin().transpose(1, 2).square(),
    "repeated images": lambda x: F.interpolate(x.sin(), scale_factor=2).square(),
    "gates": lambda x: F.glu(x.sin(), 1).square(),
    "a norm's backward": lambda x: F.layer_norm(x.sin() * 2, (6,)),
    "a softmax's input": lambda x: F.log_softmax(x.sin() * 2, 1).amin(1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_input_and_small_values_are_kept(name):
    function, kept = PROGRAMS[name], JointPass(lambda graph: 0)
    ours, eager = (X.clone().requires_grad_() for _ in range(2))
    torch.compile(function, backend=kept, fullgraph=True)(ours).sum().backward()
    function(eager).sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)
    results = [size for _, size in kept.kept() if size >= X.numel() // 2]
    assert len(results) <= ("softmax" in name)


def test_cuts_of_other_compilers_are_torchs():
    before = partitioners.get_default_op_list().fusible_ops
    with knowing(fused()):
        assert torch.ops.aten.hardswish in partitioners.get_default_op_list().recomputable_ops
        assert torch.ops.aten.hardswish_backward not in partitioners.get_default_op_list().recomputable_ops
    assert partitioners.get_default_op_list().fusible_ops == before
