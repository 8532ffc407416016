"""Autocast of GPUs: recorded calls give dtypes of eager without autocast. Nothing runs, since all tensors are fake."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in
from torch.fx.experimental.proxy_tensor import make_fx

import regraft  # noqa: F401 - the backend
from regraft.compiler.capture import autocast as capture_autocast
from regraft.compiler.capture.autocast import ExplicitAutocast
from regraft.rewrites import compat

CALLS = {
    "norm of vectors": lambda x: torch.linalg.norm(x, 3, 1),
    "norm of all": torch.linalg.norm,
    "norm of matrices": torch.linalg.matrix_norm,
    "norm by its old name": lambda x: torch.norm(x, dim=1),
    "normalized": F.normalize,
    "distance": lambda x: F.pairwise_distance(x, x),
    "similarity": lambda x: F.cosine_similarity(x, x),
    "margins": lambda x: F.triplet_margin_loss(x, x, x),
    "integral": torch.trapezoid,
    "sum": torch.nansum,
    "softmin": lambda x: F.softmin(x, -1),
    "drawn": F.gumbel_softmax,
    "product": lambda x: torch.einsum("ij,kj->ik", x, x),
    "loss": lambda x: F.kl_div(x, x, reduction="batchmean"),
    "normalization": lambda x: F.layer_norm(x, (3,)) + F.rms_norm(x, (3,)),
}


@contextlib.contextmanager
def autocast(dtype):
    """Autocast for CUDA, as `torch.autocast` enables it where there is a GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@one_row_in(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("call", CALLS)
def test_records_have_eagers_dtypes_without_autocast(call, to, dtype):
    """Some operators cast their inputs, some give another dtype than they are given, also inside of others."""

    def recorded(x):
        compat.wrap_decompositions(compat.recorder(), ExplicitAutocast)
        return CALLS[call](x)

    with compat.new_fake_mode(None):
        x = torch.empty(2, 3, device="cuda", dtype=dtype)
        with autocast(to):
            expected = CALLS[call](x)
            graph = make_fx(recorded, pre_dispatch=True)(x)
        made = graph(x)
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)


def test_default_dtype_of_an_autocast_inside_changes():
    """Dynamo reads it and guards nothing."""
    torch._dynamo.reset()

    def call(x):
        with torch.autocast("cpu"):
            return x @ x

    compiled, before = torch.compile(call, backend="regraft"), torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cpu", dtype)
            assert compiled(torch.ones(4, 4)).dtype == dtype
    finally:
        torch.set_autocast_dtype("cpu", before)


def test_an_operator_is_looked_into_once_for_layers_alike(monkeypatch):
    looked = []
    inside = capture_autocast._casts_inside
    monkeypatch.setattr(capture_autocast, "_casts_inside", lambda *call: looked.append(call[0]) or inside(*call))

    def layers(x):
        compat.wrap_decompositions(compat.recorder(), ExplicitAutocast)
        for _ in range(3):
            x = torch.einsum("ij,kj->ik", x, x)
        with torch.autocast("cpu", torch.float16):
            return torch.einsum("ij,kj->ik", x, x)

    with compat.new_fake_mode(None), torch.autocast("cpu", torch.bfloat16):
        made = make_fx(layers, pre_dispatch=True)(torch.empty(3, 3))
    assert looked.count(torch.ops.aten.einsum.default) == 3, looked  # of float32, of bfloat16, and for float16
    kept = made.graph.find_nodes(op="call_function", target=torch.ops.aten.einsum.default)
    assert len(kept) == 2  # those of bfloat16, in which nothing is cast
