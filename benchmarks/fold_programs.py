"""Folds of rows and of columns, by size: what blocks of folds are measured with.

    python benchmarks/gpu_blocks.py --tables folds --jobs 12 --budget 100 --json rows.jsonl

Rows are contiguous in memory along what is folded, columns across it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Program = tuple[Callable[..., Any], Callable[[], list[Any]]]

_COLUMNS: dict[str, tuple[Callable[..., Any], int]] = {
    "sum": (lambda x: (x * 2).sum(0), 1),
    "costly": (lambda x, y: torch.where(x > y, x * 0.5, y).sum(0), 2),
    "var": (lambda x: x.var(0), 1),
    "argmax": (lambda x: x.argmax(0), 1),
}
_ROWS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: (x * 2).sum(1),
    "softmax": lambda x: x.softmax(1),
    "argmax": lambda x: x.argmax(1),
    "norm": lambda x: F.layer_norm(x, (x.shape[1],)),
}


def _of(function: Callable[..., Any], sizes: tuple[int, int], count: int = 1) -> Program:
    return function, lambda: [torch.randn(sizes) for _ in range(count)]


PROGRAMS: dict[str, dict[str, Program]] = {
    "columns": {
        f"{name} of {number} columns of {length}": _of(function, (length, number), count)
        for name, (function, count) in _COLUMNS.items()
        for number in (27, 64, 200, 800, 3000)
        for length in (300, 1600, 6400)
    },
    "rows": {
        f"{name} of {number} rows of {length}": _of(function, (number, length))
        for name, function in _ROWS.items()
        for number in (64, 200, 800, 3000)
        for length in (384, 1000, 3000, 5000, 12000)
    },
}
