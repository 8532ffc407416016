"""Products through the pass: against eager and float64, what is fused with them, and what is not."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import one_row_in
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import regraft
from regraft.compiler.autotune.autotuner import Measured
from regraft.compiler.codegen.cpp import target
from regraft.compiler.freezing.fold import fold
from regraft.compiler.templates import TemplateKernel, fuse_gemm
from regraft.patterns.packing import FROZEN
from regraft.rewrites.profit import Always, Decision, Never, Oracle, Question
from regraft.rewrites.record import Evidence, GraphRecord

from ..fusing import Fused

aten = torch.ops.aten


def fuse(
    function: Callable[..., Any], inputs: Sequence[Any], oracle: Oracle | None = None, frozen: Sequence[int] = ()
) -> Fused:
    """Trace `function` without gradients and fuse its products; inputs at `frozen` are known while compiling."""
    with torch.no_grad():
        traced = make_fx(function, tracing_mode="fake")(*inputs)
    traced.graph.eliminate_dead_code()
    for place, node in enumerate(traced.graph.find_nodes(op="placeholder")):
        if place in frozen:
            node.meta[FROZEN] = True
    record = GraphRecord("test")
    count = fuse_gemm(traced, oracle or Always(), record, packed=bool(frozen))
    traced.graph.lint()
    traced.recompile()
    return Fused(count, record, traced)


def kernels(fused: Fused) -> list[TemplateKernel]:
    return [node.target for node in fused.graph_module.graph.nodes if isinstance(node.target, TemplateKernel)]


def computed(fused: Fused) -> list[str]:
    """Names of the operators that are left, those that only move elements apart."""
    moves = ("t.", "view.", "_unsafe_view.", "permute.", "clone.", "constant_pad_nd.", "expand.", "unsqueeze.")
    return [name for name in fused.operators if not name.startswith((*moves, "gemm_"))]


def assert_as_good_as_eager(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], count: int = 1, frozen: Sequence[int] = ()
) -> Fused:
    """All products are fused, and as near to float64 as eager is; NaN and infinities are eager's."""
    fused = fuse(function, inputs, frozen=frozen)
    assert fused.count == count, fused.record.near_misses
    assert len(kernels(fused)) == count
    ours, eager = fused.graph_module(*inputs), function(*inputs)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert ours.shape == eager.shape
    assert ours.stride() == eager.stride()
    assert ours.dtype == eager.dtype
    finite = eager.isfinite()
    assert torch.equal(ours.isnan(), eager.isnan())
    assert torch.equal(ours[~finite & ~eager.isnan()], eager[~finite & ~eager.isnan()])
    if finite.any():
        scale = float(exact[finite].abs().max())
        allowed = 6.0 * float((eager.double() - exact)[finite].abs().max()) + 1e-6 * max(scale, 1.0)
        assert float((ours.double() - exact)[finite].abs().max()) <= allowed
    return fused


def random(*sizes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator)


def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return aten.linear(x, weight, bias)


SIZES = [(1, 1, 1), (1, 40, 17), (3, 17, 33), (17, 33, 3), (33, 128, 1), (9, 100, 48), (128, 50, 70), (5, 300, 1700),
         (129, 1, 40)]  # fmt: skip


@one_row_in(2)
@pytest.mark.parametrize("frozen", [(), (1,)])
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes(sizes: tuple[int, int, int], frozen: tuple[int, ...]) -> None:
    m, n, k = sizes
    assert_as_good_as_eager(layer, [random(m, k), random(n, k), random(n)], frozen=frozen)


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 60), st.integers(1, 120), st.integers(1, 90), st.booleans())
def test_any_sizes(m: int, n: int, k: int, frozen: bool) -> None:
    inputs = [random(m, k), random(k, n)]
    assert_as_good_as_eager(lambda x, w: aten.mm(x, w).relu(), inputs, frozen=(1,) if frozen else ())


@pytest.mark.parametrize("name", ["avx2", "generic", "scalar"])
def test_narrower_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.compiler.templates.common.cpp_call.host_target", lambda: target(name))
    assert_as_good_as_eager(layer, [random(21, 70), random(50, 70), random(50)])
    assert_as_good_as_eager(layer, [random(21, 70), random(50, 70), random(50)], frozen=(1,))


