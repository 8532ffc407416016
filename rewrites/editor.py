"""The one way to change a graph.

An `Editor` inserts calls with inferred metadata and provenance, redirects users, and tells a listener what became
new, so that drivers can revisit it. It refuses changes of shape or dtype: a rewrite that would alter what users see
is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher

from . import compat
from .effects import pass_gradient
from .graph import nodes_in, op_name, val
from .memo import Memo
from .purity import erase_dead, is_pure
from .sizes import SizeTable
from .symbolic import known_equal, same_shape

PROVENANCE = ("stack_trace", "nn_module_stack", "region", "backends", "span", "regraft_rule", "recompute")


class RewriteError(RuntimeError):
    """A rewrite broke an invariant of the graph; names the rule and the nodes."""


class Editor:
    """Edits one graph.

    Args:
        graph: is changed in place.
        sizes: turns symbolic sizes in arguments into nodes; by default a table of the graph's own.
        listener: called with every node that is created or whose inputs change.
        memo: of inferred metadata, for mirrors.
    """

    def __init__(
        self,
        graph: fx.Graph,
        sizes: SizeTable | None = None,
        listener: Callable[[fx.Node], None] | None = None,
        memo: Memo | None = None,
    ) -> None:
        self.graph = graph
        self._sizes = SizeTable(graph) if sizes is None else sizes
        self.edits = 0
        self._listener = listener or (lambda node: None)
        self._memo = memo
        self._here: fx.Node | None = None
        self._rule: str | None = None

    @contextmanager
    def at(self, node: fx.Node, rule: str | None = None) -> Iterator[None]:
        """Insert before `node` and inherit its provenance; `rule` is stamped on what is made, if it is a rewrite."""
        before = self._here, self._rule
        self._here, self._rule = node, rule or node.meta.get("regraft_rule")
        try:
            with self.graph.inserting_before(node):
                yield
        finally:
            self._here, self._rule = before

    @contextmanager
    def at_current(self, source: fx.Node) -> Iterator[None]:
        """Keep the place set by `at`, but take provenance and rule from `source`, a node of a mirror."""
        before = self._here, self._rule
        self._here, self._rule = source, source.meta.get("regraft_rule")
        try:
            yield
        finally:
            self._here, self._rule = before

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Insert `target(*args, **kwargs)` at the place set by `at`, its metadata inferred on fake tensors."""
        if self._here is None:
            raise RewriteError("call() outside of at()")
        node = self.graph.call_function(target, self._sizes.resolve(args), self._sizes.resolve(kwargs))
        self._adopt(node)
        try:
            node.meta["val"] = self._inferred(node)
        except Exception:
            self.graph.erase_node(node)
            raise
        pass_gradient(node)
        self._listener(node)
        return node

    def _inferred(self, node: fx.Node) -> Any:
        if self._memo is None or not node.all_input_nodes:  # without inputs the mode is not known from the key
            return infer(node)
        return self._memo.get(node.target, (node.args, node.kwargs), lambda: infer(node))

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """`node` in a dtype: itself if that is its own."""
        return node if val(node).dtype == dtype else self.call(torch.ops.aten._to_copy.default, node, dtype=dtype)

    def copy(self, node: fx.Node, rename: Callable[[fx.Node], Any]) -> fx.Node:
        """Insert a copy of `node` from another graph, its inputs mapped by `rename`, its metadata kept."""
        new = self.graph.node_copy(node, rename)
        meta = dict(node.meta)
        self._adopt(new)
        new.meta["val"] = meta.get("val")
        pass_gradient(new)
        self._listener(new)
        return new

    def attribute(self, name: str, value: Any) -> fx.Node:
        """Insert a read of the constant tensor that the program holds as attribute `name`."""
        node = self.graph.create_node("get_attr", name)
        self._adopt(node)
        node.meta["val"] = value
        return node

    def _adopt(self, node: fx.Node) -> None:
        assert self._here is not None
        node.meta = {k: self._here.meta[k] for k in PROVENANCE if k in self._here.meta}
        if self._rule is not None:
            node.meta["regraft_rule"] = self._rule
        self.edits += 1

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """Redirect every user of `old` to `new`, which must have its shape and dtype; `old` stays, perhaps dead."""
        require_same_meta(old, new)
        if old is new:
            return
        for user in list(old.users):
            if user is not new:
                user.replace_input_with(old, new)
                self._listener(user)
        self.edits += 1

    def erase_dead(self, start: fx.Node) -> list[fx.Node]:
        """Erase `start` and whatever only it kept alive; returns what was erased.

        Only what is pure, or a random draw that another node stands for now (``meta["moved"]``).
        """
        return erase_dead(self.graph, [start], lambda node: is_pure(node) or "moved" in node.meta)


