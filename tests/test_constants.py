"""Every number that steers a choice stands in `docs/constants.md`, with what it rests on; see there for the rule."""

import ast
import re
from collections.abc import Iterator

import pytest
from support.constants import DECIDING, ROOT, Constant, constants, of_text, sources

PAGE = (ROOT / "docs" / "constants.md").read_text()
CHOICES, FIXED = PAGE.split("\n## ")[1:]
LARGEST_BARE = 16
DEVICES = ("any", "CPU", "GPU", "A100", "H200")


def choices() -> Iterator[tuple[tuple[str, str], list[str]]]:
    """(file, name), and the other cells of the row."""
    for part in CHOICES.split("\n### ")[1:]:
        file = part.split("`")[1]
        for line in part.splitlines():
            if re.match(r"\| `", line):
                name, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
                yield (file, name.strip("`")), [cell.strip(" |`") for cell in cells]


def fixed() -> Iterator[tuple[str, str]]:
    for line in FIXED.splitlines():
        if re.match(r"\| `", line):
            file, names, _ = line.strip("|").split(" | ")
            yield from ((file.strip(" `"), name) for name in re.findall(r"`([^`]+)`", names))


def test_every_constant_has_one_row():
    rows, found = [*(key for key, _ in choices()), *fixed()], [(c.file, c.name) for c in constants()]
    assert len(rows) == len(set(rows)), "a constant is listed twice"
    assert not set(found) - set(rows), "add rows to docs/constants.md, with what the values rest on"
    assert not set(rows) - set(found), "docs/constants.md lists constants that are gone"


def test_values_are_those_of_the_sources():
    values = {(c.file, c.name): c.spelled for c in constants()}
    wrong = {key: (cells[0], values[key]) for key, cells in choices() if cells[0] != values[key]}
    assert not wrong, "(listed, in the source): a changed value needs a new day, and a new measurement or 'estimate'"


def test_rows_are_whole():
    for key, (_, what, device, since, basis) in choices():
        assert what and device in DEVICES and re.fullmatch(r"20\d\d-\d\d-\d\d", since), key
        kind, _, command = basis.partition(": ")
        assert kind in ("measured", "estimate", "limit") and bool(command) == (kind == "measured"), key
        assert device == "H200" if kind == "measured" and "gpu" in command else True, key
        assert not command or (ROOT / command.strip("`")).exists(), f"{key}: no such command"


def test_numbers_in_comparisons_have_names():
    """Above 16, but for compute capabilities and powers of two that are the range of a type (``2**32``)."""
    found = {}
    for file in sources():
        path = file.relative_to(ROOT).as_posix()
        bare = list(bare_numbers(ast.parse(file.read_text()))) if path.startswith(DECIDING) else []
        found |= {path: bare} if bare else {}
    assert not found


def bare_numbers(tree: ast.AST) -> Iterator[str]:
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("_MOST = 3  # of them", [("_MOST", "3", "of them")]),
        ("A, B = 1 << 4, 0.5", [("A, B", "1 << 4, 0.5", "")]),
        ("TILES = (Tile(16, 8), Tile(8, 16))", [("TILES", "(Tile(16, 8), Tile(8, 16))", "")]),
        ("_BY = {'sum': 4}\nMANY = 4 * _FEW", [("_BY", "{'sum': 4}", ""), ("MANY", "4 * _FEW", "")]),
        ("class Clock:\n    LIMIT: float = 0.1", [("Clock.LIMIT", "0.1", "")]),
        ("NAMES = ('a', 'b')\nTRUE = True\nfound = 3\nROOT = f(3)\nMANY = OTHER", []),
    ],
)
def test_what_counts_as_a_constant(text, found):
    assert [(c.name, c.value, c.comment) for c in of_text(text, "file.py")] == found


def test_a_long_value_is_told_by_a_digest():
    long = Constant("file.py", "TILES", ", ".join(map(str, range(40))))
    assert re.fullmatch(r"listed there \([0-9a-f]{8}\)", long.spelled)


def test_bare_numbers_are_seen():
    text = "a < 64; max(x, 1 << 20); a < 2**31; gpu.capability >= 90; a < 8; a == 64; min(a, b * 64)"
    assert list(bare_numbers(ast.parse(text))) == ["64", "1 << 20"]
