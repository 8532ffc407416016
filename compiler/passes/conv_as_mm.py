"""Computes convolutions on a GPU as matrix products, and the pointwise operations that follow on the rows.

    relu(norm(convolution(x, w)))   ->  images(relu(norm(mm(rows(x), w))))  kernel of one element, channels-last

In channels-last images, the channels of each pixel are a row of a matrix. A convolution whose window is one pixel (or,
for few channels, one patch) is a product of that matrix. The norm, the activation and the sum that follow are computed
on rows too, so that the kernel of the product can include them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, nodes_in, op_name, rank, shape, val
from ...rewrites.symbolic import known_equal, same_shape
from ...rewrites.walk import visits_calls

aten = torch.ops.aten

# In single precision, products have other settings than convolutions. In float16, a library may overflow when it adds
# partial products in 16 bits.
_DTYPES = (torch.bfloat16,)
_ALIGNED = 8  # number of channels of a pixel that one load reads
_NORM = "aten._native_batch_norm_legit_no_training"
_GPUS = ("cuda",)
_LONGEST = 16  # calls from a product of bytes to the images that it computes


@visits_calls(aten.convolution.default)
def convolutions_as_matmuls(
    editor: Editor,
    node: fx.Node,
    devices: Collection[str] = _GPUS,
    dtypes: Collection[torch.dtype] = _DTYPES,
    aligned: int = _ALIGNED,
) -> bool:
    """Replace a convolution with a window of one pixel by a matrix product.

    Args:
        editor: of a functional graph.
        node: the convolution.
        devices: the types of devices whose convolutions are replaced.
        dtypes: the dtypes of images.
        aligned: the numbers of input and output channels must be multiples of this.
    """
    if val(node).device.type not in devices or dtype(node) not in dtypes or not _is_plain(node):
        return False
    if _is_product(node, aligned):
        _Images(node, editor).replace(_multiplied)
        return True
    if _is_of_patches(node):
        _Images(node, editor).replace(_multiplied_patches)
        return True
    return False


@visits_calls(aten.permute.default)
def images_as_rows(editor: Editor, node: fx.Node, devices: Collection[str] = _GPUS) -> bool:
    """Move pointwise operations from images to the rows that they view.

    add(permute(view(mm), [0, 3, 1, 2]), x)   ->   permute(view(add(mm, rows(x))), [0, 3, 1, 2])
    """
    if val(node).device.type not in devices or not _turns_rows(node) or _reader(node) is None:
        return False
    _Images(node, editor).replace(_turned)
    return True


@visits_calls(aten.permute.default)
def byte_images_as_rows(editor: Editor, node: fx.Node) -> bool:
    """The same on CPUs, for images that products of bytes compute."""
    if val(node).device.type != "cpu" or not _turns_rows(node) or _reader(node) is None or not _is_of_bytes(node):
        return False
    _Images(node, editor).replace(_turned)
    return True


def _is_of_bytes(node: Any) -> bool:
    """Whether the first operands of calls lead to a product of bytes."""
    for _ in range(_LONGEST):
        if op_name(node) == "aten._int_mm":
            return True
        if not is_tensor(node) or not node.args:
            return False
        node = node.args[0]
    return False


def _turns_rows(node: fx.Node) -> bool:
    """Whether a permutation moves the channels of pixels from the last dim, as in memory, to the second dim."""
    turned = rank(node) in (4, 5) and list(node.args[1]) == _channels_second(rank(node))  # type: ignore[arg-type]
    return turned and _are_as_made(node)


def _is_plain(node: fx.Node) -> bool:
    """Whether a convolution has one group, no padding and no dilation, and reads channels-last images."""
    values = arguments(node)
    if rank(node) not in (4, 5) or values["transposed"] or values["groups"] != 1 or any(values["padding"]):
        return False
    operands = nodes_in([values[n] for n in ("input", "weight", "bias")])
    return _are_as_made(node) and all(dtype(n) == dtype(node) for n in operands)


def _is_product(node: fx.Node, aligned: int) -> bool:
    """Whether a convolution multiplies the channels of each pixel with one matrix."""
    values = arguments(node)
    channels, kernel = shape(values["weight"])[:2], shape(values["weight"])[2:]
    if not all(known_equal(k, 1) for k in (*kernel, *values["stride"])):
        return False
    return are_rows(values["input"]) and all(known_equal(count % aligned, 0) for count in channels)


def _is_of_patches(node: fx.Node) -> bool:
    """Whether a convolution cuts images of few channels into patches that do not overlap, and multiplies each patch.

    A library would have to pad channels that are not aligned; the rows of patches are aligned.
    """
    values = arguments(node)
    _, channels, *kernel = shape(values["weight"])
    space = shape(values["input"])[2:]
    if not all(type(n) is int for n in (channels, *kernel, *space)) or list(values["stride"]) != kernel:
        return False
    if any(d != 1 for d in values["dilation"]) or any(n % k for n, k in zip(space, kernel, strict=True)):
        return False
    return channels % _ALIGNED != 0 and channels * math.prod(kernel) % _ALIGNED == 0


def are_rows(node: fx.Node, *, single: bool = True) -> bool:
    """Whether images lie in memory as the rows of a matrix, one row for each pixel, without gaps.

    Args:
        node: the images.
        single: accept any strides of dims of size 1.
    """
    value, step = val(node), 1
    for dim in reversed(_channels_last(value.dim())):
        size, stride = value.shape[dim], value.stride(dim)
        if not known_equal(stride, step) and not (single and known_equal(size, 1)):
            return False
        step = step * size
    return value.dim() >= 3


def _are_as_made(node: fx.Node) -> bool:
    """Whether images have the strides of those that a product creates."""
    return are_rows(node, single=False)


def _channels_last(dims: int) -> list[int]:
    return [0, *range(2, dims), 1]


def _channels_second(dims: int) -> list[int]:
    return [0, dims - 1, *range(1, dims - 1)]


class _Images:
    """Moves images, and the pointwise operations that follow them, to rows."""

    def __init__(self, node: fx.Node, editor: Editor) -> None:
        self._node, self.editor = node, editor
        self._sizes = shape(node)

    def replace(self, made: Callable[[_Images, fx.Node], fx.Node]) -> None:
        """Let `made` compute the rows, append the operations that follow, and turn the last result into images."""
        images, readers = self._node, list(_chain(self._node))
        with self.editor.at(images):
            rows = made(self, images)
        for reader in readers:
            with self.editor.at(reader):
                rows = self._on_rows(reader, images, rows)
            images = reader
        with self.editor.at(images):
            turned = self._images(rows)
        self.editor.replace(images, turned)
        self.editor.erase_dead(images)

    def rows_of(self, images: Any) -> fx.Node:
        """Images as rows; if they were made from rows, those rows."""
        rows = _made_of(images)
        if rows is not None:
            return rows
        turned = self.editor.call(aten.permute.default, images, _channels_last(rank(images)))
        return self.editor.call(aten.view.default, turned, [-1, shape(images)[1]])

    def _images(self, rows: fx.Node) -> fx.Node:
        batch, channels, *space = self._sizes
        apart = self.editor.call(aten.view.default, rows, [batch, *space, channels])
        return self.editor.call(aten.permute.default, apart, _channels_second(len(self._sizes)))

    def _on_rows(self, reader: fx.Node, images: fx.Node, rows: fx.Node) -> fx.Node:
        """The result of a reader of the images, computed on rows."""
        call = reader.args[0] if op_name(reader) == "getitem" else reader
        operands = {n: rows if n is images else self._operand(n, images) for n in call.all_input_nodes}
        args, kwargs = fx.node.map_arg((call.args, call.kwargs), operands.__getitem__)
        made = self.editor.call(call.target, *args, **kwargs)
        return made if call is reader else self.editor.call(operator.getitem, made, 0)

    def _operand(self, node: fx.Node, images: fx.Node) -> Any:
        if not is_tensor(node) or rank(node) < 2:
            return node
        if same_shape(shape(node), shape(images)):
            return self.rows_of(node)
        return self.editor.call(aten.view.default, node, [-1])  # one number for each channel, or one for all channels


def _multiplied(images: _Images, convolution: fx.Node) -> fx.Node:
    """The rows of a convolution's result, computed by a product."""
    x, weight, bias = convolution.args[:3]
    call, matrix = images.editor.call, weight
    for _ in shape(convolution)[2:]:
        matrix = call(aten.select.int, matrix, -1, 0)
    columns = call(aten.permute.default, matrix, [1, 0])
    if bias is None:
        return call(aten.mm.default, images.rows_of(x), columns)
    return call(aten.addmm.default, bias, images.rows_of(x), columns)


