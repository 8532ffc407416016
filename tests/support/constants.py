"""The numbers of the sources that stand under a name: what `docs/constants.md` lists."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("rewrites", "patterns", "compiler")
# What shows, checks or names things decides nothing about a compiled program.
WITHOUT = ("rewrites/report/", "rewrites/compat/", "compiler/tools/")
PAGE = ROOT / "docs" / "constants.md"
LARGEST_BARE = 16
_LONGEST = 60  # characters of a value that the ledger spells out
# What decides how a program is cut and laid out: no bare numbers in comparisons there.
DECIDING = ("compiler/schedule/", "compiler/templates/", "compiler/autotune/", "compiler/passes/", "compiler/codegen/")


@dataclass(frozen=True)
class Constant:
    """A name, or several of one assignment, whose value is made of numbers alone."""

    file: str
    name: str
    value: str
    comment: str = ""

    @property
    def spelled(self) -> str:
        """The value as the ledger has it; of a long one, a digest that tells whether it changed."""
        if len(self.value) <= _LONGEST:
            return self.value
        return f"listed there ({hashlib.sha256(self.value.encode()).hexdigest()[:8]})"


def sources(folders: tuple[str, ...] = ROOMS) -> list[Path]:
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return [file for file in files if not file.relative_to(ROOT).as_posix().startswith(WITHOUT)]


@functools.cache
def constants() -> list[Constant]:
    return [found for file in sources() for found in of_text(file.read_text(), file.relative_to(ROOT).as_posix())]


def of_text(text: str, file: str) -> Iterator[Constant]:
    """Constants of a module and of its classes: upper case, or a field that has one number as its default."""
    tree, lines = ast.parse(text), text.splitlines()
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        for node in scope.body:
            for target, value in _assigned(node):
                name = ", ".join(re.findall(r"\w+", ast.unparse(target)))
                if name.isupper() and _is_number(value):
                    inside = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
                    _, _, comment = lines[node.lineno - 1].partition("  # ")
                    yield Constant(file, inside + name, _bare(value), comment)


def _assigned(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value


def _bare(value: ast.expr) -> str:
    """As text, a tuple of numbers without its brackets."""
    nested = ast.Tuple | ast.Call | ast.Dict
    if isinstance(value, ast.Tuple) and not any(isinstance(x, nested) for x in value.elts):
        return ", ".join(map(ast.unparse, value.elts))
    return ast.unparse(value)


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is made of numbers, and names of other constants, alone."""
    leaves = [x for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, (int, float))]
    return _is_made_of_numbers(node) and any(not isinstance(x.value, bool) for x in leaves)


def _is_made_of_numbers(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return isinstance(node.value, (int, float))
        case ast.UnaryOp():
            return _is_made_of_numbers(node.operand)
        case ast.BinOp():
            return all(map(_is_made_of_numbers, (node.left, node.right)))
        case ast.Tuple() | ast.List() | ast.Set():
            return all(map(_is_made_of_numbers, node.elts))
        case ast.Dict():
            return all(map(_is_made_of_numbers, node.values))
        case ast.Call():  # a record of numbers: Tile(128, 64, 8, 2)
            is_record = isinstance(node.func, ast.Name) and node.func.id[0].isupper()
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            return is_record and all(_is_made_of_numbers(x) or _is_text(x) for x in given)
        case ast.Name():
            return node.id.isupper()
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def choices() -> Iterator[tuple[tuple[str, str], list[str]]]:
    """(file, name), and the other cells of the row."""
    for part in _parts()[0].split("\n### ")[1:]:
        file = part.split("`")[1]
        for line in part.splitlines():
            if re.match(r"\| `", line):
                name, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
                yield (file, name.strip("`")), [cell.strip(" |`") for cell in cells]


def fixed() -> Iterator[tuple[str, str]]:
    """(file, name) of what is no choice."""
    for line in _parts()[1].splitlines():
        if re.match(r"\| `", line):
            file, names, _ = line.strip("|").split(" | ")
            yield from ((file.strip(" `"), name) for name in re.findall(r"`([^`]+)`", names))


def _parts() -> list[str]:
    return PAGE.read_text().split("\n## ")[1:]


def bare_numbers(tree: ast.AST) -> Iterator[str]:
    """Numbers above `LARGEST_BARE` in comparisons, `min` and `max`, but for capabilities and ranges of types."""
    for node in ast.walk(tree):
        sides = []
        if isinstance(node, ast.Compare) and any(isinstance(o, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for o in node.ops):
            sides = [] if "capability" in ast.unparse(node) else [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max"):
            sides = node.args
        yield from (ast.unparse(side) for side in sides if is_bare(side))


def is_bare(node: ast.expr) -> bool:
    numbers = [x for x in ast.walk(node) if not isinstance(x, ast.operator | ast.unaryop | ast.BinOp | ast.UnaryOp)]
    if not all(isinstance(x, ast.Constant) and isinstance(x.value, int | float) for x in numbers):
        return False
    text = ast.unparse(node)
    return not re.fullmatch(r"2 \*\* \d+", text) and abs(eval(text)) > LARGEST_BARE
