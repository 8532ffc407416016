"""The ends of a network of convolutions, and what its conversions are taken to cost."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regraft.compiler.passes.layout_ends import seconds_of_ends
from regraft.patterns.packing import channels_last
from regraft.rewrites.graph import op_name
from regraft.rewrites.profit import Decision
from regraft.rewrites.record import Evidence

from ...support.lowering import trace

W, V = torch.randn(6, 4, 3, 3), torch.randn(4, 6, 3, 3)
X = torch.randn(2, 4, 9, 9)


class Timed:
    """An oracle by which a conversion takes a nanosecond an element, and a plain copy half of that."""

    def __init__(self):
        self.asked = []

    def decide(self, question):
        (value,) = question.inputs
        self.asked.append(tuple(value.shape))
        seconds = value.numel() * 1e-9
        return Decision("converted", Evidence({"original": seconds / 2, "converted": seconds}, "measured"))


class Silent:
    def decide(self, question):
        return Decision("converted", Evidence(note="not measured"))


def of(function, *inputs, oracle=None):
    """Nanoseconds, that is elements: whole ones of copies, half of those that a kernel writes anyway."""
    graph = trace(function, *inputs).graph
    found = [node for node in graph.nodes if op_name(node) == "aten.convolution"]
    return round(1e9 * seconds_of_ends(found, oracle or Timed(), "channels_last", channels_last), 3)


ENDS = {
    "one convolution": (lambda x, w, v: F.conv2d(x, w), 648 + 588),
    "with a relu before it": (lambda x, w, v: F.conv2d(x.relu(), w), 648 / 2 + 588),
    "with a relu behind it": (lambda x, w, v: F.conv2d(x, w).relu(), 648 + 588 / 2),
    "two": (lambda x, w, v: F.conv2d(F.conv2d(x, w).relu(), v), 648 + 200),
    "flattened": (lambda x, w, v: F.conv2d(x, w).flatten(1) @ torch.ones(294, 2), 648 + 588),
    "averaged, which reads any order": (lambda x, w, v: F.conv2d(x, w).mean((2, 3)), 648),
    "channels last already": (lambda x, w, v: F.conv2d(x.permute(0, 3, 1, 2), w).permute(0, 2, 3, 1).exp(), 0),
    "one input of two": (lambda x, w, v: F.conv2d(x, w) + F.conv2d(x, -w), 648 + 588 / 2),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends(name):
    function, expected = ENDS[name]
    x = torch.randn(2, 9, 9, 4) if "already" in name else X
    assert of(function, x, W, V) == expected


def test_the_largest_ends_are_measured_and_speak_for_the_others():
    inputs = [torch.randn(2, 4, n, n) for n in (3, 5, 7, 9, 11)]
    oracle = Timed()
    total = of(lambda w, *xs: sum(F.conv2d(x, w).mean((2, 3)) for x in xs), W, *inputs, oracle=oracle)
    assert oracle.asked == [(2, 4, 11, 11), (2, 4, 9, 9), (2, 4, 7, 7)]
    assert total == sum(x.numel() for x in inputs)


def test_nothing_is_added_where_nothing_is_measured():
    assert of(F.conv2d, X, W, oracle=Silent()) == 0
