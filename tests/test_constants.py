"""What counts as a number that steers a choice, by form; `test_house` compares the sources with `docs/constants.md`."""

import ast
import re

import pytest
from support.constants import Constant, bare_numbers, of_text


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
