"""Evaluates values on tensors: over a whole grid of loops at once, or in one iteration.

    x[i, j] + 1     with i = arange(2)[:, None], j = arange(3)[None, :]     -> the 2 x 3 elements
    x[i, j] + 1     with i = 1, j = 2                                       -> the one element

Operations are those of `ops`, done by eager's functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .index.index import Atom, Loaded, Size, Var, evaluate
from .ops import DIVISIONS, OPS
from .value import Const, Guarded, Load, Number, Op, Result, Value, operands


class Evaluator:
    """Values and indices of one grid point, or of all of them.

    Args:
        tensors: the buffers, by name.
        variables: what loop variables are: integers, or int64 tensors that broadcast to the grid.
        sizes: what symbolic sizes are, by name.
        results: what reductions have come to, by name and component.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        variables: Mapping[Var, Any],
        sizes: Mapping[str, int],
        results: Mapping[tuple[str, int], torch.Tensor],
    ) -> None:
        self._tensors, self._variables, self._sizes, self._results = tensors, variables, sizes, results
        self._memo: dict[Any, torch.Tensor] = {}

    def value(self, value: Value, active: torch.Tensor | None = None) -> torch.Tensor:
        """The value, in a shape that broadcasts to the grid; anything where `active` is false."""
        memo, mask = self._memo, id(active)
        if (value, mask) in memo:
            return memo[value, mask]
        stack = [value]
        while stack:
            # Operands first, from a stack of our own: values may be deeper than Python's.
            top = stack[-1]
            missing = [below for below in _needed(top) if (below, mask) not in memo]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if (top, mask) not in memo:
                memo[top, mask] = self._evaluated(top, active)
        return memo[value, mask]

    def index(self, number: Any, active: torch.Tensor | None = None) -> Any:
        """The index: an integer, or a tensor that broadcasts to the grid.

        Raises:
            IndexError: an index read from memory is out of range.
        """
        return evaluate(number, lambda atom: self._leaf(atom, active), _smaller, _larger)

    def offsets(self, tensor: torch.Tensor, indices: tuple[Any, ...], active: torch.Tensor | None = None) -> Any:
        """Offsets into `flat(tensor)` of the elements at `indices`.

        Raises:
            IndexError: an index is out of range where `active`.
        """
        total: Any = 0
        for number, size, stride in zip(indices, tensor.shape, tensor.stride(), strict=True):
            at = checked(self.index(number, active), size, active)
            total = total + at * stride
        return total

    def _evaluated(self, value: Value, active: torch.Tensor | None) -> torch.Tensor:
        if isinstance(value, Const):
            return torch.tensor(self.index(value.number), dtype=value.dtype)
        if isinstance(value, Number):
            return torch.as_tensor(self.index(value.index, active)).to(value.dtype)
        if isinstance(value, Load):
            return self._load(value, active)
        if isinstance(value, Guarded):
            return self._guarded(value, active)
        if isinstance(value, Result):
            return self._results[value.reduction, value.component]
        assert isinstance(value, Op), value
        return self._operation(value, active)

    def _operation(self, value: Op, active: torch.Tensor | None) -> torch.Tensor:
        info = OPS[value.name]
        args = [self.value(arg, active) for arg in value.args]
        if value.name in DIVISIONS and active is not None:  # where it is not asked for, the divisor is 1
            args[1] = torch.where(active, args[1], 1).to(args[1].dtype)
        return info.reference(*args, value.dtype) if info.result == "given" else info.reference(*args)

    def _load(self, value: Load, active: torch.Tensor | None) -> torch.Tensor:
        tensor = self._tensors[value.buffer]
        offsets = self.offsets(tensor, value.indices, active)
        memory = flat(tensor)
        if not memory.numel():
            return torch.zeros((), dtype=value.dtype)
        return memory[offsets].to(value.dtype)

    def _guarded(self, value: Guarded, active: torch.Tensor | None) -> torch.Tensor:
        condition = self.value(value.condition, active)
        if condition.numel() == 1:
            return self.value(value.value if condition.item() else value.other, active)
        yes, no = (condition, ~condition) if active is None else (condition & active, ~condition & active)
        # The masks name memo entries by identity: they must outlive them.
        self._memo[yes, "mask"] = self._memo[no, "mask"] = condition
        return torch.where(condition, self.value(value.value, yes), self.value(value.other, no))

    def _leaf(self, atom: Atom, active: torch.Tensor | None) -> Any:
        if isinstance(atom, Var):
            return self._variables[atom]
        if isinstance(atom, Size):
            return self._sizes[atom.name]
        assert isinstance(atom, Loaded), atom
        return self._loaded(atom, active)

    def _loaded(self, atom: Loaded, active: torch.Tensor | None) -> Any:
        raw, size = self.value(atom.value, active).to(torch.int64), self.index(atom.size, active)
        at = torch.where(raw < 0, raw + size, raw) if atom.wrap else raw
        return checked(at, size, active, raw)


def _needed(value: Value) -> Iterable[Value]:
    """The operands that are evaluated wherever the value is."""
    return [value.condition] if isinstance(value, Guarded) else operands(value)


def checked(at: Any, size: int, active: torch.Tensor | None, spelled: torch.Tensor | None = None) -> Any:
    """`at`, which must be in range for `size` where `active`; there it is, elsewhere something that is.

    Raises:
        IndexError: it is not; `spelled` is what the message says instead, if given.
    """
    if active is None and type(at) is int and type(size) is int and 0 <= at < size:
        return at  # one iteration: kernels come here for every element
    indices = torch.as_tensor(at)
    wrong = (indices < 0) | (indices >= size)
    if active is not None:
        wrong = wrong & active
    if wrong.any():
        culprit = (indices if spelled is None else spelled).expand(wrong.shape)[wrong].flatten()[0]
        raise IndexError(f"index {culprit} is out of bounds for dimension with size {size}")
    return at if active is None else indices.clamp(min=0, max=max(size - 1, 0))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory under a strided tensor as one axis: element `sum(index * stride)` is the tensor's at `index`."""
    if tensor.dim() == 1 and tensor.stride(0) == 1:
        return tensor
    if not tensor.numel():
        return tensor.as_strided((0,), (1,))
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))


def _smaller(a: Any, b: Any) -> Any:
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b)) if _tensors(a, b) else min(a, b)


def _larger(a: Any, b: Any) -> Any:
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b)) if _tensors(a, b) else max(a, b)


def _tensors(a: Any, b: Any) -> bool:
    return isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)
