"""Internals of torch for exported programs: symbolic sizes outside of Dynamo, and what is assumed of them.

Every function here wraps exactly one internal fact of torch and says which.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .dispatch import no_dispatch_modes
from .operators import OpOverload, packet_name

_SCOPES = {"wrap_with_set_grad_enabled": 2, "wrap_with_autocast": 5}


@dataclass
class SizeFacts:
    """A compilation's symbolic sizes, of an exported program.

    Args:
        context: torch's own record of the compilation.
        environment: of its symbols.
        symbols: this compilation's symbol of each of the program's, by name.
        inputs: the program's inputs as a backend is given them.
        assumed: what exporting has assumed of the sizes.
    """

    context: Any
    environment: Any
    symbols: dict[str, Any] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)
    assumed: list[Any] = field(default_factory=list)

    def conditions(self) -> list[Any]:
        """The conditions on sizes that exporting and compiling have assumed, as expressions of `symbols`."""
        return list(dict.fromkeys([*self.assumed, *(guard.expr for guard in self.environment.guards)]))

    def range_of(self, symbol: Any) -> tuple[int, int | None]:
        """The least and the greatest value that a symbol is compiled for; None where there is none."""
        from torch.utils._sympy.numbers import int_oo

        known = self.environment.var_to_range[symbol]
        upper = known.upper
        return int(known.lower), None if upper == int_oo or not upper.is_Integer else int(upper)


def sizes_of_export(
    examples: Sequence[Any],
    sizes: Sequence[Sequence[Any]],
    hints: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int | None]],
) -> SizeFacts:
    """Symbols for the dynamic dims of an exported program's inputs, each program's symbol one symbol.

    Args:
        examples: a tensor for each input, or None for an integer that is symbolic.
        sizes: of each tensor: numbers, and expressions of the program's symbols where a dim is dynamic; of an integer
            its expression alone.
        hints: the value of each symbol in the example, by name.
        ranges: its least and greatest value; None where there is none.
    """
    from torch._dynamo.source import ConstantSource
    from torch._guards import TracingContext
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic
    from torch.utils._sympy.numbers import int_oo

    environment = _environment()
    facts = SizeFacts(TracingContext(FakeTensorMode(shape_env=environment)), environment)
    for name, hint in hints.items():
        source = ConstantSource(f"size_{name}")
        symbol = environment.create_symbol(
            hint, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, do_not_specialize_zero_one=True
        )  # fmt: skip
        low, high = ranges[name]
        environment.constrain_symbol_range(symbol, low, int_oo if high is None else high)
        facts.symbols[name] = symbol
    for position, (example, given) in enumerate(zip(examples, sizes, strict=True)):
        own = [_own(size, facts.symbols) for size in given]
        source = ConstantSource(f"input_{position}")
        if example is None:
            hint = int(own[0].xreplace({facts.symbols[n]: h for n, h in hints.items()}))
            facts.inputs.append(environment.create_symintnode(own[0], hint=hint, source=source))
            continue
        facts.context.tensor_to_context[example] = _symbolic_context(environment, source, own)
        facts.inputs.append(example)
    return facts


def assumed_by_export(exported: Any) -> list[Any]:
    """The assumptions of torch on the program's symbols while exporting it in this process: the guards of its sizes."""
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for number in [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ()):
            if isinstance(number, torch.SymInt):
                return [guard.expr for guard in number.node.shape_env.guards]
    return []


_REGROUPING = ("reshape", "view", "_reshape_alias", "_unsafe_view", "contiguous", "clone", "flatten", "unflatten")
# with torch 2.11 they ask whether a mask is broadcast over the batch: one of as many rows is right for one row too
_BROADCASTING = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")


# they ask whether one operand's rows may be folded: what they compute either way is the same
_FOLDING = ("linear", "matmul", "lstm", "gru", "rnn_tanh", "rnn_relu")


