"""The keys of `node.meta`: what each holds, and who writes it. `tests/rewrites/test_meta.py` keeps the list complete.

Keys of torch are only read, but for `val` and what says where a node comes from. The others are regraft's. They last as
long as the graph, or the mirror, in which they are written: copies of nodes take the keys of `PROVENANCE` alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetaKey:
    """One key.

    Args:
        holds: the type, and the meaning.
        written: the writer: a file, or ``"torch"``.
        on: the nodes, or the graphs, that have it.
    """

    holds: str
    written: str
    on: str = "any node"


_SOURCE = "str: where the program made the node"
KEYS = {
    # torch's
    "val": MetaKey("the fake tensor, number, or structure of them that the node gives", "torch"),
    "example_value": MetaKey("the same in Dynamo's graphs", "torch", "Dynamo's graph"),
    "tensor_meta": MetaKey("what torch knows of a tensor", "torch"),
    "stack_trace": MetaKey(_SOURCE, "torch"),
    "nn_module_stack": MetaKey("dict: the modules around the node", "torch"),
    "fwd_nn_module_stack": MetaKey("dict: the same, of the forward node that a backward node belongs to", "torch"),
    "unbacked_bindings": MetaKey("dict: the data-dependent symbols that the node defines", "torch"),
    "custom": MetaKey("dict: annotations that survive AOTAutograd", "torch"),
    "recompute": MetaKey("CheckpointPolicy: whether the backward computes the node again", "torch", "joint graphs"),
    "ac_graph_id": MetaKey("int: the checkpoint that it belongs to", "torch", "joint graphs"),
    "partitioner_tag": MetaKey("str: the direction that a node of a joint graph belongs to", "torch", "joint graphs"),
    "tensor_dict": MetaKey("dict: how Dynamo guards a parameter", "torch", "placeholders"),
    "source_fn_stack": MetaKey("list: the functions of the user that the node comes from", "torch"),
    "grapharg": MetaKey("Dynamo's source of an input", "torch", "placeholders of Dynamo's graph"),
    "desc": MetaKey("AOTAutograd's description of an input or a result", "torch", "placeholders and outputs"),
    # The program
    "opaque": MetaKey("Reason: why it is a leaf: later writes can change it", "rewrites/mirror.py", "the mirror"),
    "region": MetaKey("int: changes of autocast, grad mode or streams before it", "rewrites/effects.py", "the mirror"),
    "backends": MetaKey("str: the attention backends that `sdpa_kernel` allows there", "rewrites/effects.py"),
    "wants_gradient": MetaKey("bool: whether a gradient flows through it", "rewrites/effects.py"),
    "returned": MetaKey("int: the leading results that the program returns", "rewrites/graph.py", "outputs"),
    "apart": MetaKey("frozenset: the places of results without shared memory", "rewrites/graph.py", "outputs"),
    "sizes_unread": MetaKey("True: nobody reads its sizes", "rewrites/sizes.py", "placeholders"),
    "sizes_held": MetaKey("True: a guard holds the sizes that it depends on", "compiler/lowering/agreement.py"),
    "numbers_held": MetaKey("True: the same of numbers", "compiler/lowering/element_numbers.py"),
    "regraft_captured": MetaKey("True: the body of a checkpoint that was captured", "compiler/capture/retrace.py"),
    "frozen": MetaKey("True: a weight, or what depends on weights only", "compiler/freezing/freezer.py"),
    "packed": MetaKey("True: a weight in the layout of a kernel", "compiler/templates/gemm/packing.py"),
    "regraft_span": MetaKey(
        "(int, int): the least and the greatest of a constant", "compiler/passes/fold_constant_tables.py"
    ),
    # Matching
    "span": MetaKey("(int, int): first and last position in the program of what it stands for", "rewrites/mirror.py"),
    "draws": MetaKey("tuple: the random calls of the program whose numbers it draws", "rewrites/mirror.py"),
    "redrawn": MetaKey("True: other numbers than theirs, of the same distribution", "compiler/normal/random_calls.py"),
    "moved": MetaKey("True: another random call replaces it", "compiler/normal/random_calls.py"),
    "memo": MetaKey(
        "dict: what respellings remember of it; lost when its operands change", "compiler/normal/analysis.py"
    ),
    "shifted": MetaKey("True: NaN of rows that hold infinity", "compiler/normal/exponent_sums.py", "logsumexp"),
    "cleared": MetaKey("True: NaN of its weights became 0, in training", "compiler/normal/masked_rows.py", "matmul"),
    "by_sums": MetaKey("True: not NaN beside an infinite score", "compiler/normal/softmax.py", "softmax"),
    "fact": MetaKey("Fact: what is known of its elements", "rewrites/facts/__init__.py"),
    "application": MetaKey("the match whose replacement it belongs to", "rewrites/splice.py", "the mirror"),
    "traced_inputs": MetaKey(
        "list: its inputs as the candidate was traced on them", "rewrites/splice.py", "the mirror"
    ),
    # Replacements
    "regraft_rule": MetaKey("str: the rule or template that inserted it", "rewrites/editor.py"),
    "regraft_layout": MetaKey("the value whose strides readers rely on", "compiler/passes/channels_last.py"),
    "regraft_restored": MetaKey("True: restores the strides of its operand", "rewrites/layout.py", "as_strided"),
    "regraft_fused": MetaKey("tuple: the source lines of the nodes of a kernel", "compiler/codegen/assemble.py"),
}
