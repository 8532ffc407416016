"""Bytes and FLOPs of calls, against what a person counts."""

import operator

import pytest
import torch
from torch import fx

import regraft
from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.codegen.kernel_call import KernelCall
from regraft.compiler.tools.profile.cost import cost_of, covered, is_free, shapes_of, sites
from regraft.rewrites.tracing import record

aten = torch.ops.aten


def call(target, *args, val=None, **kwargs):
    """A call node on inputs with this metadata; plain values are passed on as they are."""
    graph = fx.Graph()

    def placed(value):
        if isinstance(value, (list, tuple)):
            return [placed(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = value
        return node

    made = graph.call_function(target, tuple(map(placed, args)), kwargs)
    made.meta["val"] = val if val is not None else target(*args, **kwargs)
    return made


def meta(*sizes, dtype=torch.float32):
    return torch.empty(sizes, dtype=dtype, device="meta")


def generated(function, *inputs):
    """The only kernel of a function."""
    module = record(function, inputs, "decomposed")
    graph = generate_kernels(module, "inference").graph
    (node,) = (node for node in graph.nodes if isinstance(node.target, KernelCall))
    return node


def test_product():
    cost = cost_of(call(aten.addmm.default, meta(5), meta(3, 4), meta(4, 5)))
    assert (cost.read, cost.written, cost.flops) == (4 * (5 + 12 + 20), 4 * 15, 2 * 3 * 4 * 5)
    assert cost.dtype == "float32"


def test_products_of_bytes():
    for kind in (torch.int8, torch.uint8):
        node = call(aten._int_mm.default, meta(3, 4, dtype=kind), meta(4, 5, dtype=torch.int8), val=meta(3, 5))
        assert cost_of(node).dtype == "int8"


def test_linear_and_attention_without_a_formula_of_torch():
    assert cost_of(call(aten.linear.default, meta(2, 3, 4), meta(5, 4))).flops == 2 * 2 * 3 * 4 * 5
    q, v = meta(2, 3, 8, 4), meta(2, 3, 16, 4)
    out = (meta(2, 3, 8, 4), meta(2, 3, 8))
    node = call(aten._scaled_dot_product_flash_attention_for_cpu.default, q, v, v, val=out)
    assert cost_of(node).flops == 2 * (2 * 2 * 3 * 8 * 16 * 4)


def test_convolution():
    node = call(
        aten.convolution.default, meta(2, 3, 8, 8), meta(5, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    )
    assert cost_of(node).flops == 2 * (2 * 5 * 8 * 8) * 3 * 3 * 3


def test_expanded_memory_counts_once():
    assert covered(meta(8, 1).expand(8, 100)) == 4 * 8
    assert covered(meta(8, 100).t()) == 4 * 800


def test_one_value_read_twice_counts_once():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = meta(8, 8)
    turned = graph.call_function(aten.t.default, (x,))
    turned.meta["val"] = meta(8, 8).t()
    product = graph.call_function(aten.mm.default, (x, turned))
    product.meta["val"] = meta(8, 8)
    assert cost_of(product).read == 4 * 64


def test_gather_reads_rows_not_the_table():
    rows = call(aten.embedding.default, meta(1000, 16), meta(3, dtype=torch.int64))
    assert cost_of(rows).read == 4 * 3 * 16 + 8 * 3


def test_write_to_an_argument():
    cost = cost_of(call(aten.copy_.default, meta(8), meta(8)))
    assert cost.written == 4 * 8


def test_views_and_sizes_are_free():
    assert is_free(call(aten.view.default, meta(4, 4), [16]))
    assert is_free(call(aten._unsafe_view.default, meta(4, 4), [16]))
    assert is_free(call(operator.add, 1, 2))
    assert not is_free(call(aten.relu.default, meta(4)))
    assert not is_free(call(aten.copy_.default, meta(4), meta(4)))


def test_shapes_are_spelled():
    node = call(aten.mm.default, meta(3, 4, dtype=torch.bfloat16), meta(4, 5, dtype=torch.bfloat16))
    assert shapes_of(node) == "bf16[3, 4] bf16[4, 5] -> bf16[3, 5]"


def test_a_formula_that_raises_leaves_no_number(monkeypatch):
    monkeypatch.setattr("regraft.compiler.tools.profile.cost._library_flops", lambda node: 1 // 0)
    assert cost_of(call(aten.mm.default, meta(3, 4), meta(4, 5))).flops == 0


def test_sites_are_distinct():
    trace = 'File "model.py", line 3, in forward\n    x = x + 1\n'
    assert [site.line for site in sites([trace, trace])] == [3]


def test_generated_kernel_reads_each_input_once():
    node = generated(lambda x, y: (x + y) * torch.softmax(x, -1), torch.ones(64, 128), torch.ones(128))
    cost = cost_of(node)
    assert (cost.read, cost.written, cost.flops) == (4 * (64 * 128 + 128), 4 * 64 * 128, 0)
    assert cost.operations >= 64 * 128 * 4


def test_generated_gather_reads_rows():
    table, index = torch.ones(5000, 64), torch.zeros(16, dtype=torch.int64)
    cost = cost_of(generated(lambda t, i: torch.nn.functional.embedding(i, t) + 1, table, index))
    assert cost.read == 4 * 16 * 64 + 8 * 16
    assert cost.written == 4 * 16 * 64


def test_generated_part_of_an_input():
    cost = cost_of(generated(lambda x: x[:, 0] + 1, torch.ones(32, 100, 8)))
    assert cost.read == cost.written == 4 * 32 * 8


@pytest.mark.parametrize("rows", [3, 50])
def test_symbolic_sizes_count_as_on_the_example(rows):

    def program(x):
        return (x + 1) * 2

    x = torch.ones(rows, 16)
    with torch.no_grad():
        torch._dynamo.mark_dynamic(x, 0)
        (row,) = regraft.kernels(program, x).rows
    assert row.read == row.written == 4 * rows * 16
