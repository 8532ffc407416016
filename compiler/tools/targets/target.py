"""A target: a model with inputs, and the user's choices about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


class TargetError(ValueError):
    """A target that does not exist, cannot be built or cannot be given inputs."""


def said_by(error: BaseException) -> str:
    """The message of another library's error in one line: of errors that follow from another, that of the other one."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is not known"
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__


@dataclass(frozen=True)
class Choices:
    """The user's choices about a target.

    Args:
        layers: number of layers (of each stack); None is the model type's own.
        tiny: widths, heads and vocabulary made small where the model type allows, for runs over many models.
        mask: give a padding mask, the last row of the batch padded (the first too where the batch is 1).
        train: training mode, forward and backward; dropout as configured.
        dtype: of parameters and floating-point inputs.
        batch: rows; `seq`: tokens of a row, 128 unless the model says otherwise.
        device: ``"cpu"``, ``"cuda"``, ...
        config: further settings of the `transformers` configuration, by name.
    """

    layers: int | None = None
    tiny: bool = False
    mask: bool = False
    train: bool = False
    dtype: torch.dtype = torch.float32
    batch: int = 1
    seq: int | None = None
    device: str = "cpu"
    config: Mapping[str, Any] = field(default_factory=dict)

    def changed(self) -> dict[str, str]:
        """The choices that are not the default, as they would be given on the command line."""
        given = {
            name: value for name, value in vars(self).items() if value != getattr(Choices(), name) and name != "config"
        }
        shown = {k: "" if v is True else str(v).removeprefix("torch.") for k, v in given.items()}
        settings = {"set": " ".join(f"{k}={v}" for k, v in self.config.items())}
        return shown | (settings if self.config else {})


@dataclass(frozen=True)
class ModelWithInputs:
    """A model with inputs: `model(*args, **kwargs)` runs it."""

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    choices: Choices = Choices()