def _multiplied_patches(images: _Images, convolution: fx.Node) -> fx.Node:
    """The rows of a convolution's result, computed by a product whose rows are patches."""
    x, weight, bias = (_as_given(n) for n in convolution.args[:3])
    call, (columns, *kernel) = images.editor.call, [shape(weight)[0], *shape(weight)[2:]]
    batch, channels, *space = shape(x)
    apart = [part for n, k in zip(space, kernel, strict=True) for part in (n // k, k)]
    inside = range(3, 3 + len(apart), 2)
    parts = call(aten.view.default, x, [batch, channels, *apart])
    parts = call(aten.permute.default, parts, [0, *(place - 1 for place in inside), 1, *inside])
    parts = call(aten.clone.default, parts, memory_format=torch.contiguous_format)
    depth = channels * math.prod(kernel)
    rows = call(aten.view.default, parts, [-1, depth])
    if not val(weight).is_contiguous():
        weight = call(aten.clone.default, weight, memory_format=torch.contiguous_format)
    matrix = call(aten.permute.default, call(aten.view.default, weight, [columns, depth]), [1, 0])
    return call(aten.mm.default, rows, matrix) if bias is None else call(aten.addmm.default, bias, rows, matrix)


def _as_given(node: Any) -> Any:
    """The tensor before it was converted to the layout of a convolution."""
    return node.args[0] if op_name(node) == "aten.clone" and "memory_format" in node.kwargs else node


def _turned(images: _Images, permutation: fx.Node) -> fx.Node:
    """The rows that a permutation turns into images."""
    rows = _made_of(permutation)
    if rows is not None:
        return rows
    return images.editor.call(aten.view.default, permutation.args[0], [-1, shape(permutation)[1]])


def _made_of(images: fx.Node) -> fx.Node | None:
    """The rows of which images are a view."""
    if op_name(images) != "aten.permute" or list(images.args[1]) != _channels_second(rank(images)):  # type: ignore[arg-type]
        return None
    apart: Any = images.args[0]
    rows = apart.args[0] if op_name(apart) == "aten.view" else None
    fitting = is_tensor(rows) and rank(rows) == 2 and known_equal(shape(rows)[1], shape(images)[1])
    return rows if fitting else None


def _chain(node: fx.Node) -> Iterator[fx.Node]:
    """The pointwise operations that follow, each the only reader of the one before."""
    while True:
        reader = _reader(node)
        if reader is None:
            return
        yield reader
        node = reader


def _reader(images: fx.Node) -> fx.Node | None:
    """The only reader of images, if it can work on rows as well."""
    if len(images.users) != 1:
        return None
    (reader,) = images.users
    if op_name(reader) == _NORM:
        return _only_result(reader) if reader.args[0] is images else None
    if not is_tensor(reader) or not (torch.Tag.pointwise in getattr(reader.target, "tags", ()) or _converts(reader)):
        return None
    if compat.schema(reader.target).is_mutable or not same_shape(shape(reader), shape(images)):
        return None
    fitting = _are_as_made(reader) and all(_fits(n, images) for n in reader.all_input_nodes)
    return reader if fitting else None


def _converts(node: fx.Node) -> bool:
    """Whether a call only changes the dtype."""
    return op_name(node) == "aten._to_copy" and node.kwargs.keys() == {"dtype"}


def _only_result(norm: fx.Node) -> fx.Node | None:
    """The normalized images, if nothing reads the statistics."""
    (item, *others) = norm.users or (None,)
    if item is None or others or op_name(item) != "getitem" or item.args[1] != 0:
        return None
    return item if _are_as_made(item) else None


def _fits(node: fx.Node, images: fx.Node) -> bool:
    """Whether an operand means the same on rows: images as rows, one number for each channel, or a single number."""
    if not is_tensor(node):
        return True
    if same_shape(shape(node), shape(images)):
        return are_rows(node)
    places = dict(zip(range(rank(images) - 1, -1, -1), reversed(shape(node)), strict=False))
    wide = [place for place, size in places.items() if not known_equal(size, 1)]
    return rank(node) <= rank(images) and (not wide or wide == [1])
