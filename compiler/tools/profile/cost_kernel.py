"""The least reads, writes and operations of a generated kernel, by its loop tree.

for i < 128: for j < 768:  out[768*i + j] = table[768*index[i] + j] + bias[j]

table   128 * 768 elements, however large it is: as many as there are values of (i, j)
bias    768
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...codegen.kernel_call import evaluate
from ...ir.accesses import Access, accesses, roots
from ...ir.index import index as ix
from ...ir.kernel import Fold, Kernel, Loop, Statement, Update
from ...ir.program import Buffer
from ...ir.value import Op, variables, walk


@dataclass(frozen=True)
class Work:
    """Bytes read and written at least, and arithmetic operations."""

    read: int
    written: int
    operations: int


def kernel_work(kernel: Kernel, sizes: Mapping[str, int]) -> Work:
    """The work of one call.

    Args:
        kernel: the loop tree.
        sizes: values of its symbolic sizes, by name.
    """
    touched: dict[bool, defaultdict[str, dict[Any, int]]] = {False: defaultdict(dict), True: defaultdict(dict)}
    for access in accesses(kernel.body):
        for stored in _ways(access):
            touched[stored][access.buffer][access.offset] = _reach(access.offset, sizes)
    buffers = {param.buffer.name: param.buffer for param in kernel.params if not param.buffer.scalar}
    read, written = (
        sum(_bytes(buffers[name], sum(offsets.values()), sizes) for name, offsets in part.items() if name in buffers)
        for part in (touched[False], touched[True])
    )
    return Work(read, written, _operations(kernel.body, 1, sizes))


def _ways(access: Access) -> Iterator[bool]:
    """Whether an access reads (False), writes (True), or both."""
    if not access.stored or access.mode is not None:
        yield False
    if access.stored:
        yield True


def _reach(offset: Any, sizes: Mapping[str, int]) -> int:
    """How many elements an offset can address at most: one for each choice of the loop variables in it."""
    return math.prod(_extent(var, sizes) for var in _variables(offset))


def _variables(number: Any) -> set[ix.Var]:
    """The loop variables of an index, those of indices that it reads from memory included."""
    found = set(ix.atoms(number))
    direct = {atom for atom in found if isinstance(atom, ix.Var)}
    return direct | variables([atom.value for atom in found if isinstance(atom, ix.Loaded)])


def _extent(var: ix.Var, sizes: Mapping[str, int]) -> int:
    return var.extent if isinstance(var.extent, int) else evaluate(var.extent, sizes)


def _bytes(buffer: Buffer, reached: int, sizes: Mapping[str, int]) -> int:
    pairs = zip(buffer.sizes, buffer.strides, strict=True)
    elements = math.prod(evaluate(n, sizes) for n, stride in pairs if stride != 0)
    return min(elements, reached) * buffer.dtype.itemsize


def _operations(body: Iterable[Statement], times: int, sizes: Mapping[str, int]) -> int:
    total = 0
    for statement in body:
        if isinstance(statement, Loop):
            total += _operations(statement.body, times * _extent(statement.var, sizes), sizes)
        elif isinstance(statement, Fold):
            total += _operations(statement.body, times, sizes)
        else:
            own = sum(isinstance(value, Op) for value in walk(roots(statement)))
            total += times * (own + isinstance(statement, Update))
    return total
