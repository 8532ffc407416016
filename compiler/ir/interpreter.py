"""The reference interpreter: runs loop programs and kernels as they are written, on tensors.

`run_program` takes a definition's whole grid at once; `run_kernel` takes a loop tree statement by statement, iteration
by iteration, so that what a schedule says is what happens. Both are for checking, not for speed. Memory that a program
makes starts as NaN (or an odd integer), so that reading what was never written shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from . import folds
from .accesses import accesses
from .evaluator import Evaluator, flat
from .index.index import TOKEN, Index, Size, Var, atoms, evaluate, terms
from .kernel import Assign, Fold, Kernel, Loop, Statement, Update
from .program import Buffer, Definition, Extern, Program, Store

Tensors = dict[str, torch.Tensor]
RunExtern = Callable[[Extern, Tensors], Mapping[str, torch.Tensor] | None]
_POISON = 0x5A


def run_program(
    program: Program,
    inputs: Mapping[str, Any],
    *,
    sizes: Mapping[str, int] | None = None,
    extern: RunExtern | None = None,
) -> Tensors:
    """Run a program.

    Args:
        program: what to run.
        inputs: tensors (of scalar buffers: numbers) by buffer name, for all buffers that are not made; written to
            where the program does.
        sizes: symbolic sizes by name; those missing are read off the inputs.
        extern: runs extern items: given the item and the buffers so far, gives (or puts among them) what it writes.

    Returns:
        all buffers, by name.

    Raises:
        IndexError: an index read from memory is out of range, as in eager.
        KeyError: an input, a size, or what an extern item writes is missing.
    """
    tensors = {name: _given(program.buffers[name], tensor) for name, tensor in inputs.items()}
    known = {**bound_sizes(program.buffers.values(), tensors), **(sizes or {})}
    for item in program.items:
        if isinstance(item, Extern):
            _run_extern(item, tensors, extern)
            known |= _made_known(item, program, tensors)
            continue
        for store in item.stores:
            if store.buffer not in tensors:
                tensors[store.buffer] = allocate(program.buffers[store.buffer], known)
        _Nest(item, tensors, known).run()
    return tensors


def run_kernel(
    kernel: Kernel,
    tensors: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
    *,
    shuffle: random.Random | None = None,
) -> Tensors:
    """Run a kernel statement by statement.

    Args:
        kernel: what to run.
        tensors: its params by name, written to in place; those only written may be left out. A kernel may see the
            memory of a tensor in another shape than the tensor's.
        sizes: symbolic sizes by name; those missing are read off the tensors.
        shuffle: runs iterations of parallel loops in an order drawn from it, which must not matter.

    Returns:
        the params, by name.
    """
    given = {p.buffer.name: _given(p.buffer, tensors[p.buffer.name]) for p in kernel.params if p.buffer.name in tensors}
    known = {**bound_sizes([p.buffer for p in kernel.params], given), **(sizes or {})}
    for param in kernel.params:
        if param.buffer.name not in given:
            given[param.buffer.name] = allocate(param.buffer, known)
    seen = {param.buffer.name: _seen(param.buffer, given[param.buffer.name], known) for param in kernel.params}
    _Tree(kernel, seen, known, shuffle).run()
    return given


def allocate(buffer: Buffer, sizes: Mapping[str, int]) -> torch.Tensor:
    """Memory for a buffer, poisoned."""
    shape, strides = (tuple(_at_sizes(n, sizes) for n in part) for part in (buffer.sizes, buffer.strides))
    made = torch.empty_strided(shape, strides, dtype=buffer.dtype)
    return made.fill_(torch.nan if buffer.dtype.is_floating_point else _POISON)


def bound_sizes(buffers: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Symbolic sizes read off the shapes and strides of tensors: where a buffer says ``s`` or ``4*s``."""
    known: dict[str, int] = {}
    for buffer in buffers:
        tensor = tensors.get(buffer.name)
        if tensor is None or buffer.scalar or len(buffer.sizes) != tensor.dim():
            continue
        pairs = [*zip(buffer.sizes, tensor.shape, strict=True), *zip(buffer.strides, tensor.stride(), strict=True)]
        for number, actual in pairs:
            for name, size in _solved(number, actual):
                known.setdefault(name, size)
    return known


def _solved(number: Any, actual: int) -> Iterator[tuple[str, int]]:
    if isinstance(number, Index) and len(terms(number)) == 1:
        ((monomial, coefficient),) = terms(number)
        if len(monomial) == 1 and isinstance(monomial[0], Size):
            yield monomial[0].name, actual // coefficient


