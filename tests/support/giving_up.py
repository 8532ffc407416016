"""Faults planted in the compiler: something raises while a program is compiled, which must survive it.

with raising(monkeypatch, IN_EACH["kernels"], DIRECTIONS["backward"]): ...
with drawn(seed): ...                                                            one of all, for random programs
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from regraft.compiler import backend, graph_code
from regraft.compiler.backend import Compilation
from regraft.compiler.lowering import graph as lowering
from regraft.compiler.stages import Stages

PLANTED = "planted"
DIRECTIONS = {"forward": ("forward",), "backward": ("backward",), "both": ("forward", "backward")}
IN_EACH = {  # of each graph: where it raises, and whether after the work was done
    "passes": (Stages, "lower", True),
    "kernels": (graph_code, "generate_kernels", False),
    "wrapper": (graph_code, "generate", False),
    "operators": (lowering, "lower_call", False),
}
OF_ALL = {
    "capture": (backend, "capture", True),
    "program": (Stages, "rewrite_program", True),
    "joint": (Stages, "prepare", True),
    "strides": (backend, "strides_of_outputs", True),
    "everything": (Compilation, "_compile", True),
    "overlaps": (backend, "relying", True),
}


@contextmanager
def raising(
    monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str, bool], kinds: tuple[str, ...] | None
) -> Iterator[None]:
    """Have a function raise while graphs of some kinds are compiled; of operators, it is every second one."""
    owner, name, late = place
    real, compiled, now = getattr(owner, name), Compilation._compiled, [""]

    def of_kind(self: Any, module: Any, inputs: Any, kind: Any) -> Any:
        now.append(kind)
        try:
            return compiled(self, module, inputs, kind)
        finally:
            now.pop()

    def failing(*args: Any, **kwargs: Any) -> Any:
        meant = kinds is None or now[-1] in kinds
        spared = name == "lower_call" and sum(map(ord, str(args[1].target))) % 2
        if not meant or spared:
            return real(*args, **kwargs)
        if late:
            real(*args, **kwargs)
        raise RuntimeError(PLANTED)

    failing.__name__ = name
    with monkeypatch.context() as patched:
        patched.setattr(Compilation, "_key", lambda self: None)
        patched.setattr(Compilation, "_compiled", of_kind)
        patched.setattr(owner, name, failing)
        yield


@contextmanager
def drawn(seed: int) -> Iterator[None]:
    """One of all faults, in some direction."""
    draw = random.Random(seed)
    name = draw.choice([*IN_EACH, *OF_ALL])
    kinds = draw.choice([*DIRECTIONS.values()]) if name in IN_EACH else None
    with pytest.MonkeyPatch.context() as patched:
        inference = None if kinds is None else (*kinds, "inference")
        with raising(patched, (IN_EACH | OF_ALL)[name], inference):
            yield
