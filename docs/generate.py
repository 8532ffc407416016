"""Writes the pages that are made from code: reference.md from docstrings, normal-form.md from the respellings.

python docs/generate.py        writes both; tests/test_docs.py says when they are not what the code says
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NOTE = "<!-- Made by docs/generate.py: change the code's docstrings, not this page. -->\n\n"

# What a page of the reference shows, as (section, names); a name is a module and an attribute of it.
SECTIONS = (
    ("Ahead of time", ("regraft:aot_compile", "regraft:load", "regraft:AotError")),
    (
        "Declaring rules",
        (
            "regraft:register_pattern", "regraft:Sample", "regraft:T", "regraft:choose", "regraft:optional",
            "regraft:cast", "regraft:Candidate", "regraft:Numerics", "regraft:Reason", "regraft:PatternError",
        ),
    ),
    (
        "Rules and matches",
        (
            "regraft:Rule", "regraft:RuleSet", "regraft:default_rules", "regraft.rewrites.binding:Binding",
            "regraft.rewrites.rule:Guard", "regraft.rewrites.ruleset:plugin_rules",
        ),
    ),
    (
        "Values",
        (
            "regraft:EXACT", "regraft:ROUNDING", "regraft.rewrites.pattern:ANYTHING",
        ),
    ),
    (
        "Checking rules",
        (
            "regraft:check", "regraft.compiler.tools.check.result:CheckResult",
            "regraft.compiler.tools.check.result:Failure", "regraft.compiler.tools.check.scope:Scope",
            "regraft.compiler.tools.check.guards:noticed", "regraft.compiler.tools.check.replay:replay",
        ),
    ),
    (
        "What happened",
        (
            "regraft:coverage", "regraft:Coverage", "regraft.rewrites.record:GraphRecord",
            "regraft.rewrites.record:Match", "regraft.rewrites.record:NearMiss", "regraft.rewrites.record:Evidence",
            "regraft.rewrites.record:Fallback", "regraft.rewrites.record:PassRun", "regraft.rewrites.record:Code",
            "regraft.rewrites.record:KeptCall", "regraft.rewrites.reason:Site",
            "regraft.rewrites.report.summary:RuleRow", "regraft.rewrites.report.document:Report",
            "regraft.rewrites.report.entry:Entry", "regraft.rewrites.report.entry:Outcome", "regraft:explain",
            "regraft.compiler.tools.explain.explanation:Explanation", "regraft:expect_match", "regraft:kernels",
            "regraft:KernelReport", "regraft:bisect", "regraft:repro",
            "regraft.compiler.tools.repro:Repro", "regraft.compiler.tools.bisect.finding:Cause",
            "regraft.compiler.tools.bisect.subject:Verdict", "regraft.rewrites.switches:Step",
        ),
    ),
    (
        "Compiling",
        (
            "regraft:backend", "regraft:Options", "regraft:OptionError", "regraft:list_modes", "regraft:list_options",
            "regraft:list_templates",
        ),
    ),
)  # fmt: skip
VALUES = {  # what has no docstring of its own
    "EXACT": "A `Numerics`: the same bits as the original, for `numerics=`.",
    "ROUNDING": "A `Numerics`: an error against float64 of up to twice eager's own, for `numerics=`; the default.",
    "ANYTHING": "An argument that a pattern does not compare, for calls by `regraft.rewrites.pattern.Call`.",
}
INTRODUCTION = """# API reference

Everything that a rule author and a user of reports meets, from the docstrings. Names without a module are imported from
`regraft`. A *derived value* is a function of a match (a `Binding`) and of the policies of the options, for example
`{"nan": "eager", ...}`;
`match` as the parameter of a guard is the same `Binding`.

"""
NORMAL_INTRODUCTION = """# Normal form

Before rules look for matches, a copy of the program is brought into normal form: one spelling for each meaning.
Patterns are brought into the same form, so you may write them in any spelling. Read this page when an explanation
names operators that you did not write. The left column shows the program, the right one the same as rules see it;
code without a row is seen as it is written. `regraft code TARGET --stage normal` prints the normal form of a
program.

The last column names the respelling, the step that makes the change (`compiler/normal/`). Steps are tried in this
order until none applies. Only the copy is changed: code that no rule replaces runs as it was written.

