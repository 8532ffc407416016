"""What normal form must leave alone, and what it must note where it moves a random draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.normal import form, module_of, normalized, text, traced
from support.thorough import one_row_in
from torch import fx

from regraft.compiler.normal import LOWERED_FORM
from regraft.rewrites.effects import mark_gradients
from regraft.rewrites.graph import op_name
from regraft.rewrites.purity import is_random

ATTENTION = "matmul(softmax(matmul(%0, permute(%1, [0, 1, 3, 2])), -1), %2)"


def qkv(*, square: bool = False) -> tuple[torch.Tensor, ...]:
    keys = 6 if square else 10
    return torch.randn(2, 4, 6, 8), torch.randn(2, 4, keys, 8), torch.randn(2, 4, keys, 8)


def draws(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function" and is_random(n)]


def test_softmax_over_other_dims_is_another_program() -> None:
    inputs = qkv(square=True)
    for dim in (0, 1, 2):

        def attend(q, k, v):
            return (q @ k.mT).softmax(dim) @ v  # noqa: B023

        assert form(attend, *inputs) != ATTENTION


def test_wrong_permutations_are_another_program() -> None:
    q, k, v = (torch.randn(2, 6, 6, 6) for _ in range(3))
    got = form(lambda q, k, v: (q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)).softmax(-1) @ v, q, k, v)
    assert got == "matmul(softmax(matmul(permute(%0, [0, 2, 1, 3]), permute(%1, [0, 2, 3, 1])), -1), %2)"


def test_a_mask_that_may_hold_fractions_stays_a_product() -> None:
    mask = torch.rand(6, 10)
    got = form(lambda q, k, v, m: ((q @ k.mT) * m + (1 - m) * -1e4).softmax(-1) @ v, *qkv(), mask)
    assert "where" not in got


@pytest.mark.parametrize(
    "softmax",
    [
        lambda x: (e := (x - x.amax(-1, True)).exp()) / (e.sum(-1, True) - 1e-9),
        lambda x: (e := x.exp()) / (e.sum(-1, True) - 1e-6),
        lambda x: (e := x.exp()) / (e.sum(-2, True) + 1e-6),
        lambda x: (e := x.exp()) / (e.sum(-1, True) * 2 + 1e-6),
        lambda x: x.exp() / (x.exp2().sum(-1, True) + 1e-6),
        lambda x: (e := (x - x.amax(-1, True)).exp()) / (e.sum(-2, True) + 1e-9),
        lambda x: (e := (x - x.amax(-1, True)).exp()) / e.sum(-1, True).clamp(max=1e-9),
        lambda x: (e := (x - x.amax(-1, True)).exp()) / e.sum(-1, True).clamp(1e-9, 5),
        lambda x: (e := (x - x.amax(-1, True)).exp()) / e.sum(-1, True).clamp(min=1.5),
        lambda x: (e := (x - x.mean(-1, True)).exp()) / (e.sum(-1, True) + (-x.mean(-1, True)).exp()),
        lambda x: (e := (x - x.amax(-1, True)).exp()) / (e.sum(-1, True) + (1 - x.amin(-1, True)).exp()),
        lambda x: (
            (e := (x - x.amax(-1, True)).exp()) / (e.sum(-1, True) + (x[..., :2] - x.amax(-1, True)).exp()[:, :1])
        ),
    ],
)
def test_sums_that_more_than_a_sink_is_added_to_stay(softmax: Any) -> None:
    assert "softmax" not in form(softmax, torch.randn(4, 4))


EXPONENTS = [
    lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    lambda x: (e := (x - x.amax(-1, True)).exp()) / e.sum(-1, keepdim=True),
    lambda x: (e := x.exp()) @ e / e.sum(-1, keepdim=True),
    lambda x: (x - x.logsumexp(-1, True)).exp(),
    lambda x: (e := (x - x.amax(-1, True)).exp()) / (e.sum(-1, True) + 1e-9),
    lambda x: (e := (x - x.amax(-1, True)).exp()) / (e.sum(-1, True) + (-x.amax(-1, True)).exp()),
]


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_exponents_of_integers_keep_their_types(exponents: Any, kind: torch.dtype) -> None:
    """They are floats, which `softmax` of integers is not."""
    x = torch.randint(0, 2 if kind is torch.bool else 5, (4, 4)).to(kind)
    try:
        expected = exponents(x)
    except RuntimeError:  # a difference of flags
        return
    mirror = normalized(traced(exponents, x))
    torch.testing.assert_close(module_of(mirror)(x), expected, equal_nan=True)


CHOICES = [
    lambda z: z.masked_fill(z.real > 0, 2j),
    lambda z: z.masked_fill(z.real > 0, 1.5),
    lambda z: torch.where(z.real > 0, z, 0),
    lambda z: torch.where(z.real > 0, z, 2j),
    lambda z: torch.where(z.real > 0, z, 1.5),
    lambda z: torch.where(z.real > 0, 1.5, z),
    lambda z: torch.where(z.real > 0, torch.zeros_like(z), z),
    lambda z: torch.where(z.real > 0, 1j, 0.5),
    lambda z: z.clone().index_put_((z.real > 0,), torch.tensor(1j)),
]


@pytest.mark.parametrize("choice", CHOICES)
def test_choices_of_complex_numbers_stay(choice: Any) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    mirror = normalized(traced(choice, z))
    torch.testing.assert_close(module_of(mirror)(z), choice(z))


def test_integer_arithmetic_keeps_its_types() -> None:
    assert form(lambda x: x / 2, torch.arange(4)) == "div(%0, 2)"
    assert form(lambda x: torch.div(x, 2.0, rounding_mode="floor"), torch.randn(4)) == "div(%0, 2, rounding_mode=floor)"
    assert form(lambda x: x.view(torch.int32), torch.randn(4)) == "view(%0, torch.int32)"


def test_detach_is_kept_where_it_stops_a_gradient() -> None:
    for wanted, expected in ((True, "mul(detach(%0), 2)"), (False, "mul(%0, 2)")):
        module = traced(lambda x: x.detach() * 2, torch.randn(3))
        mark_gradients(module.graph, [wanted])
        assert text(normalized(module).graph) == expected


def test_values_written_later_are_not_looked_through() -> None:
    def update(q, k, v):
        scaled = q * 0.5
        scores = scaled @ k.mT
        view = scaled.view(-1)
        scaled.add_(1)
        return scores.softmax(-1) @ v, view

    graph = normalized(traced(update, *qkv())).graph
    (product,) = [n for n in graph.nodes if op_name(n) == "aten.matmul" and op_name(n.args[0]) == "aten.mul"]
    assert "opaque" in product.args[0].meta


def test_a_moved_draw_stands_for_the_original() -> None:
    def attend(q, k, v):
        p = F.dropout((q @ k.mT).softmax(-1).view(8, 6, 10), 0.5)
        return p.view(2, 4, 6, 10) @ v

    module = traced(attend, *qkv())
    graph = normalized(module).graph
    (old,), (new,) = draws(module.graph), draws(graph)
    assert new.meta["draws"] == (old,)
    assert not new.meta.get("redrawn")
    assert tuple(new.meta["val"].shape) == (2, 4, 6, 10)


def test_a_draw_with_two_uses_is_not_made_twice() -> None:
    def attend(q, k, v):
        p = F.dropout((q @ k.mT).softmax(-1).view(8, 6, 10), 0.5)
        return p.view(2, 4, 6, 10) @ v, p

    assert len(draws(normalized(traced(attend, *qkv())).graph)) == 1


def test_a_draw_is_not_permuted() -> None:
    def attend(q, k, v):
        p = F.dropout(torch.einsum("bhqd,bhkd->bqhk", q, k).softmax(-1), 0.5)
        return torch.einsum("bqhk,bhkd->bqhd", p, v)

    (draw,) = draws(normalized(traced(attend, *qkv())).graph)
    assert tuple(draw.meta["val"].shape) == (2, 6, 4, 10)


def test_a_handwritten_dropout_is_redrawn_and_says_so() -> None:
    module = traced(lambda x: x * (torch.rand_like(x) > 0.25) / 0.75, torch.randn(3, 4))
    graph = normalized(module).graph
    (new,) = draws(graph)
    assert op_name(new) == "aten.dropout"
    assert new.meta["redrawn"]
    assert new.meta["draws"] == tuple(draws(module.graph))


def test_a_mask_used_twice_is_not_redrawn() -> None:
    def twice(x, y):
        mask = (torch.rand_like(x) > 0.25) / 0.75
        return x * mask, y * mask

    graph = normalized(traced(twice, torch.randn(3, 4), torch.randn(3, 4))).graph
    assert [op_name(n) for n in draws(graph)] == ["aten.rand_like"]


def test_lowered_products_are_linear_again() -> None:
    aten = torch.ops.aten

    def lowered(x, w, b):
        rows = aten.view.default(x, [6, 8])
        return aten.view.default(aten.addmm.default(b, rows, aten.t.default(w)), [2, 3, 4])

    def unbiased(x, w):
        return aten.mm.default(x, aten.permute.default(w, [1, 0]))

    inputs = torch.randn(2, 3, 8), torch.randn(4, 8), torch.randn(4)
    assert text(normalized(traced(lowered, *inputs), LOWERED_FORM).graph) == "linear(%0, %1, %2)"
    assert text(normalized(traced(unbiased, inputs[0][0], inputs[1]), LOWERED_FORM).graph) == "linear(%0, %1)"
    for_rows = text(normalized(traced(lowered, *inputs[:2], torch.randn(6, 1)), LOWERED_FORM).graph)
    assert for_rows.startswith("reshape(linear(reshape(") and for_rows.count("linear") == 1


def test_weights_under_another_mask_stay_masked() -> None:
    masks = torch.rand(2, 1, 6, 10) > 0.3, torch.rand(2, 1, 6, 10) > 0.3

    def attend(q, k, v, m, n):
        return (q @ k.mT).masked_fill(~m, -torch.inf).softmax(-1).masked_fill(~n, 0) @ v

    got = form(attend, *qkv(), *masks)
    assert got.startswith("matmul(where(%4, softmax(where(%3,") and "any(" not in got


def test_weights_masked_after_a_mild_fill_stay_masked() -> None:
    mask = torch.rand(2, 1, 6, 10) > 0.3
    got = form(lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -5.0).softmax(-1).masked_fill(~m, 0) @ v, *qkv(), mask)
    assert got.startswith("matmul(where(%3, softmax(where(%3,")


def test_a_fill_takes_the_type_of_what_it_fills() -> None:
    x, keep = torch.arange(6), torch.ones(6, dtype=torch.bool)
    graph = normalized(traced(lambda x, m: x.masked_fill(~m, 0.0), x, keep)).graph
    (result,) = graph.output_node().args
    assert text(graph) == "where(%1, %0, 0)" and result.meta["val"].dtype == torch.int64


@pytest.mark.parametrize("fill", [0.5, torch.tensor(1.5), torch.tensor(2), torch.tensor(True)])
@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_a_fill_that_would_change_the_type_stays_a_fill(fill: Any, kind: torch.dtype) -> None:
    x, drop = torch.tensor([0, 3, 0]).to(kind), torch.tensor([True, False, False])
    module = traced(lambda x, m, f: x.masked_fill(m, f), x, drop, fill)
    got = module_of(normalized(module))(x, drop, fill)
    assert got.dtype == kind and torch.equal(got, x.masked_fill(drop, fill))


@pytest.mark.parametrize("rows_on", ["cpu", "meta"])
def test_classes_on_the_cpu_of_numbers_elsewhere_stay(rows_on: str) -> None:
    """`index` takes them from there, `gather` does not."""

    def picked(x, classes):
        return x[torch.arange(3, device=rows_on), classes]

    x, classes = torch.randn(3, 4, device="meta"), torch.tensor([1, 2, 0])
    names = [op_name(n) for n in normalized(traced(picked, x, classes)).graph.nodes if n.op == "call_function"]
    assert "aten.index" in names and "aten.gather" not in names


@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_a_mask_on_the_cpu_for_scores_elsewhere_stays(shape: tuple[int, ...]) -> None:
    """Kernels of attention take masks on the device of the scores only."""
    x, drop = torch.randn(3, 4, device="meta"), torch.ones(shape, dtype=torch.bool)

    def written(x, drop):
        return x.clone().index_put((drop,), torch.full((), -torch.inf, device="meta"))

    for program in (written, lambda x, drop: x.masked_fill(drop, -torch.inf)) if shape == () else (written,):
        names = [op_name(n) for n in normalized(traced(program, x, drop)).graph.nodes if n.op == "call_function"]
        assert not any("where" in name for name in names)


@pytest.mark.parametrize("dynamic", [False, True])
def test_entries_of_what_was_flattened(dynamic: bool) -> None:
    """No dim was split: there are no halves to take."""
    form(
        lambda x: (x.reshape(-1)[1], x.t().reshape(-1).unbind()[0], x.sum().view(1)[0]),
        torch.randn(2, 3),
        dynamic=dynamic,
    )


def test_two_products_that_are_added_are_brought_together_once() -> None:
    """Windows of an attention put back into a picture, and a convolution added: no view goes back and forth."""

    def function(q, v, x, w):
        rows = (q @ q.mT).softmax(-1) @ v  # (batch * windows, heads, size * size, features)
        picture = rows.view(2, 1, 1, 2, 4, 4, 8).permute(0, 3, 6, 1, 4, 2, 5).reshape(2, 16, 4, 4)
        return picture + torch.conv2d(x, w)

    form(
        function, torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 3, 4, 4), torch.randn(16, 3, 1, 1)
    )


@one_row_in(2)
@pytest.mark.parametrize(
    "step",
    [
        lambda s, n: F.pad(s, (0, n)),
        lambda s, n: F.pad(s, (n, 0), value=-1.0),
        lambda s, n: F.pad(s, (n, 1, 0, n)),
        lambda s, n: F.pad(s, (0, -n)),
        lambda s, n: s[..., n:],
        lambda s, n: s[..., :-n],
        lambda s, n: s[:, n - 2],
        lambda s, n: s.narrow(-1, n, 2),
        lambda s, n: s.roll(n, -1),
        lambda s, n: s.repeat(n, 1, 1, 1),
        lambda s, n: s.split([n, s.shape[-1] - n], -1)[1],
        lambda s, n: s.tril(n).triu(-n),
        lambda s, n: s.repeat_interleave(n, 1),
        lambda s, n: s.clamp(min=-n, max=n),
        lambda s, n: s / n + n,
        lambda s, n: s.masked_fill(s > n, -n),
    ],
)
def test_symbolic_numbers_beside_scores(step: Any) -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    n = torch.randn(3)

    def attend(q, k, n):
        weights = torch.softmax(step(q @ k.mT, n.shape[0]), -1)
        return weights @ torch.ones_like(weights).mT

    mirror = normalized(traced(attend, q, k, n, dynamic=True))
    torch.testing.assert_close(module_of(mirror)(q, k, n), attend(q, k, n))
