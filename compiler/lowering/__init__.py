"""Lowering of ATen graphs to loop programs; see `core` for the idea, `graph.lower` for the way in."""

from .graph import Lowered, lower

__all__ = ["Lowered", "lower"]
