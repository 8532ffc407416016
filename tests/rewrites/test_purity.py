"""What a call does besides giving results, and what may be done with it."""

import operator

import pytest
import torch
from support.engine import X, calls, capture
from torch.nn import functional as F

from regraft.rewrites.graph import op_name
from regraft.rewrites.purity import (
    Effect,
    PureCall,
    effects_of,
    is_foldable,
    is_pure,
    is_removable,
    may_move,
    mutable,
    storages,
    written,
)

aten = torch.ops.aten


def calls_of(function, *inputs):
    return calls(capture(function, *(inputs or (X,))))


class Kernel(PureCall):
    __name__ = "kernel"

    def __call__(self, x):
        return x + 1


def call(target, *args, value=None, **meta):
    """A call whose arguments are numbers, or nodes where they are tensors."""
    graph = torch.fx.Graph()
    given = []
    for position, x in enumerate(args):
        node = graph.placeholder(f"x{position}") if isinstance(x, torch.Tensor) else x
        if node is not x:
            node.meta["val"] = x
        given.append(node)
    node = graph.call_function(target, tuple(given))
    node.meta |= {"val": torch.empty(2) if value is None else value, **meta}
    return node


@pytest.fixture(scope="module")
def foreign():
    with torch.library._scoped_library("purity", "FRAGMENT") as library:
        library.define("send(Tensor x) -> Tensor")
        yield torch.ops.purity.send.default


NONE, SQUARE = Effect(0), torch.ones(2, 2)
# The call; its effects; whether it is pure, removable, may move, may be evaluated while compiling.
TABLE = {
    "pointwise": (lambda: call(aten.exp.default, X), NONE, "yyyy"),
    "view": (lambda: call(aten.view.default, X, [-1]), NONE, "yyyy"),
    "uninitialised": (lambda: call(aten.empty.memory_format, [2]), NONE, "yyyn"),
    "item": (lambda: call(operator.getitem, X, 0), NONE, "yyyy"),
    "size": (lambda: call(operator.mul, 2, 3, value=6), NONE, "yyyn"),
    "comparison of sizes": (lambda: call(operator.lt, 2, 3, value=True), NONE, "yyyn"),
    "kernel of ours": (lambda: call(Kernel(), X), NONE, "yynn"),
    "write": (lambda: call(aten.add_.Tensor, X, X), Effect.WRITES, "nnnn"),
    "statistics": (
        lambda: call(aten.native_batch_norm.default, X, None, None, X, X, True, 0.1, 0.1),
        Effect.WRITES,
        "nnnn",
    ),
    "draw": (lambda: call(aten.rand_like.default, X), Effect.DRAWS, "nnnn"),
    "dropout in evaluation": (lambda: call(aten.dropout.default, X, 0.5, False), NONE, "yyyy"),
    "factorization": (lambda: call(aten.linalg_inv_ex.default, SQUARE), NONE, "yyyy"),
    "checked factorization": (lambda: call(aten.linalg_inv.default, SQUARE), Effect.CHECKS, "nnyn"),
    "assertion": (lambda: call(aten._assert_async.msg, X, "no"), Effect.CALLED, "nnnn"),
    "size of the data": (lambda: call(aten.nonzero.default, X, unbacked_bindings={}), Effect.NAMES, "ynyy"),
    "Python function": (lambda: call(print, X), Effect.UNKNOWN, "nnnn"),
    "mode": (lambda: call(torch._C._set_grad_enabled, False), Effect.UNKNOWN, "nnnn"),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_may_be_done_with_a_call(name):
    make, effect, answers = TABLE[name]
    node = make()
    assert effects_of(node) == effect
    found = "".join("ny"[bool(ask(node))] for ask in (is_pure, is_removable, may_move, is_foldable))
    assert found == answers


def test_other_libraries_keep_their_order(foreign):
    node = call(foreign, X)
    assert effects_of(node) == Effect.FOREIGN
    assert is_pure(node) and not is_removable(node) and not may_move(node)


def test_nodes_that_are_no_calls():
    graph = torch.fx.Graph()
    assert effects_of(graph.placeholder("x")) == Effect.UNKNOWN
    assert effects_of(graph.output(())) == Effect.UNKNOWN


def test_what_shares_memory_with_a_written_value():
    module = capture(lambda a, b: (a.view(-1).add_(1), torch.exp(b)), X, X)
    view, add, _ = calls(module)
    assert mutable(module.graph) == {view.args[0], view, add}


def test_views_share_storage():
    (view, exp) = calls_of(lambda a: torch.exp(a.view(4, 3)))
    assert storages(view) == storages(view.args[0]) and not storages(view) & storages(exp)


def test_what_a_call_writes():
    (add, copy, exp) = calls_of(lambda a: torch.exp(a.add_(1).copy_(a)))
    assert [written(n) for n in (add, copy, exp)] == [[add.args[0]], [add], []]


def test_calls_of_other_functions_may_write_and_kernels_of_ours_do_not():
    class Kernel(PureCall):
        __name__ = "kernel"

        def __call__(self, x):
            return x + 1

    for target, writes in ((torch.exp, True), (Kernel(), False)):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        call = graph.call_function(target, (x,))
        call.meta["val"] = torch.empty(2)
        assert (written(call) == [x], is_pure(call)) == (writes, not writes)


def test_dead_code_is_erased_only_where_pure():
    nodes = calls_of(lambda a: (torch.exp(a), F.dropout(a, 0.5), a.add_(1), F.dropout(a, 0.5, False)))
    assert [is_pure(n) for n in nodes] == [True, False, False, True]


def test_running_statistics_are_written_though_no_schema_says_so():
    def function(a, mean, var):
        return F.batch_norm(a, mean, var, training=True), F.batch_norm(a, mean, var)

    nodes = calls_of(function, torch.randn(4, 3), torch.zeros(3), torch.ones(3))
    training, evaluation = (n for n in nodes if op_name(n) == "aten.batch_norm")
    assert [n.name for n in written(training)] == ["mean_1", "var_1"] and not is_pure(training)
    assert written(evaluation) == [] and is_pure(evaluation)
