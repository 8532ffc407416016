"""Programs around the library's rules, and what `torch.compile` and `regraft.explain` say of them.

A program is what a sample of the rule computes, or a variant of the sample (another rank, dtype, number or spelling of
the pattern), changed in up to three places. Changes: `rule_changes`.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

import regraft
from regraft.compiler.tools.check.case import Case
from regraft.compiler.tools.check.drawn import DTYPES, LEADING_SIZES, DrawnExample
from regraft.compiler.tools.check.operands import dim_names
from regraft.compiler.tools.check.variants import variants
from regraft.compiler.tools.explain.explain import explain_all
from regraft.rewrites.compat import capture_function
from regraft.rewrites.rule import Rule
from regraft.rewrites.sample import LEADING, Sample

from .rule_changes import CHANGES, as_it_is, evaluate

Verdict = Literal["matched", "near miss", "nothing alike", "differ", "wrong", "raises"]
_TRIES = 60
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 4e-2, torch.bfloat16: 2e-1}


@dataclass
class Program:
    """A program around a rule.

    Args:
        rule: whose sample it was made of; `sample` that one, `change` what was done to it.
        module: the program; `inputs` what it runs on.
        setting: how it is compiled: ``"inference"``, ``"training"``, ``"dynamic"``, ``"autocast"``, ``"freezing"``.
        refused: the code of the reason why the rule must not match, of a near miss as it is; empty otherwise.
    """

    rule: Rule
    change: str
    module: fx.GraphModule
    inputs: list[Any]
    sample: Sample
    setting: str = "inference"
    refused: str = ""

    @property
    def key(self) -> str:
        """Equal for equal programs."""
        looks = [(tuple(x.shape), x.stride(), str(x.dtype)) for x in self.inputs]
        return hashlib.sha256(repr((self.module.code, looks, self.setting)).encode()).hexdigest()[:16]

    def fresh(self) -> list[Any]:
        """Inputs of their own for one run."""
        given = [x.detach().clone(memory_format=torch.preserve_format) for x in self.inputs]
        if self.setting == "training":
            given = [x.requires_grad_(x.is_floating_point()) for x in given]
        return given

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Its modes of gradients and autocast."""
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=self.setting == "autocast")
        with torch.set_grad_enabled(self.setting == "training"), autocast:
            yield

    def options(self) -> dict[str, Any]:
        """The options of its compilation."""
        return {"profit": "always", **({"freezing": True} if self.setting == "freezing" else {})}


@dataclass
class Finding:
    """What compilation and explanation say of a program."""

    verdict: Verdict
    told: str = ""
    matches: dict[str, int] = field(default_factory=dict)


def rules_named(names: Sequence[str]) -> list[Rule]:
    """The library's rules of these names, or of these families where no rule has the name; all where none is given."""
    every = list(regraft.default_rules())
    families = set(names) - {rule.name for rule in every}
    return [rule for rule in every if not names or rule.name in names or rule.family in families]


def program(rule: Rule, seed: int, number: int) -> Program | None:
    """The program of a number; None where no draw gave one that runs."""
    draw = random.Random(f"{seed} {rule.name} {number}")
    for _ in range(_TRIES):
        try:
            found = _drawn(rule, draw)
        except Exception:  # what eager does not take is no program
            continue
        if found is not None:
            return found
    return None


def programs(rule: Rule, seed: int, count: int) -> Iterator[Program]:
    """Different programs around a rule."""
    seen: set[str] = set()
    number = 0
    while len(seen) < count:
        found = program(rule, seed, number)
        number += 1
        if found is not None and found.key not in seen:
            seen.add(found.key)
            yield found


