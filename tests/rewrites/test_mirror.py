"""The mirror may be edited at will; the program gets only what rules made."""

import torch
from support.engine import X, applied, calls, capture, ops, rule

from regraft.compiler.normal import NORMAL_FORM
from regraft.rewrites.editor import Editor
from regraft.rewrites.mirror import Mirror
from regraft.rewrites.respell import Normalizer


def test_every_value_has_an_image():
    module = capture(lambda a: torch.relu(torch.exp(a)), X)
    mirror = Mirror(module)
    for node in module.graph.nodes:
        image = mirror.image[node]
        assert mirror.sources(image) == [node] and image is not node and image.graph is mirror.graph
        if node.op == "call_function":
            assert image.meta["span"] == (mirror.effects.position[node],) * 2
            assert image.meta["val"] is node.meta["val"]


def test_one_node_may_stand_for_many():
    module = capture(lambda a: (torch.exp(a), torch.exp(a)), X)
    mirror = Mirror(module)
    first, second = (mirror.image[n] for n in calls(module))
    mirror.replaced(second, first)
    assert mirror.sources(first) == calls(module) and mirror.sources(second) == []


def test_what_is_only_respelled_is_not_carried_over():
    module = capture(lambda a: ((a / 8).mT @ (a * 0.5 / 3)) * 2, X)
    before = ops(module)
    mirror = Mirror(module)
    Normalizer(mirror, NORMAL_FORM).run()
    assert ops_of(mirror.graph) != before
    assert mirror.commit() == [] and ops(module) == before


def ops_of(graph):
    return [str(n.target).split(".")[1] for n in graph.nodes if n.op == "call_function"]


def test_what_a_rule_made_is_carried_over_with_what_it_needs():
    module = capture(lambda a: torch.relu(a) * 2, X)
    mirror = Mirror(module)
    relu = calls(module)[0]
    image = mirror.image[relu]
    editor = Editor(mirror.graph, mirror.sizes)
    with editor.at(image):
        plain = editor.call(torch.ops.aten.exp.default, image.args[0])
    with editor.at(image, "my_rule"):
        made = editor.call(torch.ops.aten.log.default, plain)
    editor.replace(image, made)
    mirror.replaced(image, made)
    _, log = mirror.commit()
    assert ops(module) == ["exp", "log", "mul"]
    assert log.meta["regraft_rule"] == "my_rule" and log.meta["stack_trace"] == relu_trace(module)


def relu_trace(module):
    return 'File "user.py", line 1, in model\n    relu = ...\n'


def test_values_that_are_written_later_are_opaque():
    module = capture(lambda a: (e := torch.exp(a).view(-1), e.add_(1), torch.relu(a))[::2], X)
    mirror = Mirror(module)
    opaque = {n.name for n in mirror.graph.nodes if "opaque" in n.meta}
    assert opaque == {"exp", "view"}


def test_commit_keeps_an_in_place_program_right():
    def function(a):
        e = torch.exp(a)
        a.mul_(2)
        return torch.relu(torch.exp(a)) + e

    module = capture(function, X)
    record = applied(module, rule(lambda x: torch.relu(torch.exp(x)), lambda x: torch.exp(x).clamp(min=0)))
    assert len(record.applied) == 1
    x, y = X.clone(), X.clone()
    assert torch.equal(module(x), function(y)) and torch.equal(x, y)


def test_a_size_that_a_rule_needs_becomes_a_node():
    flat = rule(lambda x: torch.exp(x), lambda x: torch.exp(x.reshape(-1)).reshape(x.shape))
    module = capture(lambda a: torch.exp(a) + 1, X, dynamic=True)
    assert len(applied(module, flat).applied) == 1
    y = torch.randn(5, 7)
    assert torch.equal(module(y), torch.exp(y) + 1)


def test_a_kernel_that_is_given_a_value_twice_has_each_argument_in_its_layout():
    x, mask = torch.randn(1, 2, 3, 4), torch.randn(3, 3)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    kernel = rule(lambda x, y, m: torch.relu(x) * y * m.sum(), lambda x, y, m: attend(x, y, y, attn_mask=m)[0])
    module = capture(lambda a, m: (torch.relu(a) * a * m.sum()).sum(), x, mask)
    record = applied(module, kernel)
    assert len(record.applied) == 1 and not record.fallbacks
    assert ops(module) == ["_scaled_dot_product_flash_attention_for_cpu", "getitem", "sum"]
    assert torch.allclose(module(x, mask), attend(x, x, x, attn_mask=mask)[0].sum())


RELU = rule(lambda x: torch.relu(x), lambda x: x.clamp(min=0))


def shared_results(function, *inputs):
    """Which results lie at the same place, of a program in which a rule has replaced `relu`."""
    module = capture(function, *inputs)
    assert applied(module, RELU, normal_form=NORMAL_FORM).applied
    found, expected = module(*inputs), function(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return [a.data_ptr() == found[0].data_ptr() for a in found]


def test_a_copy_of_a_replaced_value_keeps_its_own_memory():
    assert shared_results(lambda a: ((y := torch.relu(a)), y.clone()), X) == [True, False]
    assert shared_results(lambda a: ((y := torch.relu(a)), y.clone(), y.contiguous()), X) == [True, False, True]


def test_a_view_of_a_replaced_value_shares_its_memory():
    """What is written to one result, after the graph, is seen in the other."""
    assert shared_results(lambda a: ((y := torch.relu(a)), y[:, None], y.t(), y.view(-1)), X) == [True] * 4
    assert shared_results(lambda a: ((y := torch.relu(a)).t(), y.clone(), y[None]), X) == [True, False, True]


def test_views_of_a_replaced_product_are_views_of_one_product():
    """Normal form moves views into products; the program computes one."""
    whole = rule(lambda x, y: torch.matmul(x, y), lambda x, y: torch.matmul(x * 1.0, y))
    inputs = torch.randn(2, 3, 4), torch.randn(2, 4, 3)
    module = capture(lambda a, b: ((y := torch.matmul(a, b)), y[:, None]), *inputs)
    assert applied(module, whole, normal_form=NORMAL_FORM).applied
    first, second = module(*inputs)
    assert first.data_ptr() == second.data_ptr() and ops(module).count("matmul") == 1
