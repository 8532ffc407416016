"""Names of operators, as reports and rules say them."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from regraft.rewrites.graph import packet_name
from regraft.rewrites.purity import checks_values

aten = torch.ops.aten


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


class Called(TorchDispatchMode):
    """The operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[Any] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.targets.add(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "name", ["inverse", "matrix_power", *(f"linalg_{n}" for n in dir(torch.linalg) if hasattr(aten, f"linalg_{n}"))]
)
def test_factorizations_that_raise_are_known(name):
    x = torch.eye(4) * 3 + torch.ones(4, 4)
    packet = getattr(aten, name)
    with Called() as called:
        for args in ((x,), (x, x), (x, x[0]), (x, -1), (x.view(2, 2, 2, 2),)):
            with contextlib.suppress(Exception):
                packet(*args)
    raises = aten._linalg_check_errors.default in called.targets
    assert checks_values(fx.Graph().call_function(packet.default)) == raises
