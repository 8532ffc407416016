"""Python numbers of a call that must be elements of some dtype: eager refuses those that the dtype does not hold.

half.masked_fill(mask, -1e9)         an element of the result
leaky_relu(half, 1e39)               a factor in the dtype in which eager computes
hardshrink(x, k), k changes          held to what is an element by a guard
"""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import torch
from torch import fx

from ...rewrites.compat import plain_eager, schema_arguments
from ...rewrites.symbolic import hint, lies_under_guard

_HALVES = (torch.bfloat16, torch.float16)
_HELD_NUMBERS = "numbers_held"
_UNWRAPPED = "constant_pad_nd.default"  # no other call refuses negative numbers for unsigned integers


def named(text: str) -> dict[str, tuple[str, ...]]:
    """A table of operators with names of their arguments."""
    rows = (line.split(":") for line in text.strip().splitlines())
    return {name.strip(): tuple(names.split()) for name, names in rows}


# Numbers that become elements of the result.
ELEMENTS = named("""
    fill.Scalar: value
    full.default: fill_value
    full_like.default: fill_value
    new_full.default: fill_value
    scalar_tensor.default: s
    masked_fill.Scalar: value
    index_fill.int_Scalar: value
    scatter.value: value
    scatter.value_reduce: value
    constant_pad_nd.default: value
    threshold.default: threshold value
    hardtanh.default: min_val max_val
    linspace.default: start end
    clamp.default: min max
    clamp_min.default: min
    clamp_max.default: max
    add.Tensor: alpha
    sub.Tensor: alpha
    rsub.Tensor: alpha
    index_add.default: alpha
    addcmul.default: value
    _foreach_add.List: alpha
    _foreach_sub.List: alpha
    _foreach_clamp_min.Scalar: scalar
    _foreach_clamp_max.Scalar: scalar
    _foreach_maximum.Scalar: scalar
    _foreach_minimum.Scalar: scalar
    _foreach_pow.Scalar: exponent
    pow.Tensor_Scalar: exponent
    hardshrink.default: lambd
    logit.default: eps
""")
# Numbers of the dtype in which the result is computed.
_FACTORS = named("""
    leaky_relu.default: negative_slope
    elu.default: alpha scale input_scale
    celu.default: alpha
    softplus.default: beta threshold
    addcdiv.default: value
    lerp.Scalar: weight
    _foreach_lerp.Scalar: weight
    _foreach_addcmul.Scalar: value
    _foreach_addcdiv.Scalar: value
""")
# Tensors without dims that are read as a number, which becomes an element of the result.
_READ = named("""
    masked_fill.Tensor: value
    index_fill.int_Tensor: value
""")


def given_by(node: fx.Node) -> dict[str, Any]:
    """A call's arguments by name, with metadata for nodes and defaults for arguments that are not given."""
    arguments = schema_arguments(node.target)
    values = {name: default for name, _, default in arguments}
    values |= dict(zip((name for name, _, _ in arguments), node.args, strict=False)) | dict(node.kwargs)
    return {name: value.meta.get("val") if isinstance(value, fx.Node) else value for name, value in values.items()}


def overload(node: fx.Node) -> str:
    """The name of the overload that a node calls."""
    return str(node.target).removeprefix("aten.")


def hold_numbers(node: fx.Node) -> bool:
    """Whether the symbolic integers of a call are in the range of the result's dtype by a guard."""
    given, made = given_by(node), node.meta.get("val")
    numbers = [given.get(name) for name in ELEMENTS[overload(node)]]
    symbols = [n for n in numbers if isinstance(n, torch.SymInt)]
    limits = _limits(made.dtype) if symbols and isinstance(made, torch.Tensor) else None
    if limits is None or any(isinstance(n, torch.SymFloat) for n in numbers):
        return False
    if not all(lies_under_guard(n, *limits) for n in symbols):
        return False
    node.meta[_HELD_NUMBERS] = True
    return True


def unheld(node: fx.Node) -> str | None:
    """A symbolic float that may be no element of a result of 32 bits; None where a guard holds all of them to that."""
    given, made = given_by(node), node.meta.get("val")
    numbers = [given.get(name) for name in ELEMENTS.get(overload(node), ())]
    if not isinstance(made, torch.Tensor) or made.dtype not in (torch.float32, torch.bfloat16):
        return None
    limits = torch.finfo(made.dtype)
    symbols = [n for n in numbers if isinstance(n, torch.SymFloat) and hint(n) is not None]
    beyond = next((n for n in symbols if not lies_under_guard(n, limits.min, limits.max)), None)
    return None if beyond is None else f"{hint(beyond)} may be no {made.dtype}"


def beyond_elements(node: fx.Node, given: dict[str, Any]) -> str | None:
    """A number that may be no element; None where all are, or are held to be."""
    name, made = overload(node), node.meta.get("val")
    if _HELD_NUMBERS in node.meta:
        return None
    if name in _READ:
        return _read_beyond(given[_READ[name][0]], made)
    tensors = made if isinstance(made, (list, tuple)) else [made]
    dtypes = {x.dtype for x in tensors if isinstance(x, torch.Tensor)}
    if name in _FACTORS:
        dtypes = {torch.float32 if dtype in _HALVES else dtype for dtype in dtypes}
    for argument, dtype in product(ELEMENTS.get(name) or _FACTORS.get(name, ()), dtypes):
        value = given.get(argument)
        if value is None:  # the schema's default, which every dtype holds
            continue
        if not _is_element(value, dtype):
            return f"{value} may be no {dtype}"
        if name == _UNWRAPPED and not dtype.is_signed and not (isinstance(value, (int, float)) and value >= 0):
            return f"{value} may be negative"
    return None


def _read_beyond(value: Any, made: Any) -> str | None:
    """Why a number that a tensor holds may be no element, by its dtype; on GPUs, reading it would wait for them."""
    if not isinstance(value, torch.Tensor) or made.device.type != "cpu" or holds_all(made.dtype, value.dtype):
        return None
    return f"a number of {value.dtype} may be no {made.dtype}"


@functools.lru_cache(256)
def holds_all(dtype: torch.dtype, others: torch.dtype) -> bool:
    """Whether eager converts every finite number of another dtype to an element."""
    if dtype == others or others == torch.bool:
        return True
    if others.is_complex:
        return dtype.is_complex and holds_all(dtype.to_real(), others.to_real())
    limits = torch.finfo(others) if others.is_floating_point else torch.iinfo(others)
    return all(fits(number, dtype) for number in (limits.min, limits.max))


def _is_element(value: Any, dtype: torch.dtype) -> bool:
    """Whether eager is known to convert a number to an element; symbols of which nothing is known may be any number."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return _limits(dtype) is None
    return type(value) not in (int, float) or fits(value, dtype)


@functools.lru_cache(64)
def _limits(dtype: torch.dtype) -> tuple[int, int] | None:
    """The least and the greatest integer that eager converts to a dtype; None if it converts all of 64 bits."""
    if dtype == torch.float16:
        return -int(torch.finfo(dtype).max), int(torch.finfo(dtype).max)
    if dtype.is_floating_point or dtype.is_complex or dtype in (torch.bool, torch.int64):
        return None
    most = torch.iinfo(dtype).max
    return (torch.iinfo(dtype).min or -most), most  # unsigned ones wrap negative numbers


@functools.lru_cache(4096)
def fits(value: float, dtype: torch.dtype) -> bool:
    """Whether eager converts a number to an element of the result."""
    try:
        with plain_eager():
            torch.zeros(2, dtype=dtype, device="cpu").fill_(value)
    except (RuntimeError, OverflowError, NotImplementedError):
        return False
    return True
