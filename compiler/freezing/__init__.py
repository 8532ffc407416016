"""Freezing: for inference, weights are known while compiling, and what follows from them alone is computed once.

    batch_norm     conv -> batch norm          ->  conv, with other weights
    channels_last  convs on NCHW               ->  convs on channels-last, converted at the ends of the network
    (the rules)    linear, convolution         ->  oneDNN calls on weights in its own layout
    fold           calls on weights alone      ->  constants of the program
    guard          weights change afterwards   ->  constants are computed anew

`Freezer` does it for one compilation.
"""

from .channels_last import Spread, spread_channels_last
from .freezer import Freezer
from .guard import Boxed
from .uniform import fold_uniform
from .weights import refuse_training

__all__ = ["Boxed", "Freezer", "Spread", "fold_uniform", "refuse_training", "spread_channels_last"]
