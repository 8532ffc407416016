"""A forward keeps no value that its backward can compute again as it reads what is kept anyway."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from torch._functorch import partitioners

from regraft.compiler.autograd.fused import fused
from regraft.compiler.lowering.core import LOWERINGS
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
    "a scattered diagonal": lambda x: x.sin().diagonal_scatter(X[:, :, :, 0], 0, 2, 3).square(),
    "gates": lambda x: F.glu(x.sin(), 1).square(),
    "a norm's backward": lambda x: F.layer_norm(x.sin() * 2, (6,)),
    "a softmax's input": lambda x: F.log_softmax(x.sin() * 2, 1).amin(1),
}


# Lowered operators that no list has, by the reason.
EXCUSED = {
    "computed again, they read many elements for each": """
        _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d
        max_pool2d_with_indices max_pool3d_with_indices col2im im2col upsample_bicubic2d upsample_linear1d
        upsample_trilinear3d cudnn_grid_sampler grid_sampler_2d grid_sampler_3d dot mv dist count_nonzero
        native_batch_norm _batch_norm_with_update_functional cummax cummin cumprod cumsum logcumsumexp""",
    "they read memory that others have written, element by element": """
        _unsafe_index_put embedding_dense_backward index_add index_copy index_put index_reduce put scatter_add
        max_unpool2d max_unpool3d nll_loss2d_backward nll_loss2d_forward""",
    "backwards of windows: each element is a sum": """
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward max_pool2d_with_indices_backward
        max_pool3d_with_indices_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward upsample_bicubic2d_backward upsample_bilinear2d_backward
        upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_trilinear3d_backward unfold_backward _weight_norm_interface_backward""",
    "a value of several results, one of which the backward reads as memory": "log_sigmoid_forward",
    "the result is several values side by side, which are kept where they are smaller": "cat stack",
    "copies that functional programs make for their memory": """
        contiguous copy fill zero _reshape_alias alias_copy as_strided_copy detach_copy diagonal_copy expand_copy lift
        lift_fresh narrow_copy permute_copy select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy
        transpose_copy unbind_copy unfold_copy unsafe_split unsqueeze_copy view_copy""",
    "autograd sees what they are made of": """
        adjoint broadcast_to chunk detach fliplr flipud mH mT matrix_H narrow numpy_T tensor_split""",
    "memory without values, or of known ones": """
        _efficientzerotensor empty_permuted empty_strided eye new_empty new_empty_strided""",
}


def test_lowered_operators_are_in_a_list_or_have_a_reason():
    """A new lowering of a pointwise operator or a gather belongs to `_AGAIN`, or to the table above."""
    torchs, ours = partitioners.get_default_op_list(), fused()
    listed = set().union(
        *(getattr(torchs, field.name) for field in fields(torchs)), ours.views, ours.again, ours.readers
    )
    lowered = {name.removeprefix("aten.") for name in LOWERINGS if name.startswith("aten.")}
    excused = {name for names in EXCUSED.values() for name in names.split()}
    assert excused <= lowered
    missing = {
        name
        for name in lowered - excused
        if getattr(torch.ops.aten, name, None) not in listed and not name.startswith("_foreach_")
    }
    assert not {name for name in missing if hasattr(torch.ops.aten, name)}


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
