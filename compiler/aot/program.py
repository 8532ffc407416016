"""An exported program as a graph that the backend takes: its state and its inputs as inputs, in place of lifted names.

    ExportedProgram:  p_weight, b_count, x, 2  ->  y, x, 2       graph:  p_weight, b_count, x  ->  y, x
                      signature: b_count is written                      + copy_(b_count, ...)

What each input must be, and what becomes of each result, is told by `Input` and `Output`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import export
from .errors import AotError

_COPY = torch.ops.aten.copy_.default
_ABOUT_METADATA = torch.ops.aten._assert_tensor_metadata.default


@dataclass(frozen=True)
class Input:
    """One flat input of the program.

    Args:
        name: as the program's function calls it: ``"x"``, ``"kwargs_mask"``.
        kind: ``"tensor"``, ``"int"`` (any in range), or ``"constant"``: what it was when exported, and nothing else.
        value: of a constant.
        dtype: of a tensor.
        sizes: of a tensor, its sizes: numbers, and expressions of symbols; of an int its expression alone.
        strides: of a tensor, likewise.
    """

    name: str
    kind: str
    value: Any = None
    dtype: torch.dtype | None = None
    sizes: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Output:
    """One flat result: ``"result"`` number `value` of the graph, or the ``"constant"`` `value`."""

    kind: str
    value: Any


@dataclass
class AotProgram:
    """The program to compile.

    Args:
        graph_module: its inputs are `state`, then those of `inputs` that are no constants; its output a flat tuple.
        state: parameters, buffers and constants by name, in the graph's order.
        inputs: all flat inputs, `outputs` all flat results, with their structures.
        facts: the symbolic sizes of this compilation.
    """

    graph_module: fx.GraphModule
    state: dict[str, torch.Tensor]
    inputs: list[Input]
    outputs: list[Output]
    in_structure: Any
    out_structure: Any
    facts: export.SizeFacts = field(repr=False)


def export_model(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """Export a model for inference; of a tensor that is given twice, the second is a copy, or both would be one.

    Raises:
        AotError: torch cannot export it; the message is torch's.
    """
    met = set[int]()
    args, named = compat.tree_map(lambda x: _apart(x, met), (args, dict(kwargs or {})))
    try:
        with torch.no_grad():
            try:
                with export.any_size(), export.any_convolution():
                    return torch.export.export(model, args, named, dynamic_shapes=dynamic_shapes)
            except Exception:
                if dynamic_shapes is None:
                    raise
                return torch.export.export(model, args, named, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        raise AotError(f"torch.export cannot export the model: {type(error).__name__}: {error}") from error


def _apart(x: Any, met: set[int]) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    again = id(x) in met
    met.add(id(x))
    return x.clone() if again else x


def program_of(exported: torch.export.ExportedProgram, cloned: Sequence[int] = ()) -> AotProgram:
    """The program as the backend takes it; results at the positions `cloned` are copied.

    Raises:
        AotError: it has something that cannot be compiled ahead of time; the message names it.
    """
    graph_module = fx.GraphModule(exported.graph_module, _copied(exported.graph_module.graph))
    graph = graph_module.graph
    _without_scopes(graph_module)
    state, inputs, made = _placeholders(exported, graph)
    facts = _facts(exported, [*state.values()], inputs)
    outputs = _outputs(exported, graph, made, set(cloned))
    for node in list(graph.find_nodes(op="call_function", target=_ABOUT_METADATA)):
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    structure = exported.call_spec
    assert structure.in_spec is not None and structure.out_spec is not None
    return AotProgram(graph_module, state, inputs, outputs, structure.in_spec, structure.out_spec, facts)


def _copied(graph: fx.Graph) -> fx.Graph:
    """A copy. Its data-dependent sizes have no names yet: those of the export are other sizes' here."""
    made, values = fx.Graph(), dict[fx.Node, fx.Node]()
    made.output(made.graph_copy(graph, values))
    for node in made.nodes:
        if "unbacked_bindings" in node.meta:
            node.meta["unbacked_bindings"] = {}
    return made


