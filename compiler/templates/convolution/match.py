"""Finds convolutions in a graph after autograd, and the pointwise operations on their results.

    %y = aten.convolution(%x, %w, None, [1, 1], [1, 1], ...)      images whose channels lie side by side
    %b = aten.add(%y, %bias);  %r = aten.relu(%b)                 pointwise: the kernel's epilogue

Epilogues are those of products, with channels second instead of last.
"""

from __future__ import annotations

from dataclasses import fields as fields_of
from dataclasses import replace
from math import prod
from typing import Any

from torch import fx

from ....rewrites.compat.memory import convolutions_allow_tf32
from ....rewrites.graph import arguments, nodes_in
from ....rewrites.reason import Reason
from ...ir.program import Buffer
from ...ir.value import Value
from ...lowering.core import Indices, Tensor, contiguous
from ...lowering.positions import raveled, unraveled
from ...lowering.sizes import Unlowered
from ...passes.conv_layout_cost import FEWEST
from ..attention.match import at
from ..common.formula import packet
from ..gemm.description import Matrix, Product
from ..gemm.epilogue import Epilogue
from ..gemm.match import FoundProduct, ProductMatcher, with_largest_epilogue
from ..gemm.operands import Operands, mixture, unfit
from .description import Convolution, Side, sides_of
from .triton_depthwise import MOST_SUMMED, MOST_UNROLLED, Depthwise

CONVOLUTION = "aten.convolution"
_GEOMETRY = ("stride", "padding", "dilation", "output_padding", "groups")
_FEW = 16  # channels that are taken together with a line of the window


