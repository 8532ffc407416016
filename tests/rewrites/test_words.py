"""Numbers in sentences, and no sentence that writes the plural for one of a thing."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from regraft.rewrites.words import counted

ROOT = Path(__file__).resolve().parents[2]
COUNTED = (
    "graphs", "kernels", "calls", "files", "weights", "matches", "operators", "tensors", "results", "places", "rows",
    "convolutions", "rules", "models", "examples", "tries", "layers", "constants", "programs", "fallbacks", "faults",
)  # fmt: skip
MANY = {  # never one, or a verb
    "rewrites/report/html.py": "models",
    "compiler/tools/repro/__init__.py": "graphs",
    "compiler/codegen/triton/launch.py": "programs",
    "compiler/tools/standalone.py": "calls",
    "compiler/runtime/cudagraphs/rules.py": "calls",
}


def plurals(file: Path) -> Iterator[str]:
    """The words for more than one that follow any number in text made of it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for value, after in pairwise(parts):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                words = str(after.value).split()
                constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
                number = value.format_spec is None and str(after.value).startswith(" ") and not constant
                if number and words and words[0].strip(".,;:)") in COUNTED:
                    yield words[0].strip(".,;:)")


def test_counted():
    assert [counted(n, "graph") for n in (0, 1, 2)] == ["0 graphs", "1 graph", "2 graphs"]
    assert [counted(n, "try", "tries") for n in (1, 2)] == ["1 try", "2 tries"]


def test_numbers_come_with_the_right_form():
    found = {
        file.relative_to(ROOT).as_posix(): told
        for room in ("rewrites", "patterns", "compiler")
        for file in (ROOT / room).rglob("*.py")
        if (told := sorted(set(plurals(file)) - {MANY.get(file.relative_to(ROOT).as_posix())}))
    }
    assert not found
