"""Everything that a compilation depends on, as one hash: equal keys promise that the same code may run.

What cannot be told apart by its text (closures, operators of users, subclasses, symbolic sizes, big constants) has
no key, and says why: such graphs are compiled anew each time. A tensor that the graph holds counts by its content, but
where the program writes to it, as a step of an optimizer does: no code can depend on that.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.compat import attention, memory
from ....rewrites.compat.dynamo import knows_values
from ....rewrites.graph import nodes_in
from ....rewrites.machine import cpu_model
from ....rewrites.reason import Reason
from ....rewrites.symbolic import SYMBOLIC, hint
from ...codegen.triton.compiler import triton_version
from ...options import Options

MAX_CONSTANT_BYTES = 1 << 20
_ROOT = Path(__file__).resolve().parents[3]
_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NoKeyError(Exception):
    """Raised where something has no text that says all about it."""


def graph_key(gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> str | Reason:
    """The key of compiling `gm` for inputs like these, or why it has none.

    Args:
        gm: Dynamo's graph.
        example_inputs: its inputs.
        options: with rules, not their names, which edited rules keep.
    """
    try:
        if depends_on_values(example_inputs):
            raise _NoKeyError("a guard tells something of an input's value")
        devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor)}
        parts = [*_machine(), *_gpus(devices), *_state(), options.key(), _end(gm), *_module(gm, written_by(gm))]
        parts += [*_inputs(example_inputs), _sharing([*held_by(gm), *example_inputs])]
    except _NoKeyError as missing:
        return Reason("no-key", f"not cached: {missing}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _machine() -> Iterator[str]:
    yield from (source_digest(), str(torch.__version__), platform.python_version(), cpu_model())


def _gpus(devices: Iterable[torch.device]) -> Iterator[str]:
    """The facts that machine code for GPUs depends on."""
    for device in sorted((d for d in devices if d.type == "cuda"), key=str):
        capability = torch.cuda.get_device_capability(device)
        yield f"{device} {torch.cuda.get_device_name(device)} {capability} cuda {torch.version.cuda}"
        yield f"triton {triton_version()}"
        yield f"autocast {torch.is_autocast_enabled('cuda')} {torch.get_autocast_dtype('cuda')}"


@functools.cache
def source_digest() -> str:
    """The hash of regraft's own code, so that no entry outlives the compiler that wrote it."""
    hasher = hashlib.sha256()
    for room in ("rewrites", "patterns", "compiler"):
        for file in sorted((_ROOT / room).rglob("*.py")):
            hasher.update(file.relative_to(_ROOT).as_posix().encode() + file.read_bytes())
    return hasher.hexdigest()


def _state() -> Iterator[str]:
    """Switches of the process that change what is captured or generated."""
    yield f"threads {torch.get_num_threads()} default {torch.get_default_dtype()}"
    yield f"grad {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()}"
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield f"deterministic {torch.get_deterministic_debug_mode()} {filled}"
    yield f"precision {memory.float32_settings()} mkldnn {torch.backends.mkldnn.enabled}"
    yield f"cudnn {torch.backends.cudnn.enabled} {torch.backends.cudnn.benchmark}"
    yield f"autocast {torch.is_autocast_enabled('cpu')} {torch.get_autocast_dtype('cpu')}"
    yield f"attention {attention.backends_in_order()}"


def _end(gm: fx.GraphModule) -> str:
    """Whether the program goes on with the graph's results, which it may write to: a forward keeps copies then."""
    return f"continued {bool(compat.graph_break(gm)[0])}"


def held_by(gm: fx.GraphModule) -> list[Any]:
    """The tensors that a graph holds, as Dynamo has seen them."""
    return [node.meta.get("example_value") for node in gm.graph.find_nodes(op="get_attr")]


def written_by(gm: fx.GraphModule) -> frozenset[str]:
    """Names of tensors that the graph holds and writes to as a whole."""
    found: set[str] = set()
    for node in gm.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_function", "call_method") and name.endswith("_") and not name.endswith("__"):
            found.update(str(x.target) for x in nodes_in(node.args[:1]) if x.op == "get_attr")
    return frozenset(found)