def _without_scopes(graph_module: fx.GraphModule) -> None:
    """Calls of scopes' bodies written out: where nothing is differentiated, grad mode does nothing."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        found = export.scope_body(node)
        if found is None:
            continue
        attribute, arguments = found
        body = compat.attribute(graph_module, str(attribute.target))
        _without_scopes(body)
        values = dict(zip(body.graph.find_nodes(op="placeholder"), arguments, strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(body.graph, values)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index, call-overload]
            graph.erase_node(user)
        graph.erase_node(node)
        if not attribute.users:
            graph.erase_node(attribute)


def _placeholders(
    exported: torch.export.ExportedProgram, graph: fx.Graph
) -> tuple[dict[str, torch.Tensor], list[Input], dict[str, fx.Node]]:
    """State and inputs; the placeholders of state first, one for each tensor. Gives the nodes by the names of both."""
    state: dict[str, torch.Tensor] = {}
    inputs: list[Input] = []
    made: dict[str, fx.Node] = {}
    first: dict[Any, fx.Node] = {}
    nodes = graph.find_nodes(op="placeholder")
    for spec, node in zip(exported.graph_signature.input_specs, nodes, strict=True):
        if spec.kind.name == "USER_INPUT":
            inputs.append(_input(spec.arg, node))
            made[str(node.target)] = node
            if inputs[-1].kind == "constant":
                graph.erase_node(node)
            continue
        if spec.kind.name not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR") or spec.target is None:
            raise AotError(f"the program's input {node.name} is a {spec.kind.name.lower().replace('_', ' ')}")
        tensor = _tensor(exported, spec.target, node)
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.numel() and 1)
        known = first.setdefault(key, node) if tensor.numel() else node
        made[spec.target] = known
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
            continue
        state[spec.target] = tensor
        export.mark_module_state(node)
    return state, inputs, made


def _tensor(exported: torch.export.ExportedProgram, name: str, node: fx.Node) -> torch.Tensor:
    value = exported.state_dict.get(name)
    value = exported.constants.get(name) if value is None else value
    if not isinstance(value, torch.Tensor) or compat.is_fake(value):
        raise AotError(f"{name} ({node.name}) holds no values: load the weights before the model is exported")
    plain = value.detach()
    if type(plain) is not torch.Tensor or plain.layout != torch.strided:
        raise AotError(f"{name} is a {type(value).__name__} of layout {value.layout}: only plain tensors are stored")
    return _on_cpu(plain, name)


def _on_cpu(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.device.type != "cpu":
        raise AotError(
            f"{name} is on {tensor.device}; artifacts run on CPUs: move the model there before it is exported"
        )
    return tensor


def _input(argument: Any, node: fx.Node) -> Input:
    value, name = node.meta.get("val"), str(getattr(argument, "name", node.name))  # fx renames some: input_1 for input
    if isinstance(value, torch.Tensor):
        _on_cpu(value, f"input {name}")
        if value.layout != torch.strided:
            raise AotError(f"input {name} is {value.dtype} of layout {value.layout}, which kernels do not take")
        sizes, strides = (tuple(map(_expression, part)) for part in (value.shape, value.stride()))
        return Input(name, "tensor", None, value.dtype, sizes, strides)
    if isinstance(value, torch.SymInt):
        return Input(name, "int", None, None, (_expression(value),))
    constant = getattr(argument, "value", value)
    if constant is not None and not isinstance(constant, (bool, int, float, str)):
        raise AotError(f"input {name} is a {type(constant).__name__}; tensors, numbers and strings can be inputs")
    return Input(name, "constant", constant)


def _expression(number: Any) -> Any:
    if isinstance(number, torch.SymInt):
        expression = number.node.expr
        return int(expression) if expression.is_Integer else expression
    return int(number)


def _facts(exported: torch.export.ExportedProgram, state: list[torch.Tensor], inputs: list[Input]) -> export.SizeFacts:
    """Symbols of this compilation for those of the program; inputs are then told in these."""
    given = [one for one in inputs if one.kind != "constant"]
    named = {
        str(s): s for one in given for n in (*one.sizes, *one.strides) if not isinstance(n, int) for s in n.free_symbols
    }
    hints, ranges = _hints(exported, set(named)), {}
    for name, symbol in named.items():
        known = exported.range_constraints.get(symbol)
        low, high = (
            (0, None) if known is None else (int(known.lower), int(known.upper) if known.upper.is_Integer else None)
        )
        low = max(low, 1)
        ranges[name] = low, high
        if hints[name] < 2:  # what is traced for another size is right for 1, not the other way round
            hints[name] = 3 if high is None else min(max(low, 3), high)
    examples: list[Any] = [None if one.kind == "int" else _example(one, hints) for one in given]
    sizes = [*(tuple(tensor.shape) for tensor in state), *(one.sizes for one in given)]
    facts = export.sizes_of_export([*state, *examples], sizes, hints, ranges)
    own = {symbol: facts.symbols[name] for name, symbol in named.items()}
    for condition in export.assumed_by_export(exported):
        if condition.free_symbols and condition.free_symbols <= own.keys():
            facts.assumed.append(condition.xreplace(own))
    for position, one in enumerate(inputs):
        parts = (tuple(n if isinstance(n, int) else n.xreplace(own) for n in part) for part in (one.sizes, one.strides))
        inputs[position] = Input(one.name, one.kind, one.value, one.dtype, *parts)
    return facts


def _hints(exported: torch.export.ExportedProgram, names: set[str]) -> dict[str, int]:
    """Example values of the program's symbols."""
    hints: dict[str, int] = {}
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        numbers = [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ())
        for number in numbers:
            if isinstance(number, torch.SymInt) and number.node.expr.is_Symbol:
                hints[str(number.node.expr)] = int(number.node.hint)
    missing = names - hints.keys()
    if missing:
        listed = ", ".join(sorted(missing))
        raise AotError(f"the sizes {listed} occur only within expressions: each must be a dim of an input")
    return {name: hints[name] for name in sorted(names)}


