"""A compiled graph as a Python module of its own: the wrapper and the C++ of its kernels, which it compiles itself.

regraft code hf:bert --standalone out   ->   out/graph-0-0-inference.py     needs torch and a C++ compiler, no regraft
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..._version import __version__
from ...rewrites.compat import OpOverload
from ..backend import Compilation
from ..codegen.cpp.build import CppKernel
from ..codegen.cpp.compiler import FLAGS, LibrarySource
from ..codegen.wrapper.emit import WrapperSource
from ..options import Options
from ..templates import TemplateKernel
from .profile.running import of_its_own, step_of, undisturbed

_HEAD = '''\
"""{name}, written by regraft {version} with torch {torch}: needs torch and a C++ compiler (CXX, else c++) alone.

call(inputs)     takes a list of tensors and numbers in the graph's order, which it empties; gives the outputs
python {file}    runs it on inputs of the shapes, strides and dtypes that it was compiled for
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

FLAGS = {flags}
SOURCES = {{}}
CONSTANTS = {constants}

{sources}

class Runtime(ctypes.Structure):
    """OpenMP's functions, as torch has loaded them, and the first error of a call."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("parallel", "max_threads", "threads", "thread")),
        *((name, ctypes.c_longlong) for name in ("kind", "index", "size")),
    ]


def entry_points():
    names = ("GOMP_parallel", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num")
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {{line[line.index("/"):] for line in lines if "/lib" in line and (".so" in line)}}
    for path in sorted(paths, key=lambda path: "torch" not in path):
        if any(f"/lib{{name}}" in path for name in ("gomp", "iomp5", "omp.", "omp-")):
            library = ctypes.CDLL(path)
            return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names)
    return (0, 0, 0, 0)  # one thread


def library(text, flags):
    """The library of a source, compiled once a machine."""
    folder = Path(tempfile.gettempdir()) / f"standalone-{{os.getuid()}}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / (hashlib.sha256(repr((text, FLAGS, flags)).encode()).hexdigest()[:24] + ".so")
    if not path.exists():
        made = path.with_suffix(f".{{os.getpid()}}.cpp")
        made.write_text(text)
        aside = made.with_suffix(".so")
        command = [os.environ.get("CXX", "c++"), *FLAGS, "-Wno-psabi", str(made), "-o", str(aside), *flags]
        subprocess.run(command, check=True)
        aside.rename(path)
        made.unlink()
    return ctypes.CDLL(str(path))


PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Runtime))
TYPES = {{"i": ctypes.c_longlong, "f": ctypes.c_double}}


def kernel(source, name, kinds):
    """A function of tensors, numbers and sizes that runs a kernel."""
    function = PROTOTYPE((name, library(*SOURCES[source])))

    def run(*args):
        numbers = [None if kind == "t" else TYPES[kind](x) for kind, x in zip(kinds, args)]
        places = [x if isinstance(x, int) else getattr(x, "data_ptr", int)() for x in args]
        pointers = [x if n is None else ctypes.addressof(n) for x, n in zip(places, numbers)]
        sizes = args[len(kinds):]
        runtime = Runtime(*entry_points())
        function(
            ctypes.cast((ctypes.c_void_p * len(pointers))(*pointers), ctypes.c_void_p),
            ctypes.cast((ctypes.c_longlong * len(sizes))(*sizes), ctypes.c_void_p),
            ctypes.byref(runtime),
        )
        if runtime.kind == 2:
            raise RuntimeError("ZeroDivisionError")
        if runtime.kind:
            raise IndexError(f"index {{runtime.index}} is out of bounds for dimension with size {{runtime.size}}")

    return run


def placed(tensor, sizes, strides, dtype):
    return tensor if tensor.stride() == strides else torch.empty_strided(sizes, strides, dtype=dtype).copy_(tensor)


def template(source, name, inputs, output, numbers=()):
    """A function of the tensors that a kernel reads, which allocates its result."""
    run = kernel(source, name, "t" * (len(inputs) + 1))

    def call(*tensors):
        made = torch.empty_strided(output[0], output[1], dtype=output[2])
        run(*(placed(x, *layout) for x, layout in zip(tensors, inputs)), made, *numbers)
        return made

    return call


def empty_strided(sizes, strides, dtype):
    return torch.empty_strided(sizes, strides, dtype=dtype)


def laid_out(tensor, order):
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def bare_calls(namespace, *names):
    bound = SimpleNamespace()
    for packet, overload in (name.split(".") for name in names):
        if not hasattr(bound, packet):
            setattr(bound, packet, SimpleNamespace())
        setattr(getattr(bound, packet), overload, getattr(getattr(getattr(torch.ops, namespace), packet), overload))
    return bound


objects = {{
{objects}}}

'''
_TAIL = '''

def inputs():
    """Inputs of the shapes, strides and dtypes that it was compiled for, drawn from a seed."""
    torch.manual_seed(0)
    given = [{inputs}]
    return [empty_strided(*x).copy_(drawn(x[0], x[2])) if isinstance(x, tuple) else x for x in given]


def drawn(sizes, dtype):
    return torch.randn(sizes) if dtype.is_floating_point else torch.randint(0, 2, sizes)


if __name__ == "__main__":
    with torch.no_grad():
        for output in call(inputs()):
            print(output)
'''


class NotStandaloneError(ValueError):
    """A graph that can't run without regraft; the message says what is in the way."""