def _module(gm: fx.GraphModule, written: frozenset[str] = frozenset()) -> Iterator[str]:
    if compat.CHECKPOINT_POLICY in gm.meta:
        raise _NoKeyError(
            "a policy function selects the operations that a checkpoint recomputes, and its code is not part of the key"
        )
    for node in gm.graph.nodes:
        if _is_given(node.meta.get("example_value")):
            raise _NoKeyError("the program is given a symbolic number: a guard made while compiling may fix its value")
        yield f"{node.op} {node.name} {_target(node)} {_text(node.args)} {_text(node.kwargs)}"
        yield str(node.meta.get("stack_trace", ""))
        if node.op in ("get_attr", "call_module"):
            value = compat.attribute(gm, str(node.target))
            yield from [_tensor(value)] if node.target in written else _attribute(value)


def _is_given(number: Any) -> bool:
    """Whether a number is symbolic and known beforehand, as Python floats are: read from a tensor that Dynamo makes."""
    return isinstance(number, SYMBOLIC) and hint(number) is not None


def _target(node: fx.Node) -> str:
    if isinstance(node.target, str):
        if node.op == "call_method" and not compat.is_method_of_torch(node.target):
            raise _NoKeyError(f"the graph calls {node.target!r} of tensors, which torch does not define as it is now")
        return node.target
    if not compat.ships_with_torch(node.target):
        raise _NoKeyError(f"the graph calls {node.target}, whose code is not part of the key")
    if isinstance(node.target, compat.OPERATORS):
        return str(node.target)
    module = getattr(node.target, "__module__", None) or type(node.target).__module__
    name = _name_in(str(module), node.target)
    if not name or "<" in name or not _is_library(str(module)):
        raise _NoKeyError(f"the graph calls {name or node.target!r} of {module}, whose code is not part of the key")
    return f"{module}.{name}"


def _name_in(module: str, target: Any) -> str:
    """The name of a function: the one that its module knows it by, where another function made it (`F.max_pool2d`)."""
    short = getattr(target, "__name__", "")
    if getattr(sys.modules.get(module), short, None) is target:
        return str(short)
    return str(getattr(target, "__qualname__", None) or short)


def _is_library(module: str) -> bool:
    """Code that changes with a version that the key holds."""
    return module.partition(".")[0] in ("torch", "_operator", "operator", "math", "builtins", "einops")


def _attribute(value: Any) -> Iterator[str]:
    if isinstance(value, fx.GraphModule):
        yield from _module(value)
    elif type(value) in (torch.Tensor, torch.nn.Parameter):
        yield _tensor(value) + _content(value)
    else:
        raise _NoKeyError(f"the graph holds a {type(value).__name__}, which the key cannot represent")


def _content(value: torch.Tensor) -> str:
    if value.device.type != "cpu" or value.nbytes > MAX_CONSTANT_BYTES:
        raise _NoKeyError("the graph holds a large constant tensor")
    flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def _text(value: Any) -> str:
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, slice):
        return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
    if isinstance(value, _PLAIN) or value is Ellipsis:
        return repr(value)
    raise _NoKeyError(f"an argument of a call is a {type(value).__name__}, which the key cannot represent")


def _inputs(values: Sequence[Any]) -> Iterator[str]:
    yield from map(_input, values)


def _input(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise _NoKeyError("an input tensor has symbolic sizes")
    return _text(value)


def _tensor(value: torch.Tensor) -> str:
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and not compat.is_wrapped(value)
    if not plain or value.layout != torch.strided or compat.has_symbols(value):
        raise _NoKeyError(
            f"an input is not a plain dense tensor, but a {type(value).__name__} of layout {value.layout}"
        )
    marks = f"{value.requires_grad} {value.is_inference()} {value.is_conj()} {value.is_neg()} {value.storage_offset()}"
    return f"tensor {tuple(value.shape)} {value.stride()} {value.dtype} {value.device} {marks}"


def depends_on_values(inputs: Sequence[Any]) -> bool:
    """Whether a guard of this compilation is about the value of an input."""
    return knows_values(getattr(compat.fake_mode_of(inputs), "shape_env", None))


def _sharing(values: Iterable[Any]) -> str:
    """The inputs that share memory: the positions of each storage's first tensor."""
    first: dict[int, int] = {}
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    return " ".join(
        str(first.setdefault(memory.storage_key(tensor), position)) for position, tensor in enumerate(tensors)
    )
