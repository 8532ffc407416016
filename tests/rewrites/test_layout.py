"""Strides after a rewrite: who cares gets the old ones, who does not is re-inferred."""

import pytest
import torch
from support.engine import X, applied, capture, ops, rule
from support.rewriting import compiled
from support.thorough import one_row_in

from regraft.rewrites.layout import _memory_order, missing, restore_layout, same_layout
from regraft.rewrites.verifier import verify_graph

A = torch.randn(2, 3, 4)


def swapped():
    """exp(x), laid out with its last two dims exchanged."""
    return rule(
        lambda x: torch.exp(x), lambda x: torch.exp(x.permute(0, 2, 1).contiguous()).permute(0, 2, 1), "swapped"
    )


def rewritten(function, *inputs):
    given = inputs or (A,)
    module = capture(function, *given)
    assert len(applied(module, swapped()).applied) == 1
    ours, eager = module(*(x.clone() for x in given)), function(*(x.clone() for x in given))
    assert torch.equal(ours, eager) and ours.stride() == eager.stride()
    return module


def rewritten_all(function):
    module = capture(function, A)
    assert applied(module, swapped()).applied
    assert [t.stride() for t in module(A)] == [t.stride() for t in function(A)]
    return module


def test_same_layout():
    assert same_layout(A, A.clone()) and same_layout(1, None)
    assert not same_layout(A, A.mT.contiguous().mT) and not same_layout(A, A.double()) and not same_layout(A, A[0])


def test_an_output_keeps_its_strides():
    assert ops(rewritten(torch.exp))[-3:] == ["permute", "contiguous", "permute"]


def test_a_view_that_no_longer_can_be_becomes_a_reshape():
    module = rewritten(lambda a: torch.exp(a).view(6, 4) + 1)
    assert "reshape" in ops(module) and "view" not in ops(module)


def test_a_view_that_still_can_stays():
    module = rewritten(lambda a: torch.exp(a).view(2, 1, 3, 4) + torch.zeros(2, 1, 3, 4))
    assert "view" in ops(module) and "reshape" not in ops(module)


def test_an_operator_that_takes_no_other_layout_gets_the_old_one():
    rewritten(lambda x: torch.ops.aten._pdist_forward(torch.exp(x)[0], 2.0))


def test_one_of_several_results_and_a_view_of_it_share_memory():
    def function(x):
        values = torch.exp(x).sort(1).values
        return values, values.mT

    values, turned = rewritten_all(function)(A)
    assert values.data_ptr() == turned.data_ptr()


def test_of_several_results_one_goes_to_a_call_that_may_write():
    """Results of pooling whose layout has changed, as those of a convolution's, before a packed convolution."""

    def program(a):
        return torch.neg(torch.sort(torch.exp(a), 1)[0])

    module = capture(program, A)
    (last,) = (node for node in module.graph.nodes if node.target is torch.ops.aten.neg.default)
    last.target = lambda x: torch.neg(x)
    assert len(applied(module, swapped()).applied) == 1
    assert torch.equal(module(A), program(A)) and module(A).stride() == program(A).stride()


def test_as_strided_reads_the_old_memory():
    rewritten(lambda a: torch.exp(a).as_strided((4,), (3,), 1))


def test_metadata_downstream_is_renewed():
    module = rewritten(lambda a: torch.sin(torch.exp(a) * 2).sum(-1))
    verify_graph(module.graph)


def test_strides_that_only_pass_through_pointwise_code_are_restored_at_the_output():
    module = rewritten(lambda a: torch.exp(a) * 2)
    assert ops(module)[-3:] == ["permute", "contiguous", "permute"]


@one_row_in(2)
@pytest.mark.parametrize("view", [
    lambda e: e[..., :2], lambda e: e[:, 0], lambda e: e.split(2, -1)[0], lambda e: e[..., 1:].unsqueeze(-1),
    lambda e: e[:, :, None, ::2], lambda e: e.mT[:, 1:], lambda e: e.chunk(2, 1)[1][0], lambda e: e.diagonal(0, 1, 2),
    lambda e: e[:, None].expand(2, 5, 3, 4), lambda e: e.unbind(-1)[1], lambda e: e[0], lambda e: e[:1],
    lambda e: e[:, 1:].select_scatter(e[:, 0], 1, 1), lambda e: e[..., 1:].slice_scatter(e[..., :1], 2, 1, 2),
    lambda e: e[..., :3].diagonal_scatter(e[:, 0, :3], 0, 1, 2),
    lambda e: e.as_strided_scatter(e[:, 0], (2, 4), (4, 1)),
    lambda e: e.mT.select_scatter(e[:, 0], 2, 1), lambda e: e[:, :, :1].select_scatter(e[0, :, :1], 0, 1),
])  # fmt: skip
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_that_is_an_output_keeps_its_strides(view, dynamic):
    function = lambda a: (view(torch.exp(a)), torch.exp(a).sum())  # noqa: E731
    module = capture(function, A, dynamic=dynamic)
    assert applied(module, swapped()).applied
    verify_graph(module.graph)
    ours, eager = module(A), function(A)
    assert torch.equal(ours[0], eager[0]) and ours[0].stride() == eager[0].stride()


@pytest.mark.parametrize("views", [
    lambda e: (e, e[:, 1:], e[..., 0]), lambda e: (e[:1], e), lambda e: (e[1], e[:1]), lambda e: (e, e.view(6, 4)),
    lambda e: (e.split(1)[1], e.mT[1]), lambda e: (e[0], e[0][1:], e[1:].flatten()), lambda e: (e, e),
])  # fmt: skip
def test_views_of_one_value_still_share_its_memory(views):
    module = rewritten_all(lambda a: views(torch.exp(a)))
    x = A.clone()
    assert len({t.untyped_storage().data_ptr() for t in module(x)}) == 1


