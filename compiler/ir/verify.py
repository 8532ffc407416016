"""The verifier: is a program or a kernel well formed? Every "no" is a typed finding.

`verify_program` and `verify_kernel` give all findings; `require` raises where there are any. What is checked: dtypes
and arities by `ops` and `reducers`, one index per dim, variables, results and sizes in scope, indices provably within
their buffers (what is guarded apart), names, that everything is written before it is read, launches, lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from .index.index import TOKEN, Loaded, Var, atoms
from .kernel import Assign, Fold, Kernel, Loop, Statement, Update
from .program import Buffer, Definition, Extern, Program, Reduction, Store
from .value import Load, Value, walk
from .verify_lanes import lane_findings
from .verify_launch import launch_findings
from .verify_value import NameScope, ProgramFault, reduction_findings, size_findings, store_findings


class MalformedError(Exception):
    """Raised by `require`; `findings` says what is wrong."""

    def __init__(self, findings: list[ProgramFault]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


def require(findings: Iterable[ProgramFault]) -> None:
    """Pass where nothing was found.

    Raises:
        MalformedError: something was.
    """
    found = list(findings)
    if found:
        raise MalformedError(found)


def verify_program(program: Program) -> list[ProgramFault]:
    """All that is wrong with a program; nothing where it is well formed."""
    return list(dict.fromkeys([*_names(program), *_items(program)]))


def verify_kernel(kernel: Kernel) -> list[ProgramFault]:
    """All that is wrong with a kernel; nothing where it is well formed."""
    return list(dict.fromkeys(_KernelCheck(kernel).run()))


def reads_of(values: Iterable[Value]) -> set[str]:
    """The buffers that values load from."""
    return {value.buffer for value in walk(values) if isinstance(value, Load)}


def _store_reads(store: Store) -> set[str]:
    indices = [atom.value for index in store.indices for atom in atoms(index) if isinstance(atom, Loaded)]
    combined = {store.buffer} if store.mode is not None else set()
    return reads_of([store.value, *indices]) | combined


def _repeated(names: Iterable[str], where: str, what: str) -> Iterator[ProgramFault]:
    for name, count in Counter(names).items():
        if count > 1:
            yield ProgramFault("name", where, f"{count} {what} are called {name}")


def _names(program: Program) -> Iterator[ProgramFault]:
    for key, buffer in program.buffers.items():
        if key != buffer.name or not key.removeprefix(TOKEN).isidentifier():
            yield ProgramFault("name", "program", f"the buffer {buffer.name!r} is listed as {key!r}")
        yield from _buffer_findings(buffer, "program")
    yield from _repeated((item.name for item in program.items), "program", "items")
    definitions = [item for item in program.items if isinstance(item, Definition)]
    yield from _repeated((r.name for d in definitions for r in d.reductions), "program", "reductions")


def _buffer_findings(buffer: Buffer, where: str) -> Iterator[ProgramFault]:
    if len(buffer.sizes) != len(buffer.strides):
        yield ProgramFault(
            "rank", where, f"{buffer.name} has {len(buffer.sizes)} sizes and {len(buffer.strides)} strides"
        )


def _items(program: Program) -> Iterator[ProgramFault]:
    written = {name for name, buffer in program.buffers.items() if buffer.kind != "made"}
    for item in program.items:
        yield from _unwritten(item, written)
        written |= {store.buffer for store in item.stores} if isinstance(item, Definition) else set(item.writes)
        if isinstance(item, Definition):
            yield from _definition(item, NameScope(item.name, program.buffers))
    for name in program.outputs:
        if name not in program.buffers:
            yield ProgramFault("unknown", "outputs", f"{name} is no buffer")
        elif name not in written:
            yield ProgramFault("order", "outputs", f"{name} is never written")


def _unwritten(item: Definition | Extern, written: set[str]) -> Iterator[ProgramFault]:
    if isinstance(item, Extern):
        reads, made = set(item.reads), set()
    else:
        reads = reads_of(value for reduction in item.reductions for value in reduction.values)
        reads |= set().union(*map(_store_reads, item.stores))
        # Of several stores, a later one may read what an earlier one wrote in the same iteration.
        made = {store.buffer for store in item.stores if store.mode is None}
    for name in sorted(reads - written - made):
        yield ProgramFault("order", item.name, f"reads {name} before it is written")


def _definition(item: Definition, scope: NameScope) -> Iterator[ProgramFault]:
    yield from _repeated((var.name for var in (*item.loops, *item.reduced)), item.name, "loops")
    if bool(item.reduced) != bool(item.reductions):
        yield scope.found("arity", "reduced loops and reductions come together")
    if item.scan and len(item.reduced) != 1:
        yield scope.found("arity", f"a scan runs over one loop, not {len(item.reduced)}")
    outer = scope.inside(*item.loops)
    inner = outer.inside(*item.reduced)
    for reduction in item.reductions:
        yield from reduction_findings(reduction, inner)
    for store in item.stores:
        yield from store_findings(store, (inner if item.scan else outer).with_results(item.reductions))


class _KernelCheck:
    """One kernel, statement by statement."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._params = {param.buffer.name: param for param in kernel.params}
        self._written = {param.buffer.name for param in kernel.params if param.access != "write"}
        self._updated: set[str] = set()

    def run(self) -> Iterator[ProgramFault]:
        kernel = self._kernel
        buffers = [*(param.buffer for param in kernel.params), *kernel.scratch]
        scope = NameScope(kernel.name, {b.name: b for b in buffers}, sizes=frozenset(kernel.sizes))
        yield from _repeated((buffer.name for buffer in buffers), kernel.name, "buffers")
        for buffer in buffers:
            yield from _buffer_findings(buffer, kernel.name)
        for buffer in kernel.scratch:  # how large a param is nobody asks
            yield from _sizes((*buffer.sizes, *buffer.strides), scope)
        yield from self._block(kernel.body, scope, ())
        for param in kernel.params:
            if param.access != "read" and param.buffer.name not in self._stored:
                yield scope.found("access", f"never writes {param.buffer.name}")
        yield from launch_findings(kernel)
        yield from lane_findings(kernel)

    @property
    def _stored(self) -> set[str]:
        return {store.buffer for store in stores_of(self._kernel.body)}

    def _block(
        self, body: tuple[Statement, ...], scope: NameScope, folding: tuple[Reduction, ...]
    ) -> Iterator[ProgramFault]:
        for statement in body:
            if isinstance(statement, Loop):
                yield from self._loop(statement, scope, folding)
            elif isinstance(statement, Fold):
                yield from self._fold(statement, scope, folding)
                scope = scope.with_results(statement.reductions)
            elif isinstance(statement, Update):
                yield from self._update(statement, scope, folding)
                scope = scope.with_results([statement.reduction])
            else:
                yield from self._assign(statement, scope)

    def _loop(self, loop: Loop, scope: NameScope, folding: tuple[Reduction, ...]) -> Iterator[ProgramFault]:
        if any(var.name == loop.var.name for var in scope.variables):
            yield scope.found("name", f"two loops, one in the other, are called {loop.var.name}")
        yield from _sizes([loop.var.extent], scope)
        yield from self._block(loop.body, scope.inside(loop.var), folding)

    def _fold(self, fold: Fold, scope: NameScope, folding: tuple[Reduction, ...]) -> Iterator[ProgramFault]:
        yield from self._block(fold.body, scope, (*folding, *fold.reductions))
        for reduction in fold.reductions:
            if reduction.name not in self._updated:
                yield scope.found("order", f"the fold of {reduction.name} has no update")

    def _update(self, update: Update, scope: NameScope, folding: tuple[Reduction, ...]) -> Iterator[ProgramFault]:
        self._updated.add(update.reduction.name)
        if update.reduction not in folding:
            yield scope.found("scope", f"updates {update.reduction.name} outside its fold")
        yield from self._reads(reads_of(update.reduction.values), scope)
        yield from reduction_findings(update.reduction, scope)

    def _assign(self, assign: Assign, scope: NameScope) -> Iterator[ProgramFault]:
        store = assign.store
        param = self._params.get(store.buffer)
        if param is not None and param.access == "read":
            yield scope.found("access", f"writes {store.buffer}, which it says it only reads")
        yield from self._reads(_store_reads(store), scope)
        yield from store_findings(store, scope)
        self._written.add(store.buffer)

    def _reads(self, names: set[str], scope: NameScope) -> Iterator[ProgramFault]:
        for name in sorted(names - self._written):
            yield scope.found("order", f"reads {name} before it is written")


def stores_of(body: Iterable[Statement]) -> Iterator[Store]:
    """The stores of a loop tree, in order."""
    for statement in body:
        if isinstance(statement, Assign):
            yield statement.store
        elif isinstance(statement, (Loop, Fold)):
            yield from stores_of(statement.body)


def _sizes(numbers: Iterable[Any], scope: NameScope) -> Iterator[ProgramFault]:
    for number in numbers:
        for atom in atoms(number):
            if isinstance(atom, Var) and atom not in scope.variables:
                yield scope.found("scope", f"the variable {atom.name} is not in scope of an extent")
            yield from size_findings(atom, scope)
