"""Capture: turns Dynamo's graph of Python calls into one graph of ATen calls, before autograd.

    torch.nn.functional.linear(x, w)          aten.linear(x, w)
    q.mT, q @ k, q.softmax(-1)           ->   aten.transpose, aten.matmul, aten.softmax.int
    with torch.autocast(...): x @ w           aten.to(x, bf16), aten.to(w, bf16), aten.matmul

Nothing is decomposed: `linear`, `matmul`, `softmax`, `dropout`, `layer_norm`, `gelu`, `batch_norm` are single nodes,
with symbolic sizes in ``meta["val"]`` and the user's source in ``meta["stack_trace"]`` and ``meta["nn_module_stack"]``.

The graph has the meaning of Dynamo's: writes to inputs and buffers, aliases, grad mode, inference mode, random numbers
and the user's own derivatives are preserved, so AOTAutograd can take it in place of Dynamo's. Only autocast is
removed: its casts are nodes. Higher-order operators (`cond`, custom autograd functions, ...) keep Dynamo's subgraphs
unchanged; the body of `torch.utils.checkpoint` is captured like the rest.

If this cannot be guaranteed, the result is Dynamo's graph, with a reason.

    block_tables.py   tables of blocks that `flex_attention` need not read
    questions.py  questions that Dynamo has answered
    transforms.py  transforms of `torch.func` as operators
    screen.py     refusals before tracing
    flex.py       `flex_attention` as products and a softmax
    retrace.py    running Dynamo's graph on fake tensors while ATen calls are recorded
    autocast.py   implicit casts made explicit
    checkpoints.py  bodies of activation checkpoints
    scopes.py     kernels that the program allows
    audit.py      comparison of the recorded run with Dynamo's
    finish.py     turns the recording into a graph that replaces Dynamo's
    eager_refuses.py  calls that eager may refuse, and AOTAutograd does not
    shared_inputs.py  what AOTAutograd cannot make of tensors that share memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.reason import Reason
from .audit import CHANGED_SIZES
from .block_tables import without_tables
from .eager_refuses import eager_may_refuse, moved_after_use, written_of_inference
from .outputs import flat_outputs
from .questions import without_questions
from .retrace import LossyTraceError, retrace
from .screen import opaque_memory, screen, sets_state
from .shared_inputs import (
    inputs_of_other_dtypes,
    overlapping_targets,
    view_by_place,
    view_of_shared_input,
    written_overlapping_itself,
)
from .transforms import without_transforms

__all__ = ["Captured", "capture"]


@dataclass(frozen=True)
class Captured:
    """A captured program.

    Args:
        graph_module: the ATen graph, or Dynamo's graph if there is a `fallback`; its output is a flat tuple.
        example_inputs: the given inputs.
        fallback: the reason why the graph could not be captured, or None.
        restore: turns a flat tuple of results into the structure of the program's results; None if that structure is a
            flat tuple, as it always is under Dynamo.
        kept: the reasons why calls were kept that are otherwise decomposed into operators.
        as_written: whether Dynamo's graph must run without compilation, because a compiled one would differ from eager.
    """

    graph_module: fx.GraphModule
    example_inputs: Sequence[Any]
    fallback: Reason | None = None
    restore: Callable[[Sequence[Any]], Any] | None = None
    kept: Sequence[Reason] = ()
    as_written: bool = False


def capture(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Captured:
    """Trace the graph that Dynamo passes to a backend into ATen calls. Never raises; never changes `gm`.

    Args:
        gm: Dynamo's graph, or any `torch.fx.GraphModule` whose inputs are positional.
        example_inputs: one per placeholder: real tensors and symbolic numbers.

    Returns:
        The captured graph, with the inputs, outputs and attributes of `gm` in the same order; or `gm` itself (with
        results as a flat tuple) and the reason.
    """
    compat.note_sources(gm.graph.find_nodes(op="placeholder"), example_inputs)
    flat, restore = flat_outputs(gm)
    opaque = opaque_memory(flat, example_inputs) or sets_state(flat)
    if opaque is not None:
        return Captured(flat, example_inputs, opaque, restore, as_written=True)
    lean = without_questions(without_tables(flat))
    kept: list[Reason] = []
    try:
        plain = without_transforms(lean)
        refusal = screen(plain, example_inputs)
        if refusal is not None:
            return Captured(flat, example_inputs, refusal, restore)
        captured = retrace(plain, example_inputs, kept)
        refused = eager_may_refuse(captured.graph) or view_of_shared_input(captured.graph)
        refused = refused or overlapping_targets(captured.graph) or view_by_place(captured.graph)
        refused = refused or inputs_of_other_dtypes(captured.graph) or written_overlapping_itself(captured.graph)
        refused = refused or written_of_inference(captured.graph, example_inputs)
        if refused is None and _trains(example_inputs):
            refused = moved_after_use(captured.graph)
        if refused is not None:
            return Captured(flat, example_inputs, refused, restore, as_written=True)
        return Captured(captured, example_inputs, None, restore, kept)
    except LossyTraceError as error:
        changed = error.reason.code == CHANGED_SIZES
        return Captured(flat, example_inputs, error.reason, restore, as_written=changed)
    except Exception as error:  # Tracing may raise any error; Dynamo's graph is still correct.
        return Captured(flat, example_inputs, _failed(error), restore)


def _trains(example_inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)


def _failed(error: Exception) -> Reason:
    message = next(iter(str(error).strip().splitlines()), "")
    return Reason("trace-failed", f"tracing to ATen raised {type(error).__name__}: {message[:300]}")
