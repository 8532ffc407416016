"""Ahead of time: a program to one file that runs without Python.

model + inputs -> torch.export -> the stages of every compilation -> kernels + a wrapper in C++ -> model.rgx
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..._version import __version__
from ...rewrites.compat import autograd, export
from ..backend import Compilation
from ..codegen.cpp_wrapper.errors import NotInCppError
from ..codegen.cpp_wrapper.tables import Tables
from ..codegen.wrapper.wrapper import Wrapper
from ..freezing import Folded
from ..options import Options
from ..runtime.calls import Boxed
from .artifact import FORMAT, span, write
from .build import build, instructions, missing_text
from .errors import AotError
from .forward import ForwardFunction, loading_text
from .prelude import ARTIFACT, HEAD
from .program import AotProgram, export_model, program_of
from .runtime_source import RUNTIME
from .structure import structure_json


def aot_compile(
    model: torch.nn.Module | torch.export.ExportedProgram,
    inputs: tuple[Any, ...] | Mapping[str, Any] | None,
    path: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Compile a program ahead of time for CPUs, for inference, to one file.

    Args:
        model: a module, which is exported with `torch.export`, or what `torch.export.export` gave.
        inputs: example inputs of a module: a tuple of positional ones, or a mapping of keywords; None with an exported
            program, which has its own.
        path: of the file to write, by convention ``"model.rgx"``.
        kwargs: example inputs by keyword, beside positional ones.
        dynamic_shapes: as for `torch.export.export`: which dims may change.
        options: as for the backend; weights are frozen unless ``"freezing"`` says otherwise.

    Returns:
        The path. `regraft.load` loads the file, as does `regraft_aot.h` in C++.

    Raises:
        AotError: the program cannot go ahead of time; the message says what of it, and where it stands.
        OptionError: an unknown option or value.
        CompilerMissing, CompileFailed: there is no C++ compiler, or it failed.
    """
    given = {"freezing": True, **(options or {})}
    chosen = Options.parse(None, given | {"strict": True})
    exported = _exported(model, inputs, kwargs, dynamic_shapes)
    compiled = _Compiled(exported, chosen)
    tables = Tables(ARTIFACT)
    try:
        forward = ForwardFunction(compiled.program, compiled.graph_module, tables)
        loading = loading_text(tables, compiled.folded, compiled.program.state)
    except NotInCppError as refusal:
        raise AotError(_refused(refusal)) from None
    kernels = (f"void {name}(void**, const long long*, Runtime*);" for name in tables.kernels)
    bind = [
        "void regraft_bind(const Api* given) {\n  api = given;",
        *(f"  op{k}();" for k in tables.operators.values()),
        "}",
    ]
    functions = [*kernels, *bind, forward.text(), loading, missing_text()]
    source = "\n".join([HEAD, tables.handles(), 'extern "C" {', *functions, "}\n"])
    content = "\0".join([RUNTIME, source, *(u.text for u in tables.units)])
    name = "regraft_aot_" + hashlib.sha256(content.encode()).hexdigest()[:16]
    library = build(f'{source}extern "C" {{ extern const char regraft_name[] = "{name}"; }}\n', tables.units)
    stored = [value for value in tables.constants.values() if value is not None]
    write(Path(path), library, stored, _manifest(compiled, forward, tables, name))
    return Path(path)


def _refused(refusal: NotInCppError) -> str:
    """Why a program cannot go ahead of time, with the user's line."""
    if not refusal.subject:
        return f"the program cannot go ahead of time: {refusal}"
    site = refusal.reason.site
    called = f"; called in {site}" if site is not None else ""
    if refusal.subject.startswith("regraft.seeds"):
        advice = "; dropout draws none after eval()" if site is not None and "dropout" in site.code else ""
        return f"random numbers cannot go ahead of time: Python makes their seeds{advice}{called}"
    return f"{refusal.subject} cannot go ahead of time: it {refusal.why}{called}"


