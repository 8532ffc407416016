"""The strides that eager gives, where torch's own metadata says otherwise.

A compiled program's results lie in memory as the metadata of its graphs has it, and users call `.view` on what eager
gives them. Metadata comes from running operators on fake tensors, for which some operators have Python of their own:

    copysign(x, y), x of sizes [5, 10, 5] in strides (1, 5, 50)       fake: (50, 1, 10)      eager: (1, 5, 50)

So what an operator gives is corrected as soon as it is inferred: all
that follows (derivatives, what is saved for the backward, results) is traced with what eager would have had.

    _ITERATED      what torch's iterator over elements chooses for operands that are broadcast
    _DENSE_ROWS    contiguous
    _IMAGES        channels last where the input is (torch 2.14 says otherwise of group norms)
    _LIKE          as an operand lies
    _transformed   as MKL lays out Fourier transforms (torch 2.11 says otherwise)
    _indexed       by the same iterator, an indexed tensor standing still along the dims of its indices
    _apart         any other that makes memory, where the metadata says that elements share places in it

The iterator is the same on every device; the others are what kernels for CPUs do. Decisions are made with the example
values of symbolic sizes, with no guard added. Left alone: results without example values, unless their elements share
places; views (see `view_strides.py`); results in memory that the caller gives. Not corrected: what AOTAutograd has made
of several operators where eager has one (the gradients of `interpolate`), and strides of dims of size 1 of operators
without a rule.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.compat import OpOverload, tree_leaves
from ...rewrites.reach import overlaps_itself
from ...rewrites.symbolic import hint, known_equal
from .eager_dtypes import of_eagers_dtype
from .view_strides import as_eager_views, viewed

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class ExampleLayout:
    """Sizes and strides of a tensor, example values in place of symbols; of a number among tensors, both are empty."""

    sizes: Numbers
    strides: Numbers


@dataclass(frozen=True)
class Order:
    """Dense in memory, dims from the outermost to the innermost."""

    dims: Numbers


@dataclass(frozen=True)
class Same:
    """The strides of the call's operand of this number, whatever they are."""

    operand: int


Decision = Order | Same | None
"""How a result lies; None where torch's metadata is to be trusted."""
Rule = Callable[[Sequence[ExampleLayout], ExampleLayout], Decision]
"""From the operands of a call, in order, and its result as torch has it."""


