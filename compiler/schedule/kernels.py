"""Kernels from groups: loops built, local buffers contracted, values written over the loops' variables.

group (layer_norm) -> Kernel: for i0 < 256 parallel: fold ...; for i1 < 768: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.index.index import Index, Loaded, Size, Var, add, atoms, mul, rebuild
from ..ir.kernel import Assign, Fold, Kernel, Loop, Param, Statement, Update
from ..ir.program import Buffer, Reduction, Store
from ..ir.simplify import ROUNDINGS
from ..ir.value import HALVES, Const, Load, Op, Result, Rewriter, Value, indices_of, walk
from .affine import proportional
from .contraction import Path, contractions, forward_of, touches_of
from .flat_access import flat_buffer
from .groups import Group, Member
from .loop_tree import Leaf, Nest, Tree, leaves, tree_of
from .target import CPU, Target

_LARGEST = 64  # operations of a value that is put in the place of loads: trees are walked by recursion, too
_CARRIED = 2  # operations of a value that is computed again in inner loops rather than kept in scratch


def kernel_of(
    group: Group, name: str, buffers: Mapping[str, Buffer], local: frozenset[str], target: Target = CPU
) -> Kernel:
    """The kernel of a group.

    Args:
        group: its members.
        name: the kernel's.
        buffers: of the program.
        local: buffers that nothing outside of the group touches.
        target: the device that the kernel is for.
    """
    return _KernelBuilder(group, buffers, local, target).kernel(name)


class _KernelBuilder:
    def __init__(self, group: Group, buffers: Mapping[str, Buffer], local: frozenset[str], target: Target) -> None:
        self._group, self._buffers = group, buffers
        self._trees = tree_of(group, target)
        touches = touches_of(self._trees)
        self._local_buffers, self._contracted = local, contractions(touches, buffers, local, target)
        self._forwards = {name: forward_of(found) for name, found in touches.items()}
        self._stored = {store.buffer for member in group.members for store in member.definition.stores}
        self._leaves = list(leaves(self._trees))
        self._numbers = {member: number for number, (_, member) in enumerate(self._leaves)}
        self._paths = {member: path for path, member in self._leaves}
        self._joined = joined_axes(self._trees)
        self._variables: dict[Var, Any] = {}
        self._forwarded: dict[str, _Stored] = {}
        self._scratch: dict[str, Buffer] = {}
        self._reductions: dict[str, Reduction] = {}
        self._named = 0

    def kernel(self, name: str) -> Kernel:
        body = tuple(s for node in self._trees for s in self._written(node))
        nodes = dict.fromkeys(n for m in self._group.members for n in m.definition.nodes)
        params = _params(body, self._buffers, frozenset(self._scratch))
        return Kernel(name, params, sizes_of(body), tuple(self._scratch.values()), body, tuple(nodes))

    # -- loops ----------------------------------------------------------------------------------------------------

    def _written(self, node: Tree) -> list[Statement]:
        if isinstance(node, Leaf):
            return self._leaf(node.member)
        run = _run(node, self._joined)
        var = Var(f"i{self._named}", _extent(run))
        self._named += 1
        # Axes joined into one loop occur in fixed proportion: the last stands for the whole, the others count nothing.
        self._variables.update({n.axis: 0 for n in run})
        self._variables[run[-1].axis] = var.index()
        body = tuple(s for inner in run[-1].body for s in self._written(inner))
        loop = Loop(var, body, node.parallel)
        self._named -= 1
        if not node.folds:
            return [loop] if body else []
        return [Fold(tuple(self._reductions[r.name] for m in node.folds for r in m.definition.reductions), (loop,))]

    def _leaf(self, member: Member) -> list[Statement]:
        rewriter = self._rewriter(member)
        statements: list[Statement] = []
        if member.part in ("fold", "scan"):
            for reduction in member.definition.reductions:
                made = Reduction(reduction.name, reduction.reducer, tuple(map(rewriter, reduction.values)))
                self._reductions[made.name] = made
                statements.append(Update(made))
        if member.part != "fold":
            statements += [s for store in member.definition.stores for s in self._store(member, store, rewriter)]
        if not member.reduced and member.folds:
            return [Fold(tuple(self._reductions[r.name] for r in member.definition.reductions), tuple(statements))]
        return statements

    # -- values ---------------------------------------------------------------------------------------------------

    def _rewriter(self, member: Member) -> Rewriter:
        by = {v: rebuild(n, self._variables.get) for v, n in member.where.items()}  # type: ignore[arg-type]
        path = self._paths[member]
        return Rewriter(value=lambda value: self._replaced(value, path), atom=by.get)  # type: ignore[arg-type]

    def _replaced(self, value: Value, path: Path) -> Value | None:
        """The value that replaces a value in the kernel; None if the value stays."""
        if isinstance(value, Op) and isinstance(value.args[0], Load):
            held = value.args[0].buffer
            # Memory holds 16 bits; a value that the kernel itself stores may be passed on as it was computed.
            if held not in self._stored and ROUNDINGS.get(value.name) == self._buffers[held].dtype:
                return value.args[0]
        return self._local_load(value, path)

    def _local_load(self, value: Value, path: Path) -> Value | None:
        if not isinstance(value, Load):
            return None
        stored = self._forwarded.get(value.buffer)
        if stored is not None and stored.serves(value, path):
            return stored.value
        if value.buffer in self._scratch:
            return Load(value.buffer, (self._local(value.buffer, value.indices[0]),), value.dtype)
        return None

    def _local(self, buffer: str, offset: Any) -> Any:
        base = rebuild(self._contracted[buffer].base, self._variables.get)  # type: ignore[arg-type]
        return add(offset, mul(base, -1))

    def _store(self, member: Member, store: Store, rewriter: Rewriter) -> list[Statement]:
        name, value, offset = store.buffer, rewriter(store.value), rewriter.index(store.indices[0])
        forward, trivial = self._forwards[name], _trivial(value)
        if forward is not None and not _is_large(value) and self._lasts(member, value, forward.until):
            handed = value if forward.all_in_body else self._as_kept(name, value)
            self._forwarded[name] = _Stored(self._paths[member], offset, handed, trivial)
            if name in self._local_buffers and (forward.all_in_body or (forward.all_inside and trivial)):
                return []
        if name in self._contracted:
            self._scratch.setdefault(name, self._contracted[name].scratch)
            offset = self._local(name, offset)
        return [Assign(Store(name, (offset,), value, store.mode))]

    def _as_kept(self, name: str, value: Value) -> Value:
        """The value as other loads of this kernel find it in memory: 16 bits of it, or all in scratch.

        A softmax would subtract the largest of unrounded numbers from rounded ones: where these are large, infinity.
        """
        kind = self._buffers[name].dtype
        if kind not in HALVES or name in self._contracted:
            return value
        rounding = next(op for op, dtype in ROUNDINGS.items() if dtype == kind)
        return value if isinstance(value, Op) and value.name == rounding else Op(rounding, (value,), value.dtype)

    def _lasts(self, member: Member, value: Value, until: int) -> bool:
        """Whether nothing that a value reads is overwritten from its member to number `until`."""
        reads = {v.buffer for v in walk([value]) if isinstance(v, Load)}
        return not any(m.writes(name) for _, m in self._leaves[self._numbers[member] : until + 1] for name in reads)


@dataclass(frozen=True)
class _Stored:
    """A stored value and its place: loads of that place in the body, or deeper at no cost, are the value itself."""

    path: Path
    offset: Any
    value: Value
    trivial: bool

    def serves(self, load: Load, path: Path) -> bool:
        if load.indices[0] != self.offset:
            return False
        return path == self.path or (self.trivial and path[: len(self.path)] == self.path)


def _is_large(value: Value) -> bool:
    return sum(isinstance(v, Op) for v in walk([value])) > _LARGEST


def _trivial(value: Value) -> bool:
    """Whether computing a value again costs nothing to speak of."""
    if isinstance(value, (Const, Result)):
        return True
    ops = [v for v in walk([value]) if not isinstance(v, (Const, Result))]
    return len(ops) <= _CARRIED and all(isinstance(v, Op) and v.name in ("add", "sub", "mul", "neg") for v in ops)


def _run(node: Nest, joined: Mapping[Var, Var]) -> list[Nest]:
    """The nests that become one loop, outermost first."""
    run = [node]
    while run[-1].axis in joined:
        inner = run[-1].body[0]
        assert isinstance(inner, Nest), inner
        run.append(inner)
    return run


def _extent(run: Iterable[Nest]) -> Any:
    total: Any = 1
    for nest in run:
        total = mul(total, nest.axis.extent)
    return total


def joined_axes(trees: Sequence[Tree]) -> dict[Var, Var]:
    """Axes whose loop always directly holds the loop of another, where one loop over both can replace the two.

    for i < 256: for j < 768: y[768*i + j] = ...   ->   {i: j}, that is  for k < 196608: y[k] = ...
    """
    inner: dict[Var, Var | None] = {}
    outer: dict[Var, Var | None] = {}
    _nesting(trees, None, inner, outer)
    members = [m for _, m in leaves(trees)]
    return {
        v: w for v, w in inner.items()
        if w is not None and outer.get(w) is v and all(_joins(m, v, w) for m in members)
    }  # fmt: skip


def _nesting(
    nodes: Sequence[Tree], around: Nest | None, inner: dict[Var, Var | None], outer: dict[Var, Var | None]
) -> None:
    for node in nodes:
        if isinstance(node, Leaf):
            continue
        alone = node.body[0] if len(node.body) == 1 else None
        below = alone if isinstance(alone, Nest) and not alone.folds and alone.parallel == node.parallel else None
        _agree(inner, node.axis, None if below is None else below.axis)
        _agree(outer, node.axis, None if around is None else around.axis)
        _nesting(node.body, node, inner, outer)


def _agree(found: dict[Var, Var | None], key: Var, axis: Var | None) -> None:
    found[key] = axis if found.setdefault(key, axis) is axis else None


def _joins(member: Member, v: Var, w: Var) -> bool:
    numbers = (*(a.offset for a in member.accesses if a.offset is not None), *member.numbers)
    return all(proportional(n, v, w) for n in numbers)


# -- needs of a body ----------------------------------------------------------------------------------------------


def statements_of(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement of a body, outer ones before those inside them."""
    for statement in body:
        yield statement
        if isinstance(statement, (Loop, Fold)):
            yield from statements_of(statement.body)


