"""Strides after a rewrite: a replacement may lay its result out differently, and some users care.

aten.view(x)  with x no longer viewable   ->   aten.reshape(x)
output(x), as_strided(x), ...             ->   the old layout restored by one copy
output(x[:, :2])                          ->   that of x, and the view of it once more: nothing else has such strides
output(x, x[:1])                          ->   the same: both look at one memory
x[:, :2].select_scatter(y, 0, 1)           ->   the view of the old layout: gaps between its rows are kept
x.add_(), or of a view of x               ->   the same, right where x is made: a write must reach every reader
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from . import compat
from .compat.memory import storage_key
from .editor import infer
from .graph import is_tensor, op_name, promised, val
from .purity import is_random
from .symbolic import hint, same_shape

aten = torch.ops.aten

_STRIDE_SENSITIVE = {
    "aten.as_strided", "aten.view_as_real", "aten.view_as_complex", "aten.set_", "aten.as_strided_",
    "aten.as_strided_scatter",
    "aten._reshape_alias",
    "aten.stride", "aten.is_contiguous", "aten.storage_offset",
}  # fmt: skip


_GAPS_KEPT = {"aten.select_scatter", "aten.slice_scatter", "aten.diagonal_scatter"}  # of the tensor that is copied
_RESTORED = "regraft_restored"  # metadata of an `as_strided` of ours, whose strides hang on its source's layout of now

ALIGNED = 16  # bytes: where a row of a matrix had better begin for tensor cores, and less so for vector units


def missing(elements: Any, itemsize: int, bytes_: int = ALIGNED) -> Any:
    """How many elements to add to a row so that the next begins at a multiple of `bytes_`; 0 where it is `ALIGNED`."""
    return 0 if elements * itemsize % ALIGNED == 0 else -elements % (bytes_ // itemsize)


def same_layout(a: Any, b: Any) -> bool:
    """Whether two fake tensors, or tuples of them, have equal shape, strides and dtype."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same_layout, a, b))
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return True
    return same_shape(a.shape, b.shape) and same_shape(_strides(a), _strides(b)) and a.dtype == b.dtype


def _strides(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.stride()) if value.layout == torch.strided else ()


def adapt_users(graph: fx.Graph, changed: list[fx.Node], *, keep_stream: bool = False) -> None:
    """Re-infer metadata downstream of nodes whose layout changed, until nothing differs.

    Args:
        graph: it is changed in place.
        changed: the nodes.
        keep_stream: random numbers must be eager's own, which fills memory in its order: draws see the old layout.
    """
    dirty = {node for node in changed if not _restored_at_once(graph, node)}
    if not dirty:
        return
    old = _Old(_shared_among(promised(graph.output_node())))
    for node in graph.nodes:
        read = promised(node) if node.op == "output" else node.all_input_nodes
        inputs = [n for n in read if n in dirty]
        if not inputs or node in dirty:
            continue
        if node.meta.get(_RESTORED):
            _restore_again(graph, node)
        elif _needs_old_layout(node) or (keep_stream and is_random(node)):
            _give_old_layout(graph, node, inputs, old)
        else:
            try:
                _look_again(graph, node, inputs, old, dirty)
            except (RuntimeError, ValueError):  # the operator takes no other layout, as `_pdist_forward`
                _give_old_layout(graph, node, inputs, old)


def _give_old_layout(graph: fx.Graph, node: fx.Node, inputs: list[fx.Node], old: _Old) -> None:
    for source in inputs:
        with graph.inserting_before(node):
            node.replace_input_with(source, old.restored(graph, source))


def _restore_again(graph: fx.Graph, node: fx.Node) -> None:
    """Restore a layout from what the source looks like now: the call was made for another one that came before."""
    with graph.inserting_before(node):
        node.replace_all_uses_with(restore_layout(graph, node.all_input_nodes[0], val(node)))


def _look_again(graph: fx.Graph, node: fx.Node, inputs: list[fx.Node], old: _Old, dirty: set[fx.Node]) -> None:
    """Infer a call's metadata again."""
    before = val(node)
    new = _reinfer(node)
    if not same_layout(before, new) or old.is_parted(node, before, inputs):
        node.meta["val"] = new
        node.meta.setdefault("regraft_layout", before)
        if not _restored_at_once(graph, node):
            dirty.add(node)


_KERNELS = (
    "aten._scaled_dot_product",
    "aten._flash_attention",
    "aten._efficient_attention",
    "aten._cudnn_attention",
    "mkldnn.",
)


