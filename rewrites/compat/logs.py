"""Torch's logs, traces and profiler: what `TORCH_LOGS`, `TORCH_TRACE` and `torch.profiler` show of a compilation."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.autograd import profiler

_CODE = ("source", "wrapper", "c++", "triton")


@functools.cache
def code_log() -> logging.Logger:
    """The log of generated code: `TORCH_LOGS="output_code"` shows it."""
    from torch._logging import getArtifactLogger

    return getArtifactLogger("regraft", "output_code")


def code_is_logged() -> bool:
    """Whether somebody asks for generated code."""
    from torch._logging._internal import log_state

    return bool(log_state.is_artifact_enabled("output_code"))


def log_code(graph: str, texts: Mapping[str, Any], logged: set[str]) -> None:
    """Log the generated code of a graph, and add it to what `TORCH_TRACE` writes, each text once.

    Args:
        graph: its name.
        texts: texts of its stages, by stage and kind of graph: wrappers (``"source:..."``) and kernels.
        logged: those that were; it grows.
    """
    from torch._logging import trace_structured

    for name, text in texts.items():
        if name.partition(":")[0] not in _CODE or name in logged or not isinstance(text, str):
            continue
        logged.add(name)
        code_log().debug("regraft: %s, %s\n%s", graph, name, text)
        file = f"regraft {graph} {name}"
        trace_structured("inductor_output_code", partial(dict, filename=file), payload_fn=partial(str, text))


def profiler_switches() -> dict[str, Any]:
    """The variables of torch's module of profilers: ``_is_profiler_enabled`` is true while one is on."""
    return vars(profiler)


def profiling() -> bool:
    """Whether a profiler of torch's is on."""
    return profiler._is_profiler_enabled
