"""Freezing: for inference, weights are known while compiling, and what follows from them alone is computed once.

    (the rules)    conv -> batch norm, linears of one input, linear, convolution
                                               ->  one call on weights of another value, size or layout
    fold           calls on weights alone      ->  constants of the program
    guard          weights change afterwards   ->  constants are computed anew

`Freezer` does it for one compilation.
"""

from .fold import Folded
from .freezer import Freezer
from .weights import refuse_training

__all__ = ["Folded", "Freezer", "refuse_training"]
