"""Random draws that respelling moves: the new call stands for the old one, which must not stay beside it.

    meta["draws"]    of a dropout in the mirror: the mirror's original random calls that it stands for
    meta["redrawn"]  True where it draws other numbers than these did, from the same distribution
    meta["moved"]    of a random call that another one stands for: dead, and free to be erased from the mirror
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor

aten = torch.ops.aten


def draws_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """The original random calls that a random call stands for."""
    return node.meta.get("draws", (node,))


def moved_dropout(edit: Editor, dropout: fx.Node, x: Any) -> fx.Node:
    """`dropout` applied to `x` instead, which has the same elements in the same order."""
    new = edit.call(dropout.target, x, *dropout.args[1:], **dropout.kwargs)
    return standing_for(new, dropout, redrawn=False)


def redrawn_dropout(edit: Editor, draw: fx.Node, x: fx.Node, p: float) -> fx.Node:
    """A dropout in place of a hand-written one that drew its numbers by `draw`."""
    new = edit.call(aten.dropout.default, x, p, True)
    return standing_for(new, draw, redrawn=True)


def standing_for(new: fx.Node, old: fx.Node, redrawn: bool) -> fx.Node:
    """Note on both that `new` draws instead of `old`."""
    new.meta["draws"] = draws_of(old)
    if redrawn or old.meta.get("redrawn"):
        new.meta["redrawn"] = True
    old.meta["moved"] = True
    return new
