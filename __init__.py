"""regraft: a pattern-matching graph-rewrite framework for PyTorch with a compiler of its own.

    compiled = torch.compile(model, backend="regraft")
    with regraft.coverage() as cov:
        compiled(**inputs)
    print(cov)

Public names are imported on first use (PEP 562), so that `import regraft` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from .compiler.aot.compile import aot_compile
    from .compiler.aot.errors import AotError
    from .compiler.aot.load import load
    from .compiler.backend import backend
    from .compiler.options import OptionError, Options, list_modes, list_options, list_templates
    from .compiler.tools.bisect import bisect
    from .compiler.tools.check import check
    from .compiler.tools.declare import register_pattern
    from .compiler.tools.explain.expect import expect_match
    from .compiler.tools.explain.explain import explain
    from .compiler.tools.profile import KernelReport, kernels
    from .compiler.tools.repro import repro
    from .patterns import default_rules
    from .rewrites.coverage import Coverage, coverage
    from .rewrites.pattern import PatternError, cast, choose, optional
    from .rewrites.reason import Reason
    from .rewrites.rule import EXACT, ROUNDING, Candidate, Numerics, Rule
    from .rewrites.ruleset import RuleSet
    from .rewrites.sample import Sample, T

_HOMES = {
    "AotError": ".compiler.aot.errors",
    "aot_compile": ".compiler.aot.compile",
    "load": ".compiler.aot.load",
    "backend": ".compiler.backend",
    "bisect": ".compiler.tools.bisect",
    "check": ".compiler.tools.check",
    "expect_match": ".compiler.tools.explain.expect",
    "explain": ".compiler.tools.explain.explain",
    "KernelReport": ".compiler.tools.profile",
    "kernels": ".compiler.tools.profile",
    "OptionError": ".compiler.options",
    "Options": ".compiler.options",
    "list_modes": ".compiler.options",
    "list_options": ".compiler.options",
    "list_templates": ".compiler.options",
    "repro": ".compiler.tools.repro",
    "default_rules": ".patterns",
    "Coverage": ".rewrites.coverage",
    "coverage": ".rewrites.coverage",
    "PatternError": ".rewrites.pattern",
    "cast": ".rewrites.pattern",
    "choose": ".rewrites.pattern",
    "optional": ".rewrites.pattern",
    "Reason": ".rewrites.reason",
    "Candidate": ".rewrites.rule",
    "EXACT": ".rewrites.rule",
    "Numerics": ".rewrites.rule",
    "ROUNDING": ".rewrites.rule",
    "Rule": ".rewrites.rule",
    "register_pattern": ".compiler.tools.declare",
    "RuleSet": ".rewrites.ruleset",
    "Sample": ".rewrites.sample",
    "T": ".rewrites.sample",
}

__all__ = [
    "EXACT",
    "ROUNDING",
    "AotError",
    "Candidate",
    "Coverage",
    "KernelReport",
    "Numerics",
    "OptionError",
    "Options",
    "PatternError",
    "Reason",
    "Rule",
    "RuleSet",
    "Sample",
    "T",
    "__version__",
    "aot_compile",
    "backend",
    "bisect",
    "cast",
    "check",
    "choose",
    "coverage",
    "default_rules",
    "expect_match",
    "explain",
    "kernels",
    "list_modes",
    "list_options",
    "list_templates",
    "load",
    "optional",
    "register_pattern",
    "repro",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .compiler.runtime.gc_pause import collected_once

    with collected_once():  # all modules of a compiler stay: the collector would walk them, and torch's, in vain
        value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
