"""What is tested here is tested as users run it, but for two of three rows in short runs."""

from support.light_code import optimized, optimized_in_turns

__all__ = ["optimized", "optimized_in_turns"]
