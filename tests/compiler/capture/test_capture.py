"""What is captured: single ATen nodes, and everything a caller can observe is as in eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.capturing import CaptureBackend, same_as_eager
from support.thorough import takes_turns
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from regraft.compiler.capture import capture

X = torch.linspace(-2, 3, 16).reshape(4, 4)
W = torch.linspace(1, -1, 16).reshape(4, 4).requires_grad_()
B = torch.arange(4.0).requires_grad_()


def test_composite_operators_are_single_nodes():
    def program(x, w, b):
        q = F.layer_norm(F.gelu(F.linear(x, w, b)), (4,))
        p = F.dropout((q @ x.mT / 2).softmax(-1), 0.1)
        return F.cross_entropy(torch.einsum("ij,jk->ik", p, w), torch.arange(4))

    calls = same_as_eager(program, X, W, B).calls()
    for name in ("linear", "gelu", "layer_norm", "matmul", "softmax.int", "dropout", "einsum", "cross_entropy_loss"):
        assert sum(call.startswith(f"aten.{name}") for call in calls) == 1, name


def test_module_sources_are_kept():
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())

        def forward(self, x):
            y = self.inner(x)
            return y.relu()

    backend = same_as_eager(Program(), X)
    linear, gelu, relu = [n for n in backend.graph.graph.nodes if n.op == "call_function"]
    assert "y = self.inner(x)" in linear.meta["stack_trace"] and "y.relu()" in relu.meta["stack_trace"]
    assert [kind.__name__ for _, kind in gelu.meta["nn_module_stack"].values()] == ["Sequential", "GELU"]


def test_placeholders_keep_dynamos_names_and_metadata():
    seen = {}

    def backend(gm, example_inputs):
        seen["dynamo"], seen["captured"] = gm, capture(gm, example_inputs).graph_module
        return gm

    torch._dynamo.reset()
    torch.compile(nn.Linear(4, 4), backend=backend)(X)
    theirs, ours = (seen[k].graph.find_nodes(op="placeholder") for k in ("dynamo", "captured"))
    assert [n.name for n in ours] == [n.name for n in theirs] and [n.target for n in ours] == [n.target for n in theirs]
    assert [n._dynamo_source for n in ours] == [n._dynamo_source for n in theirs]
    assert all("grapharg" not in n.meta and "example_value" not in n.meta for n in ours)
    assert [n.meta.get("tensor_dict") for n in ours] == [n.meta.get("tensor_dict") for n in theirs]
    for attribute in ("meta", "_param_name_to_source", "compile_subgraph_reason"):
        assert getattr(seen["captured"], attribute) == getattr(seen["dynamo"], attribute)


def scale_in_place(x, w):
    x.add_(1)
    return x * w


def write_by_index(x, i):
    x.index_put_((i,), torch.zeros(2, 4))
    x[0] = 3
    x[:, 1] += 2
    x[x > 2] = 0
    return x.sum()


def write_views(x, w):
    y = x * w
    y[0].add_(1)
    y.view(-1)[3:5].mul_(2)
    return y, y.T


def write_in_place_activations(x, w):
    return (x @ w).add_(1).mul_(2).sigmoid_()


def write_to_leaf(x, w):
    with torch.no_grad():
        w.add_(x)
    return (w * x).sum()


def transpose_in_place(x, w):
    x.t_()
    x.unsqueeze_(0)
    return x * 2


def resize(x, w):
    x.resize_(2, 8)
    return x + 1


def set_memory(x, y):
    x.set_(y)
    return x * 2


def write_to_data(x, w):
    y = w * 1
    y.data.add_(1)
    w.data.mul_(2)
    return (y * y * w).sum(), w.data


def replace_data(x, w):
    w.data = x * 2
    return w.sum()


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (scale_in_place, (X, W)),
        (write_to_data, (X, W)),
        (replace_data, (X, W)),
        (lambda x, y: x.copy_(y * 2), (X, X)),
        (write_by_index, (X, torch.tensor([1, 2]))),
        (write_views, (X, W)),
        (write_in_place_activations, (X, W)),
        (write_to_leaf, (X, W)),
        (transpose_in_place, (torch.randn(3, 4), W)),
        (resize, (X, W)),
        (set_memory, (X, torch.randn(4, 4))),
        (lambda x, y: torch.mul(x, 2, out=torch.empty_like(x)), (X, X)),
        (lambda x, w: torch.zeros(4, 4).scatter_add_(0, torch.zeros(4, 4, dtype=torch.long), x * w), (X, W)),
        (lambda x, y: torch._foreach_add_([x, y], 1.0), (X, torch.randn(3))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_writes(program, args):
    assert same_as_eager(program, *args).codes == []


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: (x, x.t(), w, w[0], w),
        lambda x, w: (x.mul_(2), x.view(-1), x[0], w.t()),
        lambda x, w: (lambda y: (y, y.t(), y, y[1:]))(x * w),
        lambda x, w: (w.detach(), w.view(-1), w * 2),
        lambda x, w: (None, x + 1, 3, [w * 2, (x, None)]),
        lambda x, w: {"a": x.expand(2, 4, 4), "b": torch.as_strided(x * w, (2, 2), (1, 2))},
        lambda x, w: torch.split(x, 2) + tuple((w * 1).unbind(0)),
    ],
)
def test_aliases_and_structures_of_outputs(program):
    assert same_as_eager(program, X, W).codes == []


def test_inputs_that_share_memory():
    def program(a, b):
        a.add_(1)
        b.mul_(2)
        return a + b

    results = []
    for compiled in (program, torch.compile(program, backend=CaptureBackend())):
        memory = torch.arange(8.0)
        results.append((compiled(memory[:4], memory[2:6]).tolist(), memory.tolist()))
    assert results[0] == results[1]


def test_literals_become_constants():
    def program(x):
        c = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return x * torch.tensor(3) + c.add_(1), c

    graph = same_as_eager(program, X).graph
    constants = [n.target for n in graph.graph.nodes if n.op == "get_attr"]
    assert len(constants) == 2 and not list(graph.buffers())
    same_as_eager(lambda x: x[torch.tensor([3, 0])], X)


def test_numpy_is_recorded_as_operators():
    backend = same_as_eager(lambda x, w: x @ w / np.sqrt(4) * np.log2(float(x.shape[0])) + int(np.lcm(4, 6)), X, W)
    assert backend.codes == []


@pytest.mark.parametrize("function", [np.linalg.norm, np.linalg.det, np.fft.fft], ids=lambda f: f.__name__)
def test_numpy_in_its_submodules(function):
    program = lambda x: torch.from_numpy(np.round(np.abs(function(x.double().numpy())) * np.ones(4), 3))  # noqa: E731
    backend = same_as_eager(program, X)
    assert backend.codes == []


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * torch.signal.windows.gaussian(4, std=1.5),
        lambda x: torch.masked.softmax(x, -1, mask=x > 0) + torch.masked.sum(x, 1, keepdim=True, mask=x < 1),
        lambda x: torch.nn.grad.conv1d_weight(x[None], (4, 4, 2), x[None, :, :3]),
        lambda x: torch.svd_lowrank(x @ x.mT, q=2, niter=1)[1] * 0,
    ],
    ids=["windows", "masked", "gradients of convolutions", "low rank"],
)
def test_functions_of_torch_that_are_written_in_python(program):
    assert same_as_eager(program, X).codes == []


def test_a_question_whether_transforms_are_active():
    """Libraries ask before they look at values (kornia); Dynamo answers, and records that it was asked."""
    asked = torch._C._are_functorch_transforms_active
    assert same_as_eager(lambda x: x + 1 if asked() else x.sin(), X).codes == []


@pytest.mark.parametrize("name", ["power", "mod", "equal", "abs", "degrees", "rint", "conjugate", "sqrt"])
def test_numpy_by_other_names(name):
    """What NumPy calls otherwise than torch's own functions are called that stand for it."""
    arguments = [2.0] if name in ("power", "mod", "equal") else []
    backend = same_as_eager(lambda x: x + np.real(getattr(np, name)(np.float64(x.shape[0]), *arguments)).item(), X)
    assert backend.codes == []


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (F.dropout(x), torch.rand_like(x), F.dropout(x, 0.9)),
        lambda x: (torch.bernoulli(x.sigmoid()), torch.randn(3), torch.randperm(5), torch.randint(0, 9, (3,))),
        lambda x: x.uniform_() + x.clone().normal_(),
        lambda x: F.gumbel_softmax(x, hard=True),
        lambda x: x * torch.empty(4, 1).bernoulli_(0.5),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    ],
)
def test_random_numbers_are_eagers(program):
    assert same_as_eager(program, X).codes == []


