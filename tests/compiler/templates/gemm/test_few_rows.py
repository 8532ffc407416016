"""Products with few rows on a CPU: weights are read as they lie in memory, those of few bits too."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.packed_words import DEPTH, LAYOUTS, ordered_columns
from support.thorough import examples, one_row_in, takes_turns
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import regraft
from regraft.compiler.codegen.cpp import target
from regraft.compiler.passes.fold_constant_tables import fold_constant_tables
from regraft.compiler.passes.periodic_order import order_within_groups
from regraft.compiler.passes.picked_rows import check_picked_rows
from regraft.compiler.templates import TemplateKernel, fuse_gemm
from regraft.compiler.templates.common.cpp_call import lanes
from regraft.compiler.templates.gemm.fuse import FEW_ROWS
from regraft.rewrites.profit import Always, Decision, Question
from regraft.rewrites.record import Evidence, GraphRecord

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class FewRows(Always):
    """Takes the kernel for few rows wherever there is one, nothing else."""

    def decide(self, question: Question) -> Decision:
        return Decision(FEW_ROWS if FEW_ROWS in question.candidates else None, Evidence())


def fused(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[torch.fx.GraphModule, GraphRecord]:
    with torch.no_grad():
        traced = make_fx(function, tracing_mode="fake")(*inputs)
    traced.graph.eliminate_dead_code()
    fold_constant_tables(traced)
    order_within_groups(traced)
    check_picked_rows(traced)
    record = GraphRecord("test")
    fuse_gemm(traced, FewRows(), record, packed=False)
    traced.graph.lint()
    traced.recompile()
    return traced, record


def weights_read(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.dtype]:
    """Assert that one kernel is as near to float64 as eager; returns the dtypes of what it reads."""
    made, record = fused(function, inputs)
    (kernel,) = [node for node in made.graph.nodes if isinstance(node.target, TemplateKernel)]
    ours, eager = made(*inputs), function(*inputs)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert ours.dtype == eager.dtype and ours.shape == eager.shape and ours.stride() == eager.stride(), record
    scale = float(exact.abs().max())
    allowed = 1.5 * float((eager.double() - exact).abs().max()) + (2e-6 if eager.dtype == F32 else 1e-4) * scale
    assert float((ours.double() - exact).abs().max()) <= allowed
    return [node.meta["val"].dtype for node in kernel.all_input_nodes]


def random(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -127, 127, sizes, generator=generator).to(dtype)
    return torch.randn(sizes, generator=generator).to(dtype)


@pytest.mark.parametrize("rows", [3, 5, 6, 7])
def test_columns_side_by_side_divide_a_block(rows: int) -> None:
    """Rows that do not divide the sums which are kept: a fold of too many columns wrote beyond its buffer."""
    inputs = random(rows, 512), random(128, 512, dtype=torch.uint8), torch.rand(128)
    read = weights_read(lambda x, w, s: F.linear(x, (w.to(x.dtype) - 3) * s.to(x.dtype)[:, None]), inputs)
    assert torch.uint8 in read


def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, weight, bias))


def turned(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, weight).relu()


@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 16), st.integers(1, 150), st.integers(2, 200), st.sampled_from([F32, BF16, F16]), st.booleans()
)  # fmt: skip
def test_any_sizes(m: int, n: int, k: int, dtype: torch.dtype, deep: bool) -> None:
    m = m if dtype == BF16 else -(-m // 4)
    inputs = [random(m, k, dtype=dtype), random(*((n, k) if deep else (k, n)), dtype=dtype), random(n, dtype=dtype)]
    assert weights_read(layer if deep else turned, inputs) == [dtype] * 3


@one_row_in(2)
@takes_turns("deep")
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 3), (2, 150, 65), (4, 33, 31), (3, 95, 129), (1, 4200, 40)])
def test_pairs_end_anywhere(m: int, n: int, k: int, deep: bool) -> None:
    """Neither rows nor columns that do not fill vectors are read: NaN surrounds the weight."""
    large = torch.full((n + 40, k + 40) if deep else (k + 40, n + 40), float("nan"), dtype=BF16)
    weight = large[:n, :k] if deep else large[:k, :n]
    weight.copy_(random(*weight.shape, dtype=BF16))
    assert weights_read(layer if deep else turned, [random(m, k, dtype=BF16), weight, random(n, dtype=BF16)])


def test_a_thread_takes_neighbouring_columns_at_once() -> None:
    inputs = [random(2, 60, dtype=BF16), random(60, 1000, dtype=BF16), random(1000, dtype=BF16)]
    before = torch.get_num_threads()
    made, _ = fused(turned, inputs)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(made(*inputs))
    torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


@one_row_in(2)
@pytest.mark.parametrize(
    ("deep", "dtype", "pairs", "requests"),
    [(True, F32, 0, 0), (True, F16, 0, 1), (True, BF16, 1, 1), (False, F32, 0, 0), (False, BF16, 1, 0)],
)
def test_how_a_weight_is_read(deep: bool, dtype: torch.dtype, pairs: int, requests: int) -> None:
    """bfloat16 as pairs where vectors have 16 lanes; elements that are converted are requested before they are read."""
    inputs = [random(1, K, dtype=dtype), random(*((N, K) if deep else (K, N)), dtype=dtype), random(N, dtype=dtype)]
    made, _ = fused(layer if deep else turned, inputs)
    (kernel,) = [node.target for node in made.graph.nodes if isinstance(node.target, TemplateKernel)]
    body = kernel.source[kernel.source.index("call, i64 begin, i64 end") :]
    assert body.count("gemm::deep_pairs<ROWS" if deep else "gemm::wide_pairs<ROWS>") == (pairs if lanes() == 16 else 0)
    assert body.count("__builtin_prefetch") > 0 if requests else "__builtin_prefetch" not in body


@pytest.mark.parametrize(("rows", "k"), [(1, 40), (2, 40), (2, 4096), (3, 1 << 14)])
def test_requests_follow_the_order_of_reading(rows: int, k: int) -> None:
    """Whole columns ahead: a column may be read in several parts, each for some columns before the next. One row
    reads one stream, for which a processor needs no requests."""
    made, _ = fused(lambda x, w: F.linear(x, w), [random(rows, k, dtype=BF16), random(20, k, dtype=BF16)])
    (kernel,) = [node.target for node in made.graph.nodes if isinstance(node.target, TemplateKernel)]
    if lanes() == 16:
        (ahead,) = re.findall(r"InPlace<(\d+)> read = ", kernel.source)
        assert int(ahead) % k == 0 and int(ahead) <= max(k, 1 << 13)
        assert (int(ahead) == 0) == (rows == 1)


@pytest.mark.parametrize("name", ["avx2", "scalar"])
def test_narrower_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.compiler.templates.common.cpp_call.host_target", lambda: target(name))
    weights_read(layer, [random(3, 70), random(50, 70), random(50)])
    scaled = [random(2, 70), random(50, 70, dtype=torch.int8), random(50)]
    assert torch.int8 in weights_read(lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]), scaled)


def test_matrices_and_strides() -> None:
    weights_read(lambda x, w: torch.bmm(x, w) * 2, [random(3, 1, 40), random(3, 40, 33)])
    weights_read(lambda x, w: torch.bmm(x, w.transpose(1, 2)), [random(3, 1, 40), random(3, 33, 40)])
    weights_read(lambda x, w: F.linear(x[:, ::2], w[::2]), [random(2, 80), random(66, 40)])


def halves(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 0xF, packed >> 4], -1).view(packed.shape[0], -1)


def joined(packed: torch.Tensor) -> torch.Tensor:
    return torch.cat([(packed & 0xF).unsqueeze(-1), (packed >> 4).unsqueeze(-1)], -1).view(packed.shape[0], -1)


N, K = 72, 96
BYTES, SCALE, GROUPS = random(N, K, dtype=torch.int8), random(N) * 0.01, random(N, K // 32) * 0.01
SPELLINGS: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "scaled": (lambda x, w, s: x @ (w.to(x.dtype) * s[:, None]).t(), [BYTES, SCALE]),
    "scaled after": (lambda x, w, s: F.linear(x, w.to(x.dtype)) * s, [BYTES, SCALE]),
    "zeros and bias": (
        lambda x, w, s, z: F.linear(x, (w.to(x.dtype) - z[:, None]) * s[:, None], z),
        [random(N, K, dtype=torch.uint8), SCALE, torch.arange(float(N))],
    ),
    "groups": (
        lambda x, w, s: F.linear(x, (w.view(N, -1, 32).to(x.dtype) * s[..., None]).view(N, K)), [BYTES, GROUPS]
    ),
    "by way of float": (lambda x, w, s: F.linear(x, (w.float() * s.float()[:, None]).to(x.dtype)), [BYTES, SCALE]),
    "columns": (lambda x, w, s: x @ (w.to(x.dtype) * s), [BYTES.t().contiguous(), SCALE]),
    "halves of bytes": (
        lambda x, w, s: F.linear(x, (halves(w).to(x.dtype) - 8) * s[:, None]),
        [random(N, K // 2, dtype=torch.uint8), SCALE],
    ),
    "halves in groups": (
        lambda x, w, s: F.linear(x, ((halves(w).view(N, 3, -1).to(x.dtype) - 8) * s[..., None]).view(N, K)),
        [random(N, K // 2, dtype=torch.uint8), GROUPS],
    ),
    "halves joined": (
        lambda x, w, s: F.linear(x, (joined(w).to(torch.int8) - 8).to(x.dtype) * s[:, None]),
        [random(N, K // 2, dtype=torch.uint8), SCALE],
    ),
    "halves side by side": (
        lambda x, w, s: F.linear(x, (torch.cat([w & 0xF, w >> 4], 1).to(x.dtype) - 8) * s[:, None]),
        [random(N, K // 2, dtype=torch.uint8), SCALE],
    ),
    "high halves first, in groups": (
        lambda x, w, s: F.linear(
            x, ((torch.cat([w >> 4, w & 15], -1).to(x.dtype) - 8).view(N, 3, 32) * s[..., None]).view(N, K)
        ),
        [random(N, K // 2, dtype=torch.uint8), GROUPS],
    ),
    "quarters side by side": (
        lambda x, w, s: F.linear(x, (torch.cat([(w >> n) & 3 for n in (0, 2, 4, 6)], 1).to(x.dtype) - 1) * s[:, None]),
        [random(N, K // 4, dtype=torch.uint8), SCALE],
    ),
    "halves of columns": (
        lambda x, w, s: F.linear(x, (torch.cat([w >> 4, w & 15]).to(x.dtype) - 8) * s[:, None]),
        [random(N // 2, K, dtype=torch.uint8), SCALE],
    ),
    "quarters of columns": (
        lambda x, w, s: F.linear(x, torch.cat([(w & 3 << n) >> n for n in (0, 2, 4, 6)]).to(x.dtype) - 1) * s,
        [random(N // 4, K, dtype=torch.uint8), SCALE],
    ),
    "halves of columns side by side": (
        lambda x, w, s: x @ ((torch.cat([w & 15, w >> 4], 1).to(x.dtype) - 8) * s),
        [random(K, 32, dtype=torch.uint8), random(64) * 0.01],
    ),
    "numbers of a table": (
        lambda x, w, s, table: F.linear(x, table[halves(w).long()] * s[:, None]),
        [random(N, K // 2, dtype=torch.uint8), SCALE, random(16)],
    ),
    "embedded numbers in groups": (
        lambda x, w, s, table: F.linear(
            x, (F.embedding(halves(w).int(), table).view(N, 3, 32) * s[..., None]).view(N, K)
        ),
        [random(N, K // 2, dtype=torch.uint8), GROUPS, random(16, 1)],
    ),
    "selected numbers": (
        lambda x, w, table: F.linear(x, table.index_select(0, (w.view(-1) & 127).int()).view(N, K)),
        [random(N, K, dtype=torch.uint8), random(128)],
    ),
    "one number": (lambda x, w: F.linear(x, w.to(x.dtype) * 0.01), [BYTES]),
}  # fmt: skip


@one_row_in(2)
@takes_turns("rows")
@pytest.mark.parametrize(("rows", "dtype"), [(1, BF16), (9, F32)])
@pytest.mark.parametrize("name", SPELLINGS)
def test_weights_of_bytes(name: str, rows: int, dtype: torch.dtype) -> None:
    function, given = SPELLINGS[name]
    inputs = [random(rows, K, dtype=dtype), *(x.to(dtype) if x.is_floating_point() else x for x in given)]
    assert weights_read(function, inputs).count(given[0].dtype) == 1 + (len(given) - 1) * (given[0].dtype == dtype)
    made, _ = fused(function, inputs)
    placeholders = [node for node in made.graph.nodes if node.op == "placeholder"]
    (kernel,) = [node for node in made.graph.nodes if isinstance(node.target, TemplateKernel)]
    assert sorted(kernel.all_input_nodes) == sorted(placeholders)  # nothing is computed before


@takes_turns("rows")
@pytest.mark.parametrize(("rows", "dtype"), [(1, F32), (3, BF16), (16, F16)])
@pytest.mark.parametrize("name", [*LAYOUTS, "columns by index"])
def test_words_with_packed_zeros(name: str, rows: int, dtype: torch.dtype) -> None:
    """The weight is read as it is, and zero points as a table that is unpacked before."""
    function, given = LAYOUTS.get(name, ordered_columns)(dtype)
    read = weights_read(function, [random(rows, DEPTH, dtype=dtype), *given])
    zeros = {torch.int8 if name == "columns by index" else torch.int32 if "columns" in name else torch.int16}
    assert torch.int32 in read and zeros < {*read} | {None}


def in_groups(size: int) -> Callable[..., torch.Tensor]:
    """Halves of bytes with a scale for each group of so many."""
    return lambda x, w, s: F.linear(
        x, ((halves(w).view(w.shape[0], -1, size).to(x.dtype) - 8) * s[..., None]).view(w.shape[0], -1)
    )


@settings(max_examples=examples(5, 12), deadline=None)
@given(st.integers(1, 16), st.integers(1, 70), st.integers(1, 100), st.sampled_from(["int8", "int4"]))
@example(3, 5, 1, "int4")
def test_bytes_of_any_size(m: int, n: int, k: int, kind: str) -> None:
    """Neither rows nor columns need to fill vectors; the last words are read alone."""
    scale = random(n, dtype=BF16) * 0.01
    if kind == "int8":
        weights_read(SPELLINGS["scaled"][0], [random(m, k + 1, dtype=BF16), random(n, k + 1, dtype=torch.int8), scale])
    else:
        given = [random(m, 2 * k, dtype=BF16), random(n, k, dtype=torch.uint8), scale]
        weights_read(SPELLINGS["halves of bytes"][0], given)


def test_weights_side_by_side_are_not_read_for_each_other() -> None:
    """Columns of two matrices: each element is one of either, which only its place says."""
    given = [random(2, K), random(N, K), random(N, K)]
    made, _ = fused(lambda x, u, v: F.linear(x, torch.cat([u, v])), given)
    assert [node for node in made.graph.nodes if node.target == torch.ops.aten.cat.default]


def test_places_of_a_table_that_may_not_be_there_are_looked_up_before() -> None:
    """Kernels of products check no index; eager's errors stay."""
    given = [random(2, K), torch.full((N, K), 15, dtype=torch.uint8), random(15)]
    look_up = lambda x, w, table: F.linear(x, table[(w & 15).long()])  # noqa: E731
    made, _ = fused(look_up, given)
    assert [node for node in made.graph.nodes if node.target == torch.ops.aten.index.Tensor]
    with pytest.raises(IndexError):
        made(*given)


