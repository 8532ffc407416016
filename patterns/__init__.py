"""The pattern library. Importing it enables nothing: `default_rules` is the explicit, ordered list."""

from __future__ import annotations

from ..rewrites.ruleset import RuleSet


def default_rules() -> RuleSet:
    """The rules that run unless `options={"rules": ...}` says otherwise, in the order in which they are tried."""
    from .activations import gelu_tanh
    from .attention import sdpa
    from .convolution import convolution
    from .linear import linear

    return RuleSet([sdpa, gelu_tanh, linear, convolution])
