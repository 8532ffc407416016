"""The verifier of lanes and threads: can vectors hold what loops compute in them, and do threads share loops once?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .accesses import stored_buffers, values
from .index.index import Var
from .kernel import Fold, Kernel, Loop, Statement
from .lanes import Lanes, LoopTile, Threads, Turned
from .verify_value import ProgramFault

_MOST_LANES = 64  # lanes of a vector: bytes of the widest register


def lane_findings(kernel: Kernel) -> Iterator[ProgramFault]:
    """The faults of lanes of loops, and of how threads share statements; a kernel for a GPU has neither."""
    scratch = {buffer.name for buffer in kernel.scratch}
    messages = [message for s in kernel.body for message in _lanes(s, None, scratch)]
    if kernel.threads and len(kernel.threads) != len(kernel.body):
        messages.append(f"threads share {len(kernel.threads)} statements of {len(kernel.body)}")
    elif kernel.threads:
        pairs = zip(kernel.threads, kernel.body, strict=True)
        messages += [message for threads, statement in pairs for message in _threads(threads, statement)]
    for message in messages:
        yield ProgramFault("lanes", kernel.name, message)


def _lanes(statement: Statement, around: Loop | None, scratch: set[str]) -> Iterator[str]:
    """The faults in a statement; `around`: the loop in lanes that it stands in."""
    if isinstance(statement, Loop):
        yield from _of_loop(statement, around, scratch)
        if isinstance(statement.lanes, (Lanes, LoopTile)):
            around = statement
    if isinstance(statement, (Loop, Fold)):
        for inner in statement.body:
            yield from _lanes(inner, around, scratch)


def _of_loop(loop: Loop, around: Loop | None, scratch: set[str]) -> Iterator[str]:
    how, name = loop.lanes, loop.var.name
    if isinstance(how, Turned):
        if around is None or not isinstance(around.lanes, Lanes):
            yield f"{name} is gone through by rows outside of a loop in lanes"
    elif how is not None:
        if around is not None:
            yield f"{name} is in lanes inside of {around.var.name}, which is too"
        if how.lanes < 2 or how.lanes > _MOST_LANES or how.lanes & (how.lanes - 1):
            yield f"no vector has {how.lanes} lanes, as {name} does"
        if how.copies < 1:
            yield f"{name} has {how.copies} vectors at a time"
        yield from _of_tile(loop, how) if isinstance(how, LoopTile) else _expanded(how, scratch)


def _expanded(how: Lanes, scratch: set[str]) -> Iterator[str]:
    yield from (f"{buffer}, with an element a lane, is no scratch buffer" for buffer in sorted(how.expanded - scratch))


def _of_tile(loop: Loop, tile: LoopTile) -> Iterator[str]:
    inner = loop.body[0] if len(loop.body) == 1 else None
    if not loop.parallel or not isinstance(inner, Loop):
        yield f"{loop.var.name} is no parallel loop around a single one, and has tiles"
        return
    loads, stored = set(values(inner.body)), stored_buffers(inner.body)
    yield from (f"{load.buffer} is not loaded in the tile" for load in tile.loads if load not in loads)
    yield from (f"{load.buffer} is written in the tile that loads it" for load in tile.loads if load.buffer in stored)


def _threads(threads: Threads, statement: Statement) -> Iterator[str]:
    if not threads.loops:
        return
    loops = list(_nest(statement))[: len(threads.loops)]
    if tuple(loop.var for loop in loops) != threads.loops:
        yield f"threads share {_names(threads.loops)}: these are not the outermost loops that they may share"
        return
    how = loops[-1].lanes
    step = how.lanes * how.copies if isinstance(how, (Lanes, LoopTile)) else 1
    if threads.piece < 1 or (threads.piece > 1 and threads.piece % step):
        yield f"{threads.piece} iterations of {loops[-1].var.name} are no whole vectors"


def _nest(statement: Statement) -> Iterator[Loop]:
    """The loops that threads may share: parallel ones, each alone in the one before; or the loop of a fold."""
    if isinstance(statement, Fold):
        yield from (s for s in statement.body if isinstance(s, Loop) and len(statement.body) == 1)
        return
    while isinstance(statement, Loop) and statement.parallel:
        yield statement
        if len(statement.body) != 1:
            return
        statement = statement.body[0]


def _names(loops: Sequence[Var]) -> str:
    return ", ".join(var.name for var in loops)


__all__ = ["lane_findings"]