def match_convolution(call: fx.Node) -> FoundProduct | Reason | None:
    """The convolution that a call computes with as much of an epilogue as can be, None where it is none."""
    if packet(call) != CONVOLUTION:
        return None
    values = arguments(call)
    if any(nodes_in([values[name] for name in _GEOMETRY])):
        return Reason("symbolic", "the geometry (such as stride or padding) is symbolic", (call,))
    reason = _refusal(call, values)
    if reason is not None:
        return reason
    x, weight = values["input"], values["weight"]
    groups, channels = values["groups"], weight.meta["val"].shape[0]
    if _is_by_lanes(call, values):
        return _match_depthwise(call, Operands(x, weight, values["bias"], _depthwise_sizes(call, weight), (0, 0, 1)))
    images, _, *space = call.meta["val"].shape
    sizes = groups, images * prod(space), channels // groups, prod(weight.meta["val"].shape[1:])
    operands = Operands(x, weight, values["bias"], sizes, _weight_strides(weight, channels // groups))
    return _with_epilogue(_ConvolutionMatcher, call, operands)


def _refusal(call: fx.Node, values: dict[str, Any]) -> Reason | None:
    """Why the template does not compute a convolution."""
    x, weight = values["input"], values["weight"]
    single = _is_by_lanes(call, values)
    by_lanes = single or convolutions_allow_tf32()  # sums of few channels are no work of tensor cores
    for node in (call, x, weight):
        reason = unfit(node, call, by_lanes)
        if reason is not None:
            return reason
    if call.meta["val"].device.type != "cuda":
        return Reason("device", "the template for convolutions is for GPUs", (call,))
    apart = mixture(call, x, weight, values["bias"])
    if apart is not None:
        return apart
    if values["transposed"] or any(values["output_padding"]):
        return Reason("transposed", "a transposed convolution", (call,))
    if call.meta["val"].dim() < 3 or x.meta["val"].dim() != call.meta["val"].dim():
        return Reason("rank", "the images have no batch dim", (call,))
    if values["groups"] > 1 and not single and min(weight.meta["val"].shape[1], _columns(call, values)) < FEWEST:
        return Reason("groups", f"groups have fewer than {FEWEST} channels, too few for tensor cores", (call,))
    if any(node.meta["val"].stride(1) != 1 and node.meta["val"].shape[1] > 1 for node in (x, call)):
        return Reason("layout", "channels do not lie side by side", (call,), "channels last", "channels apart")
    return None


def _is_by_lanes(call: fx.Node, values: dict[str, Any]) -> bool:
    """Whether groups have so few channels that a lane adds them up."""
    few = values["weight"].meta["val"].shape[1] <= MOST_SUMMED
    return (
        values["groups"] > 1 and few and (values["weight"].meta["val"].shape[1] == 1 or _columns(call, values) < FEWEST)
    )


def _columns(call: fx.Node, values: dict[str, Any]) -> int:
    """Channels of the result in a group."""
    return call.meta["val"].shape[1] // values["groups"]


def _weight_strides(weight: fx.Node, columns: int) -> tuple[int, int, int]:
    """Strides between groups, channels of the image, and channels of the result."""
    strides = weight.meta["val"].stride()
    return columns * strides[0], strides[1], strides[0]


class _Epilogue(Epilogue):
    """Values in terms of the convolution's elements."""

    def _added(self, bias: Tensor, indices: Indices) -> Value:
        return bias.at((indices[1],))


class _ConvolutionMatcher(ProductMatcher):
    """Puts a convolution and nodes after it into a description."""

    epilogue = _Epilogue
    columns = 1

    def _indices(self, node: fx.Node) -> tuple[Any, ...]:
        """The indices of channel j of group g at pixel i in images."""
        sizes = tuple(map(int, node.meta["val"].shape))
        if sizes != tuple(self._call.meta["val"].shape):
            raise Unlowered("moved", f"{node.name} is no image like the convolution's result")
        image, *place = unraveled(at(self._row), (sizes[0], *sizes[2:]))
        channel = raveled((at(self._batch), at(self._column)), (self._batch.extent, self._column.extent))
        return (image, channel, *place)

    def _product(self, *fields: Any) -> Product:
        values = arguments(self._call)
        x, weight = (values[name].meta["val"] for name in ("input", "weight"))
        sides = sides_of(x, self._call.meta["val"], weight, values)
        return Convolution(
            *fields, images=x.stride(0), sides=sides, channels=weight.shape[1], merged=_merges(x, values, sides)
        )

    def _left(self) -> Matrix | None:
        val, channels = self._operands.x.meta["val"], self._operands.weight.meta["val"].shape[1]
        buffer = Buffer("<a>", val.dtype, tuple(val.shape), tuple(val.stride()), val.device, "input")
        return Matrix(buffer, channels * val.stride(1), 0, val.stride(1))


class _Depthwise(_ConvolutionMatcher):
    """The same for convolutions of few channels a group."""

    def _product(self, *fields: Any) -> Product:
        whole = super()._product(*fields)
        assert isinstance(whole, Convolution)
        strides = whole.b.buffer.strides[2:]
        sides = tuple(replace(side, weight=stride) for side, stride in zip(whole.sides, strides, strict=True))
        return Depthwise(
            *(getattr(whole, field.name) for field in fields_of(Product)), images=whole.images, sides=sides,
            channels=whole.channels, multiplier=_columns(self._call, arguments(self._call)),
        )  # fmt: skip

    def _left(self) -> Matrix | None:
        return replace(super()._left(), batch=0)  # type: ignore[type-var]

    def _right(self) -> Matrix:
        """The weight with its channels side by side."""
        val = self._operands.weight.meta["val"]
        *window, channel, _ = contiguous((*val.shape[2:], val.shape[1], val.shape[0]))
        buffer = Buffer("<b>", val.dtype, tuple(val.shape), (1, channel, *window), val.device, "input")
        return Matrix(buffer, 0, 0, 1)


def _depthwise_sizes(call: fx.Node, weight: fx.Node) -> tuple[int, int, int, int]:
    images, channels, *space = call.meta["val"].shape
    return 1, images * prod(space), channels, prod(weight.meta["val"].shape[1:])


def _match_depthwise(call: fx.Node, operands: Operands) -> FoundProduct | Reason | None:
    if operands.weight.meta["val"].shape[-1] > MOST_UNROLLED:
        return Reason("window", f"a window of more than {MOST_UNROLLED} columns", (call,))
    return _with_epilogue(_Depthwise, call, operands)


def _with_epilogue(kind: type[_ConvolutionMatcher], call: fx.Node, operands: Operands) -> FoundProduct | Reason | None:
    def described(nodes: tuple[fx.Node, ...], output: fx.Node, kept: bool) -> FoundProduct | Reason:
        return kind(call, operands, nodes, output, kept, packed=False, sides="").run()

    return with_largest_epilogue(call, described)


def _merges(x: Any, values: dict[str, Any], sides: tuple[Side, ...]) -> bool:
    """Whether a line of the window lies in memory as one piece, of channels that are few."""
    channels, line = x.shape[1], sides[-1]
    alone = values["groups"] == 1 and line.window.dilation == 1 and line.window.kernel > 1
    return alone and channels < _FEW and x.stride(1) == 1 and line.image == channels