"""


def reference() -> str:
    """The page of the API reference."""
    found = [NOTE + INTRODUCTION]
    for title, names in SECTIONS:
        found.append(f"## {title}\n\n")
        found += [_entry(name) for name in names]
    return "".join(found).rstrip() + "\n"


def _entry(name: str) -> str:
    module, attribute = name.split(":")
    value = getattr(import_module(module), attribute)
    home = "" if module == "regraft" else f"From `{module}`.\n\n"
    if attribute in VALUES:
        return f"### {attribute}\n\n{home}{VALUES[attribute]}\n\n"
    head = f"### {attribute}\n\n```text\n{_signature(attribute, value)}\n```\n\n"
    parts = [head, home, _markdown(value.__doc__ or "")]
    if inspect.isclass(value):
        parts += _members(value)
    return "".join(parts)


def _signature(name: str, value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, Exception):
        return name
    try:
        signature = inspect.signature(value)
    except ValueError:
        return name
    kept = [_parameter(p) for p in signature.parameters.values()]
    text = f"{name}({', '.join(_with_star(kept, signature))})"
    return text if len(text) < 110 else f"{name}(\n    " + ",\n    ".join(_with_star(kept, signature)) + ",\n)"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = parameter.default
    if default is inspect.Parameter.empty:
        return f"{stars}{parameter.name}"
    shown = "..." if callable(default) or "object at" in repr(default) or "factory" in repr(default) else repr(default)
    return f"{stars}{parameter.name}={shown}"


def _with_star(shown: list[str], signature: inspect.Signature) -> list[str]:
    """With the bare star that parts arguments by keyword from others."""
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY not in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return shown
    place = kinds.index(inspect.Parameter.KEYWORD_ONLY)
    return [*shown[:place], "*", *shown[place:]]


def _members(value: type) -> Iterator[str]:
    """A row a public method or property of the class, with the first sentence of its docstring.

    The class may inherit it from a dataclass.
    """
    fields = {f.name for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    rows = []
    bases = [base for base in reversed(value.__mro__[1:]) if dataclasses.is_dataclass(base)]
    for name, member in {k: v for base in [*bases, value] for k, v in vars(base).items()}.items():
        raw = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        text = inspect.getdoc(raw) if _is_member(raw) else None
        if not name.startswith("_") and name not in fields and text:
            call = "" if not inspect.isfunction(raw) else "()"
            rows.append(f"| `{name}{call}` | {_escaped(text.split(chr(10) * 2)[0])} |\n")
    if rows:
        yield "| member | |\n|---|---|\n" + "".join(rows) + "\n"


def _is_member(raw: Any) -> bool:
    return isinstance(raw, property) or inspect.isfunction(raw) or type(raw).__name__ == "cached_property"


def _markdown(docstring: str) -> str:
    """A docstring of Google's form: its sections become lists."""
    lines, found, inside = inspect.cleandoc(docstring).split("\n"), [], ""
    for line in lines:
        heading = re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields):", line)
        if heading:
            inside = heading[1]
            found.append(f"**{inside}**\n")
        elif inside in ("Args", "Attributes", "Raises") and (
            item := re.match(r"    ([\w*]+(?:, [\w*]+)*): (.*)", line)
        ):
            found.append(f"- `{item[1].replace(', ', '`, `')}`: {item[2]}")
        elif inside and line.startswith("    "):
            found.append(("" if inside in ("Returns", "Yields") else "  ") + line.strip())
        else:
            found.append(line)
    text = re.sub(r"``([^`]+)``", r"`\1`", "\n".join(found).strip())
    return re.sub(r"\n(\*\*\w+\*\*\n)", r"\n\n\1", text) + "\n\n"


def _escaped(text: str) -> str:
    text = re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))
    return text.replace("|", "\\|")


def normal_form() -> str:
    """The page of the normal form."""
    from regraft.compiler.normal import LOWERED_FORM, NORMAL_FORM

    before = "## Before autograd (stage `forward`)\n\n" + _tables(NORMAL_FORM)
    after = "## After autograd (stage `lowered`)\n\n" + _tables(LOWERED_FORM)
    return (NOTE + NORMAL_INTRODUCTION + before + after).rstrip() + "\n"


def _tables(steps: Any) -> str:
    by_module: dict[str, list[Any]] = {}
    for step in steps:
        by_module.setdefault(step.step.__module__, []).append(step)
    return "".join(_table(module, members) for module, members in by_module.items())


def _table(module: str, steps: list[Any]) -> str:
    title = (import_module(module).__doc__ or "").strip().split("\n\n")[0].split("\n")[0].rstrip(".")
    rows = []
    for step in steps:
        text = " ".join(step.doc.split("\n\n")[0].split())
        left, arrow, right = text.partition(" -> ")
        cells = [_code(left), _code(right.strip().rstrip("."))] if arrow else [_escaped(text), ""]
        rows.append(f"| {cells[0]} | {cells[1]} | {step.name} |\n")
    return f"### {title}\n\n| you write | rules see | respelling |\n|---|---|---|\n{''.join(rows)}\n"


def _code(text: str) -> str:
    return f"`` {text.strip().replace('|', chr(92) + '|')} ``"


if __name__ == "__main__":
    (HERE / "reference.md").write_text(reference(), encoding="utf-8")
    (HERE / "normal-form.md").write_text(normal_form(), encoding="utf-8")
