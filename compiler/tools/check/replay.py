"""Called by a counterexample's script: finds the rule, runs both programs, shows how they differ."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ....rewrites.rule import Rule, declared
from .case import Case, alone
from .compare import compare
from .outcome import run
from .search import not_refused


def load(name: str, home: str) -> Rule:
    """The rule that importing a module, or running a file, declares.

    Raises:
        LookupError: it declares no rule of that name.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        if Path(home).suffix == ".py":
            runpy.run_path(home, run_name="counterexample")
        else:
            import_module(home)
    try:
        return declared(name)
    except KeyError as error:
        message = f"running {home} declares no rule {name!r}: declare it here instead, and give it to replay()"
        raise LookupError(message) from error


def replay(rule: Rule, operands: Mapping[str, Any], *, candidate: str = "", refused: str = "", **settings: Any) -> int:
    """Run a rule's pattern on operands in eager mode and rewritten, and print both programs and what differs.

    Args:
        rule: the rule.
        operands: by parameter of the pattern.
        candidate: the replacement to take; by default the first that can be used.
        refused: the code of the reason with which the rule should refuse, where these operands are a near miss.
        settings: of `Case`: ``tags``, ``frozen``, ``dynamic``, ``fixed``, ``nan``, ``seed``, ``gradients``,
            ``incoming``.

    Returns:
        1 where the rule fails, 0 where it does not.
    """
    given = tuple(operands.get(v.name) for v in rule.variables)
    case = Case(alone(rule, candidate) if candidate else rule, given, **settings)
    problem = not_refused(case, refused) if refused else _shown(case)
    print(f"{rule.name} fails: {problem}" if problem else f"{rule.name} holds")  # noqa: T201 - a script's output
    return 1 if problem else 0


def _shown(case: Case) -> str | None:
    rewritten = case.rewritten()
    if not rewritten.applied:
        return "did not match: " + "; ".join(m.message for m in rewritten.record.near_misses)
    print(f"rewritten program:\n{rewritten.graph_module.code.strip()}\n")  # noqa: T201
    eager, ours = run(case, case.program), run(case, rewritten)
    named = [(f"result {i}", a, b) for i, (a, b) in enumerate(zip(eager.results, ours.results, strict=False))]
    named += [(f"gradient {i}", a, b) for i, (a, b) in enumerate(zip(eager.gradients, ours.gradients, strict=False))]
    for name, a, b in named:
        print(f"{name}, eager:\n{a}\n{name}, rewritten:\n{b}")  # noqa: T201
        if a.shape == b.shape and a.is_floating_point():
            print(f"difference:\n{b - a}\n")  # noqa: T201
    found = compare(replace(case), rewritten)
    return None if found is None else str(found)