def test_a_table_without_dims_is_looked_up_before() -> None:
    given = [random(2, K), random(N, K, dtype=torch.uint8), torch.tensor(0.5), torch.zeros(1, dtype=torch.int64)]
    look_up = lambda x, w, number, at: F.linear(x, w.to(x.dtype) * number.index_select(0, at))  # noqa: E731
    made, _ = fused(look_up, given)
    torch.testing.assert_close(made(*given), look_up(*given), rtol=1e-4, atol=1e-3)


def test_scales_with_more_elements_than_the_weight() -> None:
    """Each matrix of a batch scales the one weight, whose columns have a byte each."""
    given = [random(4, 2, 2, dtype=BF16), random(5, 1, dtype=torch.uint8), random(4, 5, dtype=BF16)]
    weights_read(lambda x, w, s: x @ ((halves(w).to(x.dtype) - 8) * s[..., None]).mT, given)


@one_row_in(3)
@pytest.mark.parametrize("rows", [1, 4, 6, 16])
@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_groups_of_any_size(rows: int, size: int) -> None:
    """Of 16 and 32 words, whose factors are taken out of sums if rows are few, and of fewer."""
    given = [random(rows, 256, dtype=BF16), random(40, 128, dtype=torch.uint8), random(40, 256 // size, dtype=BF16)]
    weights_read(in_groups(size), given)


def test_no_scale_is_read_behind_the_last_group() -> None:
    """Of the last 32 words of a column, 16 share a scale: there is none for the others."""
    given = [random(6, 96, dtype=BF16), random(40, 48, dtype=torch.uint8), random(40, 3, dtype=BF16)]
    made, _ = fused(in_groups(32), given)
    (kernel,) = [node.target for node in made.graph.nodes if isinstance(node.target, TemplateKernel)]
    if lanes() == 16:
        last = kernel.source[kernel.source.index("const auto last") :].partition("deep_pairs<ROWS")[0]
        assert "(k + 16)" not in last


@one_row_in(2)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("name", ["halves of bytes", "halves in groups", "scaled", "groups", "halves side by side"])
def test_numbers_that_are_not_finite(name: str, rows: int) -> None:
    """NaN where eager has NaN, from rows and from scales; what is near infinities is not finite either."""
    function, (weight, scale) = SPELLINGS[name]
    x, scale = random(rows, K, dtype=BF16), scale.to(BF16).clone()
    x[0, 3], scale.view(-1)[5], scale.view(-1)[17] = float("nan"), float("nan"), float("inf")
    for inputs in ([x, weight, scale], [x.nan_to_num(float("inf")), weight, scale]):
        ours, eager = fused(function, inputs)[0](*inputs), function(*inputs)
        assert bool((ours.isnan() | ~eager.isnan()).all()) and torch.equal(ours.isfinite(), eager.isfinite())


def test_halves_of_bytes_are_looked_up() -> None:
    """One look-up for 32 numbers where vectors have 16 lanes; factors of groups are taken out of sums."""
    for name, factors in (("halves of bytes", "false"), ("halves in groups", "true")):
        function, (weight, scale) = SPELLINGS[name]
        x, weight, scale = random(1, 128, dtype=BF16), random(N, 64, dtype=torch.uint8), random(N, 4, dtype=BF16)
        given = [x, weight, scale[:, 0] if factors == "false" else scale]
        function = function if factors == "false" else in_groups(32)
        made, _ = fused(function, given)
        (kernel,) = [node.target for node in made.graph.nodes if isinstance(node.target, TemplateKernel)]
        if lanes() == 16:
            assert "shuffle(table1" in kernel.source and f"deep_pairs<ROWS, PACKED, {factors}>" in kernel.source


def test_many_rows_keep_the_library() -> None:
    assert fused(SPELLINGS["scaled"][0], [random(17, K), BYTES, SCALE])[1].applied == []
    assert fused(layer, [random(5, K), random(N, K), SCALE])[1].applied == []
    assert fused(layer, [random(17, K, dtype=BF16), random(N, K, dtype=BF16), random(N, dtype=BF16)])[1].applied == []


def test_values_that_others_read_stay() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = w.to(x.dtype)
        return F.linear(x, wide), wide

    made, _ = fused(function, [random(1, K), BYTES])
    (kernel,) = [node for node in made.graph.nodes if isinstance(node.target, TemplateKernel)]
    assert torch.int8 not in [node.meta["val"].dtype for node in kernel.all_input_nodes]


class Quantized(nn.Module):
    """A layer of 8-bit weights, large enough to be asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", random(1024, 512, dtype=torch.int8))
        self.scale = nn.Parameter(random(1024) * 0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale[:, None])


class Packed(Quantized):
    """The same of 4-bit weights, two in a byte."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = random(1024, 512, dtype=torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, (halves(self.weight).to(x.dtype) - 8) * self.scale[:, None])


def compiled(model: nn.Module, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(model, backend="regraft", options={"profit": "always", "verify": "structure"} | options)


@one_row_in(2)
@pytest.mark.parametrize("model", [Quantized(), Packed()])
@pytest.mark.parametrize("freezing", [False, True])
def test_no_wide_copy_in_the_program(freezing: bool, model: nn.Module) -> None:
    """Whether weights are constants or not, the program makes no tensor of the weight's size."""
    x = random(1, 512 if type(model) is Quantized else 1024)
    with regraft.coverage() as cov, torch.no_grad():
        torch.testing.assert_close(compiled(model, freezing=freezing)(x), model(x), rtol=1e-4, atol=1e-4)
    (graph,) = cov.graphs
    assert not cov.faults and FEW_ROWS in [match.candidate for match in graph.applied]
    assert graph.details.get("freezing", {}).get("constants", 0) == 0
    source = graph.details["source:inference"]
    assert "gemm_" in source and "1024, 512" not in source and "1024, 1024" not in source, source


def test_every_layer_of_few_bits_reads_its_bytes_by_default() -> None:
    """However many kernels that takes, and though bytes are few: made in full, the weight would be large."""
    sizes = [(n, 512) for n in (256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960)]
    given = [(random(n, k // 2, dtype=torch.uint8), random(n, dtype=BF16) * 0.01) for n, k in sizes]

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [SPELLINGS["halves of bytes"][0](x, weight, scale) for weight, scale in given]

    torch._dynamo.reset()
    with regraft.coverage() as cov, torch.no_grad():
        torch.compile(function, backend="regraft")(random(1, 512, dtype=BF16))
    assert [match.candidate for match in cov.graphs[0].applied].count(FEW_ROWS) == len(sizes)


def test_small_weights_keep_the_library_by_default() -> None:
    with regraft.coverage() as cov, torch.no_grad():
        compiled(nn.Linear(64, 64))(random(1, 64))
    assert FEW_ROWS not in [match.candidate for match in cov.graphs[0].applied]


@pytest.mark.parametrize(("layers", "asked"), [(0, 1), (12, 0)])
def test_a_small_part_of_a_graph_is_not_asked_about(layers: int, asked: int) -> None:
    """A pooler beside the layers of a model: two compilations for a hundredth of its time."""

    def function(x: torch.Tensor, wide: torch.Tensor, pooler: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = F.linear(x, wide)
        return F.linear(x[:2], pooler).tanh()

    class Asked:
        questions = 0

        def decide(self, question: Question) -> Decision:
            self.questions += 1
            return Decision(None, Evidence())

    oracle = Asked()
    module = make_fx(function, tracing_mode="fake")(random(128, 1024), random(1024, 1024), random(256, 1024))
    fuse_gemm(module, oracle, GraphRecord(0), packed=False, few_rows=True)
    assert oracle.questions == asked


def test_training_is_left_alone() -> None:
    model, x = Quantized(), random(2, 512).requires_grad_()
    twin = random(2, 512).requires_grad_()
    with regraft.coverage() as cov:
        compiled(model)(x).square().sum().backward()
    scale = model.scale.grad.clone()
    model.scale.grad = None
    model(twin).square().sum().backward()
    for ours, eager in ((x.grad, twin.grad), (scale, model.scale.grad)):
        assert float((ours - eager).norm()) < 1e-5 * float(eager.norm())
    assert FEW_ROWS not in [match.candidate for graph in cov.graphs for match in graph.applied]
