"""Finds calls that eager may refuse, or that AOTAutograd traces differently: the program then runs as written.

    x[:, :1].expand(4, 6).add_(1)       several elements of the written tensor have the same address
    x[:, :1].expand(4, 6)[:, 0].add_(1)     the same of a tensor that it is a view of: AOTAutograd adds what has changed
    x.unfold(0, 2, 2).add_(1)           of an odd number of elements: AOTAutograd clears the last one
    x.unsafe_chunk(2)[0].add_(1)        a part of `x` that is no view: AOTAutograd does not write to `x`
    x[1:].copy_(x[:-1])                 the tensor that is read is the written one, shifted
    x.sub_(x[:, :1])                    likewise, which eager takes: what it reads may have been written before
    interpolate(x, scale_factor=0.1)    the resulting image is empty, or `x` is
    one_hot(x.int(), 4)                 eager takes int64 only
    x.long().mul_(2.5)                  the result does not fit the tensor (`fitting_writes`)
    sort(x, out=(y, i)), y in float64   likewise
    cross(x, y, out=x)                  the operator reads what it has written over
    rnn_tanh(..., dropout=0.5)          torch's decomposition of recurrent layers has no dropout between them
    x.add_(1), x of inference mode      outside of it
    y = x * w; w.data = z               the backward reads `w`, which lies in other memory by then
    nansum(x, dim=())                   the sum of all, of which metadata says that it is as large as `x`
    unique(x, dim=-1)                   lies along `dim`, and metadata may even have other dims than the result
    where(mask, half, -1e9)             on GPUs, a number that the dtype does not hold
    hardshrink(x.long())                tracing makes it of operators that take integers
    channel_shuffle(x.mT, 2)            on GPUs, of strides in which its channels cannot be split
    pad(x, (-3, 3)), x of two columns   and others of `refused_sizes`; nobody reads the result, which tracing makes
    put_(i, y)                          deterministic algorithms are asked for
    fused_moving_avg_obs_fake_quant     an empty state is resized to the number of channels, which tracing ignores

AOTAutograd makes such writes functional, and turns resampling into indexing. Eager's operators differ in the writes
that they refuse. The sizes of the first call are examined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.memory import storage_key
from ...rewrites.functional import written_outs
from ...rewrites.graph import arguments, nodes_in, op_name, val
from ...rewrites.purity import storages, written
from ...rewrites.reason import Reason
from ...rewrites.symbolic import hint, known_equal
from ..lowering.element_numbers import fits, unheld
from ..lowering.refused import refused
from .fitting_writes import misfit, misfit_of_out
from .given_again import can_be_split
from .refused_sizes import leaves_nothing, refused_sizes

_NO_USES = ("aten.set_", "_get_data_attr", "aten.view_as", "aten.expand_as", "aten.reshape_as", "aten.sym_size")
_SPELLED_OUT = ("aten.multilabel_margin_loss", "aten.max_pool1d")
_IN_NO_ORDER = ("aten.put", "aten.put_", "aten.max_unpool2d", "aten.max_unpool3d")  # also on CPUs
_DISTINCT = ("aten.unique_dim", "aten.unique_consecutive", "aten.unique_dim_consecutive")
_UNSAFE = ("aten.unsafe_chunk", "aten.unsafe_split", "aten.unsafe_split_with_sizes")
_MOST_LOOKED_AT = 1 << 26  # elements of memory that are looked at for places in common
_Place = tuple[int, list[int], list[int], int]  # offset, sizes, strides, bytes of an element


def eager_may_refuse(graph: fx.Graph) -> Reason | None:
    """The reason for the first call of a captured graph that eager may refuse; None if there is none."""
    parts = {memory for node in graph.nodes if op_name(node) in _UNSAFE for memory in storages(node)}
    for node in graph.nodes:
        if not isinstance(node.target, compat.OpOverload):
            continue
        reason = _of_call(node) or _of_dims(node) or _chosen_beyond(node) or _split_early(node)
        if reason is not None:
            return Reason(*reason, (node,))
        for target in written(node):
            culprit = _culprit(node, target)
            if culprit is None and not parts.isdisjoint(storages(target)):
                culprit = "whose memory has parts that are no views"
            if culprit is not None:
                message = f"{node.name} writes to {target.name}, {culprit}; the program runs as it was written"
                return Reason("overlapping-write", message, (node,))
    return None


def _of_call(node: fx.Node) -> tuple[str, str] | None:
    """The code and message of a call that eager runs differently from its trace."""
    name = op_name(node)
    if leaves_nothing(node):
        return "resampled-to-nothing", f"{node.name} leaves nothing of an image, or makes one of nothing"
    if name == "aten.one_hot" and node.args[0].meta["val"].dtype != torch.int64:
        return "one-hot-of-other-integers", f"{node.name} is of integers that are no int64"
    wrong = misfit(node) or misfit_of_out(node)
    if wrong is not None:
        return "result-of-another-type", f"{node.name} writes {wrong}"
    if name == "aten.channel_shuffle" and not can_be_split(val(node.args[0]), node.args[1]):
        return "shuffle-of-strides", f"{node.name} shuffles channels that cannot be split where they lie"
    if name in _IN_NO_ORDER and torch.are_deterministic_algorithms_enabled() and not _given(node, "accumulate"):
        return "not-deterministic", f"{node.name} stores to one place in no fixed order, or may"
    if _given(node, "dropout") and _given(node, "train"):  # a recurrent network
        return "dropout-between-layers", f"{node.name} drops values between its layers"
    if _given(node, "per_row_fake_quant") and _is_empty(_given(node, "running_min")):  # an observer
        return "state-without-size", f"{node.name} gives its empty state the size of the channels"
    return None


def _of_dims(node: fx.Node) -> tuple[str, str] | None:
    """The code and message of a call over dims of whose result metadata has other sizes, or other strides."""
    if op_name(node) in _DISTINCT and _given(node, "dim") not in (None, 0):
        return "unique-along-a-dim", f"{node.name} finds what is distinct along a dim that is not the first"
    dims = _given(node, "dim") if op_name(node) in ("aten.nansum", "aten.nanmean") else None
    if not isinstance(dims, (list, tuple)) or dims:
        return None
    return "sum-over-no-dims", f"{node.name} is over an empty list of dims"


def _chosen_beyond(node: fx.Node) -> tuple[str, str] | None:
    """The code and message of a choice of a number that the dtype does not hold, which GPUs fill a tensor with."""
    made = val(node)
    if op_name(node) != "aten.where" or not isinstance(made, torch.Tensor) or made.device.type != "cuda":
        return None
    numbers = [hint(val(operand)) for operand in node.args[1:] if not isinstance(val(operand), torch.Tensor)]
    if all(type(n) not in (int, float) or fits(n, made.dtype) for n in numbers):
        return None
    return "refused-by-eager", f"{node.name} chooses a number that is no {made.dtype}"


def _split_early(node: fx.Node) -> tuple[str, str] | None:
    """The code and message of a call that eager refuses and tracing does not, or that it makes of other calls."""
    early = compat.is_split_by_autograd(node.target) or op_name(node) in _SPELLED_OUT or not node.users
    refusal = refused(node) or unheld(node) if early else None
    refusal = refusal or refused_sizes(node)
    return None if refusal is None else ("refused-by-eager", f"{node.name}: {refusal}")


def written_of_inference(graph: fx.Graph, inputs: Sequence[Any]) -> Reason | None:
    """The reason for the first write, outside of inference mode, to an input made inside; None if there is none."""
    if torch.is_inference_mode_enabled():
        return None
    pairs = zip(graph.find_nodes(op="placeholder"), inputs, strict=False)
    made = [node for node, value in pairs if isinstance(value, torch.Tensor) and value.is_inference()]
    memories = {memory for node in made for memory in storages(node)}
    for node in graph.nodes if memories else ():
        for target in written(node):
            if not memories.isdisjoint(storages(target)):
                message = (
                    f"{node.name} writes to {target.name}, which inference mode has made; the program runs as it was"
                )
                return Reason("written-of-inference", f"{message} written", (node,))
    return None


def moved_after_use(graph: fx.Graph) -> Reason | None:
    """The reason for the first call that gives a tensor other memory after a use of the tensor; None if there is none.

    The backward may read the tensor itself for what was computed before.
    """
    used: set[fx.Node] = set()
    for node in graph.nodes:
        if op_name(node) == "aten.set_" and node.args[0] in used:
            message = f"{node.name} gives {node.args[0].name} other memory, and the backward needs the old one"
            return Reason("moved-after-use", f"{message}; the program runs as it was written", (node,))
        if op_name(node) not in _NO_USES:
            used.update(node.all_input_nodes)
    return None


def _given(node: fx.Node, name: str) -> Any:
    """An argument of an operator; None where it takes none of that name."""
    if not isinstance(node.target, compat.OpOverload):
        return None
    names = [argument.name for argument in compat.schema(node.target).arguments]
    if name not in names:
        return None
    place = names.index(name)
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def _is_empty(node: fx.Node) -> bool:
    """Whether a tensor has no elements."""
    place = _place(node)
    return place is not None and 0 in place[1]


def _culprit(node: fx.Node, target: fx.Node) -> str | None:
    if any(map(_repeats, _views(target))):
        return "of which several elements are one in memory"
    if any(map(_leaves_out, _views(target))):
        return "windows beside which there are other elements"
    place = _place(target)
    if place is None:
        return None
    if target in _read(node):
        return "which it reads"
    for other in node.all_input_nodes:
        if other is target or not _share_memory(other, target):
            continue
        read = _place(other)
        same = read == place and other not in _read(node)
        if _is_partial(read, place) or (read is not None and not same and _overlap(read, place)):
            return f"and reads {other.name}, which is a part of the same memory"
    return None


def _read(node: fx.Node) -> set[fx.Node]:
    """The operands of a call that is given tensors for its results; of none that computes by elements."""
    names = written_outs(node)
    if not names or torch.Tag.pointwise in node.target.tags:  # type: ignore[union-attr]
        return set()
    return {read for name, given in arguments(node).items() if name not in names for read in nodes_in(given)}


def _views(node: Any) -> Iterator[fx.Node]:
    """A tensor, and those that it is a view of."""
    while isinstance(node, fx.Node):
        yield node
        base = node.args[0] if node.op == "call_function" and node.args else None
        node = base if isinstance(base, fx.Node) and _share_memory(base, node) else None


def _repeats(node: fx.Node) -> bool:
    """Whether a dim has stride 0 and may have several elements."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    dims = zip(value.stride(), map(hint, value.shape), strict=True)
    return any(known_equal(stride, 0) and (size is None or size > 1) for stride, size in dims)