def test_many_rows_in_several_blocks() -> None:
    assert_as_good_as_eager(layer, [random(300, 600), random(40, 600), random(40)])
    assert_as_good_as_eager(layer, [random(150, 2000), random(40, 2000), random(40)])


@one_row_in(2)
@pytest.mark.parametrize("frozen", [(), (1,)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (random(20, 30), random(40, 30).t()),
        lambda: (random(30, 20).t(), random(30, 40)),
        lambda: (random(20, 60)[:, ::2], random(30, 80)[:, ::2]),
        lambda: (random(40, 30)[::2], random(60, 40)[::2]),
        lambda: (random(1, 30).expand(20, 30), random(30, 1).expand(30, 40)),
    ],
)
def test_strides(make: Callable[[], tuple[torch.Tensor, torch.Tensor]], frozen: tuple[int, ...]) -> None:
    assert_as_good_as_eager(lambda x, w: aten.mm(x, w), make(), frozen=frozen)


def test_rows_of_several_dims_that_are_not_one() -> None:
    x = random(4, 6, 30)[:, :5]
    assert_as_good_as_eager(layer, [x, random(40, 30), random(40)])


def test_scaled_sum() -> None:
    inputs = [random(40), random(20, 30), random(30, 40)]
    assert_as_good_as_eager(lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=-2.0), inputs)
    assert_as_good_as_eager(lambda b, x, w: torch.addmm(b, x, w), [random(20, 1), *inputs[1:]])


def test_batches() -> None:
    assert_as_good_as_eager(lambda x, w: aten.bmm(x, w) * 2, [random(3, 20, 30), random(3, 30, 40)])
    turned = [random(3, 30, 20).transpose(1, 2), random(3, 40, 30).transpose(1, 2)]
    assert_as_good_as_eager(lambda x, w: aten.bmm(x, w), turned)


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "gelu": F.gelu, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"), "silu": F.silu, "relu": torch.relu,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "scale": lambda y: y * 0.125 + 1,
    "spelled": lambda y: 0.5 * y * (1 + torch.tanh(0.7978845608 * (y + 0.044715 * y * y * y))),
    "bfloat16": lambda y: y.to(torch.bfloat16),
}  # fmt: skip


@one_row_in(3)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_epilogues(name: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[name](aten.linear(x, w, b).view(2, 10, 37))

    inputs = [random(20, 30), random(37, 30), random(37)]
    if name != "bfloat16":
        assert computed(assert_as_good_as_eager(function, inputs)) == []
    fused = fuse(function, inputs)
    assert fused.count == 1
    assert computed(fused) == []
    rtol = 1e-2 if name == "bfloat16" else 1e-4
    torch.testing.assert_close(fused.graph_module(*inputs), function(*inputs), rtol=rtol, atol=1e-5)


@one_row_in(2)
@pytest.mark.parametrize("shape", [(2, 10, 37), (10, 37), (37,), (2, 1, 37), (1, 10, 1), (1,), ()])
def test_epilogues_broadcast(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, w)) * other

    fused = assert_as_good_as_eager(function, [random(2, 10, 30), random(37, 30), random(*shape)])
    assert computed(fused) == []


def test_epilogue_reads_a_strided_residual_where_it_is() -> None:
    residual = random(37, 20).t()
    fused = assert_as_good_as_eager(lambda x, w, r: aten.mm(x, w) + r, [random(20, 30), random(30, 37), residual])
    assert computed(fused) == []


def test_residual_that_is_the_input_itself() -> None:
    fused = assert_as_good_as_eager(lambda x, w: x + F.linear(x, w), [random(20, 30), random(30, 30)])
    assert computed(fused) == []


def test_gated_layer_is_three_kernels() -> None:
    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    inputs = [random(20, 30), random(50, 30), random(50, 30), random(30, 50)]
    fused = fuse(gated, inputs)
    assert fused.count == 3
    assert computed(fused) == []
    torch.testing.assert_close(fused.graph_module(*inputs), gated(*inputs), rtol=1e-4, atol=1e-4)


