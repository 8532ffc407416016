"""A wrapper for `torch.profiler`: each kernel and call of ATen is a range with its name and the user's line or module.

k0_softmax(tanh, softmax)    ->    with record_function("k0_softmax [model.py:12]"): k0_softmax(tanh, softmax)

It is made when a profiler is on for the first time; without one, nothing of it runs.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from .emit import WrapperSource

_CALL = re.compile(r"(?:[\w, ]+ = )?([\w.]+)\(")
RANGE = "record_function"


def profiled_text(source: WrapperSource) -> str:
    """The text of a wrapper with a range around each call; lines keep their numbers."""
    lines = source.text.splitlines()
    for number in source.calls:
        line = lines[number - 1]
        statement = line.lstrip()
        called = _CALL.match(statement)
        if called is None or statement.startswith("if "):
            continue
        site, module = source.sites.get(number), source.modules.get(number)
        place = f" [module {module}]" if module is not None else ""
        if site is not None:
            place = f" [{PurePath(site.file).name}:{site.line}]"
        indent = line[: len(line) - len(statement)]
        lines[number - 1] = f"{indent}with {RANGE}({called[1] + place!r}): {statement}"
    return "\n".join(lines) + "\n"
