"""Freezing: for inference, weights are known while compiling, and what follows from them alone is computed once.

    channels_last  convs on NCHW               ->  convs on channels-last, converted at the ends of the network
    convolution_products   conv -> bias, norm   ->  product of matrices, elementwise work apart; on GPUs
    convolution_biases     conv with bias       ->  conv, add; its gradient a sum; on GPUs, also in training
    convolution_channels   conv of 3 channels   ->  of 4, one of zeros; on GPUs
    (the rules)    conv -> batch norm, linears of one input, linear, convolution
                                               ->  one call on weights of another value, size or layout
    fold           calls on weights alone      ->  constants of the program
    tables         calls on constants alone    ->  constants of the program, where small; also without freezing
    uniform        one number everywhere       ->  full(sizes, number); also without freezing
    guard          weights change afterwards   ->  constants are computed anew

`Freezer` does it for one compilation.
"""

from ..passes.channels_last import Spread, spread_channels_last
from ..passes.conv_as_mm import convolutions_as_products, images_as_rows
from ..passes.fold_constant_tables import fold_tables
from ..passes.fold_uniform import fold_uniform
from ..passes.pad_conv_channels import pad_channels
from ..passes.split_conv_bias import split_biases, sum_bias_gradients
from .freezer import Freezer
from .guard import Boxed
from .weights import refuse_training

__all__ = [
    "Boxed", "Freezer", "Spread", "convolutions_as_products", "fold_tables", "fold_uniform", "images_as_rows",
    "pad_channels", "refuse_training", "split_biases", "spread_channels_last", "sum_bias_gradients",
]  # fmt: skip
