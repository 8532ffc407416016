"""Samples of torch's operator database that eager refuses: the compiled operator refuses them, with the same error.

errors    the database's own error inputs
dtypes    samples cast to dtypes that the operator does not take
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_map

from .opinfo import Outcome, _place, _samples, op_name
from .triton_kernels import device_lost

REFUSED_DTYPES = (torch.int64, torch.bool, torch.bfloat16, torch.complex64)
WAYS = ("errors", "dynamic errors", "dtypes")


@dataclass
class Refused:
    """A sample that eager is said to refuse."""

    op: OpInfo
    way: str
    number: int
    sample: SampleInput
    dtype: torch.dtype
    device: str

    @property
    def name(self) -> str:
        return f"{op_name(self.op)} {str(self.dtype).removeprefix('torch.')} {self.way} {self.number}"


def refusals(op: OpInfo, device: str = "cpu", most: int = 12) -> Iterator[Refused]:
    """Samples of one operator that eager is said to refuse."""
    if op.error_inputs_func is not None:
        torch.manual_seed(0)
        for number, error in enumerate(op.error_inputs(_place(device))):
            if number < most:
                yield Refused(op, "errors", number, error.sample_input, torch.float32, device)
                yield Refused(op, "dynamic errors", number, error.sample_input, torch.float32, device)
    taken = op.supported_dtypes(_place(device))
    if torch.float32 not in taken:
        return
    for dtype in REFUSED_DTYPES:
        if dtype not in taken:
            for sample in list(_samples(op, torch.float32, False, device))[:1]:
                yield Refused(op, "dtypes", 0, _cast(sample, dtype), dtype, device)


def _cast(sample: SampleInput, dtype: torch.dtype) -> SampleInput:
    def cast(value: Any) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.detach().to(dtype) if floats else value

    value, args, kwargs = tree_map(cast, (sample.input, tuple(sample.args), dict(sample.kwargs)))
    return SampleInput(value, args=args, kwargs=kwargs)


def check_refusals(cases: Sequence[Refused], note: Callable[[str], None] = lambda case: None) -> list[Outcome]:
    """Hold them against eager; `note` is told the case at hand, for the process may crash."""
    outcomes: list[Outcome] = []
    for case in cases:
        note(case.name)
        outcomes.append(_checked(case))
        if lost := device_lost(case.device):
            outcomes[-1].outcome, outcomes[-1].message = "crash", lost
            break
    torch._dynamo.reset()
    return outcomes


def _checked(case: Refused) -> Outcome:
    made = Outcome(case.name, "ok")
    eager = _raised(case.op.op, case)
    if eager is None:
        made.outcome, made.message = "skipped", "eager does not refuse it"
        return made
    ours = _raised(_compiled(case, "regraft"), case)
    if _alike(ours, eager):
        return made
    theirs = _raised(_compiled(case, "aot_eager"), case)
    if type(ours) is type(theirs):
        made.outcome, made.message = "skipped", f"torch.compile itself gives {type(ours).__name__}"
        return made
    made.outcome, made.message = "wrong", f"{_told(ours)} instead of {_told(eager)}"
    return made


def _compiled(case: Refused, backend: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    op = case.op.op
    return torch.compile(lambda *args, **kwargs: op(*args, **kwargs), backend=backend, dynamic="dynamic" in case.way)


def _raised(function: Callable[..., Any], case: Refused) -> Exception | None:
    sample = copy.deepcopy(case.sample)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            result = function(sample.input, *sample.args, **sample.kwargs)
            tree_map(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, result)
    except Exception as error:
        return error
    return None


def _alike(ours: Exception | None, eager: Exception) -> bool:
    """Of one type; what Dynamo's tracing raises stands for what it wraps."""
    if ours is None:
        return False
    return isinstance(ours, type(eager)) or isinstance(eager, type(ours))


def _told(error: Exception | None) -> str:
    return "nothing" if error is None else " ".join(f"{type(error).__name__}: {error}".split())[:200]
