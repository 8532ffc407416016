"""Calls of ATen's operators as C++: each argument as the dispatcher takes it, by the operator's schema.

%v = aten.slice.Tensor(%x, 1, 0, %n)    ->    auto r = call(op3(), x, int64_t(1ll), int64_t(0ll), n, int64_t(1ll));
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.compat import export
from ....rewrites.symbolic import SYMBOLIC
from .errors import NotInCppError
from .numbers import dtype_text, float_text, integer_text, string_text

# As `c10::Layout` and `c10::MemoryFormat` count.
_LAYOUTS = {torch.strided: "int64_t(0ll)", torch.sparse_coo: "int64_t(1ll)"}
_FORMATS = {
    torch.contiguous_format: "int64_t(0ll)", torch.preserve_format: "int64_t(1ll)",
    torch.channels_last: "int64_t(2ll)", torch.channels_last_3d: "int64_t(3ll)",
}  # fmt: skip
_LISTS = {
    "int": "whole_list", "float": "real_list", "bool": "truth_list", "Tensor": "tensor_list",
    "Optional[Tensor]": "maybe_tensors", "number": "scalar_list", "Optional[number]": "maybe_scalars",
}  # fmt: skip


def kind_of(value: Any) -> str:
    """The kind of a graph's value in C++, by its metadata: ``"tensor"``, a kind of number, ``"none"``, ``"many"``."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, (bool, torch.SymBool)):
        return "bool"
    if isinstance(value, (int, torch.SymInt)):
        return "int"
    if isinstance(value, (float, torch.SymFloat)):
        return "float"
    return "none" if value is None else "many"


def arguments(target: Any, args: Sequence[Any], keywords: Mapping[str, Any], name: Callable[[Any], str]) -> list[str]:
    """All arguments of an operator's call, defaults too.

    Args:
        target: the operator.
        args: positional arguments.
        keywords: those by name.
        name: the expression for a node or a symbolic number.

    Raises:
        NotInCppError: an argument is of a kind that C++ does not know.
    """
    texts = []
    for position, (key, kind, length, by_keyword, default) in enumerate(export.argument_types(target)):
        value = args[position] if position < len(args) and not by_keyword else keywords.get(key, default)
        try:
            texts.append(value_text(value, kind, length, name))
        except NotInCppError as error:
            raise NotInCppError(error.code, f"argument {key} of {target}: {error}") from None
    return texts


def value_text(value: Any, kind: str, length: int, name: Callable[[Any], str]) -> str:
    """One argument of a type of the schema: ``"Optional[List[int]]"``."""
    if value is None:
        return "Tensor()" if kind == "Tensor" else "none()"
    if kind.startswith("Optional["):
        return value_text(value, kind[9:-1], length, name)
    if kind.startswith("List["):
        return _list(value, kind[5:-1], length, name)
    if isinstance(value, (fx.Node, *SYMBOLIC)):
        text = name(value)
        found = kind_of(value.meta.get("val") if isinstance(value, fx.Node) else value)
        if kind == "Tensor" and found in ("int", "float", "bool"):
            return f"number_tensor({text})"
        return f"double({text})" if kind == "float" and found == "int" else text
    if kind == "Tensor" and isinstance(value, (bool, int, float, complex)):
        return f"number_tensor({_constant(value, '')})"
    return _constant(value, kind)


def _list(value: Any, kind: str, length: int, name: Callable[[Any], str]) -> str:
    items = [value] * max(length, 1) if not isinstance(value, (list, tuple)) else value
    if kind not in _LISTS:
        raise NotInCppError("value", f"lists of {kind} are not known to C++")
    parts = ["{}" if x is None else value_text(x, kind, 0, name) for x in items]
    return f"{_LISTS[kind]}({{{', '.join(parts)}}})"


def _constant(value: Any, kind: str) -> str:
    if isinstance(value, torch.dtype):
        return f"static_cast<int64_t>({dtype_text(value)})"
    if isinstance(value, torch.layout) and value in _LAYOUTS:
        return _LAYOUTS[value]
    if isinstance(value, torch.memory_format):
        return _FORMATS[value]
    if isinstance(value, torch.device):
        if value.type != "cpu":
            raise NotInCppError("device", f"it runs on {value}; C++ runs on CPUs")
        return "cpu()"
    if isinstance(value, (bool, int, float, complex)):
        return _number(value, kind)
    if isinstance(value, str):
        return "cpu()" if kind == "Device" else f"text({string_text(value)})"
    raise NotInCppError("value", f"values of type {type(value).__name__} are not known to C++")


def _number(value: complex, kind: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return float_text(float(value)) if kind == "float" else integer_text(value)
    if isinstance(value, float):
        return f"double({float_text(value)})"
    return f"complex_number({float_text(value.real)}, {float_text(value.imag)})"


_PYTHON: dict[str, str] = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "floordiv": "floor_div({0}, {1})",
    "mod": "floor_mod({0}, {1})", "truediv": "(double({0}) / double({1}))", "neg": "(-{0})", "pos": "({0})",
    "abs": "absolute({0})", "pow": "power({0}, {1})",
    "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "({0} < {1})", "le": "({0} <= {1})", "gt": "({0} > {1})",
    "ge": "({0} >= {1})", "and_": "({0} & {1})", "or_": "({0} | {1})", "not_": "(!{0})", "sym_not": "(!{0})",
    "sym_max": "most({0}, {1})", "sym_min": "least({0}, {1})", "sym_int": "int64_t({0})", "sym_float": "double({0})",
    "sym_ite": "({0} ? {1} : {2})", "ceil": "int64_t(__builtin_ceil({0}))", "floor": "int64_t(__builtin_floor({0}))",
    "trunc": "int64_t(__builtin_trunc({0}))", "sqrt": "__builtin_sqrt(double({0}))",
    "_sym_sqrt": "__builtin_sqrt(double({0}))", "sym_sqrt": "__builtin_sqrt(double({0}))",
}  # fmt: skip


def number_text(node: fx.Node, name: Callable[[Any], str]) -> str | None:
    """A number that Python computes of numbers, as C++; None where that is not known."""
    pattern = _PYTHON.get(getattr(node.target, "__name__", ""))
    if pattern is None or node.kwargs or compat.operator_path(node.target) is not None:
        return None
    values = [name(a) if isinstance(a, (fx.Node, *SYMBOLIC)) else _constant(a, "") for a in node.args]
    return pattern.format(*values)
