"""Calls of a program that differ from the others in one thing, or in two: what compiled code must notice by itself.

Inputs in other dtypes, strides and places, the same tensor twice, tensors that overlap; other grad modes; other
settings of the process; a model in another mode, with other parameters or hooks. All that a twist changes is set back.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

Inputs = list[Any]
_Made = TypeVar("_Made", bound=Callable[..., Any])


@dataclass(frozen=True)
class Call:
    """One call of a program: the number of its inputs, and the names of its twists."""

    number: int
    twists: Sequence[str] = ()

    def inputs(self, given: Inputs) -> Inputs:
        """The inputs of this call, made of those that the program is given."""
        for name in self.twists:
            given = INPUTS.get(name, list)(given)
        return given

    def mode(self, usual: str) -> str:
        """The grad mode."""
        return next((MODES[name] for name in self.twists if name in MODES), usual)

    @contextlib.contextmanager
    def around(self, model: Any) -> Iterator[None]:
        """The process and the model as this call has them."""
        with contextlib.ExitStack() as stack:
            for name in self.twists:
                if name in SETTINGS:
                    stack.enter_context(SETTINGS[name]())
                if name in MODELS and isinstance(model, nn.Module):
                    stack.enter_context(MODELS[name](model))
            yield


def calls_of(seed: int, *, module: bool, trains: bool) -> tuple[list[Call], list[Call]]:
    """The calls of program number `seed` as it is compiled, and those of when it is recalled.

    Args:
        seed: what they are drawn from.
        module: whether it is a model.
        trains: whether gradients are asked for.
    """
    source = random.Random(seed)
    kinds = [*INPUTS, *SETTINGS, *MODES, *(MODELS if module else ()), *(list(INPUTS) if trains else ())]
    twisted = [
        Call(source.randrange(2), tuple(source.sample(kinds, source.choice((1, 1, 1, 2)))))
        for _ in range(source.choice((1, 2, 2, 3)))
    ]  # fmt: skip
    first = [Call(0), *twisted, Call(1)]
    if source.random() < 0.5:
        source.shuffle(first)
    again = [*first, source.choice(first), source.choice(first)]
    source.shuffle(again)
    return first, again


# -- inputs ------------------------------------------------------------------------------------------------------------


def _table(into: dict[str, Any]) -> Callable[[_Made], _Made]:
    def note(made: _Made) -> _Made:
        into[made.__name__.strip("_").replace("_", " ")] = made
        return made

    return note


INPUTS: dict[str, Callable[[Inputs], Inputs]] = {}
SETTINGS: dict[str, Callable[[], Any]] = {}
MODELS: dict[str, Callable[[nn.Module], Any]] = {}
MODES = {"without gradients": "no_grad", "in inference mode": "inference", "with gradients": ""}


def _each(given: Inputs, made: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """Each tensor anew, in memory of its own; one that is given twice stays one."""
    found: dict[int, Any] = {}
    for x in given:
        if isinstance(x, torch.Tensor) and id(x) not in found:
            found[id(x)] = _like(made(x.detach()), x)
    return [found.get(id(x), x) for x in given]


def _like(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return made.detach().requires_grad_(x.requires_grad)


@_table(INPUTS)
def _doubles(given: Inputs) -> Inputs:
    return _each(given, lambda x: x.double() if x.dtype == torch.float32 else x.clone())


@_table(INPUTS)
def _halves(given: Inputs) -> Inputs:
    return _each(given, lambda x: x.bfloat16() if x.dtype == torch.float32 else x.clone())


@_table(INPUTS)
def _turned(given: Inputs) -> Inputs:
    return _each(given, lambda x: x.permute(*range(x.dim())[::-1]).contiguous().permute(*range(x.dim())[::-1]))


@_table(INPUTS)
def _contiguous(given: Inputs) -> Inputs:
    return _each(given, lambda x: x.clone(memory_format=torch.contiguous_format))


@_table(INPUTS)
def _unaligned(given: Inputs) -> Inputs:
    return _each(given, lambda x: _placed(x, torch.empty(x.numel() + 2, dtype=x.dtype), 1))


@_table(INPUTS)
def _stepped(given: Inputs) -> Inputs:
    def apart(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty(2 * x.numel(), dtype=x.dtype)[::2].view_as(x)
        return made.copy_(x)

    return _each(given, apart)


def _placed(x: torch.Tensor, memory: torch.Tensor, offset: int) -> torch.Tensor:
    return memory[offset : offset + x.numel()].view(x.shape).copy_(x)


@_table(INPUTS)
def _frozen(given: Inputs) -> Inputs:
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in given]


@_table(INPUTS)
def _grown(given: Inputs) -> Inputs:
    """All that can have gradients are leaves that do."""
    return [x.detach().requires_grad_() if _is_float(x) else x for x in given]


@_table(INPUTS)
def _computed(given: Inputs) -> Inputs:
    """What has gradients is no leaf."""
    made = [x * 1 if isinstance(x, torch.Tensor) and x.requires_grad else x for x in given]
    for x in made:
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.retain_grad()
    return made


@_table(INPUTS)
def _one(given: Inputs) -> Inputs:
    """Equal kinds of tensors are one tensor."""
    first: dict[Any, Any] = {}
    return [first.setdefault(_kind(x), x) if isinstance(x, torch.Tensor) else x for x in given]


@_table(INPUTS)
def _views(given: Inputs) -> Inputs:
    """Equal kinds of tensors are views of one memory, at one place."""
    first: dict[Any, Any] = {}
    return [
        _like(first.setdefault(_kind(x), x).detach(), x) if isinstance(x, torch.Tensor) else x for x in given
    ]  # fmt: skip


@_table(INPUTS)
def _overlapping(given: Inputs) -> Inputs:
    """Equal kinds of tensors lie in one memory, each an element further."""
    counts: dict[Any, int] = {}
    memories: dict[Any, torch.Tensor] = {}
    made = []
    for x in given:
        if not isinstance(x, torch.Tensor):
            made.append(x)
            continue
        kind = x.dtype, x.shape
        offset = counts[kind] = counts.get(kind, -1) + 1
        memory = memories.setdefault(kind, torch.zeros(x.numel() + len(given), dtype=x.dtype))
        made.append(_like(_placed(x.detach(), memory, offset), x))
    return made


@_table(INPUTS)
def _neighbours(given: Inputs) -> Inputs:
    """All tensors of a dtype lie in one memory, one behind the other."""
    total: dict[torch.dtype, int] = {}
    for x in given:
        if isinstance(x, torch.Tensor):
            total[x.dtype] = total.get(x.dtype, 0) + x.numel()
    memories = {dtype: torch.zeros(count, dtype=dtype) for dtype, count in total.items()}
    made: Inputs = []
    for x in given:
        if isinstance(x, torch.Tensor):
            offset = total[x.dtype] = total[x.dtype] - x.numel()
            x = _like(_placed(x.detach(), memories[x.dtype], offset), x)
        made.append(x)
    return made


@_table(INPUTS)
def _numbers(given: Inputs) -> Inputs:
    """Other numbers."""
    return [-x if type(x) is float else x + 1 if type(x) is int else not x if type(x) is bool else x for x in given]


@_table(INPUTS)
def _parameters(given: Inputs) -> Inputs:
    return [nn.Parameter(x.detach(), x.requires_grad) if isinstance(x, torch.Tensor) else x for x in given]


@_table(INPUTS)
def _hooked(given: Inputs) -> Inputs:
    for x in given:
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.register_hook(lambda g: g * 2)
    return given


@_table(INPUTS)
def _smaller(given: Inputs) -> Inputs:
    """Without the last row of tensors of equally many rows."""
    rows = next((x.shape[0] for x in given if isinstance(x, torch.Tensor) and x.dim() and len(x) > 1), None)
    return _each(given, lambda x: x[:-1].clone() if x.dim() and x.shape[0] == rows else x.clone())


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x._base is None


def _kind(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.requires_grad


# -- the process -------------------------------------------------------------------------------------------------------


def _setting(name: str, get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> None:
    @contextlib.contextmanager
    def within() -> Iterator[None]:
        before = get()
        put(value)
        try:
            yield
        finally:
            put(before)

    SETTINGS[name] = within


_setting("default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float64)
_setting("threads", torch.get_num_threads, torch.set_num_threads, 2)
_setting(
    "deterministic",
    torch.are_deterministic_algorithms_enabled,
    lambda on: torch.use_deterministic_algorithms(on, warn_only=True),
    True,
)
SETTINGS["autocast"] = lambda: torch.autocast("cpu", torch.bfloat16)
SETTINGS["no autocast"] = lambda: torch.autocast("cpu", enabled=False)


# -- the model ---------------------------------------------------------------------------------------------------------


@_table(MODELS)
@contextlib.contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    before = model.training
    model.train(not before)
    try:
        yield
    finally:
        model.train(before)


@_table(MODELS)
@contextlib.contextmanager
def _weights_frozen(model: nn.Module) -> Iterator[None]:
    before = [(p, p.requires_grad) for p in model.parameters()]
    for k, (p, wanted) in enumerate(before):
        p.requires_grad_(not wanted if k % 2 else wanted)
    try:
        yield
    finally:
        for p, wanted in before:
            p.requires_grad_(wanted)


@_table(MODELS)
@contextlib.contextmanager
def _weights_replaced(model: nn.Module) -> Iterator[None]:
    owned = [(owner, name, p) for owner in model.modules() for name, p in owner.named_parameters(recurse=False)]
    for owner, name, p in owned:
        setattr(owner, name, nn.Parameter(p.detach() * 0.5, p.requires_grad))
    try:
        yield
    finally:
        for owner, name, p in owned:
            setattr(owner, name, p)


@_table(MODELS)
@contextlib.contextmanager
def _weights_moved(model: nn.Module) -> Iterator[None]:
    """In other memory, an element off, by `.data`."""
    before = [(p, p.data) for p in model.parameters()]
    for p, data in before:
        p.data = _placed(data * 0.5, torch.empty(data.numel() + 1, dtype=data.dtype), 1)
    try:
        yield
    finally:
        for p, data in before:
            p.data = data


@_table(MODELS)
@contextlib.contextmanager
def _weights_hooked(model: nn.Module) -> Iterator[None]:
    handles = [p.register_hook(lambda g: g * 2) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@_table(MODELS)
@contextlib.contextmanager
def _weights_in_doubles(model: nn.Module) -> Iterator[None]:
    before: Sequence[tuple[Any, torch.Tensor]] = [
        (x, x.data) for x in (*model.parameters(), *model.buffers()) if x.dtype == torch.float32
    ]
    for x, data in before:
        x.data = data.double()
    try:
        yield
    finally:
        for x, data in before:
            x.data = data
