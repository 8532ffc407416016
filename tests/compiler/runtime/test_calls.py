"""Backwards that are asked for several gradients at once, and graphs that run as they are written."""

import pytest
import torch
from support.caches import cache_in
from support.lowering import trace
from support.offline_gpu import on_cuda
from torch.autograd.functional import jacobian
from torch.utils._python_dispatch import TorchDispatchMode

from regraft.compiler.runtime.calls import as_calls

aten = torch.ops.aten
W = torch.linspace(-2, 3, 16).reshape(4, 4)


def program(x, y):
    return x.sin() * y.sum(), (x * y).sum()


def product(x, w):
    return (x @ w).tanh()


def test_jacobians_of_all_rows_at_once(tmp_path, monkeypatch):
    """Compiled, and recalled from the cache."""
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    with cache_in(tmp_path):
        for _ in range(2):
            torch.compiler.reset()
            compiled = torch.compile(program, backend="regraft", options={"strict": True})
            for size in (3, 5):
                given = torch.randn(size), torch.randn(size)
                ours, theirs = (jacobian(f, given, vectorize=True) for f in (compiled, program))
                torch.testing.assert_close(ours, theirs)


def mixed(x, w):
    return ((x @ w) + torch.arange(4) / 8).sin().cumsum(0) @ w.softmax(-1)


@pytest.fixture
def other_default_dtype():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("inside", ["neither", "autocast", "default dtype"])
def test_backwards_that_run_in_another_state(inside, tmp_path, monkeypatch, other_default_dtype):
    """Compiled, run again, and recalled: of library calls, results would be of other dtypes than kernels read."""

    def gradients(call, within):
        x, w = (torch.linspace(-2, k, 16).reshape(4, 4).requires_grad_() for k in (1, 3))
        y = call(x, w)
        if within == "default dtype":
            other_default_dtype(torch.float64)
        with torch.autocast("cpu", torch.bfloat16, enabled=within == "autocast"):
            found = torch.autograd.grad(y.double().sum(), (x, w))
        other_default_dtype(torch.float32)
        return found

    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    expected = gradients(mixed, "neither")
    with cache_in(tmp_path):
        for _ in range(2):
            torch.compiler.reset()
            compiled = torch.compile(mixed, backend="regraft", options={"strict": True})
            for within in (inside, "neither", inside):
                torch.testing.assert_close(gradients(compiled, within), expected)


UNPACKED = {
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x, "contiguous": lambda x: x.contiguous(),
    "smaller": lambda x: x[:2], "double": lambda x: x.double(),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPACKED)
def test_hooks_give_saved_tensors_that_lie_otherwise(name, tmp_path, monkeypatch):
    """Compiled, and recalled. What has another size or dtype is an error, as in eager."""

    def gradients(call):
        x, w = torch.linspace(-2, 1, 32).reshape(4, 8)[:, ::2].requires_grad_(), W.clone().mT.requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, UNPACKED[name]):
            y = call(x, w)
        try:
            return torch.autograd.grad(y.sum(), (x, w))
        except RuntimeError:
            return None

    def program(x, w):
        return ((x @ w).sin() * w.exp().sum(0)).cumsum(1)

    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    expected = gradients(program)
    with cache_in(tmp_path):
        for _ in range(2):
            torch.compiler.reset()
            compiled = torch.compile(program, backend="regraft", options={"strict": True})
            torch.testing.assert_close(gradients(compiled), expected)


def test_gradients_of_which_rows_lie_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    gradients = torch.randn(4, 4, 5).permute(2, 0, 1)
    with cache_in(tmp_path):
        for given in (gradients.contiguous(), gradients.mT):  # torch refuses the second but for recalled steps
            torch.compiler.reset()
            ours, theirs = (
                torch.autograd.grad(f(x, w), (x, w), given, is_grads_batched=True)
                for f in (torch.compile(product, backend="regraft"), product)
            )
            torch.testing.assert_close(ours, theirs)


@torch.library.custom_op("regraft_test::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    """A copy, in columns."""
    return x.t().contiguous().t()


@turned.register_fake
def _(x):
    return x.new_empty(x.shape)


def test_calls_lay_out_what_a_library_made_otherwise_than_told():
    x = torch.randn(3, 5)
    made, seen = as_calls(trace(lambda x: (turned(x), turned(x + 1).view(15)), x))([x])
    assert made.stride() == (5, 1) and torch.equal(seen, x.flatten() + 1)


def test_group_norms_of_gpus_are_given_contiguous_images():
    """The kernel takes views of its operands, and raises where they have none."""
    last = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    graph = on_cuda(trace(lambda x: aten.native_group_norm(x.relu(), None, None, 2, 8, 16, 4, 1e-5)[0], last))
    given = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, target, types, args=(), kwargs=None):
            if target is aten.native_group_norm.default:
                given.append(args[0].is_contiguous())
            return target(*args, **(kwargs or {}))

    with Watched():
        made = as_calls(graph)([last])
    assert given == [True] and made.stride() == last.stride()
    torch.testing.assert_close(made, torch.nn.functional.group_norm(last.relu(), 4))
