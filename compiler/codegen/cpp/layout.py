"""The memory layout of a kernel: pointers, sizes, scratch, and results that one region passes to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.accesses import accesses, statements, updated, values
from ...ir.dependence import Dependence
from ...ir.folds import component_dtypes
from ...ir.index.index import Size, add, atoms, mul
from ...ir.kernel import Fold, Kernel, Loop, Statement
from ...ir.lanes import Lanes
from ...ir.program import Buffer
from ...ir.value import Result
from .dtypes import memory_type, scalar_type
from .index_text import index_text
from .turned import are_apart
from .value_text import CppNames

_STACK = 32768  # bytes of scratch that a region allocates on the stack


class KernelLayout:
    """The memory layout and the names that the functions of a kernel share.

    Args:
        kernel: the kernel, whose loops know their lanes.
        dependence: the variables that each of its values depends on.
    """

    def __init__(self, kernel: Kernel, dependence: Dependence) -> None:
        self.kernel, self.dependence, self.apart = kernel, dependence, are_apart(kernel.body)
        self.sizes = {size.name: f"s{k}" for k, size in enumerate(kernel.sizes)}
        self.pointers = {p.buffer.name: f"p{k}" for k, p in enumerate(kernel.params)}
        self.pointers.update({b.name: f"q{k}" for k, b in enumerate(kernel.scratch)})
        self._users = {b.name: [s for s in kernel.body if _uses(s, b.name)] for b in kernel.scratch}
        self.shared = [b for b in kernel.scratch if len(self._users[b.name]) > 1]
        self.slots = {result: k for k, result in enumerate(_top_results(kernel))}

    def size_text(self, number: Any) -> str:
        """An index of sizes in C++; atoms that are not sizes count as 1."""
        return index_text(number, lambda atom: self.sizes[atom.name] if isinstance(atom, Size) else "1ll")

    def bytes_text(self, buffer: Buffer) -> str:
        """The number of bytes of a scratch buffer."""
        return f"{buffer.dtype.itemsize * self._spread(buffer.name)} * {self.size_text(span_of(buffer))}"

    def _spread(self, scratch: str) -> int:
        """The factor by which a scratch buffer is expanded: the number of lanes, or 1."""
        hows = [s.lanes for s in statements(self.kernel.body) if isinstance(s, Loop)]
        return max((how.lanes for how in hows if isinstance(how, Lanes) and scratch in how.expanded), default=1)

    def names(self, body: Sequence[Statement]) -> tuple[CppNames, list[str]]:
        """The names in a region, and the lines that declare them."""
        buffers = [*(p.buffer for p in self.kernel.params), *self.kernel.scratch]
        tables = frozenset(b.name for b in buffers if b.kind == "constant")
        spans = {b.name: span for b in buffers if self._is_known(span := span_of(b))}
        names = CppNames(dict(self.pointers), dict(self.sizes), spans, tables)
        lines = [*self._pointers(body), *self._scratch(body)]
        lines += [f"const i64 {name} = call->sizes[{k}];" for k, name in enumerate(self.sizes.values())]
        own = updated(body)
        for value in values(body):
            slot = self.slots.get((value.reduction, value.component)) if isinstance(value, Result) else None
            if slot is not None and isinstance(value, Result) and value.reduction not in own:
                kind = scalar_type(value.dtype)
                lines.append(f"const {kind} r{slot} = result<{kind}>(call, {slot});")
                names.results[value.reduction, value.component] = f"r{slot}"
        return names, lines

    def _is_known(self, number: Any) -> bool:
        """Whether the kernel is given all sizes in a number: rows of a table that it does not go through are not."""
        return all(atom.name in self.sizes for atom in atoms(number) if isinstance(atom, Size))

    def _pointers(self, body: Sequence[Statement]) -> list[str]:
        used = {a.buffer for a in accesses(body)}
        lines = []
        for k, buffer in enumerate([*(p.buffer for p in self.kernel.params), *self.shared]):
            if buffer.name in used:
                kind = memory_type(buffer.dtype)
                lines.append(f"{kind}* __restrict {self.pointers[buffer.name]} = ({kind}*)call->buffers[{k}];")
        return lines

    def _scratch(self, body: Sequence[Statement]) -> list[str]:
        lines, room = [], _STACK
        for buffer in self.kernel.scratch:
            users = self._users[buffer.name]
            if len(users) != 1 or not any(users[0] is s for s in body):
                continue
            kind, name, span = memory_type(buffer.dtype), self.pointers[buffer.name], span_of(buffer)
            elements = mul(span, self._spread(buffer.name))
            if isinstance(elements, int) and elements * buffer.dtype.itemsize <= room:
                room -= elements * buffer.dtype.itemsize
                lines.append(f"alignas(64) {kind} {name}[{max(elements, 1)}];")
            else:
                lines.append(f"const Heap {name}_heap({self.bytes_text(buffer)});")
                lines.append(f"{kind}* __restrict {name} = ({kind}*){name}_heap.memory;")
        return lines


def _uses(statement: Statement, name: str) -> bool:
    return any(a.buffer == name for a in accesses([statement]))


def _top_results(kernel: Kernel) -> list[tuple[str, int]]:
    """The results that outlive their region: those of folds outside of all loops."""
    return [
        (reduction.name, component)
        for statement in kernel.body
        if isinstance(statement, Fold)
        for reduction in statement.reductions
        for component in range(len(component_dtypes(reduction.reducer, reduction.values[0].dtype)))
    ]


def span_of(buffer: Buffer) -> Any:
    """The number of elements from the first to the last."""
    total: Any = 1
    for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
        total = add(total, mul(add(size, -1), stride))
    return total
