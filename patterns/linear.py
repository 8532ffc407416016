"""Linear layers: the library of torch that computes the product, and its epilogue.

    activation(linear(x, weight, bias))   ->   one oneDNN call with the activation as post-op

    gelu_tanh(linear(x, weight, bias))    ->   one cuBLASLt call, on CUDA devices

A weight that is known at compile time is converted to the layout of oneDNN once.

MKL and oneDNN differ by up to 2.4x for the same product. Which one is faster depends on CPU and shape, and is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, rank, shape, val
from ..rewrites.pattern import choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import hint, known, known_equal, product
from ..rewrites.words import counted
from .packing import dense, only_frozen, packed_linear_weight

ACTIVATION = "activation"  # the tag that names the epilogue
# our name of an activation -> oneDNN's post-op and its algorithm
POST_OPS = {
    "none": ("none", ""),
    "relu": ("relu", ""),
    "sigmoid": ("sigmoid", ""),
    "tanh": ("tanh", ""),
    "silu": ("swish", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "hardswish": ("hardswish", ""),
}
ACTIVATIONS = ("none", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")
_HIDING_NAN = ("relu",)  # activations that turn NaN into a number in oneDNN and cuBLASLt
_DTYPES = (torch.float32, torch.bfloat16)
_CUDA_ACTIVATIONS = ("gelu_tanh", "relu")  # the epilogues of cuBLASLt
_CUDA_DTYPES = (torch.float16, torch.bfloat16)
SMALL = 3 << 19  # multiplications of float32 numbers up to which MKL is as fast, since its calls cost less
SMALL_OPERANDS = 1 << 16  # numbers in the weight, and in input and result, of such a product
NARROW, NARROW_ROWS = 16, 1024  # columns below which MKL is slow, 12 ns a row, and rows up to which it is as fast there
FEW_ROWS = 16  # rows up to which reading the weights limits a product: generated kernels read them faster


def activation(match: Binding, policy: Mapping[str, str]) -> str:
    """The activation in the match."""
    return dict(match.tags)[ACTIVATION]


def onednn(x: Any, weight: Any, bias: Any, *, activation: str) -> torch.Tensor:
    """One oneDNN call on plain weights."""
    post_op, algorithm = POST_OPS[activation]
    return torch.ops.mkldnn._linear_pointwise(x, weight, dense(bias), post_op, [], algorithm)


def onednn_packed(x: Any, weight: Any, bias: Any, *, activation: str) -> torch.Tensor:
    """One oneDNN call on weights in its own layout."""
    rows = list(x.shape[:-1])
    packed = packed_linear_weight(weight, math.prod(rows) if all(type(n) is int for n in rows) else None)
    return onednn(x, packed, bias, activation=activation)


def onednn_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """oneDNN: CPU tensors of a supported dtype, none of them empty."""
    x, weight = match.operands["x"], match.operands["weight"]
    if val(x).device.type != "cpu":
        return Reason("device-unsupported", "oneDNN: it is for CPUs", (x,), "cpu", str(val(x).device))
    if dtype(x) not in _DTYPES:
        return Reason("kernel-unavailable", f"oneDNN: not for {describe(x)}", (x,), "float32 or bfloat16", describe(x))
    if not all(known(s >= 1) for s in (*shape(x), *shape(weight))):
        return Reason("kernel-unavailable", "oneDNN: a size may be zero", (x,))
    if overlaps(weight):
        return Reason("kernel-unavailable", "oneDNN: the weight's entries share places in memory", (weight,))
    if activation(match, policy) in _HIDING_NAN and policy.get("nan", "eager") == "eager":
        return Reason("kernel-unavailable", "oneDNN: its relu turns NaN into 0 (option nan='safe' allows that)", (x,))
    return _too_small(x, weight) if policy.get("profit") == "measured" else None


def _too_small(x: Any, weight: Any) -> Reason | None:
    """The product is left to MKL, whose calls cost less, and its activation to a generated kernel.

    A measurement does not show that: it repeats calls, so that oneDNN's code is in the cache, which costs 8 us more
    than MKL's then and about 14 in a program; and it times eager's activation in place of the generated kernel.
    """
    rows, (columns, depth) = product(shape(x)[:-1]), shape(weight)
    beside = rows * (depth + columns)
    known_sizes = type(beside) is int and type(columns * depth) is int  # symbolic ones may be larger in other calls
    if dtype(x) != torch.float32 or not known_sizes or max(beside, columns * depth) > SMALL_OPERANDS:
        return None
    if columns < NARROW and rows > NARROW_ROWS:
        return None
    work = rows * columns * depth
    if work >= SMALL:
        return None
    message = f"oneDNN: {counted(work, 'multiplication')} take less time than its call"
    return Reason("product-small", message, (x, weight), f"at least {counted(SMALL, 'multiplication')}", describe(x))


def overlaps(weight: Any) -> bool:
    """Whether rows of a matrix may share memory, like windows over a vector."""
    (rows, columns), (row, column) = shape(weight), val(weight).stride()
    apart = row >= columns * column, column >= rows * row, rows == 1, columns == 1
    return not any(map(known, apart))


def onednn_packed_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Whether oneDNN applies, with a weight that is known at compile time."""
    return only_frozen(match.operands["weight"]) or onednn_applies(match, policy)