def _environment() -> Any:
    """Symbols of which no two are one, whatever their examples are, and none is taken not to be 0 or 1."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return ShapeEnv(specialize_zero_one=False, duck_shape=False)


@contextlib.contextmanager
def any_size() -> Iterator[None]:
    """Dynamic sizes are neither taken to be 0 or 1 nor taken not to be, unless the program asks, whatever examples are.

    Strides with which dims are regrouped where none of them is 1 are right where one is: whether it is, is not asked.
    Nor is it where it only says how a mask is broadcast, or which of two ways to one product is taken.
    """
    import sympy
    import torch.fx.experimental._config as config
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    evaluate = ShapeEnv.evaluate_expr

    def evaluate_expr(self: Any, orig_expr: Any, *args: Any, **more: Any) -> Any:
        is_relation = isinstance(orig_expr, sympy.core.relational.Relational)
        found = _where_not_one(orig_expr) if is_relation and _agrees_at_one() else None
        return evaluate(self, orig_expr, *args, **more) if found is None else found

    with config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        ShapeEnv.evaluate_expr = evaluate_expr  # type: ignore[method-assign]
        try:
            yield
        finally:
            ShapeEnv.evaluate_expr = evaluate  # type: ignore[method-assign]


def _where_not_one(relation: Any) -> Any:
    """The answer to the question whether a size is 1, where it is not: asked of it or of a stride, ``16*s == 16``.

    None where something else is asked. What the example's size is does not count: it may be 1.
    """
    import sympy

    left, right = relation.args
    if isinstance(relation, (sympy.Eq, sympy.Ne)):
        if not (left.is_polynomial() and right.is_polynomial()) or sympy.gcd(left, right) not in (left, right):
            return None
        return sympy.true if isinstance(relation, sympy.Ne) else sympy.false
    if right == 1:
        return {sympy.Gt: sympy.true, sympy.Le: sympy.false}.get(relation.func)
    if left == 1:
        return {sympy.Lt: sympy.true, sympy.Ge: sympy.false}.get(relation.func)
    return None


def _agrees_at_one() -> bool:
    """Whether what the innermost operator that is being traced does where no size is 1 is right where one is."""
    frame = sys._getframe(2)
    while frame is not None:
        named = (frame.f_locals.get(name) for name in ("func", "self"))
        target = next((value for value in named if isinstance(value, OpOverload)), None)
        if target is not None:
            return target.namespace == "aten" and packet_name(target) in (*_REGROUPING, *_BROADCASTING, *_FOLDING)
        frame = frame.f_back  # type: ignore[assignment]
    return False


_OF_CONVOLUTIONS = ("_select_conv_backend", "_conv_determine_backend_memory_format")


@contextlib.contextmanager
def any_convolution() -> Iterator[None]:
    """Let sizes not decide which kernel of a convolution torch believes will run: that says how results lie alone."""
    from torch._guards import detect_fake_mode

    asked = {name: getattr(torch._C, name) for name in _OF_CONVOLUTIONS}

    def freely(question: Any) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            environment = getattr(detect_fake_mode(args), "shape_env", None)
            with contextlib.nullcontext() if environment is None else environment.suppress_guards():
                return question(*args, **kwargs)

        return ask

    for name, question in asked.items():
        setattr(torch._C, name, freely(question))
    try:
        yield
    finally:
        for name, question in asked.items():
            setattr(torch._C, name, question)


def _own(size: Any, symbols: Mapping[str, Any]) -> Any:
    if isinstance(size, int):
        return size
    return size.xreplace({symbol: symbols[str(symbol)] for symbol in size.free_symbols})


def _symbolic_context(environment: Any, source: Any, sizes: Sequence[Any]) -> Any:
    """The symbols of a tensor's sizes, for `FakeTensorMode.from_tensor`."""
    from torch._dynamo.source import TensorProperty, TensorPropertySource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatefulSymbolicContext

    known: dict[str, Any] = {}
    for dim, size in enumerate(sizes):
        if not isinstance(size, int):
            name = TensorPropertySource(source, TensorProperty.SIZE, dim).name
            known[name() if callable(name) else name] = size
    return StatefulSymbolicContext(
        dynamic_sizes=[DimDynamic.STATIC if isinstance(size, int) else DimDynamic.DYNAMIC for size in sizes],
        dynamic_strides=[DimDynamic.INFER_STRIDE] * len(sizes),
        constraint_sizes=[None] * len(sizes),
        constraint_strides=[None] * len(sizes),
        tensor_source=source,
        shape_env_to_source_to_symbol_cache={id(environment): known},
    )


@contextlib.contextmanager
def compiling_export(facts: SizeFacts) -> Iterator[None]:
    """Compile with these sizes: none is taken to be 0 or 1, nor taken not to be, unless the program depends on it."""
    from torch._guards import tracing

    with tracing(facts.context), any_size(), any_convolution(), _checks_without_tokens():
        yield


