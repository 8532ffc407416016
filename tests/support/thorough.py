"""How much slow properties draw and tables hold: little by default, all of it where `REGRAFT_TEST_THOROUGH` is set."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

THOROUGH = bool(os.environ.get("REGRAFT_TEST_THOROUGH"))

_WHY = "REGRAFT_TEST_THOROUGH is not set"
ROW = pytest.StashKey[int]()
"""Which of the rows of its file that run a row is, from 0; a test without parameters is a row."""

in_thorough_runs = pytest.mark.skipif(not THOROUGH, reason=_WHY)
"""For a test that is expensive, and whose parts others test at less cost: left out of short runs."""


def examples(few: int, many: int) -> int:
    """The number for this run; `many` on a machine that has the time."""
    return many if THOROUGH else few


def thorough(*values: Any) -> Any:
    """A parameter of a test that takes the same path as another one, at a cost: left out of short runs."""
    return pytest.param(*values, marks=in_thorough_runs)


def one_in(step: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of which short runs have every `step`-th: a long table whose rows take the same path."""
    return [value if k % step == 0 else thorough(value) for k, value in enumerate(values)]


def takes_turns(*parameters: str) -> Any:
    """Parameters whose values take turns over a test's other rows in short runs: each row runs with one of them.

    For what is known to be independent of the row, so that a table of all pairs says little more::

        @takes_turns("dynamic")                 #            static   dynamic
        @parametrize("dynamic", [False, True])  #   llama      x
        @parametrize("name", NORMS)             #   t5                   x

    Of several parameters, pairs of values (triples, ...) take turns.
    """
    return pytest.mark.takes_turns(*parameters)


def one_row_in(step: int) -> Any:
    """Short runs have every `step`-th row of a test's table: costly rows that take one path, of which two would do.

    Of a table with `takes_turns` these are some of the rows that are left; of several parameters, in no step with any.
    """
    return pytest.mark.one_row_in(step)


def leave_out_turns(items: Sequence[pytest.Item]) -> None:
    """Skip the rows whose turn it is not; `items` are all rows of their tests."""
    for same in _rows(items, "takes_turns"):
        parameters = same[0].get_closest_marker("takes_turns").args
        numbers: dict[str, int] = defaultdict(int)  # of rows so far, by the parameters' values
        values = list(dict.fromkeys(_values(item, parameters) for item in same))
        for item in same:
            value = _values(item, parameters)
            if values[_turn(numbers[value], len(values))] != value:
                item.add_marker(pytest.mark.skip(reason=f"{_WHY}: another row has this turn"))
            numbers[value] += 1
    for same in _rows(items, "one_row_in"):
        (step,) = same[0].get_closest_marker("one_row_in").args
        left = [item for item in same if not _left_out(item)]
        several = len(same[0].callspec.params) > 1
        for k, item in enumerate(left):
            if (_turn(k, step) if several else k % step) != 0:
                item.add_marker(pytest.mark.skip(reason=f"{_WHY}: one row in {step}"))


def number_rows(items: Iterable[pytest.Item]) -> None:
    """Tell each row its number (`ROW`), but for those that are left to thorough runs."""
    rows: dict[Path, int] = defaultdict(int)
    for item in items:
        if not any(mark.kwargs.get("reason", "").startswith(_WHY) for mark in _skips(item)):
            item.stash[ROW] = rows[item.path]
            rows[item.path] += 1


def _rows(items: Sequence[pytest.Item], marker: str) -> list[list[Any]]:
    """The rows of each test that has a marker; none in thorough runs."""
    rows = defaultdict(list)
    for item in items:
        if not THOROUGH and item.get_closest_marker(marker):
            rows[item.nodeid.partition("[")[0]].append(item)
    return list(rows.values())


def _left_out(item: Any) -> bool:
    return any(True for _ in _skips(item))


def _skips(item: Any) -> Iterator[Any]:
    """The marks for which a row is skipped, whatever the reason."""
    yield from item.iter_markers("skip")
    yield from (mark for mark in item.iter_markers("skipif") if mark.args and mark.args[0] is True)


def _values(item: Any, parameters: Sequence[str]) -> str:
    return ", ".join(str(item.callspec.params[parameter]) for parameter in parameters)


def _turn(row: int, values: int) -> int:
    """Which value a row has: in no step with any parameter of the rows (the sum of the number's digits)."""
    digits = 0
    while row:
        row, digit = divmod(row, values)
        digits += digit
    return digits % values
