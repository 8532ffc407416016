"""What goes wrong ahead of time, said to the user."""

from __future__ import annotations


class AotError(RuntimeError):
    """A program cannot be compiled ahead of time, or an artifact cannot be loaded; the message says why."""
