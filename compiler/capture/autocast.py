"""Makes autocast explicit: its casts become nodes, and the graph no longer needs autocast.

    autocast(bf16):  linear(x: f32, w: f32) -> bf16    ->    linear(to(x, bf16), to(w, bf16)) -> bf16

Rules must see the dtypes in which an operator computes. No rule matches a linear that reads float32 and returns
bfloat16 because of a mode, and the replacement would not be cast.

An operator with an autocast policy has a kernel for autocast, which casts the arguments and calls the operator again
with autocast off; running this kernel records the casts. A composite operator (`einsum`, `lstm`, ...) may contain an
operator with a policy. If its parts differ under autocast, the parts are recorded in its place. On CUDA, some operators
do not cast, but are asked for a result in float32 (`linalg_vector_norm`, which `linalg.norm` calls).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from ...rewrites import compat
from ...rewrites.memo import Memo

_CONVERTED = "converted"
SOURCE_META = ("stack_trace", "nn_module_stack")


class ExplicitAutocast(dict):
    """A table of decompositions for the recorder, with a decomposition for every operator while autocast is on.

    Args:
        table: decompositions that apply with and without autocast.
    """

    def __init__(self, table: dict[Any, Callable[..., Any]]) -> None:
        super().__init__(table)
        self._as_is: Any = None
        self._memo = Memo()

    def __contains__(self, target: object) -> bool:
        if not compat.autocast_on():
            return super().__contains__(target)
        if self._as_is is target:
            self._as_is = None
            return False
        return True

    def __getitem__(self, target: Any) -> Callable[..., Any]:
        if super().__contains__(target):
            return super().__getitem__(target)
        return lambda *args, **kwargs: self._call(target, args, kwargs)

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = compat.autocast_kernel(target, _devices(args, kwargs))
        if key is not None:
            return compat.run_kernel(target, key, args, kwargs)
        if compat.is_composite(target) and self._casts_inside(target, args, kwargs):
            return target.decompose(*args, **kwargs)
        self._as_is = target  # The recorder looks up this call again, and records it this time.
        return target(*args, **kwargs)

    def _casts_inside(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """`_casts_inside`, which calls the operator twice, once for each operator and metadata: layers repeat."""
        state = (target, torch.is_grad_enabled(), *enabled_scopes())
        return self._memo.get(state, (args, kwargs), lambda: _casts_inside(target, args, kwargs))


def _devices(args: Any, kwargs: Any) -> list[str]:
    leaves = compat.tree_leaves((args, kwargs))
    return list(dict.fromkeys(leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)))


def _casts_inside(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether autocast inserts a cast inside a composite operator, or asks a part for another dtype."""
    if compat.is_mutable(target):
        return False  # In-place views and the like: a trial run would have effects.
    with compat.not_recorded(), compat.quiet_fakes():
        under = _parts(target, args, kwargs)
        if not any(call[0] is torch.ops.aten._to_copy.default or call[-1] == _CONVERTED for call in under):
            return False
        with compat.autocast_off():
            return _parts(target, args, kwargs) != under


def _parts(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, ...]]:
    with _Log() as log:
        try:
            target(*args, **kwargs)
        except Exception as error:  # Without the casts, dtypes may not be compatible.
            return [(type(error),)]
    return log.calls


class _Log(TorchDispatchMode):
    """Lists the operators below autograd, the dtypes of their results, and whether an operator made one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = _dtypes((args, kwargs)), _dtypes(out)
        self.calls.append((func, *made, *((_CONVERTED,) if given and not set(made) <= set(given) else ())))
        return out


def _dtypes(values: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in compat.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def enabled_scopes() -> list[tuple[Any, ...]]:
    """The devices for which autocast is on, with the arguments that enable it."""
    return [(device, torch.get_autocast_dtype(device), True, None) for device in _enabled_devices()]


def wrap_without_autocast(graph: fx.Graph) -> None:
    """Disable autocast inside a graph that will be traced under autocast.

    linear, ..., output   ->   _enter_autocast(device, enabled=False), linear, ..., _exit_autocast, output
    """
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    if not calls or not _enabled_devices():
        return
    enter, leave = compat.AUTOCAST_SCOPE
    with graph.inserting_before(calls[0]):
        entered = [graph.call_function(enter, (d, dtype, False, cache)) for d, dtype, _, cache in enabled_scopes()]
    with graph.inserting_before(graph.output_node()):
        left = [graph.call_function(leave, (node,)) for node in reversed(entered)]
    for node in (*entered, *left):
        node.meta |= {"val": None} | {k: calls[0].meta[k] for k in SOURCE_META if k in calls[0].meta}


def _enabled_devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    devices = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    return [device for device in devices if torch.is_autocast_enabled(device)]