@pytest.mark.parametrize(
    "like", [torch.empty_like, torch.ones_like, torch.rand_like, torch.randn_like, *(
        lambda x, args=args: torch.randint_like(x, *args) for args in ((9,), (3, 9)))]
)  # fmt: skip
def test_tensors_like_another_have_no_gradient(like):
    assert same_as_eager(lambda x, w: w * like(w * x).zero_() + like(w).zero_(), X, W).codes == []


def test_only_pure_dead_calls_vanish():
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            x.exp()
            F.dropout(x)
            self.norm(x)
            return x * 2

    backend = CaptureBackend()
    torch.compile(Program(), backend=backend)(X)
    assert backend.calls() == ["aten.dropout.default", "aten.add_.Tensor", "aten.batch_norm.default", "aten.mul.Tensor"]
    backend = CaptureBackend()
    torch.compile(Program().eval(), backend=backend)(X)
    assert "aten.batch_norm.default" not in backend.calls()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.inverse(), lambda x: x.matrix_power(-1), torch.linalg.inv, lambda x: torch.linalg.solve(x, x),
        lambda x: torch.linalg.tensorinv(x.view(4, 1, 4), ind=1), lambda x: torch.linalg.tensorsolve(x, x[0]),
        lambda x: torch.linalg.matrix_power(x, -2), torch.linalg.cholesky, torch.linalg.lu_factor,
        lambda x: torch.linalg.inv(torch.linalg.cholesky(x + 1)),
    ],
)  # fmt: skip
def test_factorizations_that_fail_raise_though_nobody_reads_them(call):
    def program(x):
        call(x)
        return x * 2

    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    for x in (torch.zeros(4, 4), torch.zeros(4, 4, requires_grad=True)):
        with pytest.raises(RuntimeError) as expected:
            program(x)
        with pytest.raises(RuntimeError) as raised:
            compiled(x)
        assert str(raised.value) == str(expected.value)


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.out(F.relu(self.norm(self.conv(x))).mean((2, 3))) + self.calls


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("training", [True, False])
def test_buffers_written_by_modules(training, dynamic):
    backend = same_as_eager(Convolutional().train(training), torch.randn(2, 3, 8, 8), dynamic=dynamic)
    assert backend.codes == []
    assert "aten.batch_norm.default" in backend.captured[0].graph_module.code