@one_row_in(2)
@pytest.mark.parametrize("post_op", ["none", "relu", "sigmoid", "tanh", "swish", "gelu"])
@pytest.mark.parametrize("frozen", [(), (1,)])
def test_calls_of_onednn(post_op: str, frozen: tuple[int, ...]) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("no oneDNN here")

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        algorithm = "none" if post_op == "gelu" else ""
        return torch.ops.mkldnn._linear_pointwise(x, w, b, post_op, [], algorithm)

    inputs = [random(2, 10, 30), random(37, 30), random(37)]
    fused = fuse(function, inputs, frozen=frozen)
    assert fused.count == 1
    assert computed(fused) == []
    torch.testing.assert_close(fused.graph_module(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)


def test_unknown_post_op_is_left_alone() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, w, None, "leaky_relu", [0.1], "")

    assert fuse(function, [random(4, 8), random(8, 8)]).codes == ["epilogue-arguments"]


@one_row_in(3)
@pytest.mark.parametrize("frozen", [(), (1,)])
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_spread_as_in_eager(where: int, number: float, frozen: tuple[int, ...]) -> None:
    inputs = [random(9, 20), random(37, 20), random(37)]
    inputs[where].view(-1)[11] = number
    assert_as_good_as_eager(lambda x, w, b: torch.relu(aten.linear(x, w, b)), inputs, frozen=frozen)


def test_a_weight_that_is_shared_is_packed_once() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return aten.mm(aten.mm(x, w), w)

    fused = assert_as_good_as_eager(twice, [random(20, 30), random(30, 30)], count=2, frozen=(1,))
    graph = fused.graph_module.graph
    folded = fold(fused.graph_module, {graph.find_nodes(op="placeholder")[1]: random(30, 30)})
    assert folded is not None
    assert len(folded.constants) == 1


def test_equal_products_share_a_kernel() -> None:
    def layers(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, v)), w).relu()

    first, second = kernels(fuse(layers, [random(20, 30), random(30, 30), random(30, 30)]))
    assert first is not second
    again = kernels(fuse(layers, [random(20, 30), random(30, 30), random(30, 30)]))
    assert [first, second] == again


def test_product_with_several_users_keeps_its_result() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = aten.mm(x, w)
        return y, torch.relu(y)

    inputs = [random(20, 30), random(30, 40)]
    fused = fuse(function, inputs)
    assert fused.count == 1
    assert computed(fused) == ["relu.default"]
    torch.testing.assert_close(fused.graph_module(*inputs), function(*inputs))


def test_what_joins_a_normalization_is_left_to_it() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return torch.softmax(aten.mm(x, w) + r, -1)

    fused = fuse(function, [random(20, 30), random(30, 40), random(20, 40)])
    assert fused.count == 1
    assert computed(fused) == ["add.Tensor", "_softmax.default"]


def test_elements_that_change_places_are_no_epilogue() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = aten.mm(x, w)
        return torch.relu(y.t() + y)

    inputs = [random(20, 30), random(30, 20)]
    fused = fuse(function, inputs)
    assert fused.count == 1
    assert computed(fused) == ["add.Tensor", "relu.default"]
    torch.testing.assert_close(fused.graph_module(*inputs), function(*inputs))


def test_dropout_is_no_epilogue() -> None:
    fused = fuse(lambda x, w: torch.bernoulli(torch.sigmoid(aten.mm(x, w))), [random(4, 5), random(5, 6)])
    assert "bernoulli.default" in computed(fused)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: (random(4, 5).double(), random(5, 6).double()), "dtype"),
        (lambda: (random(17, 5).bfloat16(), random(5, 6).bfloat16()), "dtype"),
        (lambda: (random(4, 0), random(0, 6)), "symbolic"),
    ],
)
def test_near_misses_say_why(make: Callable[[], tuple[torch.Tensor, ...]], code: str) -> None:
    fused = fuse(lambda x, w: aten.mm(x, w), make())
    assert fused.count == 0
    assert fused.codes == [code]


def test_never_applies_nothing_and_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TemplateKernel, "build", lambda self: pytest.fail(f"compiled {self.name}"))
    fused = fuse(layer, [random(21, 31), random(41, 31), random(41)], Never())
    assert fused.count == 0
    assert [match.candidate for match in fused.record.declined] == [""]


