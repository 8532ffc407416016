"""Writes the C++ of a template's kernel: names of buffers and variables, constants, and formulas of the loop IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...codegen.cpp.dtypes import memory_type
from ...codegen.cpp.layout import span_of
from ...codegen.cpp.value_text import CppNames, CppValues
from ...codegen.source_writer import Writer
from ...ir.dependence import Dependence
from ...ir.index.index import Var
from ...ir.program import Buffer

_TABLE = 32  # entries of a table that two vectors hold


class CppText:
    """The text of a kernel while it is being written.

    Args:
        buffers: the buffers that it reads and writes, in the order of its parameters `p0`, `p1`, ...
        variables: the C++ names of the loop IR's variables.
    """

    def __init__(self, buffers: Sequence[Buffer], variables: Mapping[Var, str]) -> None:
        self._buffers = buffers
        self._pointers = {buffer.name: f"p{number}" for number, buffer in enumerate(buffers)}
        spans = {buffer.name: many for buffer in buffers if isinstance(many := span_of(buffer), int) and many <= _TABLE}
        names = CppNames(dict(self._pointers), {}, spans)
        names.variables = dict(variables)
        self._w = Writer()
        self._values = CppValues(self._w, names, Dependence())

    def _line(self, *lines: str) -> None:
        for line in lines:
            self._w.line(line)

    def _define(self, values: Mapping[str, Any]) -> None:
        self._line(*(f"[[maybe_unused]] constexpr i64 {name} = {value};" for name, value in values.items()))

    def _pointers_to_buffers(self) -> None:
        for number, buffer in enumerate(self._buffers):
            kind, name = memory_type(buffer.dtype), self._pointers[buffer.name]
            self._line(f"[[maybe_unused]] {kind}* __restrict const {name} = ({kind}*)call->buffers[{number}];")
