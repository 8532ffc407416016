"""Which graphs are captured, by what they launch."""

from __future__ import annotations

import pytest

from regraft.compiler.runtime.cudagraphs.replay import Replay
from regraft.rewrites.record import Code, KeptCall

PRODUCT = KeptCall("aten.mm", 1, "library", "a library's")


@pytest.mark.parametrize(
    ("kind", "code", "captured"),
    [
        ("inference", Code("inference", 0, 0), False),  # views alone: an empty capture
        ("inference", Code("inference", 2, 2), False),
        ("inference", Code("inference", 1, 1, (PRODUCT,)), False),
        ("inference", Code("inference", 2, 2, (PRODUCT,)), True),
        ("inference", Code("inference", 0, 0, (), {"gemm": 1, "attention": 2}), True),
        ("forward", Code("forward", 1, 1), True),  # captured with its backward
    ],
)
def test_inference_graphs_of_few_launches_run_as_they_are(kind, code, captured):
    replay = Replay(None, "statistical", 3, lambda reason: None)
    replay.static[kind] = frozenset({0})
    reason = replay.leaves_short(kind, code)
    assert (reason is None) == captured == (kind in replay.static)
    assert reason is None or reason.code == "few-launches"


def test_graphs_that_are_not_captured_anyway_are_not_told_again():
    assert (
        Replay(None, "statistical", 3, lambda reason: None).leaves_short("inference", Code("inference", 1, 1)) is None
    )