def _drawn(rule: Rule, draw: random.Random) -> Program | None:
    usual = [s for s in rule.samples if not s.refused and not _elsewhere(s)]
    near = [s for s in rule.samples if s.refused and not _elsewhere(s)]
    sample = draw.choice(near) if near and draw.random() < 0.12 else draw.choice(usual)
    refused, told = sample.refused, "near miss" if sample.refused else "sample"
    if not refused and draw.random() < 0.3:
        sample = draw.choice(list(variants(rule, sample)))
        told = sample.what
    case = Case.of(rule, sample, _sizes_and_dtype(sample, draw, plain=bool(refused)))
    module, places = capture_function(case.program, list(case.operands), dynamic=False)
    inputs = [case.operands[i].detach() for i in places]
    setting = draw.choice(["inference"] * 6 + ["training", "training", "dynamic", "autocast"])
    names = [rule.variables[i].name for i in places]
    if case.frozen and draw.random() < 0.6:
        setting, inputs = "freezing", _frozen(module, [n in case.frozen for n in names], inputs)
    changes = _changed(module, inputs, draw)
    if changes is None:
        return None
    plain = changes == "as it is" and setting == "inference"
    made = Program(rule, f"{told}; {changes}", module, inputs, sample, setting, refused if plain else "")
    with made.scope():
        made.module(*made.fresh())
    return made


def _elsewhere(sample: Sample) -> bool:
    return any(getattr(o, "device", "cpu") != "cpu" for o in sample.operands.values())


def _sizes_and_dtype(sample: Sample, draw: random.Random, *, plain: bool) -> DrawnExample:
    drawn = DrawnExample.plain(sample)
    if plain:
        return drawn
    factor = draw.choice((1, 1, 2, 3))
    sizes = {n: s if isinstance(s, tuple) else s * factor for n, s in drawn.sizes}
    for name in dim_names(sample):
        if name == LEADING:
            sizes[name] = draw.choice(LEADING_SIZES)
        elif name not in sample.ranges and draw.random() < 0.15:
            sizes[name] = draw.choice((1, 2, 16, 17, 33))
    dtype = draw.choice((torch.float32,) * 5 + DTYPES)
    return replace(drawn, sizes=tuple(sizes.items()), dtype=dtype, seed=draw.randint(0, 9999))


def _frozen(module: fx.GraphModule, frozen: list[bool], inputs: list[Any]) -> list[Any]:
    """Make inputs parameters of the module; returns the others."""
    kept, places = [], list(module.graph.find_nodes(op="placeholder"))
    for i, node in enumerate(places):
        if not frozen[i]:
            kept.append(inputs[i])
            continue
        module.register_parameter(f"weight_{i}", torch.nn.Parameter(inputs[i], requires_grad=False))
        with module.graph.inserting_after(places[-1]):
            node.replace_all_uses_with(module.graph.get_attr(f"weight_{i}"))
    for node in [node for node, is_weight in zip(places, frozen, strict=True) if is_weight]:
        module.graph.erase_node(node)
    return kept


def _changed(module: fx.GraphModule, inputs: list[Any], draw: random.Random) -> str | None:
    """What was changed; None where the program does not run."""
    evaluate(module, inputs)
    kinds, weights = list(CHANGES), list(CHANGES.values())
    drawn = draw.choices(kinds, weights, k=draw.choice((1, 1, 1, 2, 2, 3)))
    if as_it_is in drawn:
        return "as it is"
    told = []
    for change in drawn:
        made = change(module.graph, draw)
        if made is None:
            return None
        evaluate(module, inputs)
        told.append(made)
    return " and ".join(told)