def values_of(statement: Statement) -> tuple[Value, ...]:
    """The values that stand in a statement's own line."""
    if isinstance(statement, Assign):
        store = statement.store
        return (*(a.value for n in store.indices for a in atoms(n) if isinstance(a, Loaded)), store.value)
    return statement.reduction.values if isinstance(statement, Update) else ()


def _params(body: Sequence[Statement], buffers: Mapping[str, Buffer], scratch: frozenset[str]) -> tuple[Param, ...]:
    """Params in the order of first use, each seen flat."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    order: dict[str, None] = {}
    for statement in statements_of(body):
        for value in walk(values_of(statement)):
            if isinstance(value, Load):
                reads[value.buffer] = order[value.buffer] = None
        if isinstance(statement, Assign):
            writes[statement.store.buffer] = order[statement.store.buffer] = None
            if statement.store.mode is not None:
                reads[statement.store.buffer] = None
    return tuple(
        Param(flat_buffer(buffers[n]), "update" if n in reads and n in writes else "read" if n in reads else "write")
        for n in order
        if n not in scratch
    )


def sizes_of(body: Sequence[Statement]) -> tuple[Size, ...]:
    """The symbolic sizes in loops, indices and values, by name."""
    found: set[Size] = set()
    for statement in statements_of(body):
        numbers = [statement.var.extent] if isinstance(statement, Loop) else []
        numbers += statement.store.indices if isinstance(statement, Assign) else ()
        numbers += [n for v in walk(values_of(statement)) for n in indices_of(v)]
        for number in numbers:
            found |= _sizes_in(number)
    return tuple(sorted(found, key=lambda s: s.name))


def _sizes_in(number: Any) -> set[Size]:
    found: set[Size] = set()
    for atom in atoms(number) if isinstance(number, Index) else ():
        if isinstance(atom, Size):
            found.add(atom)
        elif isinstance(atom, Loaded):
            found |= _sizes_in(atom.size)
    return found


__all__ = ["kernel_of", "sizes_of", "statements_of", "values_of"]
