"""How long a kernel takes on a GPU whose programs walk through loops, with few neighbours in each step.

    for i parallel:                          program i:
        for j < 49:                              49 steps, one after the other,
            s = sum of x[i, j, k < 32]           of 32 lanes: memory is asked for little at a time
            for k < 32: y[i, j, k] = ...
        for k < 32: for j < 49: z[i, k, j] = y[i, j, k]

Apart, all rows j run side by side. Shared loops must save more time than waiting for the steps takes. However
little is moved, a step takes the time of a load and of a fold over lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir.index.index import mul
from .loop_tree import Nest, Tree, leaves
from .profit import guess
from .target import Target

_THREADS = 256  # of a program that goes through blocks, at most
_STEP = 1 << 21  # bytes moved in the time of a step that loads, and joins lanes


def walks(trees: Sequence[Tree]) -> bool:
    """Whether programs go through iterations of a loop that holds other loops, one after the other."""
    return any(_is_walked(path, k) for path, _ in leaves(trees) for k in range(len(path)))


def time_of(trees: Sequence[Tree], weights: Mapping[str, int], target: Target) -> int:
    """The time of a kernel, in bytes that a kernel with all lanes at work would move in that time.

    Args:
        trees: the loops of the kernel.
        weights: the bytes of each buffer.
        target: the GPU; `busy` programs that each have `elements` numbers on their way keep it at work.
    """
    found = list(leaves(trees))
    all_lanes = target.busy * target.elements
    lanes = [_lanes(path, all_lanes // min(_THREADS, max(guess(_together(p)) for p, _ in found))) for path, _ in found]
    seen: set[str] = set()
    total = 0
    for path, member in found:
        new = member.touched.keys() - seen
        seen |= new
        # Numbers of a row go along with the row's loops.
        beside = max(n for n, (around, _) in zip(lanes, found, strict=True) if not path or path[-1] in around)
        total += sum(weights[name] for name in new) * all_lanes // max(1, min(beside, all_lanes))
    return max(total, _STEP * max(_steps(path) for path, _ in found))


def _steps(path: Sequence[Nest]) -> int:
    """The iterations that a program goes through one after the other for a member."""
    steps = 1
    for k, nest in enumerate(path):
        if _is_walked(path, k):
            steps *= guess(nest.axis.extent)
    return steps if steps > 1 else 0


def _lanes(path: Sequence[Nest], resident: int) -> int:
    """The iterations of a member that run side by side; programs that walk run one row each, `resident` at a time."""
    count: Any = 1
    for nest in path:
        if nest.parallel:
            count = mul(count, nest.axis.extent)
    programs = guess(count)
    if any(_is_walked(path, k) for k in range(len(path))):
        programs = min(programs, resident)
    return programs * guess(_together(path))


def _together(path: Sequence[Nest]) -> Any:
    """The iterations of a member that one program has as lanes: of loops inside that hold no others."""
    count: Any = 1
    for k, nest in reversed(list(enumerate(path))):
        if nest.parallel or _is_walked(path, k):
            break
        count = mul(count, nest.axis.extent)
    return count


def _is_walked(path: Sequence[Nest], k: int) -> bool:
    """Whether programs go through a loop step by step: it holds a fold or scan, or several things one after the other.

    for i parallel: for j < 19712: scan k < 8 of x[i, k, j]       lanes go along k alone
    """
    return not path[k].parallel and (_holds_more(path[k]) or any(nest.folds for nest in path[k + 1 :]))


def _holds_more(nest: Nest) -> bool:
    """Whether a loop holds loops beside other things; the innermost one, and those around it alone, do not."""
    while len(nest.body) == 1 and isinstance(nest.body[0], Nest):
        nest = nest.body[0]
    return any(isinstance(node, Nest) for node in nest.body)
