"""Errors of compiling ahead of time."""

from __future__ import annotations


class AotError(RuntimeError):
    """A program cannot be compiled ahead of time, or an artifact cannot be loaded; the message says why."""