def gelu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(aten.mm(x, w))


class Asked:
    """Keeps the questions, and says no."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def decide(self, question: Question) -> Decision:
        self.questions.append(question)
        return Decision(None, Evidence())


@pytest.mark.parametrize("frozen", [(), (1,)])
def test_question_has_programs_of_equal_meaning(frozen: tuple[int, ...]) -> None:
    oracle = Asked()
    inputs = [random(40, 50), random(50, 60)]
    fuse(gelu, inputs, oracle, frozen)
    (question,) = oracle.questions
    expected = gelu(*inputs)
    assert question.rule == "linear-template"
    for program in (question.original, question.candidates["generated"]):
        torch.testing.assert_close(program(*inputs), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        inputs[1].mul_(2.0)  # a packed weight follows
    torch.testing.assert_close(question.candidates["generated"](*inputs), gelu(*inputs), rtol=1e-4, atol=1e-4)


def test_what_cannot_win_is_not_asked() -> None:
    for sizes in ((1, 64, 64), (8, 8, 8)):
        m, n, k = sizes
        oracle = Asked()
        fused = fuse(layer, [random(m, k), random(n, k), random(n)], oracle)
        assert oracle.questions == []
        (declined,) = fused.record.declined
        assert declined.evidence is not None
        assert declined.evidence.note.startswith("estimate")


def test_measured() -> None:
    oracle = Measured()
    fused = fuse(lambda x, w, b: F.gelu(aten.linear(x, w, b)), [random(32, 64), random(96, 64), random(96)], oracle)
    assert (oracle.stats.measured, oracle.stats.failed, oracle.stats.disagreements) == (1, 0, 0)
    (match,) = [*fused.record.applied, *fused.record.declined]
    assert match.family == "linear-kernel"
    assert match.evidence is not None
    assert set(match.evidence.times) == {"original", "generated"}


def test_kernel_pickles() -> None:
    inputs = [random(20, 30), random(40, 30), random(40)]
    fused = fuse(layer, inputs)
    (kernel,) = kernels(fused)
    assert kernel.template == "gemm"
    loaded = pickle.loads(pickle.dumps(kernel))
    weight = inputs[1] if loaded.inputs[1].sizes == (40, 30) else inputs[1].t()
    torch.testing.assert_close(loaded(inputs[0], weight, inputs[2]), layer(*inputs), rtol=1e-4, atol=1e-4)


def test_results_do_not_depend_on_threads() -> None:
    inputs = [random(128, 256), random(300, 256), random(300)]
    fused, before = fuse(layer, inputs), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = fused.graph_module(*inputs)
        torch.set_num_threads(2)
        assert torch.equal(fused.graph_module(*inputs), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("options", [{"mode": "max-autotune"}, {"freezing": True}], ids=str)
def test_in_a_compiled_program(options: dict[str, object]) -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.GELU(), torch.nn.Linear(50, 20)).eval()
    x = random(40, 30)
    with torch.no_grad(), regraft.coverage() as found:
        compiled = torch.compile(model, backend="regraft", options={"profit": "always", **options})
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        model[0].weight.mul_(2.0)  # a packed weight follows
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert [code.templates for graph in found.graphs for code in graph.code] == [{"gemm": 2}]


def test_readers_whose_size_depends_on_data_are_left_out():
    def program(x, weight):
        y = F.linear(x, weight)
        return y, torch.argwhere(y > 0), y[y > 0]

    tensors = torch.randn(4, 8), torch.randn(16, 8)
    options = {"profit": "always", "strict": True, "rules": ()}
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        ours = torch.compile(program, backend="regraft", fullgraph=True, options=options)(*tensors)
    for mine, eager in zip(ours, program(*tensors), strict=True):
        torch.testing.assert_close(mine, eager)


def test_a_factor_that_is_known_when_run_has_no_formula():
    """The library multiplies by it."""
    torch._dynamo.reset()
    program = lambda x, n: torch.addmm(x @ x.t(), x, x.t(), beta=n, alpha=n)  # noqa: E731
    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    for factor in (2, 1, -3):
        x = torch.linspace(-1, 1, 6).reshape(2, 3)
        torch.testing.assert_close(compiled(x, factor), program(x, factor))