def _leaves_out(node: fx.Node) -> bool:
    """Whether a call gives windows of a tensor that do not cover it."""
    if op_name(node) != "aten.unfold":
        return False
    x, dim, window, step = node.args
    size = val(x).shape[dim] if val(x).dim() else 1  # type: ignore[index]
    return not (known_equal(window, step) and known_equal(size % step, 0))  # type: ignore[operator]


def _place(node: fx.Node) -> _Place | None:
    """The place of a tensor in memory; None if it is not strided, or if its place is unknown before a run."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    numbers = [hint(n) for n in (value.storage_offset(), *value.shape, *value.stride())]
    if any(n is None for n in numbers):
        return None
    return numbers[0], numbers[1 : value.dim() + 1], numbers[value.dim() + 1 :], value.itemsize


def _share_memory(a: fx.Node, b: fx.Node) -> bool:
    try:
        return storage_key(a.meta["val"]) == storage_key(b.meta["val"])
    except (AttributeError, NotImplementedError, RuntimeError):  # not a tensor, or a tensor without memory of its own
        return False


def _is_partial(a: _Place | None, b: _Place) -> bool:
    """Whether two dense tensors in one memory overlap without being equal, by the rule of ATen's kernels."""
    if a is None or not (_is_dense(a) and _is_dense(b)):
        return False
    (first, last), (begin, end) = _range(a), _range(b)
    if (first, last) == (begin, end):
        return a[2] != b[2]
    return first < end and begin < last


def _overlap(a: _Place, b: _Place) -> bool:
    """Whether two tensors in one memory have an element in common.

    It is assumed of large ones whose ranges meet, and of elements that are not as large as each other.
    """
    if 0 in a[1] or 0 in b[1]:
        return False
    (first, last), (begin, end) = _range(a), _range(b)
    low, high = min(first, begin) // a[3], max(last, end) // a[3]
    if last <= begin or end <= first or a[3] != b[3] or high - low > _MOST_LOOKED_AT:
        return first < end and begin < last
    with compat.plain_eager():
        taken = torch.zeros(high - low, dtype=torch.bool, device="cpu")
        taken.as_strided(a[1], a[2], a[0] - low).fill_(True)
        return bool(taken.as_strided(b[1], b[2], b[0] - low).any())


def _range(place: _Place) -> tuple[int, int]:
    """The first byte, and the one behind the last."""
    offset, sizes, strides, itemsize = place
    elements = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return offset * itemsize, (offset + elements) * itemsize


def _is_dense(place: _Place) -> bool:
    """Whether a tensor has elements, and they fill its memory from the first to the last, each once."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(*place[1:3], strict=True) if size != 1):
        if size == 0 or stride != expected:
            return False
        expected *= size
    return True