def corrected(target: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
    """The result of a call on fake tensors, laid out as eager's would be, and of its dtype.

    Args:
        target: the operator.
        args: its arguments.
        kwargs: those by name.
        result: what torch gave: a fake tensor, or several.
    """
    result = as_eager_views(target, args, of_eagers_dtype(target, args, kwargs, result))
    rule = _rule(target) if isinstance(target, OpOverload) else None
    if rule is _transformed:
        dims, kind = args[1] if len(args) > 1 else kwargs["dim"], f"{target}"
        rule = functools.partial(_transformed, dims=dims, kind=kind) if result.device.type == "cpu" else None
    if rule is not None and _is_as_told(target, args, kwargs):
        return result
    if rule is None and _makes_memory(target) and _shares_places(result):
        rule = _apart
    if rule is None or _stays_in_rows(rule, result, operands := _operands(target, args, kwargs)):
        return result
    layouts = _indexed(*args[:2]) if rule is _as_indexed else [_layout(operand) for operand in operands]
    if None in layouts:
        return result.new_empty(result.shape) if rule is _apart else result

    anywhere = rule is _apart or _is_on_all_devices(target)

    def lay(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        if not anywhere and value.device.type != "cpu":
            return value
        told = _layout(value)
        if told is None or 0 in told.sizes:
            return value
        decision = rule(layouts, told)  # type: ignore[arg-type]
        return value if decision is None else _laid_out(value, told, decision, operands)

    return type(result)(map(lay, result)) if type(result) in (tuple, list) else lay(result)


def _is_as_told(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a rule is not for this call: elements rolled as one row, by no dims; angles of real numbers.

    Nor is one for calls that name a layout.
    """
    name = compat.packet_name(target)
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return True
    if name == "angle":
        return not _operands(target, args, kwargs)[0].is_complex()
    return name == "roll" and not (args[2] if len(args) > 2 else kwargs.get("dims"))


def _shares_places(result: Any) -> bool:
    """Whether elements of a tensor share places in memory."""
    if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        return False
    if _is_contiguous(result):
        return False
    layout = _layout(result)
    return _repeats(result) if layout is None else overlaps_itself(layout.sizes, layout.strides)


def _stays_in_rows(rule: Rule, result: Any, operands: Sequence[Any]) -> bool:
    """Whether operands and result are contiguous, of one shape, as most are, and the rule says the same."""
    if rule not in (iterated, _contiguous) and getattr(rule, "func", None) not in (_like, _iterated_in):
        return False
    tensors = [x for x in (result, *operands) if isinstance(x, torch.Tensor)]
    if not isinstance(result, torch.Tensor) or any(x.layout != torch.strided for x in tensors):
        return False
    return all(_is_contiguous(x) and x.shape == result.shape for x in tensors)  # sizes are compared if known


def _is_contiguous(x: torch.Tensor) -> bool:
    """Whether a tensor of known sizes is contiguous, as most are."""
    end: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if type(size) is not int or type(stride) is not int or stride != end:
            return False
        end *= size
    return True


def _repeats(result: torch.Tensor) -> bool:
    """Whether a dim of a tensor of data-dependent sizes has stride 0, and may have several elements."""
    dims = zip(result.shape, result.stride(), strict=True)
    return any(known_equal(stride, 0) and not known_equal(size, 1) for size, stride in dims)


@functools.cache
def _makes_memory(target: Any) -> bool:
    """Whether an operator of torch's gives memory of its own, in which no two elements share a place."""
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims") or "view" in str(target):
        return False
    return all(told.alias_info is None for told in compat.schema(target).returns)


def _operands(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors among the arguments, and the numbers that an operator makes tensors of."""
    found: list[Any] = []
    for position, (name, wraps) in enumerate(_arguments(target)):
        value = args[position] if position < len(args) else kwargs.get(name)
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        found += tensors or ([value] if wraps and value is not None else [])
    return found


@functools.cache
def _arguments(target: OpOverload) -> tuple[tuple[str, bool], ...]:
    """The arguments of an operator, each with whether a number given for it becomes a tensor."""
    return tuple(
        (a.name, "Tensor" in str(a.type) or (a.name == "other" and "Scalar" in compat.overload_name(target)))
        for a in compat.schema(target).arguments
    )


def _layout(value: Any) -> ExampleLayout | None:
    if not isinstance(value, torch.Tensor):
        return ExampleLayout((), ())
    if value.layout != torch.strided:
        return None
    sizes, strides = (tuple(map(hint, part)) for part in (value.shape, value.stride()))
    return None if None in (*sizes, *strides) else ExampleLayout(sizes, strides)


def _laid_out(
    value: torch.Tensor, told: ExampleLayout, decision: Order | Same, operands: Sequence[Any]
) -> torch.Tensor:
    """The fake itself where it lies as it should, else another one."""
    if isinstance(decision, Same):
        strides = tuple(operands[decision.operand].stride())
    else:
        strides = _dense(value.shape, decision.dims)
    if tuple(map(hint, strides)) == told.strides:
        return value
    return value.new_empty_strided(value.shape, strides)


def _dense(sizes: Sequence[Any], order: Numbers) -> tuple[Any, ...]:
    """The strides of contiguous memory, dims taken in `order`."""
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * sizes[dim]
    return tuple(strides)


# -- layouts -----------------------------------------------------------------------------------------------------------


def _rows(rank: int) -> Numbers:
    return tuple(range(rank))


def _channels_last(rank: int) -> Numbers:
    return (0, *range(2, rank), 1)


def _lies(layout: ExampleLayout, order: Numbers) -> bool:
    """Whether a tensor is dense, its dims in `order`; strides of dims of size 1 say nothing."""
    told = _dense(layout.sizes, order)
    return all(n == 1 or a == b for n, a, b in zip(layout.sizes, layout.strides, told, strict=True))


def _is_dense(layout: ExampleLayout) -> bool:
    order = sorted(range(len(layout.sizes)), key=lambda d: (layout.sizes[d] > 1, -layout.strides[d]))
    return _lies(layout, tuple(order))


def _prefers_channels_last(layout: ExampleLayout) -> bool:
    """Whether kernels that ask for the layout of an image take this one for channels last."""
    rank = len(layout.sizes)
    if rank not in (4, 5) or layout.strides[1] == 0:
        return False
    least = 0
    for d in reversed(_channels_last(rank)):
        if layout.strides[d] < least or (d == 0 and least == layout.strides[1]):
            return False
        least = layout.strides[d] * max(layout.sizes[d], 1)
    return True


# -- the iterator over elements ----------------------------------------------------------------------------------------


def iterated(operands: Sequence[ExampleLayout], result: ExampleLayout) -> Decision:
    """The strides that torch's iterator over elements (`TensorIteratorBase`) gives a result of broadcast operands.

    Dims go from the smallest stride to the largest, the first operand with an opinion deciding on each pair.
    """
    sizes = result.sizes
    if not operands or not all(_fits(o.sizes, sizes) for o in operands):
        return None
    if all(o.sizes == sizes for o in operands):
        if all(_lies(o, _rows(len(sizes))) for o in operands):
            return Order(_rows(len(sizes)))
        if len(sizes) == 4 and all(_lies(o, _channels_last(4)) for o in operands):
            return Order(_channels_last(4))
        if all(_is_dense(o) and o.strides == operands[0].strides for o in operands):
            return Same(0)
    spread = [_spread(o, sizes) for o in operands]
    inner_first = list(reversed(range(len(sizes))))
    for k in range(1, len(sizes)):
        moved = k
        for j in reversed(range(k)):
            swap = _compared(spread, sizes, inner_first[j], inner_first[moved])
            if swap > 0:
                inner_first[j], inner_first[moved] = inner_first[moved], inner_first[j]
                moved = j
            elif swap < 0:
                break
    return Order(tuple(reversed(inner_first)))


def _fits(sizes: Numbers, into: Numbers) -> bool:
    if len(sizes) > len(into):
        return False
    return all(n in (1, m) for n, m in zip(sizes, into[len(into) - len(sizes) :], strict=True))


def _spread(operand: ExampleLayout, sizes: Numbers) -> Numbers:
    """The strides of an operand that is broadcast to `sizes`."""
    missing = len(sizes) - len(operand.sizes)
    own = zip(operand.sizes, operand.strides, sizes[missing:], strict=True)
    return (*[0] * missing, *(0 if n == 1 and m != 1 else stride for n, stride, m in own))


def _compared(operands: Sequence[Numbers], sizes: Numbers, inner: int, outer: int) -> int:
    """1: the dims must change places; -1: they must not; 0: no operand says."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if a == 0 or b == 0:
            continue
        if a != b:
            return 1 if a > b else -1
        if sizes[inner] > sizes[outer]:
            return 1
    return 0


def _indexed(x: torch.Tensor, indices: Sequence[Any]) -> list[ExampleLayout | None]:
    """What the iterator has for ``x[indices]``: `x`, which does not move along the dims of the indices, and these."""
    given = [(d, _layout(index)) for d, index in enumerate(indices) if index is not None]
    own = _layout(x)
    masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
    if own is None or masks or any(layout is None for _, layout in given):
        return [None]
    dims, found = [d for d, _ in given], [layout for _, layout in given if layout is not None]
    sizes = torch.broadcast_shapes(*(layout.sizes for layout in found))
    before = [d for d in range(dims[0]) if dims[-1] - dims[0] + 1 == len(dims)]  # else those of the indices come first
    after = [d for d in range(len(own.sizes)) if d not in (*dims, *before)]
    moves = [(own.sizes[d], own.strides[d]) for d in (*before, *after)]
    moves[len(before) : len(before)] = [(n, 0) for n in sizes]
    still = ExampleLayout(
        tuple(n for n, _ in moves), tuple(stride for _, stride in moves)
    )  # of no dims where one number is picked
    shape = (*[1] * len(before), *sizes, *[1] * len(after))
    return [still, *(ExampleLayout(shape, _reshaped(layout, sizes, shape)) for layout in found)]


def _reshaped(layout: ExampleLayout, sizes: Numbers, shape: Numbers) -> Numbers:
    """The strides of an index that is broadcast to `sizes` and reshaped: torch's own choice for dims of size 1."""
    return viewed(sizes, _spread(layout, sizes), shape) or _dense(shape, _rows(len(shape)))


# -- operators ---------------------------------------------------------------------------------------------------------


def _iterated_in(operands: Sequence[ExampleLayout], result: ExampleLayout, order: Numbers) -> Decision:
    """The same, the operands taken in another order than the call has them."""
    decision = iterated([operands[k] for k in order], result)
    return Same(order[decision.operand]) if isinstance(decision, Same) else decision


def _like(operands: Sequence[ExampleLayout], result: ExampleLayout, of: int) -> Decision:
    """The layout of operand `of`, which the kernel makes its result like; of another size, the iterator's."""
    if operands[of].sizes != result.sizes:
        return iterated(operands, result)
    return Same(of) if _is_dense(operands[of]) else iterated([operands[of]], result)


def _apart(operands: Sequence[ExampleLayout], result: ExampleLayout) -> Decision:
    """The layout of a copy of the first operand, whose elements share places: new memory has no place twice."""
    if not operands or operands[0].sizes != result.sizes:
        return Order(_rows(len(result.sizes)))
    return iterated(operands[:1], result)


def _as_indexed(operands: Sequence[ExampleLayout], result: ExampleLayout) -> Decision:
    """The iterator's layout for the operands that `_indexed` gives."""
    decision = iterated(operands, result)
    if not isinstance(decision, Same):
        return decision
    return Order(tuple(sorted(range(len(result.sizes)), key=lambda d: -operands[0].strides[d])))


def _transformed(
    operands: Sequence[ExampleLayout], _: ExampleLayout, dims: Sequence[int] = (), kind: str = ""
) -> Decision:
    """The layout of MKL's transforms along dims: the other dims come first, each by its stride, that of reals last."""
    if not torch.backends.mkl.is_available() or not dims:
        return None
    x, last = operands[0], list(dims[-1:])
    if "fft_c2c" in kind:
        return Order(_transform_order(x.strides, dims, []))
    if "fft_r2c" in kind or len(dims) == 1:
        return Order(_transform_order(x.strides, dims[:-1], last))
    strides = _dense(x.sizes, _transform_order(x.strides, dims[:-1], []))  # complex numbers first, then those of reals
    return Order(_transform_order(strides, [], last))


def _transform_order(strides: Numbers, dims: Sequence[int], last: Sequence[int]) -> Numbers:
    """The order of dims for a transform along `dims`, each by its stride, and along `last`."""
    others = list(range(len(strides)))  # in the order that `std::partition` gives them, which decides between equals
    begin, end = 0, len(others)
    while begin < end:
        if others[begin] not in (*dims, *last):
            begin += 1
        else:
            end -= 1
            others[begin], others[end] = others[end], others[begin]
    groups = others[:begin], list(dims)
    return (*(d for group in groups for d in sorted(group, key=lambda d: -strides[d])), *last)


def _contiguous(_: Sequence[ExampleLayout], result: ExampleLayout) -> Decision:
    return Order(_rows(len(result.sizes)))


def _scaled_by_powers(operands: Sequence[ExampleLayout], result: ExampleLayout) -> Decision:
    """The layout of a product with powers of two, which are contiguous whatever the exponents are."""
    x, exponents = operands
    rows = tuple(math.prod(exponents.sizes[d + 1 :]) for d in range(len(exponents.sizes)))
    decision = iterated([x, ExampleLayout(exponents.sizes, rows)], result)
    return Order(_rows(len(result.sizes))) if decision == Same(1) else decision


def _image(operands: Sequence[ExampleLayout], result: ExampleLayout, of: int) -> Decision:
    """Channels last or contiguous, as operand `of` is; what is no image is contiguous."""
    rank = len(result.sizes)
    last = len(operands[of].sizes) == rank and _prefers_channels_last(operands[of])
    return Order(_channels_last(rank) if last else _rows(rank))


# Operators whose metadata torch has in Python, and what the kernel in C++ does instead.
_ITERATED = (  # all operands in one iterator
    "add.Tensor sub.Tensor mul div.Tensor neg special_xlog1py lcm "
    "copysign.Tensor div.Tensor_mode floor_divide heaviside logaddexp logaddexp2 logical_and logical_or logical_xor "
    "logical_not xlogy.Tensor hardswish_backward hardtanh_backward logit_backward native_dropout_backward "
    "softplus_backward hardsigmoid_backward elu_backward mse_loss smooth_l1_loss"
)
_ITERATED_OF_ONE = (  # the same; torch has these right but for dims of size 1
    "exp exp2 expm1 relu gelu silu abs gt lt ge le eq ne clamp clamp_min clamp_max pow.Tensor_Scalar "
    "pow.Tensor_Tensor sqrt rsqrt floor ceil trunc round sign sgn isnan isposinf isneginf signbit sigmoid tanh sin cos "
    "tan asin acos atan sinh cosh asinh acosh atanh log log2 log10 log1p erf erfc erfinv lgamma digamma frac "
    "leaky_relu elu softplus hardswish hardsigmoid mish hardshrink softshrink addcmul addcdiv lerp maximum minimum "
    "fmax fmin fmod remainder threshold bitwise_and bitwise_or bitwise_xor bitwise_not atan2 hypot rsub reciprocal "
    "nextafter logit sinc"
)
_ITERATED_IN = {  # the same, in another order than the call has them
    (1, 0): "leaky_relu_backward threshold_backward",
    (1, 2, 0): "_prelu_kernel_backward",
}
_DENSE_ROWS = (  # memory that is made contiguous, whatever the input's
    "_log_softmax_backward_data _softmax_backward_data glu_backward huber_loss_backward log_sigmoid_forward "
    "mse_loss_backward rrelu_with_noise native_layer_norm_backward nll_loss2d_forward normal.Tensor_Tensor poisson "
    "im2col pow.Scalar "
    "smooth_l1_loss_backward masked_fill tril triu index_add _log_softmax native_layer_norm renorm"
)
_DENSE_ROWS_ANYWHERE = "all.dims angle any.dims isin one_hot rrelu"  # of complex numbers `angle` is made on the way
_IMAGES = (  # the input's layout of images is kept
    "channel_shuffle max_unpool2d reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d "
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training native_group_norm roll"
)
_SECOND_IMAGES = (  # of a gradient and an input, that of the input is
    "reflection_pad2d_backward reflection_pad3d_backward replication_pad2d_backward replication_pad3d_backward "
    "native_batch_norm_backward native_group_norm_backward"
)
_LIKE_ANYWHERE = (
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like _to_copy flip hardtanh index_put "
    "nan_to_num index_fill"
)
_LIKE = {  # memory like an operand's
    0: f"huber_loss log_sigmoid_backward soft_margin_loss _prelu_kernel sort {_LIKE_ANYWHERE}",
    1: "binary_cross_entropy_backward",
    2: "soft_margin_loss_backward",
}
_NAMES: dict[Rule, str] = {
    iterated: f"{_ITERATED} {_ITERATED_OF_ONE}",
    **{functools.partial(_iterated_in, order=order): names for order, names in _ITERATED_IN.items()},
    _contiguous: f"{_DENSE_ROWS} {_DENSE_ROWS_ANYWHERE}",
    _scaled_by_powers: "ldexp",
    _as_indexed: "index.Tensor",
    _transformed: "_fft_c2c _fft_r2c _fft_c2r",
    functools.partial(_image, of=0): _IMAGES,
    functools.partial(_image, of=1): _SECOND_IMAGES,
    **{functools.partial(_like, of=k): names for k, names in _LIKE.items()},
}
RULES: dict[str, Rule] = {f"aten.{name}": rule for rule, names in _NAMES.items() for name in names.split()}
RULES |= dict.fromkeys(("prims.fft_c2c", "prims.fft_r2c", "prims.fft_c2r"), _transformed)
_ON_ALL_DEVICES = frozenset(
    f"aten.{name}"
    for names in (
        *(_ITERATED, _ITERATED_OF_ONE, _DENSE_ROWS_ANYWHERE, _LIKE_ANYWHERE, "index.Tensor"),
        *_ITERATED_IN.values(),
    )
    for name in names.split()
)


@functools.cache
def _rule(target: OpOverload) -> Rule | None:
    """The rule of an operator; None if torch's metadata is right."""
    return RULES.get(f"{target}") or RULES.get(f"{target}".rsplit(".", 1)[0])


@functools.cache
def _is_on_all_devices(target: OpOverload) -> bool:
    """Whether the rule of an operator holds on GPUs as well."""
    return not _ON_ALL_DEVICES.isdisjoint((f"{target}", f"{target}".rsplit(".", 1)[0]))
