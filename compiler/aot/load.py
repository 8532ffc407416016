"""Artifacts in Python: `regraft.load`."""

from __future__ import annotations

import ctypes
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...rewrites.words import counted
from ..codegen.cpp.target import cpu_flags
from .artifact import FORMAT, read_manifest
from .errors import AotError
from .structure import build, flatten

_FLAGS = {"bmi": "bmi1", "sse4.2": "sse4_2"}  # what the system calls a feature that compilers call otherwise
_loaded: dict[str, Any] = {}  # operators of libraries that are in this process, by name; they stay


class LoadedProgram:
    """A program that was compiled ahead of time; call it as the module was called when it was exported.

    Results are new tensors without gradients. What the program writes to its state stays in this object.

    Attributes:
        manifest: inputs, results, dynamic dims and their ranges, versions, instructions.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.manifest = manifest
        self.path = path
        self._inputs, self._outputs = manifest["inputs"], manifest["outputs"]
        self._in, self._out = manifest["in_structure"], manifest["out_structure"]
        self._number: int | None = None
        operators = _operators(path, manifest["library"])
        self._run, self._close = operators.run.default, operators.close.default
        try:
            self._number = operators.open.default(str(path))
        except RuntimeError as error:
            raise AotError(str(error).partition("\n")[0]) from None
        args, kwargs = self._in["of"]
        self._positional, self._keywords = len(args["of"]), kwargs["dict"]
        self._flat = all(part == "*" for part in (*args["of"], *kwargs["of"]))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            TypeError: inputs are other ones, or nested in another way.
            ValueError: an input has another dtype, size or value than the program was compiled for.
        """
        tensors: list[torch.Tensor] = []
        numbers: list[int] = []
        for told, value in zip(self._inputs, self._leaves(args, kwargs), strict=True):
            if told["kind"] == "tensor":
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"input '{told['name']}' must be a tensor, not a {type(value).__name__}")
                tensors.append(value)
            elif told["kind"] == "int":
                if type(value) is not int:
                    raise TypeError(f"input '{told['name']}' must be an int, not a {type(value).__name__}")
                numbers.append(value)
            elif value != told["value"] or type(value) is not type(told["value"]):
                raise ValueError(f"input '{told['name']}' is {value!r}; the program was compiled for {told['value']!r}")
        results = self._run(self._number, tensors, numbers)
        return build(self._out, self._results(*map(iter, results)))

    def __del__(self) -> None:
        if getattr(self, "_number", None) is not None:
            self._close(self._number)

    def __repr__(self) -> str:
        return f"<{self.path.name}: compiled ahead of time by regraft {self.manifest['regraft']}>"

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        keywords = self._keywords
        if len(args) != self._positional or len(kwargs) != len(keywords) or any(k not in kwargs for k in keywords):
            named = f" and the keywords {', '.join(keywords)}" if keywords else ""
            given = f"{len(args)}" + (f" and the keywords {', '.join(kwargs)}" if kwargs else "")
            wanted = counted(self._positional, "positional input")
            raise TypeError(f"the program takes {wanted}{named}, not {given}")
        if self._flat:
            return [*args, *(kwargs[k] for k in keywords)]
        leaves: list[Any] = []
        flatten(self._in["of"][0], args, "args", leaves)
        flatten(self._in["of"][1], kwargs, "kwargs", leaves)
        return leaves

    def _results(self, tensors: Iterator[Any], whole: Iterator[Any], real: Iterator[Any]) -> Iterator[Any]:
        for told in self._outputs:
            kind = told["kind"]
            if kind == "tensor":
                yield next(tensors)
            elif kind == "constant":
                yield told["value"]
            elif kind == "bool":
                yield bool(next(whole))
            else:
                yield next(whole if kind == "int" else real)


def load(path: str | Path) -> LoadedProgram:
    """Load what `aot_compile` wrote.

    The file is a library that this process loads: like any program, only from where you would run one. Nothing in it is
    pickled, and the manifest is checked before the library is loaded.

    Raises:
        AotError: there is no whole artifact at `path`, or it is for another version of torch, another system or a
            processor with more instructions.
    """
    path = Path(path).resolve()
    manifest = read_manifest(path)
    _check(path, manifest)
    return LoadedProgram(path, manifest)


def _check(path: Path, manifest: dict[str, Any]) -> None:
    if manifest.get("format") != FORMAT:
        raise AotError(f"{path} has format {manifest.get('format')}, this regraft reads {FORMAT}: compile it again")
    here = {"torch": torch.__version__, "machine": platform.machine(), "system": platform.system()}
    for what, found in here.items():
        if manifest[what] != found:
            raise AotError(
                f"{path} was compiled for {what} {manifest[what]}, here is {found}: compile it again for that"
            )
    known = cpu_flags()
    missing = [feature for feature in manifest["features"] if known and _FLAGS.get(feature, feature) not in known]
    if missing:
        isa = manifest["instructions"]
        raise AotError(f"{path} was compiled for {isa}, but this machine's processor lacks {', '.join(missing)}")


def _library(path: Path) -> ctypes.CDLL:
    """The library at a path, also where another one was loaded from it before: the system knows libraries by name."""
    with tempfile.TemporaryDirectory(prefix="regraft-aot-") as folder:
        name = Path(folder) / path.name
        try:
            name.symlink_to(path)
            return ctypes.CDLL(str(name))
        except OSError as error:
            raise AotError(f"the library in {path} cannot be loaded: {error}") from error


def _operators(path: Path, name: str) -> Any:
    """The operators of an artifact's library, registered once in a process."""
    if name not in _loaded:
        library = _library(path)
        library.regraft_aot_error.restype = ctypes.c_char_p
        if library.regraft_aot_register():
            raise AotError(f"{path} cannot be registered: {library.regraft_aot_error().decode()}")
        _loaded[name] = getattr(torch.ops, name)
    return _loaded[name]