def is_kernel(node: fx.Node) -> bool:
    """Whether a call trusts its inputs to have the strides that it was chosen for (some kernels do not check)."""
    return op_name(node).startswith(_KERNELS)


def _needs_old_layout(node: fx.Node) -> bool:
    if node.op != "call_function" or op_name(node) in _STRIDE_SENSITIVE or is_kernel(node):
        return True
    if op_name(node) in _GAPS_KEPT and not _is_dense(node.args[0].meta.get("regraft_layout", val(node.args[0]))):
        return True  # there is no other way to such a result
    if node.meta.get("unbacked_bindings"):
        return True  # inferred again, its data-dependent size would be another one
    target = node.target
    if not isinstance(target, compat.OpOverload):
        return isinstance(target, compat.HigherOrderOperator)
    return target.namespace not in ("aten", "prims", "mkldnn") or compat.schema(target).is_mutable


def _reinfer(node: fx.Node) -> Any:
    try:
        return infer(node)
    except (RuntimeError, ValueError):
        if op_name(node) not in ("aten.view", "aten._unsafe_view"):
            raise
        node.target = aten.reshape.default
        return infer(node)


def _restored_at_once(graph: fx.Graph, node: fx.Node) -> bool:
    """Restore the layout of what is written to later, for all of its users."""
    like = node.meta.get("regraft_layout")
    if not isinstance(like, torch.Tensor):  # of several results, each is looked at alone
        return False
    if same_layout(like, val(node)) or not _is_written(node):
        return False
    users = list(node.users)
    with graph.inserting_before(node.next):
        copy = restore_layout(graph, node, like)
    for user in users:
        user.replace_input_with(node, copy)
    return True


def _is_written(node: fx.Node) -> bool:
    """Whether a call writes to the memory of a value, perhaps through views."""
    todo, seen = [node], {node}
    while todo:
        value = todo.pop()
        for user in value.users:
            told = _aliases(user, value)
            if told is None or True in told:
                return True
            if told and user not in seen:
                seen.add(user)
                todo.append(user)
    return False


def _aliases(user: fx.Node, value: fx.Node) -> list[bool] | None:
    """For each argument of a call that is `value` and stays its memory, whether it is written to; None: not known."""
    if user.op == "output":
        return []
    if not isinstance(user.target, compat.OpOverload):
        return [False] if op_name(user) == "getitem" else None
    found = []
    for position, argument in enumerate(compat.schema(user.target).arguments):
        given = user.args[position] if position < len(user.args) else user.kwargs.get(argument.name)
        held = given if isinstance(given, (tuple, list)) else [given]
        if argument.alias_info is not None and any(g is value for g in held):
            found.append(argument.alias_info.is_write)
    return found


def _shared_among(outputs: list[fx.Node]) -> set[int]:
    """Keys of the memory that several results look at: a copy of each would no longer be the same memory."""
    keys = Counter(key for node in dict.fromkeys(outputs) for key in _memory(node))
    return {key for key, count in keys.items() if count > 1}


def _memory(node: fx.Node) -> set[int]:
    """The key of the memory that a value had before its layout changed."""
    like = node.meta.get("regraft_layout", val(node))
    return {storage_key(like)} if isinstance(like, torch.Tensor) and like.layout == torch.strided else set()


@dataclass
class _Old:
    """Values in their old layouts, each made once.

    Attributes:
        shared: memory of which several results are views.
        made: a value's stand-in.
    """

    shared: set[int]
    made: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def restored(self, graph: fx.Graph, source: fx.Node) -> fx.Node:
        """`source` in its old layout, made at the graph's current place."""
        like = source.meta.get("regraft_layout")
        if like is None or (same_layout(like, val(source)) and self._viewed(source, like) is None):
            return source
        if source not in self.made:
            self.made[source] = self._made(graph, source, like)
        return self.made[source]

    def is_parted(self, node: fx.Node, before: Any, changed: list[fx.Node]) -> bool:
        """Whether a view of what has changed would be a copy now, while other results look at that memory."""
        if not isinstance(before, torch.Tensor) or _aliases(node, changed[0]) != [False]:
            return False
        return bool({storage_key(before)} & _memory(changed[0]) & self.shared)

    def _made(self, graph: fx.Graph, source: fx.Node, like: Any) -> fx.Node:
        viewed = self._viewed(source, like)
        if viewed is None:
            return restore_layout(graph, source, like)
        view = graph.node_copy(source, lambda n: self.restored(graph, n) if n is viewed else n)
        view.meta.pop("regraft_layout")
        view.meta["val"] = infer(view)
        return view

    def _viewed(self, node: fx.Node, like: Any) -> fx.Node | None:
        """The value that `node` is a view of, where a copy would not do: its memory is not dense, or is shared."""
        if isinstance(like, torch.Tensor) and _is_dense(like) and not _memory(node) & self.shared:
            return None
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or "regraft_layout" not in source.meta:
            return None
        old = source.meta["regraft_layout"]
        if not isinstance(old, torch.Tensor) and self._viewed(source, old) is None:
            return None  # of the results of `sort`, none is a view; those of `split` are
        return source if _aliases(node, source) == [False] else None


