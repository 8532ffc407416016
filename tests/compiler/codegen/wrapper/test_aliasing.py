"""Which values share memory, and until when it is read."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.codegen.wrapper.aliasing import FRESH, Aliases
from regraft.rewrites.compat import OpOverload, is_mutable

aten = torch.ops.aten


def aliases_of(function, *inputs):
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    nodes = {n.name: n for n in gm.graph.nodes}
    return Aliases(gm.graph), nodes


def names(buffer):
    return [n.name for n in buffer.members]


def test_views_join_their_base_and_prolong_it():
    aliases, n = aliases_of(lambda x: x.exp().view(-1)[1:].t().unsqueeze(0).tanh() + 1, torch.randn(2, 3))
    buffer = aliases.of(n["exp"])
    assert buffer.ours
    assert names(buffer) == ["exp", "view", "slice_1", "t", "unsqueeze"]
    assert buffer.last == aliases.position[n["tanh"]]
    assert names(aliases.of(n["tanh"])) == ["tanh"]


def test_inputs_outputs_and_constants_are_not_ours():
    aliases, n = aliases_of(lambda x: (x.view(-1), (a := x.exp()), a.view(-1), x + torch.tensor(2.0)), torch.randn(3))
    assert not aliases.of(n["view"]).ours
    assert aliases.of(n["view"]) is aliases.of(n["x_1"])
    assert not aliases.of(n["exp"]).ours
    assert names(aliases.of(n["exp"])) == ["exp", "view_1"]
    assert not aliases.of(n["_tensor_constant0"]).ours


def test_fresh_outputs_of_one_operator_are_apart():
    aliases, n = aliases_of(lambda x: (lambda m: (m[0] + 1, m[1] + 1))(x.max(0)), torch.randn(3, 3))
    assert aliases.of(n["max_1"]) is None
    assert aliases.of(n["getitem"]) is not aliases.of(n["getitem_1"])
    assert aliases.of(n["getitem"]).ours


def test_split_outputs_share_their_base():
    aliases, n = aliases_of(lambda x: x.exp().split(1)[0] + 1, torch.randn(2, 2))
    assert aliases.of(n["getitem"]) is aliases.of(n["split"]) is aliases.of(n["exp"])


def test_writes_join_what_they_write():
    aliases, n = aliases_of(lambda x: (e := x.exp(), v := e.view(-1), v.add_(x.view(-1)), e + 1)[-1], torch.randn(4))
    assert names(aliases.of(n["exp"])) == ["exp", "view", "add_"]
    assert "view_1" not in names(aliases.of(n["exp"]))


def test_unsafe_view_aliases_although_its_schema_does_not_say_so():
    aliases, n = aliases_of(lambda x: aten._unsafe_view(x.exp(), [-1]).tanh(), torch.randn(2, 2))
    assert aliases.of(n["_unsafe_view"]) is aliases.of(n["exp"])


def test_what_is_not_known_is_not_ours():
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(aten.exp.default, (x,))
    b = graph.call_function(aten.copy.default, (x, a))
    c = graph.call_function(lambda t: t, (graph.call_function(aten.exp.default, (b,)),))
    d = graph.call_method("view", (graph.call_function(aten.exp.default, (c,)), -1))
    graph.output(())
    aliases = Aliases(graph)
    for made in (b, c, d):
        assert not aliases.of(made).ours
        assert not aliases.of(made.args[0] if made is not b else a).ours


def test_equal_storages_in_metadata_are_aliases():
    graph = fx.Graph()
    x = graph.placeholder("x")
    a, b = (graph.call_function(aten.exp.default, (x,)) for _ in range(2))
    a.meta["val"] = torch.empty(4)
    b.meta["val"] = a.meta["val"].view(2, 2)
    graph.output(())
    aliases = Aliases(graph)
    assert aliases.of(a) is aliases.of(b)


def test_sizes_have_no_memory():
    gm = make_fx(lambda x: x.exp().view(x.shape[0] * 2, -1), tracing_mode="symbolic")(torch.randn(4, 4))
    aliases = Aliases(gm.graph)
    for node in gm.graph.nodes:
        if node.target in (operator.mul, operator.floordiv, aten.sym_size.int):
            assert aliases.of(node) is None


@pytest.mark.parametrize("name", sorted(FRESH))
def test_fresh_operators_exist_and_are_not_views(name):
    namespace, packet = name.split(".")
    target = getattr(getattr(torch.ops, namespace), packet)
    overloads = [getattr(target, o) for o in target.overloads()]
    functional = [o for o in overloads if isinstance(o, OpOverload) and not is_mutable(o)]
    assert functional
    for overload in functional:
        assert not any(r.alias_info for r in overload._schema.returns)
