"""Passes of the pipeline put in place of others, for one test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import fx

from regraft.compiler import stages

_LISTS = ("CAPTURED", "PROGRAM_RULES", "DESUGARED", "JOINT", "LOWERED", "BODY")


def replace_pass(
    monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[[fx.GraphModule], Any], **changes: Any
) -> None:
    """Run `function` wherever the pipeline has the pass `name`; `changes` are other fields of the pass."""
    found = 0
    for listed in _LISTS:
        passes = getattr(stages, listed)
        found += sum(one.name == name for one in passes)
        fields = {"run": lambda g, _: function(g)} | changes
        other = tuple(replace(one, **fields) if one.name == name else one for one in passes)
        monkeypatch.setattr(stages, listed, other)
    assert found, name
