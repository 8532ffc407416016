"""`regraft.bisect`: which rule, pass, template, kernel or fusion causes a wrong result, a NaN or a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...options import OptionError, Options
from ...options.rules import resolve_rules
from ...pipeline import refuse_unknown
from .finding import Cause
from .search import Progress, find
from .subject import Subject, Verdict
from .trial import Forked, InProcess, Runner, Trial


def bisect(
    model: Callable[..., Any],
    inputs: Any = (),
    *,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    train: bool = False,
    tolerance: float | None = None,
    isolate: bool = False,
) -> Cause:
    """Find what causes a wrong result, a NaN or an error of a compiled program, by leaving out halves.

    The program is compiled and run some 10 to 20 times, and left as it was. Give ``{"rng": "eager"}`` if random
    numbers are drawn, so that they are eager's; in training that is the default.

    Args:
        model: a module or function.
        inputs: its arguments as a tuple or list, its keyword arguments as a mapping, or one tensor.
        options: as for `torch.compile(..., backend="regraft")`: those with which it fails.
        dynamic: as for `torch.compile`.
        train: forward and backward.
        tolerance: the relative error in the 2-norm from which on a result is wrong; by default 1e-4 in float32,
            2e-2 in float16, 5e-2 in bfloat16, and never less than four times eager's own error against float64.
        isolate: run in forks of this process, so that a crash ends only these; not once CUDA is in use: there the
            command `regraft bisect` isolates.

    Returns:
        What was found: text by `str`; `ok` where nothing fails.

    Raises:
        OptionError: an unknown option or value.
        RuntimeError: `isolate` where CUDA is in use already.
    """
    given = given_options(options, train)
    args, kwargs = arguments(inputs)
    subject = Subject(model, args, kwargs, train=train, tolerance=tolerance)
    if not isolate:
        return find(InProcess(subject, given, dynamic))
    return find(Forked(lambda: subject, given, dynamic))


def given_options(options: Mapping[str, Any] | None, train: bool) -> dict[str, Any]:
    """The options of a search: in training eager's random numbers, where nothing else is said.

    Raises:
        OptionError: an unknown option or value.
    """
    given = {**({"rng": "eager"} if train else {}), **(options or {})}
    parsed = Options.parse(None, given)
    refuse_unknown(parsed.without, resolve_rules(parsed.rules))
    return given


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from inputs as factories of targets give them."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, Sequence) else (inputs,)), {}


__all__ = [
    "Cause", "Forked", "InProcess", "OptionError", "Progress", "Runner", "Subject", "Trial", "Verdict", "arguments",
    "bisect", "find", "given_options",
]  # fmt: skip
