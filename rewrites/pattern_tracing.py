"""Tracing a pattern on a sample: its sizes symbols named by their dims, the result in the normal form of programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import fx

from . import compat
from .graph import val
from .normal_graph import in_normal_form
from .pattern import PatternError, Variable, choosing
from .reading import Reading, read
from .respell import Respelling
from .sample import Sample, T
from .symbolic import Undecided

_LEADING = "..."


@dataclass(frozen=True)
class Declaration:
    """The parts of a rule that are known when its pattern is spelled.

    Args:
        name: of the rule.
        pattern: its function.
        variables: the parameters.
        samples: of its inputs.
        recorded: the terms that recording gave, or why it failed.
    """

    name: str
    pattern: Callable[..., Any]
    variables: tuple[Variable, ...]
    samples: tuple[Sample, ...]
    recorded: tuple[Any, ...] | PatternError


@dataclass
class Traced:
    """A pattern, traced on a sample and normalized."""

    sample: Sample
    dtype: torch.dtype
    static: bool
    graph: fx.Graph
    operands: dict[fx.Node, str]
    symbols: dict[Any, str]
    conditions: list[Any]
    met: dict[str, tuple[str, ...]]
    reading: Reading

    @property
    def tags(self) -> dict[str, str]:
        """The alternatives that were taken."""
        return {tag: self.sample.tags.get(tag, labels[0]) for tag, labels in self.met.items()}


def tracings_in(
    declaration: Declaration,
    sample: Sample,
    dtypes: Sequence[torch.dtype],
    form: Sequence[Respelling],
    *,
    static: bool = False,
) -> Iterator[Traced]:
    """A pattern on a sample, in each of these dtypes that it can be of; the first must work."""
    yield trace(declaration, sample, dtypes[0], form, static=static)
    if any(isinstance(o, T) and o.dtype is None for o in sample.operands.values()):
        for dtype in dtypes[1:]:
            with suppress(PatternError):
                yield trace(declaration, sample, dtype, form, static=static)


def trace(
    declaration: Declaration,
    sample: Sample,
    dtype: torch.dtype,
    form: Sequence[Respelling],
    numbers: Mapping[str, Any] | None = None,
    *,
    static: bool = False,
) -> Traced:
    """Trace a pattern on one sample; `static`, with its sizes as numbers.

    Raises:
        PatternError: it cannot be traced, or what it does is no pattern.
    """
    tensors = {name: spec for name, spec in sample.operands.items() if isinstance(spec, T)}
    names = sorted({n for spec in tensors.values() for n in spec.names if n in spec.dims.split()})
    mode, sizes = compat.named_sizes({n: sample.sizes[n] for n in names if sample.sizes[n] > 1 and not static})
    symbols = {size.node.expr: name for name, size in sizes.items()}
    given = dict.fromkeys((v.name for v in declaration.variables), None) | sample.operands | dict(numbers or {})
    with mode:
        fakes = {n: _fake(spec, {**sample.sizes, **sizes}, dtype) for n, spec in tensors.items()}

    def run(*values: Any) -> Any:
        operands = given | dict(zip(fakes, values, strict=True))
        with _symbolic_roots(), _no_parameters():
            return declaration.pattern(*(operands[v.name] for v in declaration.variables))

    try:
        with choosing(sample.tags) as met, mode, compat.quiet_fakes(), torch.no_grad():
            module = compat.trace_before_dispatch(run, list(fakes.values()))
        operands = dict(zip(module.graph.find_nodes(op="placeholder"), fakes, strict=True))
        mirror = in_normal_form(module, form)
        images = {mirror.image[node]: name for node, name in operands.items()}
        reading = read(mirror.graph, images, symbols)
        _require_known_sizes(mirror.graph, symbols)
    except PatternError as error:
        raise PatternError(f"rule {declaration.name!r}: it has no valid pattern: {error}") from error
    except Exception as error:
        raise PatternError(f"rule {declaration.name!r}: its pattern {_why_not(error, sample, given)}") from error
    return Traced(sample, dtype, static, mirror.graph, images, symbols, compat.assumptions(mode), met, reading)


def _why_not(error: Exception, sample: Sample, given: Mapping[str, Any]) -> str:
    """Why a pattern cannot be traced, as the end of a sentence."""
    if isinstance(error, Undecided) or compat.needs_a_value(error):
        return (
            "needs the value of an operand, which only a run has: a pattern may not branch on an operand, loop over "
            "its numbers or take one out; choose() and optional() are for alternatives, guards for conditions"
        )
    message = next(iter(str(error).strip().splitlines()), "")
    left_out = [name for name, value in given.items() if value is None]
    note = f" (the sample gives no {', '.join(left_out)}, None there)" if left_out else ""
    return f"cannot be traced on {sample.made_from or sample}: {type(error).__name__}: {message[:300]}{note}"


def _require_known_sizes(graph: fx.Graph, symbols: Mapping[Any, str]) -> None:
    """Refuse results whose sizes only a run can tell: whether a replacement has them too, nobody could say."""
    for node in graph.output_node().all_input_nodes:
        for size in val(node).shape if isinstance(val(node), torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and size.node.expr.free_symbols - symbols.keys():
                raise PatternError("the size of what it returns is known only when it runs")


def _fake(spec: T, sizes: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(spec.shape(sizes), dtype=spec.dtype or dtype, device=spec.device)


@contextmanager
def _symbolic_roots() -> Iterator[None]:
    """``math.sqrt(x.shape[-1])`` of a symbolic size is symbolic: by itself it would be that of the sample alone."""
    plain = math.sqrt

    def root(x: Any) -> Any:
        return torch.sym_sqrt(x) if isinstance(x, (torch.SymInt, torch.SymFloat)) else plain(x)

    with mock.patch("math.sqrt", root):
        yield


@contextmanager
def _no_parameters() -> Iterator[None]:
    """Refuse modules that a pattern makes: their weights are drawn anew at each call, and no program has them."""

    def refuse(module: torch.nn.Module, name: str, _: Any) -> None:
        if type(module) is torch.nn.Module:  # what holds the tensors that tracing meets
            return
        raise PatternError(
            f"it makes a {type(module).__name__}, whose {name} is new at each call, so that no program has it: make "
            "it a parameter (def pattern(x, weight): return F.linear(x, weight))"
        )

    handle = torch.nn.modules.module.register_module_parameter_registration_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


LEADING = "_leading"
"""The dim that stands for those that a sample leaves open (``...``) where its pattern is traced."""


def without_leading_dims(sample: Sample) -> Sample:
    """A sample whose leading dims (``...``) are none."""
    operands: dict[str, Any] = {
        key: replace(spec, dims=" ".join(d for d in spec.dims.split() if d != _LEADING))
        if isinstance(spec, T)
        else spec
        for key, spec in sample.operands.items()
    }
    known = {d for spec in operands.values() if isinstance(spec, T) for d in (*spec.dims.split(), spec.below)}
    made = Sample(tags=sample.tags, sizes={d: n for d, n in sample.sizes.items() if d in known}, **operands)
    made.made_from = sample.made_from or sample
    return made


def with_leading_dim(sample: Sample, name: str = LEADING, *, more: bool = False) -> Sample:
    """A sample whose leading dims (``...``) are one; or with one `more` in front of the operands of the most dims."""
    operands, sizes = dict(sample.operands), dict[str, int]()
    for key, spec in sample.operands.items():
        if not isinstance(spec, T):
            continue
        dims = spec.dims.split()
        if more and len(dims) == most_dims(sample):
            dims = [name, *dims]
        dims = [name if d == _LEADING else d for d in dims]
        operands[key] = replace(spec, dims=" ".join(dims))
        sizes |= {d: sample.sizes.get(d, 3) for d in (*dims, spec.below) if d and not d.isdigit()}
    made = Sample(tags=sample.tags, sizes=sizes, **operands)
    made.made_from = sample.made_from or sample
    return made


def most_dims(sample: Sample) -> int:
    """How many dims the operands have that have most."""
    return max((len(o.dims.split()) for o in sample.operands.values() if isinstance(o, T)), default=0)
