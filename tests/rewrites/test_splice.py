import pytest
import torch
from support.engine import X, applied, calls, capture, ops, rule

from regraft.rewrites.editor import RewriteError
from regraft.rewrites.graph import op_name
from regraft.rewrites.splice import Original, subgraph, trace


def operand(*inputs, dynamic=False):
    module = capture(lambda *xs: sum(torch.exp(x).sum() for x in xs), *inputs, dynamic=dynamic)
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def test_trace_takes_nodes_as_inputs_and_constants_as_they_are():
    (a,) = operand(X)
    traced = trace(lambda x, s, missing: torch.relu(x) * s if missing is None else None, [a, 3, None])
    assert ops(traced) == ["relu", "mul"] and torch.equal(traced(X), torch.relu(X) * 3)


def test_trace_keeps_sizes_symbolic():
    (a,) = operand(X, dynamic=True)
    traced = trace(lambda x: x.reshape(x.shape[0] * x.shape[1]), [a])
    assert traced(torch.ones(5, 7)).shape == (35,)


def test_trace_needs_metadata():
    with pytest.raises(RewriteError, match="at least one tensor operand"):
        trace(lambda s: torch.ones(3) * s, [3])


def test_constants_made_while_tracing_belong_to_the_program():
    shifted = rule(lambda x: torch.exp(x), lambda x: torch.exp(x) + torch.tensor([0.0, 0.0, 0.0, 0.0]))
    module = capture(lambda a: torch.exp(torch.exp(a)), X)
    module._regraft_constant0 = torch.ones(1)
    assert len(applied(module, shifted).applied) == 2
    assert torch.equal(module(X), torch.exp(torch.exp(X))) and module._regraft_constant0.item() == 1


def test_a_replacement_may_return_an_inner_value_twice():
    pair = rule(lambda x: (torch.relu(x), torch.exp(x)), lambda x: (lambda y: (y, y))(torch.sin(x)))
    module = capture(lambda a: (torch.relu(a) * 1, torch.exp(a) * 2), X)
    assert len(applied(module, pair).applied) == 1 and ops(module).count("sin") == 1


def test_matched_code_as_a_callable():
    module = capture(lambda a, b: torch.relu(a * b) + 1, X, X)
    mul, relu, _ = calls(module)
    a, b = mul.args
    run = subgraph([mul, relu], [b, 3.0, a], [relu, mul])
    relu_value, mul_value = run(X, None, X + 1)
    assert torch.equal(mul_value, X * (X + 1)) and torch.equal(relu_value, torch.relu(mul_value))


def test_the_original_outlives_the_rewrite_and_is_compiled_once():
    module = capture(lambda a, b: torch.relu(a * b) + 1, X, X)
    mul, relu, add = calls(module)
    original = Original([mul, relu], list(mul.args), [relu])
    add.replace_input_with(relu, mul.args[0])
    for node in (relu, mul):
        module.graph.erase_node(node)
    assert torch.equal(original(X, X - 1), torch.relu(X * (X - 1)))
    made = original._made
    assert torch.equal(original(X, X), X * X) and original._made is made


def test_a_size_that_the_pattern_leaves_open_is_the_examples():
    """Sizes that are computed outside the match, and are no operands of it."""
    module = capture(lambda a: torch.relu(a).reshape(a.shape[0] * a.shape[1]), X, dynamic=True)
    (a,) = module.graph.find_nodes(op="placeholder")
    inside = [n for n in calls(module) if op_name(n) in ("aten.relu", "aten.reshape", "aten.view")]
    assert len(inside) == 2 and any(n.op == "call_function" for n in inside[-1].all_input_nodes if n not in inside)
    assert torch.equal(subgraph(inside, [a], [inside[-1]])(X), torch.relu(X).flatten())


def test_operands_of_the_very_same_metadata_stay_apart():
    a, b = operand(X, X)
    b.meta["val"] = a.meta["val"]
    traced = trace(lambda x, y: torch.relu(x) - y, [a, b])
    assert torch.equal(traced(X, X + 1), torch.relu(X) - (X + 1))


def test_matched_code_that_reads_a_literal_of_the_program():
    module = capture(lambda a: torch.relu(a * torch.tensor(3.0)), X)
    nodes = [n for n in module.graph.nodes if n.op in ("get_attr", "call_function")]
    assert nodes[0].op == "get_attr"
    (a,) = module.graph.find_nodes(op="placeholder")
    expected = torch.relu(X * 3)
    assert torch.equal(subgraph(nodes, [a], [nodes[-1]])(X), expected)
    assert torch.equal(Original(nodes, [a], [nodes[-1]])(X), expected)