def _is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, its dims in some order."""
    step: Any = 1
    for d in sorted(range(value.dim()), key=lambda d: (hint(value.stride(d)) or 0, hint(value.shape[d]) or 0)):
        if same_shape((value.shape[d],), (1,)):
            continue
        if not same_shape((value.stride(d),), (step,)):
            return False
        step = step * value.shape[d]
    return True


def restore_layout(graph: fx.Graph, source: fx.Node, like: torch.Tensor) -> fx.Node:
    """A copy of `source` in the layout of `like`, inserted at the graph's current place.

    The order of the strides is enough, since what rules replace is dense; entries that share memory go on sharing it
    where their number is known, and lie apart in the order of the dims elsewhere.

        x, like with strides of dims (0, 2, 1)   ->   permute(contiguous(permute(x, [0, 2, 1])), [0, 2, 1])
        x, other strides of dims of one entry    ->   as_strided(x), no copy
        x, like expanded along dim 1 to 4        ->   expand(the same of x[:, :1], [-1, 4, -1])
    """
    strides = [hint(s) or 0 for s in _strides(like)]
    order = _memory_order(strides, [hint(n) for n in like.shape])
    back = [order.index(d) for d in range(like.dim())]
    shared = [d for d, n in enumerate(like.shape) if strides[d] == 0 and isinstance(n, int) and n > 1]
    sizes = [like.shape[d] if d in shared else -1 for d in range(like.dim())]
    steps: list[tuple[Any, tuple[Any, ...]]] = [(aten.slice.Tensor, (d, 0, 1)) for d in shared]
    # Whatever dims of size 1 look like, a tensor may be contiguous: a copy has them as they are among the others.
    known = [n for n in like.shape if isinstance(n, int)]
    thin = 1 in known and len(known) < like.dim()
    dense = aten.clone.default if thin else aten.contiguous.default
    steps += [(aten.permute.default, (order,)), (dense, ()), (aten.permute.default, (back,))]
    steps += [(aten.expand.default, (sizes,))] if shared else []
    if is_tensor(source) and _lies_alike(val(source), like):
        steps = []
    node = source
    for target, args in steps:
        node = _called(graph, source, target, node, *args)
    if not is_tensor(node):
        return source
    if _lies_alike(val(node), like) and not same_layout(val(node), like):
        node = _called(graph, source, aten.as_strided.default, node, list(like.shape), list(like.stride()))
        node.meta[_RESTORED] = True
    return node


def _called(graph: fx.Graph, source: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A call at the graph's current place, with what is known of `source`."""
    dense = {"memory_format": torch.contiguous_format} if target is aten.clone.default else {}
    node = graph.call_function(target, args, dense)
    node.meta = {k: v for k, v in source.meta.items() if k not in ("val", "regraft_layout", _RESTORED)}
    node.meta["val"] = infer(node)
    return node


def _lies_alike(value: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether two tensors have their elements at the same places: the strides of dims of one entry do not matter."""
    known = all(isinstance(number, int) for number in (*value.shape, *like.shape, *like.stride()))
    if not known or value.dtype != like.dtype or value.shape != like.shape:
        return False
    matter = [d for d, n in enumerate(like.shape) if n != 1]
    return same_shape([value.stride(d) for d in matter], [like.stride(d) for d in matter])


def _memory_order(strides: list[int], sizes: Sequence[Any] = ()) -> list[int]:
    """The dims from the outermost to the innermost; one whose entries share memory stands right before those after it.

    A dim of size 1 stands right behind one of the same stride, which is what gives it that.

    strides (96, 0, 8, 1)   ->   dims 0, 1, 2, 3: were it the innermost, rows would have a step of its size.
    """
    place = [step or max(strides[d + 1 :], default=0) for d, step in enumerate(strides)]
    thin = [size == 1 for size in sizes] or [False] * len(strides)
    return sorted(range(len(strides)), key=lambda d: (-place[d], strides[d] != 0, thin[d], d))