@dataclass(frozen=True)
class Graph:
    """A compiled graph: its name, what its inputs were compiled for, and its wrapper."""

    name: str
    inputs: Sequence[Any]
    source: WrapperSource


def standalone(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
    train: bool = False,
    dynamic: bool | None = None,
) -> list[Path]:
    """Write a module for each graph that a call compiles; gives their paths.

    Args:
        function: a module or function.
        args: its arguments.
        kwargs: its keyword arguments.
        folder: where to write; tensors that a graph holds lie beside it, with suffix ``.pt``.
        options: as for `torch.compile`.
        train: forward and backward.
        dynamic: as for `torch.compile`.

    Raises:
        NotStandaloneError: a graph needs what only regraft has, or runs on a GPU, or there is none.
    """
    graphs: list[Graph] = []
    parsed = Options.parse(None, options)

    def observe(name: str, kind: str, graph_module: fx.GraphModule, wrapper: Any) -> Any:
        values = [node.meta.get("val") for node in graph_module.graph.find_nodes(op="placeholder")]
        graphs.append(Graph(f"{name} {kind}", values, wrapper.parts))
        return wrapper.call

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        return Compilation(gm, inputs, parsed, observe=observe).run()

    torch.compiler.reset()
    with undisturbed(function), torch.set_grad_enabled(train):
        step_of(torch.compile(of_its_own(function), backend=backend, dynamic=dynamic), args, kwargs)()
    if not graphs:
        raise NotStandaloneError("nothing is compiled: TORCH_LOGS=graph_breaks says where eager runs it, and why")
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(graph, folder) for graph in graphs]


def _write(graph: Graph, folder: Path) -> Path:
    path = folder / (re.sub(r"\W+", "-", graph.name).strip("-") + ".py")
    sources: dict[LibrarySource, str] = {}
    constants: dict[str, torch.Tensor] = {}
    made = [f'    "{name}": {_object(name, one, sources, constants)},' for name, one in graph.source.objects.items()]
    if constants:
        torch.save(constants, path.with_suffix(".pt"))
    package = __name__.partition(".")[0]
    text = graph.source.text
    if f"torch.ops.{package}." in text or f'bare_calls("{package}"' in re.sub(r"\(\s+", "(", text):
        raise NotStandaloneError(f"{graph.name} calls operators of regraft's: for random numbers, give rng='eager'")
    body = [line for line in text.splitlines() if not line.startswith(f"from {package}.")]
    head = _HEAD.format(
        name=graph.name,
        version=__version__,
        torch=torch.__version__,
        file=path.name,
        flags=list(FLAGS),
        constants='torch.load(__file__[:-3] + ".pt", weights_only=True)' if constants else "{}",
        sources="\n".join(f'SOURCES["{k}"] = ({_text(one.text)}, {list(one.flags)})\n' for one, k in sources.items()),
        objects="".join(f"{line}\n" for line in made),
    )
    tail = _TAIL.format(inputs="".join(f"\n        {_input(x, graph.name)}," for x in graph.inputs) + "\n    ")
    path.write_text(head + "\n".join(body) + "\n" + tail, encoding="utf-8")
    return path


def _object(name: str, value: Any, sources: dict[LibrarySource, str], constants: dict[str, torch.Tensor]) -> str:
    """What makes a thing that the wrapper names."""
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        constants[name] = value.detach()
        return f'CONSTANTS["{name}"]'
    if isinstance(value, CppKernel):
        return f'kernel("{_key(value.unit, sources)}", "{value.name}", "{value.kinds}")'
    if isinstance(value, TemplateKernel):
        key = _key(value.unit(), sources)
        layouts = [(one.sizes, one.strides, one.dtype) for one in (*value.inputs, value.output)]
        return f'template("{key}", "{value.name}", {layouts[:-1]}, {layouts[-1]}, {value.numbers})'
    if isinstance(value, OpOverload) and value.namespace != __name__.partition(".")[0]:
        return f"torch.ops.{value}"
    if name.startswith(("empty_strided_cpu", "empty_large_cpu")):
        return "empty_strided"
    raise NotStandaloneError(f"the graph needs {name}, a {type(value).__name__} that only regraft has")


def _key(source: LibrarySource, sources: dict[LibrarySource, str]) -> str:
    return sources.setdefault(source, f"unit{len(sources)}")


def _text(text: str) -> str:
    return repr(text) if '"""' in text or text.endswith(('"', "\\")) else f'r"""{text}"""'


def _input(value: Any, name: str) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(int(value)) if isinstance(value, (int, torch.SymInt)) else repr(value)
    if value.device.type != "cpu":
        raise NotStandaloneError(f"{name} runs on {value.device}: modules of their own are for CPUs")
    return repr((tuple(map(int, value.shape)), tuple(map(int, value.stride())), value.dtype))