@contextlib.contextmanager
def _checks_without_tokens() -> Iterator[None]:
    """What raises where a factorization has failed is kept by itself, and not by tokens, as with torch 2.13."""
    check = torch.ops.aten._linalg_check_errors.default
    holder = torch._library.simple_registry.singleton.find(check._name).effect  # type: ignore[attr-defined]
    effect = holder.effect
    fx.node.has_side_effect(check)
    holder.register(None)
    try:
        yield
    finally:
        holder.register(effect)


def mark_module_state(placeholder: fx.Node) -> None:
    """Mark an input as a tensor that a module holds, as Dynamo does."""
    placeholder.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}


def scope_body(node: fx.Node) -> tuple[fx.Node, Sequence[Any]] | None:
    """The body of a scope in an exported graph (grad mode, autocast turned off) and its arguments; None for others.

    A scope of autocast that is turned on is no plain call of its body.
    """
    position = _SCOPES.get(getattr(node.target, "__name__", ""))
    if position is None or node.op != "call_function" or node.kwargs:
        return None
    if position == _SCOPES["wrap_with_autocast"] and node.args[2] is not False:
        return None
    position -= 1
    body = node.args[position]
    return (body, node.args[position + 1 :]) if isinstance(body, fx.Node) else None


def argument_types(target: OpOverload) -> tuple[tuple[str, str, int, bool, Any], ...]:
    """``(name, type, fixed length or 0, by keyword only, default)`` of an operator's arguments, in order."""
    return tuple(
        (a.name, str(a.type), int(getattr(a, "N", None) or 0), a.kwarg_only, a.default_value)
        for a in target._schema.arguments
    )


def result_types(target: OpOverload) -> tuple[str, ...]:
    """The types of an operator's results."""
    return tuple(str(r.type) for r in target._schema.returns)


def schema_name(target: OpOverload) -> tuple[str, str]:
    """``("aten::add", "Tensor")``, as the dispatcher knows an operator."""
    return target._schema.name, target._schema.overload_name


def library_paths() -> tuple[str, str]:
    """Folders of torch's C++ headers and of its libraries."""
    from pathlib import Path

    root = Path(torch.__file__).parent
    return str(root / "include"), str(root / "lib")


def version() -> str:
    """The version of torch."""
    return str(torch.__version__)


def uses_new_strings() -> bool:
    """Whether torch was built with the C++ library's new strings."""
    return bool(torch._C._GLIBCXX_USE_CXX11_ABI)


def tensor_offset() -> int | None:
    """The place of torch's tensor in the memory of a Python tensor, in bytes; None if it is not certain.

    It is the one word that holds, in tensors of several classes and kinds, the address that torch gives.
    """
    if sys.implementation.name != "cpython":
        return None
    with no_dispatch_modes(), torch.enable_grad():
        plain = torch.empty(2, 3, device="cpu")
        leaf = torch.empty(2, device="cpu", requires_grad=True)
        kinds: list[torch.Tensor] = [
            plain, plain[0], torch.nn.Parameter(plain), torch.empty(3, device="meta"), leaf, leaf * 2,
            plain.as_subclass(_SomeTensor), torch.eye(2, device="cpu").to_sparse(),
        ]  # fmt: skip
    step = ctypes.sizeof(ctypes.c_void_p)
    found = [
        offset
        for offset in range(object.__basicsize__, torch.Tensor.__basicsize__ - step + 1, step)
        if all(ctypes.c_void_p.from_address(id(given) + offset).value == given._cdata for given in kinds)
    ]
    return found[0] if len(found) == 1 else None


class _SomeTensor(torch.Tensor):
    pass


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of nested lists, tuples and dicts, and their structure as `torch.export` has it."""
    from torch.utils import _pytree

    return _pytree.tree_flatten(tree)


def tree_parts(structure: Any) -> tuple[Any, Any, list[Any]]:
    """Type, context and children of a structure; the type is None for a leaf. A named tuple's is its own class."""
    children = structure.children() if callable(getattr(structure, "children", None)) else structure.children_specs
    named = structure.type is collections.namedtuple
    return structure.context if named else structure.type, structure.context, list(children)