def agreement(one: Program, *, all_rules: bool = False) -> Finding:
    """What the two say of a program; with `all_rules`, of every rule of the library."""
    dynamic = True if one.setting == "dynamic" else None
    chosen = list(regraft.default_rules()) if all_rules else [one.rule]  # passes and templates have no explanation
    names = {rule.name for rule in chosen}
    torch.compiler.reset()
    with one.scope():
        expected, shaken = one.module(*one.fresh()), one.module(*map(_shaken, one.fresh()))
        with regraft.coverage() as cov:
            got = torch.compile(one.module, backend="regraft", options=one.options(), dynamic=dynamic)(*one.fresh())
        torch.compiler.reset()
        told = explain_all(chosen, one.module, *one.fresh(), options=one.options(), dynamic=dynamic)
    compiled = Counter(_facts(m) for m in (*cov.applied, *cov.declined) if m.rule in names)
    explained = Counter(_facts(m) for e in told for m in (*e.matches, *e.declined))
    own = next(e for e in told if e.rule == one.rule.name)
    return _finding(one, compiled, explained, own) or _value(one, expected, shaken, got, explained, own)


def _facts(match: Any) -> tuple[Any, ...]:
    return match.rule, match.tags, match.root, match.candidate, len(match.nodes)


def _finding(one: Program, compiled: Counter[Any], explained: Counter[Any], own: Any) -> Finding | None:
    if compiled != explained:
        return Finding("differ", f"compiled {dict(compiled - explained)}, explained {dict(explained - compiled)}")
    text, whole = str(own), own.text(everything=True)
    if sum(n for m, n in explained.items() if m[0] == one.rule.name) != len(own.matches) + len(own.declined):
        return Finding("differ", "matches of the rule are counted otherwise")
    if any(f.fault for f in own.fallbacks):
        return Finding("raises", f"a fault: {next(f.message for f in own.fallbacks if f.fault)}")
    codes = {m.code for m in (*own.near_misses, *own.others)}
    if one.refused and one.refused not in codes and not own.matches:
        return Finding("differ", f"refused by {one.refused}, told {sorted(codes)}")
    if not whole.startswith(text.splitlines()[0]):
        return Finding("differ", "the short and the long text have other titles")
    return None


def _value(one: Program, expected: Any, shaken: Any, got: Any, explained: Counter[Any], own: Any) -> Finding:
    matches = dict(Counter(m[0] for m in explained.elements()))
    allowed = _allowed(one)
    if not _random(one.module) and (off := _error(expected, got, allowed)) and not _error(expected, shaken, allowed):
        return Finding("wrong", off, matches)
    if matches.get(one.rule.name):
        return Finding("matched", "", matches)
    told = own.near_misses or own.others or own.fallbacks or own.later
    return Finding("near miss" if told else "nothing alike", "", matches)


def _shaken(x: torch.Tensor) -> torch.Tensor:
    """An input off by some roundings: where that changes results, they tell nothing of a program."""
    if not x.is_floating_point():
        return x
    with torch.no_grad():
        off = 4 * torch.finfo(x.dtype).eps * torch.randn_like(x)
    return x.detach().mul(1 + off).requires_grad_(x.requires_grad)


def _random(module: fx.GraphModule) -> bool:
    return any("dropout" in str(n.target) for n in module.graph.nodes)


def _allowed(one: Program) -> float:
    """The tolerance of the narrowest dtype that a value of the program has."""
    held = {n.meta["val"].dtype for n in one.module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    held |= {torch.bfloat16} if one.setting == "autocast" else set()
    return max(_TOLERANCE.get(dtype, _TOLERANCE[torch.float32]) for dtype in held)


def _error(expected: Any, got: Any, allowed: float) -> str:
    for place, (a, b) in enumerate(zip(tree_leaves(expected), tree_leaves(got), strict=True)):
        if not isinstance(a, torch.Tensor):
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"result {place} is {b.dtype} {tuple(b.shape)}, in eager {a.dtype} {tuple(a.shape)}"
        a, b = (t.detach().to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
        scale = a[a.isfinite()].abs().max().item() if a.isfinite().any() else 1.0
        if not torch.allclose(a, b, rtol=allowed, atol=allowed * max(scale, 1e-3), equal_nan=True):
            most = (a - b).abs().nan_to_num(nan=float("inf")).max().item()
            return f"result {place} differs by {most:.3g} of {scale:.3g}"
    return ""
