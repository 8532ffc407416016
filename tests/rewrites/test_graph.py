"""Names of operators, as reports and rules say them."""

from __future__ import annotations

import operator

import torch

from regraft.rewrites.graph import packet_name


def test_names():
    assert packet_name(torch.ops.aten.add.Tensor) == "aten.add" and packet_name(operator.getitem) == "getitem"
    assert packet_name(torch.relu) == "relu"


def test_a_name_does_not_need_the_text_of_its_target():
    """The text of a kernel names a value as often as it is read: its length doubles with each step of a chain."""

    class Kernel:
        __name__ = "k0"

        def __str__(self):
            raise AssertionError

    assert packet_name(Kernel()) == "k0"
