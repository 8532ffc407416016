"""Random calls that respelling moves: the new call replaces the old one, which must not remain.

meta["draws"]    of a random call in the mirror: the calls of the program whose numbers it draws
meta["redrawn"]  True if it draws other numbers than these calls, from the same distribution
meta["moved"]    of a random call that another one replaces: it is dead, and may be erased from the mirror
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor

aten = torch.ops.aten


def moved_dropout(edit: Editor, dropout: fx.Node, x: Any) -> fx.Node:
    """`dropout` of `x` instead, which has the same elements in the same order."""
    new = edit.call(dropout.target, x, *dropout.args[1:], **dropout.kwargs)
    return standing_for(new, dropout, redrawn=False)


def redrawn_dropout(edit: Editor, draw: fx.Node, x: fx.Node, p: float) -> fx.Node:
    """A dropout in place of a hand-written one, whose numbers come from `draw`."""
    new = edit.call(aten.dropout.default, x, p, True)
    return standing_for(new, draw, redrawn=True)


def standing_for(new: fx.Node, old: fx.Node, redrawn: bool) -> fx.Node:
    """Record on both nodes that `new` draws instead of `old`."""
    new.meta["draws"] = old.meta.get("draws", ())
    if redrawn or old.meta.get("redrawn"):
        new.meta["redrawn"] = True
    old.meta["moved"] = True
    return new
