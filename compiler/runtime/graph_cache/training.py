"""A training graph that was compiled before: the text of its forward and its backward, and how they are called."""

from __future__ import annotations

from dataclasses import dataclass

from ...autograd.plain_steps import StepForm
from ...codegen.wrapper.emit import WrapperSource


@dataclass(frozen=True)
class TrainingStep:
    """The two graphs of a training step.

    Args:
        forward, backward: their wrappers' text and the objects that it binds.
        form: how they are called.
        captured: whether the backward may be captured as a CUDA graph.
    """

    forward: WrapperSource
    backward: WrapperSource
    form: StepForm
    captured: bool = False