def hold_constant(graph_module: fx.GraphModule, name: str, value: torch.Tensor, like: fx.Node) -> fx.Node:
    """Let a module hold a tensor, and insert a read of it before `like`, with the metadata of `like`."""
    setattr(graph_module, name, value)
    with graph_module.graph.inserting_before(like):
        constant = graph_module.graph.create_node("get_attr", name)
    constant.meta = dict(like.meta)
    return constant


def infer(node: fx.Node) -> Any:
    """The metadata of a call, by running it on the fake tensors of its inputs."""
    args, kwargs = fx.node.map_arg(node.args, _operand), fx.node.map_arg(node.kwargs, _operand)
    mode = _fake_mode(node)
    with mode, enable_python_dispatcher(), compat.forget_new_symbols(mode):
        turns = torch.Tag.inplace_view in getattr(node.target, "tags", ())
        if turns and node.target is not torch.ops.aten.detach_.default:  # the operand's metadata stays as it is
            args = (torch.ops.aten.alias.default(args[0]), *args[1:])
        known = _WITHOUT_GUARDS[node.target](*args) if node.target in _WITHOUT_GUARDS else None
        return node.target(*args, **kwargs) if known is None else known


def _operand(node: fx.Node) -> Any:
    return compat.of_stored_zeros(val(node))


def _batched_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """What `matmul` of tensors with equal batch dims gives: contiguous; None of others.

    torch's metadata expands and folds them first, and asks about symbolic strides what only a guard would answer.
    """
    plain = type(a) is type(b) and a.layout == b.layout == torch.strided and a.dtype == b.dtype
    if not plain or a.dim() != b.dim() or a.dim() < 3 or a.requires_grad or b.requires_grad:
        return None
    if not same_shape(a.shape[:-2], b.shape[:-2]) or not same_shape(a.shape[-1:], b.shape[-2:-1]):
        return None
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _with_dims_of_one(x: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor | None:
    """What a reshape that only inserts dims of size 1 gives: a view, whatever the strides; None of other reshapes.

    torch's metadata asks first whether dims lie side by side, which is not known of symbolic strides.
    """
    if x.layout != torch.strided or any(known_equal(size, 0) for size in x.shape):
        return None
    at, inserted = 0, []
    for dim, size in enumerate(sizes):
        if at < x.dim() and known_equal(size, x.shape[at]):
            at += 1
        elif type(size) is int and size == 1:
            inserted.append(dim)
        else:
            return None
    if at < x.dim() or (x.dim() and len(sizes) - 1 in inserted and not known_equal(x.stride(-1), 1)):
        return None
    for dim in inserted:
        x = x.unsqueeze(dim)
    return x


_WITHOUT_GUARDS: dict[Any, Callable[..., torch.Tensor | None]] = {
    torch.ops.aten.matmul.default: _batched_product,
    torch.ops.aten.reshape.default: _with_dims_of_one,
}


def _fake_mode(node: fx.Node) -> AbstractContextManager[Any]:
    """The fake mode of a call's inputs, or of the graph's where the call makes a tensor from nothing."""
    for source in chain(nodes_in([node.args, node.kwargs]), node.graph.nodes):
        mode = getattr(val(source), "fake_mode", None)
        if mode is not None:
            return mode
        if source.op == "output":
            break
    return nullcontext()


def require_same_meta(old: fx.Node, new: fx.Node) -> None:
    """Raise `RewriteError` unless both nodes have the same shape, dtype and device."""
    a, b = val(old), val(new)
    if not isinstance(a, torch.Tensor):
        return
    if (
        not isinstance(b, torch.Tensor)
        or not same_shape(a.shape, b.shape)
        or a.dtype != b.dtype
        or a.device != b.device
    ):
        rule = new.meta.get("regraft_rule", "a rewrite")
        what = f"{rule} replaced {op_name(old)} {_meta(a)} by {op_name(new)} {_meta(b)}"
        raise RewriteError(f"{what}: a replacement has the shape, dtype and device of what it replaces")


def _meta(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{value.dtype}{list(value.shape)} on {value.device}"