def _exported(model: Any, inputs: Any, kwargs: Any, dynamic_shapes: Any) -> torch.export.ExportedProgram:
    if isinstance(model, torch.export.ExportedProgram):
        if dynamic_shapes is not None or kwargs:
            raise AotError(
                "an exported program has its inputs and dynamic dims already: leave kwargs and dynamic_shapes out"
            )
        return model
    if not isinstance(model, torch.nn.Module):
        raise AotError(f"a torch.nn.Module or an exported program is compiled, not a {type(model).__name__}")
    if isinstance(inputs, Mapping):
        return export_model(model, (), {**inputs, **(kwargs or {})}, dynamic_shapes)
    return export_model(model, tuple(inputs or ()), kwargs, dynamic_shapes)


class _Compiled:
    """A program through all stages: the graph with its kernels.

    Attributes:
        program: what was compiled.
        graph_module: the inference graph, kernels in it.
        folded: the constants that weights were folded to.
    """

    def __init__(self, exported: torch.export.ExportedProgram, options: Options) -> None:
        self.graph_module: fx.GraphModule
        self.folded: Folded | None = None
        cloned = self._compile(exported, options, ())
        if cloned and self._compile(exported, options, cloned):
            raise AotError("results of the program share the memory of its inputs")

    def _compile(
        self, exported: torch.export.ExportedProgram, options: Options, cloned: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Compile with some results copied; gives the results that must be."""
        self.program = program_of(exported, cloned)
        seen: list[tuple[fx.GraphModule, tuple[int, ...], str]] = []

        def observe(_name: str, kind: str, graph_module: fx.GraphModule, wrapper: Wrapper) -> Boxed:
            if kind != "inference":
                raise AotError("only inference is compiled ahead of time, but gradients flow in this program")
            seen.append((graph_module, autograd.results_of_inputs(), autograd.needs_wrapping()))
            return wrapper.call

        with torch.no_grad(), export.compiling_export(self.program.facts):
            compilation = Compilation(self.program.graph_module, self.program.facts.inputs, options, observe=observe)
            compilation.run()
        if not seen:
            told = "; ".join(f"{f.stage}: {f.message}" for f in compilation.record.fallbacks)
            raise AotError(f"the program was not compiled: {told or 'the compiler gave no reason'}")
        self.graph_module, shared, more = seen[-1]
        if more:
            raise AotError(f"the program needs Python code around its graph: {more}")
        self.folded = compilation.folded
        return shared


def _manifest(compiled: _Compiled, forward: ForwardFunction, tables: Tables, name: str) -> dict[str, Any]:
    program = compiled.program
    isa, features = instructions()
    stored = [v for v in tables.constants.values() if v is not None]
    symbols = {bound.where: [bound.low, bound.high] for bound in forward.symbols.values()}
    return {
        "format": FORMAT,
        "regraft": __version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "instructions": isa,
        "features": list(features),
        "library": name,
        "inputs": [_input_json(one, forward) for one in program.inputs],
        "outputs": _outputs_json(program, forward),
        "in_structure": structure_json(program.in_structure),
        "out_structure": structure_json(program.out_structure),
        "dynamic": symbols,
        "conditions": forward.conditions,
        "writes": {"state": forward.writes, "inputs": forward.changed_inputs},
        "kernels": list(tables.kernels),
        "operators": [".".join(filter(None, key)) for key in tables.operators],
        "constants": {"count": len(stored), "bytes": sum(map(span, stored))},
    }


def _input_json(one: Any, forward: ForwardFunction) -> dict[str, Any]:
    if one.kind == "constant":
        return {"name": one.name, "kind": "constant", "value": one.value}
    sizes = [n if isinstance(n, int) else _shown(n, forward) for n in one.sizes]
    if one.kind == "int":
        return {"name": one.name, "kind": "int", "is": sizes[0]}
    return {"name": one.name, "kind": "tensor", "dtype": str(one.dtype).removeprefix("torch."), "sizes": sizes}


def _shown(expression: Any, forward: ForwardFunction) -> str:
    """A dynamic size: the place where it is read first."""
    bound = forward.symbols.get(expression)
    return bound.where if bound is not None else str(expression)


def _outputs_json(program: AotProgram, forward: ForwardFunction) -> list[dict[str, Any]]:
    made = []
    for one in program.outputs:
        if one.kind == "result":
            made.append({"kind": forward.kinds[one.value]})
            continue
        if one.value is not None and not isinstance(one.value, (bool, int, float, str)):
            raise AotError(f"a result of the program is a {type(one.value).__name__}, which no artifact gives")
        made.append({"kind": "constant", "value": one.value})
    return made
