"""The options of a configuration that do not apply to a program on this machine: accepted, with the reason why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from ...rewrites.reason import Reason
from ...rewrites.record import Fallback, GraphRecord
from .fields import Options

TMA_FROM = 90
"""The compute capability of the first GPUs that copy tiles by a unit of their own."""


def note_configuration(record: GraphRecord, options: Options, inputs: Sequence[Any], training: bool) -> None:
    """Tell a record which options differ from the defaults, and what of them does not apply.

    Args:
        record: of the compilation.
        options: of the compilation.
        inputs: the program's; those that are tensors say on which devices it runs.
        training: gradients flow.
    """
    changed = options.changed()
    if not changed:
        return
    record.details["configuration"] = {name: _shown(value) for name, value in changed.items()}
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    found = [torch.cuda.get_device_capability(device) for device in devices if device.type == "cuda"]
    capability = min((10 * major + minor for major, minor in found), default=None)
    reasons = not_applied(options, {device.type for device in devices}, capability, training)
    record.fallbacks.extend(Fallback.of("configuration", reason) for reason in reasons)


def _shown(value: Any) -> Any:
    """The value of an option in records: words and numbers as they are, rules by their names."""
    if isinstance(value, tuple):
        return [item if isinstance(item, str) else str(getattr(item, "name", type(item).__name__)) for item in value]
    return value


def not_applied(options: Options, devices: Collection[str], capability: int | None, training: bool) -> list[Reason]:
    """The options of a program that have no effect on this machine.

    Args:
        options: of the compilation.
        devices: types of the devices of its inputs.
        capability: compute capability of its GPU, 90 for Hopper; None where there is none.
        training: gradients flow.
    """
    given = [*_on_gpus_only(options, devices), *_not_here(options, capability)]
    if training and options.template == "freezing" and options.freezing:
        given.append(
            Reason("training", "freezing needs constant weights: graphs that compute gradients are compiled without it")
        )
    return given


def _on_gpus_only(options: Options, devices: Collection[str]) -> Iterator[Reason]:
    if "cuda" in devices:
        return
    here = ", ".join(sorted(devices)) or "none"
    kernels = options.kernels
    if "generated" in (kernels.attention, kernels.products, kernels.convolutions):
        yield Reason(
            "not-on-cuda",
            f"generated kernels everywhere need inputs on a CUDA device, not on: {here}; candidates are measured",
        )
    if options.triton.tma == "always":
        yield Reason("not-on-cuda", f"only CUDA devices have TMA, but inputs are on: {here}; the option has no effect")


def _not_here(options: Options, capability: int | None) -> Iterator[Reason]:
    if options.kernels.products == "cutlass":
        installed = find_spec("cutlass") is not None or find_spec("cutlass_library") is not None
        why = "regraft writes no CUTLASS kernels yet" if installed else "CUTLASS is not installed"
        yield Reason("no-cutlass", f"{why}: products are measured among libraries' and generated kernels")
    if options.triton.tma == "always" and capability is not None and capability < TMA_FROM:
        yield Reason(
            "no-tma",
            f"TMA needs compute capability {TMA_FROM / 10}, here {capability / 10}: the same persistent kernels load "
            "their operands without it",
        )