def test_a_small_part_is_copied_alone():
    module = rewritten_all(lambda a: ((e := torch.exp(a)).sum(), e[:1]))
    assert module(A)[1].untyped_storage().nbytes() == 12 * 4


def test_in_place_writes_get_the_old_layout():
    module = rewritten(lambda a, b: b.copy_(torch.exp(a)), A, torch.zeros(2, 3, 4))
    assert ops(module)[-1] == "copy_"


@pytest.mark.parametrize("function", [
    lambda a: torch.exp(a).nonzero(), lambda a: torch.exp(a).nonzero() + 0, lambda a: a[torch.exp(a) > 1],
    lambda a: torch.unique(torch.exp(a).round()),
])  # fmt: skip
def test_data_dependent_sizes_keep_their_names(function):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run, _ = compiled(function, rules=[swapped()])
        ours = run(A)
    eager = function(A)
    assert torch.equal(ours, eager) and ours.stride() == eager.stride()


def test_draws_fill_memory_in_the_old_order():
    """Eager's stream gives a place in memory its number; under another layout that would be another element."""

    def function(a):
        y = torch.exp(a)
        return y + torch.rand_like(y) + torch.dropout(y, 0.5, True)

    module = capture(function, A)
    assert len(applied(module, swapped()).applied) == 1
    torch.manual_seed(3)
    found = module(A)
    torch.manual_seed(3)
    assert torch.equal(found, function(A))


def test_restore_layout():
    module = capture(lambda a: torch.exp(a), A)
    exp = next(n for n in module.graph.nodes if n.op == "call_function")
    like = A.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    with module.graph.inserting_before(module.graph.output_node()):
        new = restore_layout(module.graph, exp, like)
    assert new.meta["val"].stride() == like.stride() and new.meta["stack_trace"] == exp.meta["stack_trace"]


def test_symbolic_strides():
    module = capture(lambda a: torch.exp(a).view(-1) + 1, A, dynamic=True)
    assert len(applied(module, swapped()).applied) == 1
    b = torch.randn(3, 5, 2)
    assert torch.equal(module(b), torch.exp(b).view(-1) + 1)
    assert X.is_contiguous()


def test_a_write_reaches_every_reader():
    """The old layout is restored where the value is made: a copy before the write would keep it to itself."""

    def function(a):
        y = torch.exp(a) * 2
        z = torch.sin(y)
        y[:, :1].mul_(3.0)
        return y, z

    module = capture(function, A)
    assert len(applied(module, swapped()).applied) == 1
    for ours, eager in zip(module(A.clone()), function(A.clone()), strict=True):
        assert torch.equal(ours, eager)


def test_what_is_missing_to_an_aligned_row():
    assert [missing(n, 2) for n in (8, 9, 15, 16, 0)] == [0, 7, 1, 0, 0]
    assert [missing(n, 4, 128) for n in (4, 5, 33)] == [0, 27, 31]  # what begins at 16 bytes stays


EXPANDED = [
    ((1, 3, 4, 5), (0, 1, 2, 3)),
    ((1, 3, 4, 5), (0, 2, 1, 3)),
    ((4, 5, 1, 2), (1, 0, 2, 3)),
    ((4, 1, 5), (0, 1, 2)),
    ((4, 5, 1), (0, 1, 2)),
    ((1, 1, 6), (0, 1, 2)),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes, order", EXPANDED)
def test_entries_that_share_memory_go_on_sharing_it(sizes, order, dynamic):
    """Kernels trust the strides of rows: a dim expanded from one entry is none of them."""
    back = sorted(range(len(sizes)), key=order.__getitem__)
    wide = [7 if n == 1 else n for n in sizes]
    like = torch.empty([sizes[d] for d in order]).permute(back).expand(wide)
    module = capture(lambda a: torch.exp(a).expand(wide), torch.randn(sizes), dynamic=dynamic)
    last = module.graph.output_node().all_input_nodes[0]
    with module.graph.inserting_before(module.graph.output_node()):
        new = restore_layout(module.graph, last, like)
    module.graph.output_node().replace_input_with(last, new)
    module.recompile()
    x = torch.randn(sizes)
    found = module(x)
    found = found[0] if isinstance(found, (list, tuple)) else found
    assert found.stride() == like.stride() and torch.equal(found, torch.exp(x).expand(wide))


def test_memory_order():
    assert _memory_order([96, 0, 8, 1]) == [0, 1, 2, 3] and _memory_order([8, 0, 0, 1]) == [0, 1, 2, 3]
    assert _memory_order([8, 1, 0]) == [0, 1, 2] and _memory_order([4, 96, 0, 1]) == [1, 0, 2, 3]


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_layout_is_restored_again_where_its_source_has_changed(blocks, dynamic):
    """The stride of a dim of one entry does not matter: `contiguous` of such a value is the value, with other strides.

    They were those of a layout that a later rewrite gave up.
    """

    def attend(q, k, v):
        weights = torch.softmax(torch.einsum("bnqhd,bnkhd->bnhqk", q, k), -1)
        return torch.einsum("bnhqk,bnkhd->bnqhd", weights, v).contiguous().view(2, -1, 12)

    given = [torch.randn(2, blocks, n, 3, 4) for n in (5, 7, 7)]
    run, cov = compiled(attend, dynamic=dynamic)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(*given), attend(*given))
    assert cov.count("attention") == 1
