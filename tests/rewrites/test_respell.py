import math

import pytest
import torch
from support.engine import X, calls, capture
from support.normal import traced

from regraft.rewrites.mirror import Mirror
from regraft.rewrites.reason import Reason
from regraft.rewrites.respell import Normalizer, respelling

aten = torch.ops.aten


@respelling("aten.relu")
def relu_as_clamp(node, edit):
    """``relu(x)  ->  clamp(x, 0)``"""
    return edit.call(aten.clamp.default, node.args[0], 0)


@respelling("aten.clamp")
def clamp_as_relu(node, edit):
    return edit.call(aten.relu.default, node.args[0])


@respelling("aten.exp")
def keeps(node, edit):
    return node


def normalizer(function, *steps):
    mirror = Mirror(capture(function, X))
    found = Normalizer(mirror, steps)
    found.run()
    mirror.graph.lint()
    return found


def names(found):
    return [str(n.target).split(".")[1] for n in found.mirror.graph.nodes if n.op == "call_function"]


def test_a_step_has_the_name_and_the_picture_of_its_function():
    assert (relu_as_clamp.name, relu_as_clamp.ops, relu_as_clamp.doc) == (
        "relu_as_clamp", ("aten.relu",), "``relu(x)  ->  clamp(x, 0)``",
    )  # fmt: skip


def test_steps_apply_everywhere_and_are_counted():
    found = normalizer(lambda a: torch.relu(torch.exp(torch.relu(a))), relu_as_clamp, keeps)
    assert names(found) == ["clamp", "exp", "clamp"] and found.counts == {"relu_as_clamp": 2} and found.stopped is None


def test_the_new_node_stands_for_the_old_and_keeps_its_place():
    found = normalizer(lambda a: torch.relu(a), relu_as_clamp)
    real = found.mirror.owner.graph.output_node().args[0]
    image = found.mirror.image[real]
    assert image.target is aten.clamp.default and found.mirror.sources(image) == [real]
    assert image.meta["stack_trace"] == real.meta["stack_trace"] and image.meta["span"] == (1, 1)


def test_dead_code_is_not_respelled():
    found = normalizer(lambda a: (torch.relu(a), a)[1], relu_as_clamp)
    assert not found.counts


def test_steps_that_undo_each_other_are_stopped_by_name():
    found = normalizer(lambda a: torch.relu(a), relu_as_clamp, clamp_as_relu)
    assert found.stopped.code == "respelling-loops" and "applied" in found.stopped.message
    assert found.stopped.message.split()[0] in ("relu_as_clamp", "clamp_as_relu")


def test_what_is_opaque_or_made_by_a_rule_keeps_its_spelling():
    for key, value in (("opaque", Reason("mutated-between", "")), ("regraft_rule", "some_rule")):
        mirror = Mirror(capture(lambda a: torch.relu(a), X))
        next(n for n in mirror.graph.nodes if n.op == "call_function").meta[key] = value
        found = Normalizer(mirror, [relu_as_clamp])
        found.run()
        assert names(found) == ["relu"]


@respelling("aten.exp")
def exp_as_power(node, edit):
    return edit.call(aten.pow.Scalar, math.e, node.args[0])


def test_calls_that_write_keep_their_spelling():
    found = normalizer(lambda a: torch.exp(a, out=torch.empty(3, 4, dtype=torch.float64)) + a.exp(), exp_as_power)
    assert names(found) == ["empty", "exp", "pow", "add"]


@respelling("aten.relu")
def relu_of_a_pair(node, edit):
    if node.args[0].meta["val"].shape[0] != 2:
        return None
    return edit.call(aten.clamp.default, node.args[0], 0)


@respelling("aten.relu")
def relu_of_pairs(node, edit):
    edit.call(aten.reshape.default, node.args[0], [2, -1])
    return edit.call(aten.clamp.default, node.args[0], 0)


@pytest.mark.parametrize("step", [relu_of_a_pair, relu_of_pairs])
def test_a_step_that_needs_a_guard_does_not_apply(step):
    module = traced(torch.relu, torch.randn(2, 4), dynamic=True)
    environment = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(environment.guards)
    found = Normalizer(Mirror(module), [step])
    found.run()
    found.mirror.graph.lint()
    assert names(found) == ["relu"] and len(environment.guards) == guards
    assert next(iter(module.graph.nodes)).meta["val"].shape[0] == 2
    assert len(environment.guards) == guards + 1  # where others ask, it is one


def test_users_are_looked_at_again():
    seen = []

    @respelling("aten.exp")
    def watch(node, edit):
        seen.append(str(node.args[0].target))

    mirror = Mirror(capture(lambda a: torch.exp(torch.relu(a)), X))
    assert len(calls(mirror.owner)) == 2
    Normalizer(mirror, [watch, relu_as_clamp]).run()
    assert {"aten.relu.default", "aten.clamp.default"} >= set(seen) and seen[-1] == "aten.clamp.default"


def test_a_call_made_again_whose_sizes_follow_from_data_is_another_value():
    @respelling("aten.nonzero")
    def made_again(node, edit):
        return edit.call(aten.nonzero.default, node.args[0])

    module = capture(lambda a: torch.nonzero(a) + 1, X)
    normalizer = Normalizer(Mirror(module), [made_again])
    normalizer.run()
    assert normalizer.counts.total() == 0
    value = calls(module)[0].meta["val"]
    assert value.fake_mode.shape_env.pending_fresh_unbacked_symbols == []