def cublaslt(x: Any, weight: Any, bias: Any, *, activation: str) -> torch.Tensor:
    """One cuBLASLt call that applies the activation to its accumulators."""
    rows = x.reshape(-1, x.shape[-1])
    y = torch.ops.aten._addmm_activation(bias, rows, weight.t(), use_gelu=activation == "gelu_tanh")
    return y.reshape(*x.shape[:-1], y.shape[-1])


def cublaslt_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """cuBLASLt: half precision on a CUDA device, with a bias."""
    x, name = match.operands["x"], activation(match, policy)
    possible = name in _CUDA_ACTIVATIONS and "bias" in match.operands
    if val(x).device.type != "cuda":
        code = "device-unsupported" if possible else "kernel-unavailable"  # the operator also runs on CPUs, for tests
        return Reason(code, "cuBLASLt: it is for CUDA devices", (x,), "cuda", str(val(x).device))
    if not possible:
        return Reason("kernel-unavailable", f"cuBLASLt: {name} after this product has no fused epilogue", (x,))
    if dtype(x) not in _CUDA_DTYPES:
        return Reason("kernel-unavailable", f"cuBLASLt: not for {describe(x)}", (x,), "half precision", describe(x))
    if not all(known(s >= 1) for s in (*shape(x), *shape(match.operands["weight"]))):
        return Reason("kernel-unavailable", "cuBLASLt: a size may be zero", (x,))
    rows = hint(product(shape(x)[:-1]))
    if rows is not None and rows <= FEW_ROWS:
        message = f"cuBLASLt: {counted(rows, 'row')} wait for the weights, which generated kernels read faster"
        return Reason("rows-few", message, (x,), f"more than {FEW_ROWS} rows", describe(x))
    if name in _HIDING_NAN and policy.get("nan", "eager") == "eager":
        return Reason("kernel-unavailable", "cuBLASLt: its relu turns NaN into 0 (option nan='safe' allows that)", (x,))
    return None


def has_library(x: Any, match: Binding) -> Reason | None:
    """The device is a CPU with oneDNN, or cuBLASLt has the epilogue."""
    device = val(x).device
    if device.type == "cuda" and dict(match.tags)[ACTIVATION] in _CUDA_ACTIVATIONS and "bias" in match.operands:
        return None
    return on_cpu(x)


