"""The source of a kernel's launches: the library functions that it calls, then one function for each launch.

The file stands alone: it needs Triton, and nothing of regraft.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from importlib import resources

from ...ir.kernel import Kernel
from ...schedule.fast_math import with_fast_functions
from .kernel_text import LaunchText, launch_texts, waiting
from .shared_launch import shared_launches

_HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
_LIBRARY = ("device_library.py", "device_reductions.py")
_ORDER = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"


@dataclass(frozen=True)
class KernelSource:
    """A kernel in Triton.

    Args:
        text: a module; `launches` the functions in it that are to be launched, in order.
        wide: the module for sizes so large that 32 bits do not hold some index, where there is another.
    """

    text: str
    launches: tuple[LaunchText, ...]
    wide: str = ""


def kernel_source(kernel: Kernel) -> KernelSource:
    """The source of a kernel that knows its launches.

    Raises:
        UnsupportedDtypeError, UnsupportedStoreError: Triton cannot compute it.
    """
    if kernel.parts:
        shared = tuple(map(waiting, shared_launches(kernel)) if kernel.early else shared_launches(kernel))
        return KernelSource(module_text(list(dict.fromkeys(one.text for one in shared))), shared)
    count = len(kernel.launches)
    names = [kernel.name if count == 1 else f"{kernel.name}_{k}" for k in range(count)]
    made = launch_texts(with_fast_functions(kernel), names)
    made = tuple(map(waiting, made)) if kernel.early else made
    wide = module_text([one.wide or one.text for one in made]) if any(one.wide for one in made) else ""
    return KernelSource(module_text([one.text for one in made]), made, wide)


def module_text(functions: list[str]) -> str:
    """A module of generated functions with the library functions that they call."""
    body = [*_used("\n".join(functions)), *functions]
    head = _HEAD + (_ORDER if any("gdc_" in part for part in body) else "")
    return "\n\n".join([head, *body])


def _used(text: str) -> list[str]:
    """Library functions that a text calls, directly or through others, in the library's order."""
    library = _library()
    found: set[str] = set()
    todo = [text]
    while todo:
        words = set(re.findall(r"(?<![.\w])[a-z_0-9]+\b", todo.pop()))
        new = words & library.keys() - found
        found |= new
        todo += [library[name] for name in new]
    return [f"{source}\n" for name, source in library.items() if name in found]


@functools.cache
def _library() -> dict[str, str]:
    """Name and source of every function of the library."""
    found: dict[str, str] = {}
    for file in _LIBRARY:
        text = resources.files(__package__).joinpath(file).read_text()
        lines = text.splitlines()
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        found |= {f.name: "\n".join(lines[f.decorator_list[0].lineno - 1 : f.end_lineno]) for f in functions}
    return found