def test_optimizer_steps_write_to_static_parameters():
    def trained(compile_step):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = compile_step(lambda: optimizer.step())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            step()
        return [p.tolist() for p in model.parameters()]

    backend = CaptureBackend()
    plain = CaptureBackend(enabled=False)  # AOTAutograd may round otherwise than eager.
    found = trained(lambda step: torch.compile(step, backend=backend))
    torch._dynamo.reset()
    assert found == trained(lambda step: torch.compile(step, backend=plain))
    assert backend.captured and backend.codes == []


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = F.gelu(self.norm(self.linear(x))) * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"y": y @ self.linear.weight, "z": [y.softmax(-1), (x, None)]}


def test_plain_graph_module_without_dynamo():
    torch._dynamo.reset()
    expected_model, model = Plain(), Plain()
    backend = CaptureBackend()
    compiled = backend(fx.symbolic_trace(model), [X])
    expected, found = expected_model(X), backend.captured[0].restore(compiled(X))
    assert found.keys() == expected.keys() and type(found["z"]) is list and found["z"][1][1] is None
    for ours, eagers in ((found["y"], expected["y"]), (found["z"][0], expected["z"][0]), (found["z"][1][0], X)):
        assert torch.equal(ours, eagers)
    found["y"].sum().backward()
    expected["y"].sum().backward()
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), expected_model.parameters(), strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), expected_model.buffers(), strict=True))
    assert "aten.linear.default" in backend.calls()


def test_dynamos_graph_stays_as_it_was():
    def printed(gm):
        modules = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
        return [(id(m.graph), [n.format_node() for n in m.graph.nodes], sorted(m.__dict__)) for m in modules]

    def backend(gm, example_inputs):
        before = printed(gm)
        assert capture(gm, example_inputs).fallback is None
        assert printed(gm) == before
        return gm

    class Program(Convolutional):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    for program in (Convolutional(), Program()):
        torch._dynamo.reset()
        torch.compile(program, backend=backend)(torch.randn(2, 3, 8, 8))