def on_cpu(x: Any) -> Reason | None:
    """The product is on a CPU, and torch has oneDNN."""
    if val(x).device.type == "cpu" and torch.backends.mkldnn.is_available():
        return None
    return Reason(
        "device-unsupported",
        "libraries other than the default are offered on CPUs only",
        (x,),
        "cpu",
        str(val(x).device),
    )


def matrix_product(x: Any, weight: Any) -> Reason | None:
    """The product is one of rows and a matrix."""
    if rank(x) < 2 or rank(weight) != 2:
        return Reason("rank-too-low", "a linear layer has a matrix as weight and rows as input", (x, weight))
    return None


def one_dtype(x: Any, weight: Any, bias: Any = None) -> Reason | None:
    """Input, weight and bias have the same dtype."""
    if {dtype(t) for t in (x, weight, bias) if t is not None} == {dtype(x)}:
        return None
    return Reason("kernel-unavailable", "oneDNN: input, weight and bias differ in dtype", (x, weight))


def bias_per_column(weight: Any, bias: Any = None) -> Reason | None:
    """A bias has one number for each column: libraries support no other, and zeros are put behind the last one."""
    if bias is None or (rank(bias) == 1 and known_equal(shape(bias)[0], shape(weight)[0])):
        return None
    message = f"{describe(bias)} is broadcast"
    return Reason("bias-broadcasts", message, (bias,), "one number for each column", describe(bias))


_DOUBLE = T("N K", dtype=torch.float64, frozen=True)
_WIDE = T("N", dtype=torch.float64)
_W, _BARE = T("N K", frozen=True), {"bias": "no", ACTIVATION: "none"}
_NEAR_MISSES = [
    Sample(x=T("M K", device="meta"), weight=T("N K", device="meta"), tags=_BARE, refused="device-unsupported"),
    Sample(x=T("K"), weight=_W, tags=_BARE, refused="rank-too-low"),
    Sample(x=T("M K"), weight=_W, bias=T("1 1"), tags=_BARE | {"bias": "yes"}, refused="bias-broadcasts"),
    Sample(x=T("M K", dtype=torch.float64), weight=_DOUBLE, tags=_BARE, refused="kernel-unavailable"),
    Sample(x=T("M K"), weight=_W, bias=_WIDE, tags=_BARE | {"bias": "yes"}, refused="kernel-unavailable"),
    Sample(x=T("0 K"), weight=_W, tags=_BARE, refused="kernel-unavailable"),
    Sample(x=T("M K"), weight=_W, tags=_BARE | {ACTIVATION: "relu"}, refused="kernel-unavailable"),  # for nan="eager"
]


@register_pattern(
    "linear",
    family="product",
    stage="lowered",
    replacement=[
        Candidate("onednn_packed", onednn_packed, onednn_packed_applies),
        Candidate("onednn", onednn, onednn_applies),
        Candidate("cublaslt", cublaslt, cublaslt_applies),
    ],
    samples=[
        Sample(x=T("B S K"), weight=T("N K", frozen=True), bias=T("N"), tags={"bias": "yes", ACTIVATION: name})
        for name in ACTIVATIONS
    ]
    + [Sample(x=T("M K"), weight=_W, tags=_BARE), *_NEAR_MISSES],
    guards=(has_library, matrix_product, one_dtype, bias_per_column),
    derived={"activation": activation},
    numerics=Numerics(slack=4.0),
)
def linear(x: Any, weight: Any, bias: Any) -> Any:
    """activation(x @ weight.T + bias), with bias and activation optional."""
    y = choose("bias", yes=lambda: F.linear(x, weight, bias), no=lambda: F.linear(x, weight))
    return choose(
        ACTIVATION,
        gelu=lambda: F.gelu(y),
        gelu_tanh=lambda: F.gelu(y, approximate="tanh"),
        relu=lambda: torch.relu(y),
        silu=lambda: F.silu(y),
        sigmoid=lambda: torch.sigmoid(y),
        tanh=lambda: torch.tanh(y),
        none=y,
    )
