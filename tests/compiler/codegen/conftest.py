"""What is tested here is tested as users run it."""

from support.light_code import optimized

__all__ = ["optimized"]
