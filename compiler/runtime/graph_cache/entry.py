"""The stored form of one compilation, and how it runs again.

    wrapper text + objects it binds + record   ->  bytes  ->  the same function, in this process or another

Only graphs that AOTAutograd calls with the program's inputs as they are can run without it (see `training`): these may
write to inputs, but share no memory then. The others are compiled again, from measured decisions and compiled kernels
that have caches of their own.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....rewrites import compat
from ....rewrites.compat.dynamo import held_while_needed
from ....rewrites.record import GraphRecord
from ...autograd.plain_calls import called_plainly
from ...autograd.plain_steps import runner
from ...autograd.returned_inputs import WithInputs
from ...codegen.wrapper.emit import WrapperSource
from ...codegen.wrapper.wrapper import load
from ..calls import as_backward
from ..cudagraphs.graphs import CudaGraphs
from . import store
from .training import TrainingStep

logger = logging.getLogger("regraft")


@dataclass(frozen=True)
class CachedProgram:
    """One compiled program: an inference graph, or the two of a training step.

    Args:
        name: the wrapper's.
        source: its text and the objects that the text binds; None of a training step.
        record: what the compilation did.
        static: where it may be captured as a CUDA graph, the positions of inputs whose addresses stay.
        step: in training, the forward and the backward.
        written: in inference, positions of inputs that the graph writes to, as autograd is to know.
        returned: positions of results that are inputs, and of these: the graph may give None, or what is no input.
        held: names of the tensors that the program holds, which the graph is given before its inputs.
    """

    name: str
    source: WrapperSource | None
    record: GraphRecord
    static: frozenset[int] | None = None
    step: TrainingStep | None = None
    written: tuple[int, ...] = ()
    returned: tuple[tuple[int, int], ...] = ()
    held: tuple[str, ...] = ()

    def runner(self, graphs: CudaGraphs | None = None, holds: torch.nn.Module | None = None) -> Callable[..., Any]:
        """The program as a function of its inputs, outside autocast.

        Args:
            graphs: captures it, if given.
            holds: has the tensors that the program holds.
        """
        call = self._runner(graphs)
        if self.returned:
            call = WithInputs(call, self.returned)
        if not self.held:
            return call
        assert holds is not None
        held = held_while_needed([compat.attribute(holds, name) for name in self.held])

        def run(*inputs: Any) -> Any:
            return call(*held, *inputs)

        return run

    def _runner(self, graphs: CudaGraphs | None) -> Callable[..., tuple[Any, ...]]:
        if self.step is not None:
            return self._training(self.step, graphs)
        assert self.source is not None
        call = load(self.source, self.name)
        if graphs is not None and self.static is not None:
            call = graphs.inference(call, self.static)
        return called_plainly(call, self.written)

    def _training(self, step: TrainingStep, graphs: CudaGraphs | None) -> Callable[..., tuple[Any, ...]]:
        forward = load(step.forward, f"{self.name} forward")
        backward = load(step.backward, f"{self.name} backward")
        if graphs is not None and self.static is not None:
            forward = graphs.forward(forward, self.static, step.form.facts.outputs)
            backward = graphs.backward(backward) if step.captured else backward
        return runner(step.form, forward, as_backward(backward))


def save(key: str, entry: CachedProgram) -> bool:
    """Keep an entry; False where something in it can't be written (a closure, packed weights)."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(entry)
    except Exception as error:  # whatever an object raises that can't be written
        logger.debug("regraft: a graph is not cached: %s", error)
        return False
    return store.write(key, buffer.getvalue())


def recall(key: str) -> CachedProgram | None:
    """The entry of an earlier compilation, or None; what can't be loaded any more is discarded."""
    content = store.read(key)
    if content is None:
        return None
    try:
        entry = pickle.loads(content)
    except Exception as error:  # whatever loading old code's data may raise, compiling anew is right
        logger.debug("regraft: a cached graph can't be loaded: %s", error)
        entry = None
    if not isinstance(entry, CachedProgram):
        store.discard(key)
        return None
    return entry


class _Pickler(pickle.Pickler):
    """Operators go by their names: their own pickling depends on how they were found."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, compat.OpOverload):
            path = compat.operator_path(value)
            if path is None:
                raise pickle.PicklingError(f"{value} cannot be imported by its module and name")
            return _operator, path
        if isinstance(value, torch.Tensor) and (value.layout != torch.strided or type(value) is not torch.Tensor):
            raise pickle.PicklingError(f"a tensor of layout {value.layout}")
        return NotImplemented


def _operator(namespace: str, packet: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
