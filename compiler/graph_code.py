"""The code of one graph after its passes: kernels, the wrapper that calls them, and code of the bodies of control flow.

graph  ->  kernels (`generate_kernels`)  ->  wrapper in Python (`generate`)  ->  its function in C++, if asked for
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import fx

from ..rewrites.backup import copied
from ..rewrites.faults import Faults
from ..rewrites.reason import Reason
from ..rewrites.record import Fallback, GraphRecord
from .autograd.differentiate import GraphKind
from .codegen.cpp import CompilerMissing
from .codegen.cpp_wrapper.errors import NotInCppError
from .codegen.generate import NotGeneratedError, generate_kernels
from .codegen.wrapper.bodies import Body, bodies, compiled_body, put_body, refused_body
from .codegen.wrapper.wrapper import Wrapper, called_from_cpp, generate
from .options import Options
from .passes.containment import Containment
from .runtime.calls import Boxed, as_calls
from .stages import Stages

Observer = Callable[[str, GraphKind, fx.GraphModule, Wrapper], Boxed]
"""Told of each compiled graph: name of the program, kind, the graph, its wrapper; gives what is called in its place."""


class GraphCode:
    """Generates the code of graphs of one compilation, and notes it in the record.

    Args:
        record: of the compilation.
        options: of the compilation.
        contained: runs steps that may fail.
        faults: tells of those that do.
        stages: runs the passes of bodies.
        observe: told of each graph, if given.
    """

    def __init__(
        self,
        record: GraphRecord,
        options: Options,
        contained: Containment,
        faults: Faults,
        stages: Stages,
        observe: Observer | None,
    ) -> None:
        self._record, self._options, self._contained = record, options, contained
        self._faults, self._stages, self._observe = faults, stages, observe

    def generated(self, graph_module: fx.GraphModule, kind: GraphKind, part: str = "") -> tuple[Boxed, Wrapper | None]:
        """Kernels and the wrapper that calls them, for a graph or for its part on the host."""
        do, label = self._contained.do, f"{kind}:{part}" if part else kind
        with self._record.timed("kernels"):
            do(self._generate_kernels, graph_module, kind, name="kernels")
        self._compile_bodies(graph_module, kind)
        with self._record.timed("generate"):
            name = f"{self._record.name} {label.replace(':', ' ')}"
            wrapper = do(partial(generate, graph_module, name=name), name="generate")
        if wrapper is None:
            return as_calls(graph_module), None
        self._record.details[f"source:{label}"] = wrapper.source
        wrapper = self._called_from_cpp(wrapper, graph_module, label)
        self._record.details[f"stats:{label}"] = wrapper.stats
        if self._observe is None:
            return wrapper.call, wrapper
        return self._observe(self._record.name, kind, graph_module, wrapper), wrapper

    def _called_from_cpp(self, wrapper: Wrapper, graph_module: fx.GraphModule, label: str) -> Wrapper:
        """The wrapper with its function in C++, if that was asked for; else, or where it cannot be, as it is."""
        if not self._options.cpp.wrapper or self._observe is not None:  # who observes takes the text in Python
            return wrapper
        try:
            with self._record.timed("generate"):
                made = called_from_cpp(wrapper, graph_module)
        except NotInCppError as refusal:
            self._record.fallbacks.append(Fallback.of("wrapper", refusal.reason))
        except CompilerMissing as missing:
            why = Reason("no-compiler", f"the graph is called from Python: {missing}")
            self._record.fallbacks.append(Fallback.of("wrapper", why))
        except Exception as error:
            self._faults.tell("making the wrapper in C++", "the graph is called from Python", error, stage="wrapper")
        else:
            self._record.details[f"wrapper:{label}"] = made.parts.cpp.body if made.parts.cpp is not None else ""
            return made
        return wrapper

    def _compile_bodies(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """Compile the graphs that control flow calls; those that cannot be compiled stay calls of ATen."""
        for name, body in bodies(graph_module).items():
            reason, compiled = refused_body(body.graph), None
            if reason is not None:
                self._record.fallbacks.append(Fallback.of("bodies", reason))
            else:
                compiled = self._contained.do(self._compile_body, body, kind, name)
            put_body(graph_module, name, compiled or _of_values(as_calls(body)))

    def _compile_body(self, body: fx.GraphModule, kind: GraphKind, name: str) -> Body:
        do, made = self._contained.do, fx.GraphModule(body, copied(body))
        self._stages.lower_body(made, kind)
        self.note_graph(f"{kind}:{name}", made)
        do(self._generate_kernels, made, kind, name="kernels")
        self._compile_bodies(made, kind)
        wrapper = generate(made, name=f"{self._record.name} {kind} {name}")
        self._record.details[f"source:{kind}:{name}"] = wrapper.source
        return compiled_body(self._called_from_cpp(wrapper, made, f"{kind}:{name}"), made.graph)

    def _generate_kernels(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """Put generated kernels into the graph; if that fails, ATen calls remain."""
        try:
            made = generate_kernels(graph_module, kind, verify=self._options.verify != "off", faults=self._faults)
        except NotGeneratedError as refusal:
            if self._options.strict and refusal.reason.code in ("no-compiler", "no-triton"):
                raise
            self._record.fallbacks.append(Fallback.of("kernels", refusal.reason))
        except Exception as error:
            self._faults.tell("generating kernels", "the graph runs by calls of ATen", error, stage="kernels")
        else:
            graph_module.graph = made.graph
            self._stages.draw(kind, "kernels", made.graph)
            self._record.code.append(made.code)
            if self._options.debug:
                self._record.details.update((f"{stage}:{kind}", text) for stage, text in made.texts().items())

    def note_graph(self, stage: str, graph_module: fx.GraphModule) -> None:
        """Keep a graph as text if option `debug` is set."""
        if self._options.debug:
            self._record.details[f"graph:{stage}"] = str(graph_module.graph)


def _of_values(call: Boxed) -> Callable[..., Any]:
    """A callable in boxed convention as an operator calls a body."""
    return lambda *args: call(list(args))