def _example(one: Input, hints: Mapping[str, int]) -> torch.Tensor:
    def known(number: Any) -> int:
        return number if isinstance(number, int) else int(number.subs({s: hints[str(s)] for s in number.free_symbols}))

    sizes, strides = [known(n) for n in one.sizes], [known(n) for n in one.strides]
    return torch.empty_strided(sizes, strides, dtype=one.dtype).zero_()


def _outputs(
    exported: torch.export.ExportedProgram, graph: fx.Graph, made: Mapping[str, fx.Node], cloned: set[int]
) -> list[Output]:
    """The graph's results made the program's own; what the signature says is written becomes a write."""
    output = graph.output_node()
    results: list[fx.Node] = []
    outputs: list[Output] = []
    values = output.args[0]
    assert isinstance(values, (list, tuple))
    for spec, value in zip(exported.graph_signature.output_specs, values, strict=True):
        if spec.kind.name in ("BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION"):
            with graph.inserting_before(output):
                graph.call_function(_COPY, (made[str(spec.target)], value)).meta["val"] = value.meta.get("val")  # type: ignore[union-attr]
            continue
        if spec.kind.name != "USER_OUTPUT":
            raise AotError(
                f"the program gives a {spec.kind.name.lower().replace('_', ' ')}: only inference is compiled"
            )
        if not isinstance(value, fx.Node):
            outputs.append(Output("constant", value))
            continue
        if len(results) in cloned:
            with graph.inserting_before(output):
                kept = value
                value = graph.call_function(torch.ops.aten.clone.default, (kept,))
                value.meta = dict(kept.meta)
        outputs.append(Output("result", len(results)))
        results.append(value)
    output.args = (tuple(results),)
    return outputs
