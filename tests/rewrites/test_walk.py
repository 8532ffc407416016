"""Passes made of a function for one call: which calls are visited, what is replaced, and when code is written."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.rewrites.graph import shape
from regraft.rewrites.walk import recompiles, replaces_calls, visits_calls

aten = torch.ops.aten


@pytest.fixture
def module(monkeypatch):
    """neg(neg(neg(x))) + exp(x), whose code is counted each time it is written."""
    with FakeTensorMode():
        module = make_fx(lambda x: x.neg().neg().neg() + x.exp())(torch.empty(2, 3))
    module.written, write = 0, type(module).recompile

    def count(self):
        module.written += 1
        return write(self)

    monkeypatch.setattr(type(module), "recompile", count)
    return module


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def computes(module, function):
    x = torch.randn(2, 3)
    module.graph.lint()
    torch.testing.assert_close(module(x), function(x))


@replaces_calls(aten.neg.default)
def undo_negation(editor, call):
    """neg(neg(x))  ->  x"""
    (inner,) = call.args
    return inner.args[0] if inner.target is aten.neg.default else None


def test_what_is_computed_takes_the_place_of_the_call(module):
    assert undo_negation.__doc__ == "neg(neg(x))  ->  x" and undo_negation.__module__ == __name__
    assert undo_negation(module) == 1 == module.written
    assert targets(module) == [aten.neg.default, aten.exp.default, aten.add.Tensor]
    computes(module, lambda x: -x + x.exp())
    assert undo_negation(module) == 0 and module.written == 1  # nothing left: no code is written


@pytest.mark.parametrize("backwards", [False, True])
def test_calls_are_visited_in_the_order_of_the_graph(module, backwards):
    """In that of all operators together, or from its end; not those that were made on the way."""
    visited = []

    @visits_calls(aten.exp.default, aten.neg.default, aten.add.Tensor, backwards=backwards)
    def doubled(editor, call):
        visited.append(call.target)
        with editor.at(call):
            again = editor.call(aten.neg.default, call.args[0])
        call.replace_input_with(call.args[0], again)
        return 2

    expected = targets(module)
    assert doubled(module) == 10 and module.written == 1
    assert visited == (expected[::-1] if backwards else expected)


def test_erased_calls_are_not_visited(module):
    visited = []

    @replaces_calls(aten.neg.default, backwards=True)
    def dropped(editor, call):
        visited.append(call)
        return module.graph.find_nodes(op="placeholder")[0]

    assert dropped(module) == len(visited) == 1
    computes(module, lambda x: x + x.exp())


@pytest.mark.parametrize("same_strides", [False, True])
def test_a_result_with_other_strides(module, same_strides):
    """It is dropped if a pass asks for equal ones: nothing has changed."""

    @replaces_calls(aten.exp.default, same_strides=same_strides)
    def turned(editor, call):
        columns = editor.call(aten.t.default, call.args[0])
        rows = editor.call(aten.clone.default, columns, memory_format=torch.contiguous_format)
        return editor.call(aten.t.default, editor.call(aten.exp.default, rows))

    before = targets(module)
    assert turned(module) == module.written == (not same_strides)
    assert (targets(module) == before) is same_strides
    computes(module, lambda x: -x + x.exp())


def test_arguments_reach_the_function(module):
    @visits_calls(aten.neg.default)
    def counted(editor, call, rows, *, seen):
        seen.append(call)
        return shape(call)[0] == rows

    seen = []
    assert counted(module, 2, seen=seen) == len(seen) == 3
    assert counted(module, rows=5, seen=seen) == 0


@pytest.mark.parametrize("made", [0, 3, {}, {"kind": 1}])
def test_code_is_written_for_changes_of_any_form(module, made):
    assert recompiles(lambda graph_module: made)(module) == made
    assert module.written == bool(made)
