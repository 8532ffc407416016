"""A program as a script: its calls, its inputs, what it is compiled with, and how to see the fault."""

from __future__ import annotations

import inspect
import operator
import platform
import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ...._version import __version__
from ....patterns import default_rules
from ....rewrites.compat import OpOverload
from ....rewrites.machine import cpu_model
from ....rewrites.reason import site_of
from ....rewrites.rule import Rule
from ...options.rules import resolve_rules
from ..bisect import Verdict
from .program import NotWritableError, ReproProgram
from .values import MAKER, SeededTensor, written

_TEXT = '''\
"""{verdict}

regraft {regraft}, torch {torch}, Python {python}, {machine}

    python {file}    says what causes it; exit code 1 while it fails
"""

import sys{numbers}

import torch
{rules}
OPTIONS = {options}
{maker}{kept}

def program({parameters}):
{body}


def make():
    return program, ({inputs})


if __name__ == "__main__":
    import regraft

    found = regraft.bisect(*make(), options=OPTIONS, dynamic={dynamic}, train={train}, isolate={isolate})
    print(found)
    sys.exit(0 if found.ok else 1)
'''
_LITERALS = (bool, int, float, complex, str, torch.dtype, torch.memory_format, torch.layout)
_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=",
}  # fmt: skip


def write(
    program: ReproProgram,
    path: Path,
    verdict: Verdict,
    options: Mapping[str, Any],
    *,
    dynamic: bool | None,
    train: bool,
    isolate: bool,
) -> str:
    """Write the script, and beside it a file of what can be neither drawn nor written out; gives the text.

    Raises:
        NotWritableError: a call, or an option, has no form in Python.
    """
    kept: list[torch.Tensor] = []
    names = {node: node.name for node in program.graph.nodes}
    placeholders = program.graph.find_nodes(op="placeholder")
    inputs = [written(program.values[node.name], kept) for node in placeholders]
    body = [f"    {_statement(node, names)}" for node in program.calls]
    body.append(f"    return ({', '.join(names[node] for node in program.outputs)},)")
    tensors = path.with_suffix(".pt")
    if kept:
        torch.save(kept, tensors)
    spelled = {name: _option(name, value) for name, value in options.items()}
    numbers = re.search(r"\b(inf|nan)\b", "\n".join([*inputs, *body]))
    text = _TEXT.format(
        numbers="\nfrom math import inf, nan" if numbers else "",
        verdict=str(verdict).replace("\\", "\\\\").replace('"""', "'''"),
        regraft=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        machine=cpu_model(),
        file=path.name,
        options=repr(spelled),
        rules=_declaring(options.get("rules")),
        maker=f"\n\n{MAKER}" if any(isinstance(v, SeededTensor) for v in program.values.values()) else "",
        kept='\nkept = torch.load(__file__[:-3] + ".pt", weights_only=True)\n' if kept else "",
        parameters=", ".join(names[node] for node in placeholders),
        body="\n".join(body),
        inputs="".join(f"\n        {text}," for text in inputs) + ("\n    " if inputs else ""),
        dynamic=dynamic,
        train=train,
        isolate=isolate,
    )
    path.write_text(text, encoding="utf-8")
    return text


def _option(name: str, value: Any) -> Any:
    """The value of an option as a literal; rules go by their names."""
    if name == "rules":
        given = value if isinstance(value, (list, tuple)) else (value,)
        names = [[item] if isinstance(item, str) else [rule.name for rule in _rules((item,))] for item in given]
        return tuple(name for part in names for name in part)
    return value


def _rules(given: Any) -> list[Rule]:
    """The rules of option ``rules`` that are given as such, or by names that were declared outside of the library."""
    items = given if isinstance(given, (list, tuple)) else (given,)
    found = [rule for item in items if item not in (None, "default") for rule in resolve_rules((item,))]
    return [rule for rule in found if rule.name not in default_rules()]


def _declaring(given: Any) -> str:
    """Lines that declare one's own rules, so that their names are known: the files that do it are run.

    Raises:
        NotWritableError: a rule is in no file.
    """
    places: dict[str, None] = {}
    for rule in _rules(given):
        path = Path(inspect.getsourcefile(rule.pattern) or "")
        if not path.is_file():
            raise NotWritableError(f"rule {rule.name} is in no file: declare it in one, and give that by --rules")
        module = rule.pattern.__module__
        packaged = "." in module or any(Path(place) == path.parent for place in sysconfig.get_paths().values())
        run = f'importlib.import_module("{module}")' if packaged else f"runpy.run_path({str(path.resolve())!r})"
        places[run] = None
    used = [name for name in ("importlib", "runpy") if any(place.startswith(name) for place in places)]
    lines = [*(f"import {name}" for name in used), *(f"{place}  # declares rules" for place in places)]
    return "".join(f"{line}\n" for line in ["", *lines]) if places else ""


def _statement(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    args = [_spelled(a, names) for a in node.args]
    args_and_names = args + [f"{key}={_spelled(value, names)}" for key, value in node.kwargs.items()]
    site = site_of(node)
    note = f"  # {Path(site.file).name}:{site.line}  {site.code}" if site is not None else ""
    if node.target is operator.getitem:
        call = f"{args[0]}[{args[1]}]"
    elif node.target in _INFIX:
        call = f" {_INFIX[node.target]} ".join(args)
    elif isinstance(node.target, OpOverload):
        call = f"torch.ops.{node.target}({', '.join(args_and_names)})"
    else:
        raise NotWritableError(f"the graph calls {node.target}, which is no operator")
    return f"{names[node]} = {call}{note}"


def _spelled(value: Any, names: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_spelled(v, names) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if value is None or isinstance(value, _LITERALS):
        return repr(value)
    raise NotWritableError(f"an argument is a {type(value).__name__}: {value!r}")