def _at_sizes(number: Any, sizes: Mapping[str, int]) -> int:
    return int(evaluate(number, lambda atom: sizes[atom.name]))  # type: ignore[attr-defined]


def _given(buffer: Buffer, tensor: Any) -> torch.Tensor:
    return tensor if isinstance(tensor, torch.Tensor) else torch.full(buffer.sizes, tensor, dtype=buffer.dtype)


def _seen(buffer: Buffer, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
    """The memory of a tensor as the kernel's buffer has it; all of it where the kernel is not given its size."""
    numbers = (*buffer.sizes, *buffer.strides)
    if any(isinstance(a, Size) and a.name not in sizes for n in numbers for a in atoms(n)):
        return flat(tensor)
    shape, strides = (tuple(_at_sizes(n, sizes) for n in part) for part in (buffer.sizes, buffer.strides))
    return tensor if tensor.shape == shape else tensor.as_strided(shape, strides)


def _run_extern(item: Extern, tensors: Tensors, extern: RunExtern | None) -> None:
    if extern is None:
        raise KeyError(f"{item.name} is an extern call, and no `extern` was given to run it")
    tensors.update(extern(item, tensors) or {})
    missing = [name for name in item.writes if name not in tensors and not name.startswith(TOKEN)]
    if missing:
        raise KeyError(f"the extern call {item.name} did not write {missing}")


def _made_known(item: Extern, program: Program, tensors: Tensors) -> dict[str, int]:
    """The sizes that a call makes known: those of its results, or the number that it gives."""
    symbols = [name.removeprefix(TOKEN) for name in item.writes if name.startswith(TOKEN)]
    if not symbols:
        return {}
    buffer = program.buffers.get(item.name)
    if buffer is not None and buffer.sizes == (0,):  # it stands for a number
        return dict.fromkeys(symbols, int(tensors[item.name]))
    return bound_sizes([program.buffers[name] for name in item.writes], tensors)


def combine_into(memory: torch.Tensor, offsets: torch.Tensor, values: torch.Tensor, mode: str | None) -> None:
    """``memory[offsets] (mode)= values``, in order, values of memory's dtype."""
    if mode is None:
        memory.index_put_((offsets,), values)
    elif memory.dtype == torch.bool:
        # Of two truth values, "add", "max" and "or" are one, "mul", "min" and "and" the other.
        reduce = "amax" if mode in ("add", "max", "or") else "amin"
        memory.view(torch.uint8).scatter_reduce_(0, offsets, values.view(torch.uint8), reduce)
    elif mode == "add":
        memory.index_put_((offsets,), values, accumulate=True)
    elif mode in ("mul", "max", "min"):
        memory.scatter_reduce_(0, offsets, values, {"mul": "prod", "max": "amax", "min": "amin"}[mode])
    else:
        operation = torch.bitwise_or if mode == "or" else torch.bitwise_and
        for at, value in zip(offsets.tolist(), values, strict=True):
            memory[at] = operation(memory[at], value)


def _store(evaluator: Evaluator, tensors: Tensors, store: Store, grid: tuple[int, ...]) -> None:
    tensor = tensors[store.buffer]
    if not grid and store.mode is None:
        flat(tensor)[evaluator.offsets(tensor, store.indices)] = evaluator.value(store.value)
        return
    # A copy: what is stored may be an element of the same memory.
    values = evaluator.value(store.value).to(tensor.dtype).expand(grid).reshape(-1).clone()
    offsets = torch.as_tensor(evaluator.offsets(tensor, store.indices)).expand(grid).reshape(-1)
    combine_into(flat(tensor), offsets, values, store.mode)


class _Nest:
    """One definition over its whole grid: axes are the loops, then the reduced loops."""

    def __init__(self, item: Definition, tensors: Tensors, sizes: Mapping[str, int]) -> None:
        self._item, self._tensors, self._sizes = item, tensors, sizes
        self._axes = (*item.loops, *item.reduced)
        self._grid = tuple(_at_sizes(var.extent, sizes) for var in self._axes)
        self._outer = self._grid[: len(item.loops)]
        self._results: dict[tuple[str, int], torch.Tensor] = {}
        self._owners: dict[int, list[Buffer]] = {}

    def run(self) -> None:
        if 0 in self._outer:
            return
        for reduction in self._item.reductions:
            self._reduce(reduction.name, reduction.reducer, reduction.values)
        if self._item.scan and 0 in self._grid:
            return
        stored = self._grid if self._item.scan else (*self._outer, *[1] * len(self._item.reduced))
        for store in self._item.stores:
            _store(self._evaluator(), self._tensors, store, stored)

    def _reduce(self, name: str, reducer: str, values: tuple[Any, ...]) -> None:
        shape = (*self._outer, -1) if 0 not in self._grid else (*self._outer, 0)
        if 0 in self._grid:
            operands = tuple(torch.zeros(shape, dtype=value.dtype) for value in values)
        else:
            evaluator = self._evaluator()
            operands = tuple(evaluator.value(value).expand(self._grid).reshape(shape) for value in values)
        states = folds.scan(reducer, operands) if self._item.scan else folds.reduce(reducer, operands)
        tail = () if self._item.scan else (1,) * len(self._item.reduced)
        for component, state in enumerate(states):
            self._results[name, component] = state.reshape(*state.shape, *tail)

    def _evaluator(self) -> Evaluator:
        rank = len(self._axes)
        variables = {
            var: torch.arange(size).reshape([-1 if d == axis else 1 for d in range(rank)])
            for axis, (var, size) in enumerate(zip(self._axes, self._grid, strict=True))
        }
        return Evaluator(self._tensors, variables, self._sizes, self._results)


def _uses(body: tuple[Statement, ...]) -> Counter[str]:
    """How often statements access each buffer."""
    return Counter(access.buffer for access in accesses(body))


class _Tree:
    """A kernel, one iteration after the other."""

    def __init__(
        self, kernel: Kernel, tensors: Tensors, sizes: Mapping[str, int], shuffle: random.Random | None
    ) -> None:
        self._kernel, self._tensors, self._sizes, self._shuffle = kernel, dict(tensors), sizes, shuffle
        self._variables: dict[Var, int] = {}
        self._results: dict[tuple[str, int], torch.Tensor] = {}
        self._owners: dict[int, list[Buffer]] = {}

    def run(self) -> None:
        self._new(self._kernel.scratch)
        self._block(self._kernel.body)

    def _new(self, scratch: Iterable[Buffer]) -> None:
        self._tensors.update({buffer.name: allocate(buffer, self._sizes) for buffer in scratch})

    def _block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, Fold):
                self._fold(statement)
            elif isinstance(statement, Update):
                self._update(statement)
            else:
                assert isinstance(statement, Assign), statement
                _store(self._evaluator(), self._tensors, statement.store, ())

    def _loop(self, loop: Loop) -> None:
        iterations = list(range(int(self._evaluator().index(loop.var.extent))))
        if loop.parallel and self._shuffle is not None:
            self._shuffle.shuffle(iterations)
        for iteration in iterations:
            self._variables[loop.var] = iteration
            if loop.parallel:
                self._new(self._owned(loop))
            self._block(loop.body)
        self._variables.pop(loop.var, None)

    def _owned(self, loop: Loop) -> list[Buffer]:
        """The scratch that is new in each iteration of a parallel loop: of what is in none of those inside it alone."""
        found = self._owners.get(id(loop))
        if found is None:
            whole, here = _uses(self._kernel.body), _uses(loop.body)
            inner = [_uses(s.body) for s in loop.body if isinstance(s, Loop) and s.parallel]
            found = self._owners[id(loop)] = [
                b
                for b in self._kernel.scratch
                if here[b.name] == whole[b.name] and not any(uses[b.name] == whole[b.name] for uses in inner)
            ]
        return found

    def _fold(self, fold: Fold) -> None:
        for reduction in fold.reductions:
            self._keep(reduction.name, folds.start(reduction.reducer, reduction.values[0].dtype))
        self._block(fold.body)

    def _update(self, update: Update) -> None:
        reduction, evaluator = update.reduction, self._evaluator()
        components = len(folds.component_dtypes(reduction.reducer, reduction.values[0].dtype))
        state = tuple(self._results[reduction.name, k] for k in range(components))
        operands = tuple(evaluator.value(value) for value in reduction.values)
        self._keep(reduction.name, folds.update(reduction.reducer, state, operands))

    def _keep(self, name: str, state: folds.State) -> None:
        self._results.update({(name, component): part for component, part in enumerate(state)})

    def _evaluator(self) -> Evaluator:
        return Evaluator(self._tensors, self._variables, self._sizes, self._results)
