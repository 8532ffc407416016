"""All operators that have a lowering: importing this fills `core.LOWERINGS`."""

from . import regions
from .ops import (
    activations,
    copies,
    creation,
    foreach,
    functions,
    grid_sampling,
    indexing,
    joining,
    losses,
    norms,
    pointwise,
    pooling,
    products,
    random,
    reductions,
    resampling,
    scans,
    scatter,
    softmax,
    sorting,
    topk,
    views,
    weight_norm,
)

MODULES = (
    activations, copies, creation, foreach, functions, grid_sampling, indexing, joining, losses, norms, pointwise,
    pooling, products, random, reductions, regions, resampling, scans, scatter, softmax, sorting, topk, views,
    weight_norm,
)  # fmt: skip
