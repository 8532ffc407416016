"""The backend: `torch.compile(model, backend="regraft")`.

    capture -> rewrite "forward" -> differentiate -> rewrite "lowered" -> generate kernels -> wrapper

`pipeline` lists the passes that change graphs before kernels are generated, and `stages` runs them. The result of every
stage can be printed and executed. One `GraphRecord` receives all results, and is published to `regraft.coverage()`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import fx

from ..rewrites.backup import Backup
from ..rewrites.compat import (
    compile_lock,
    compile_name,
    depends_on_data,
    dynamo_signal,
    finish_before_forks,
    graph_break,
    is_renamed_tensor,
    ships_with_torch,
)
from ..rewrites.compat.attention import guard_backends
from ..rewrites.compat.autograd import differentiated, forget_differentiated, keep_saved, places, tell_strides
from ..rewrites.compat.dynamo import complete_torch, forget_fixed_floats, leave_to_python, on_reset
from ..rewrites.compat.guards import guard_the_rest
from ..rewrites.compat.logs import code_is_logged, log_code
from ..rewrites.compat.memory import guard_float32_precision, share_memory
from ..rewrites.compat.tensors import requires_grad
from ..rewrites.coverage import publish
from ..rewrites.effects import mark_gradients
from ..rewrites.faults import Faults
from ..rewrites.graph import mark_returned
from ..rewrites.reason import Reason
from ..rewrites.record import Fallback, GraphRecord
from ..rewrites.report.dump import write_dump
from ..rewrites.switches import allowed, left_out, searching
from .autograd.by_sizes import BySizes, with_known_sizes
from .autograd.differentiate import GraphKind, differentiate
from .autograd.in_parts import in_parts
from .autograd.returned_inputs import WithInputs
from .autograd.view_offsets import at_eagers_place
from .autotune.oracle import make_oracle
from .capture import Captured, capture
from .capture.interruptions import note_interruptions
from .capture.left_to_python import left_to_python
from .capture.outputs import flat_outputs
from .codegen import triton
from .freezing import Folded, Freezer, refuse_training
from .graph_code import GraphCode, Observer
from .options import Options, cache_dir, debug_dir
from .options.machine import note_configuration
from .options.rules import resolve_rules
from .passes.align_rows import strides_of_outputs, take_strides
from .passes.containment import Containment, PassFailedError
from .pipeline import refuse_unknown
from .runtime.as_written import refused_mode, relying, usual_calls
from .runtime.calls import Boxed, as_backward, as_calls, as_forward, as_saved, default_dtype, of_plain_tensors, restored
from .runtime.cudagraphs.graphs import CudaGraphs, drop_captures
from .runtime.cudagraphs.host import Split, split_host
from .runtime.cudagraphs.replay import Replay
from .runtime.frame_stack import with_room
from .runtime.gc_pause import collected_once
from .runtime.graph_cache.entry import recall
from .runtime.graph_cache.key import depends_on_values, graph_key, held_by
from .runtime.graph_cache.unsaved import Unsaved
from .runtime.overlaps import Lying
from .runtime.second_derivatives import twice_differentiable
from .runtime.unguarded import forms_of_gradients
from .runtime.written_leaves import no_leaves
from .stages import Stages

logger = logging.getLogger("regraft")

# A forward and its backward must agree on these: if one of them fails, the graph runs as it is.
_AGREEMENTS = ("take_strides", "mark_returned", "strides_of_outputs")
_OF_DYNAMO = ("recompiled", "graph_break")  # details of this compilation, not of the graph


@with_room
def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one graph from Dynamo.

    Args:
        gm: the graph; it is not changed.
        example_inputs: its inputs.
        mode: as for `torch.compile`.
        options: see `Options`.

    Raises:
        OptionError: an unknown mode, option, value or rule; the message lists the valid ones.
    """
    finish_before_forks()
    with collected_once():
        return Compilation(gm, example_inputs, Options.parse(mode, options)).run(watched=True)


class Compilation:
    """The compilation of one graph: its options, rules, oracle and record.

    If `observe` is given, the program is neither loaded from the cache nor replayed as a CUDA graph.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        options: Options,
        *,
        explained: frozenset[str] = frozenset(),
        observe: Observer | None = None,
    ) -> None:
        self._observe, self._explained = observe, bool(explained)
        self._folder, self._logged = debug_dir(), set[str]()
        if self._folder is not None or code_is_logged():
            options = replace(options, debug=True)
        self.options, self._example_inputs = options, example_inputs
        self.rules = resolve_rules(options.rules)
        self.oracle = make_oracle(options)
        self.training = torch.is_grad_enabled() and any(requires_grad(x) for x in example_inputs)
        kind = "training" if self.training else "inference"
        self.record = GraphRecord(compile_name(), kind, nodes=len(gm.graph.nodes))
        self._default_dtype = torch.get_default_dtype()
        self._devices = frozenset(x.device.type for x in example_inputs if isinstance(x, torch.Tensor))
        refuse_unknown(options.without, self.rules)
        self._faults = faults_of(self.record, options)
        self._contained = Containment(self._faults)
        self._replay = Replay(self._cuda_graphs(), options.rng, options.triton.cudagraphs_launches, self._not_captured)
        self._contained.attempt(note_interruptions, self.record, gm)
        self._contained.attempt(note_configuration, self.record, options, example_inputs, self.training)
        freezing = options.freezing and not (self.training and options.template == "freezing")
        if freezing:
            refuse_training(example_inputs)
        self._stages = Stages(
            options,
            self.rules,
            self.oracle,
            self._contained,
            self._devices,
            training=self.training,
            freezer=self._contained.attempt(Freezer, gm, example_inputs) if freezing else None,
            explained=explained,
        )
        self._code = GraphCode(self.record, options, self._contained, self._faults, self._stages, observe)
        self._gm, self._inputs, self._differentiated = gm, len(example_inputs), differentiated()
        self._nested = 0.0  # seconds of graphs that were compiled while differentiating
        self._backward: Callable[..., Any] | None = None
        self._raised: Exception | None = None  # by a stage of ours within AOTAutograd
        self._unsaved = Unsaved(self._inputs, self.training, self._replay.static)

    @property
    def folded(self) -> Folded | None:
        """The constants to which weights were folded, once the graph is compiled; None if nothing was frozen."""
        return self._stages.folded

    def run(self, *, watched: bool = False) -> Callable[..., Any]:
        """The compiled graph, from the cache or through all stages; the record is published.

        If `watched`, calls whose inputs share memory otherwise than now run the program as it was written.
        """
        gm, inputs = self._gm, self._example_inputs
        try:
            lying = Lying.of(gm, inputs) if watched else None
            with left_out(self.options.without):
                compiled = twice_differentiable(self._contained.run(self._run), gm, inputs, self.record)
            self._contained.attempt(forget_fixed_floats)
            if lying is None:
                return compiled
            reliances = [*usual_calls(gm, inputs), *no_leaves(gm, inputs), *forms_of_gradients(gm, inputs)]
            return relying(compiled, gm, [*reliances, *lying.reliances(reliances)], self.record)
        except Exception as error:  # outside of all passes
            if self._faults.lets_through(error):
                raise  # as it is: it may be for the user
            self._faults.tell("compiling the program", "it runs as it was written", error, stage="differentiate")
            self.record.applied.clear()
            publish(self.record)
            forget_differentiated(self._differentiated)
            return gm
        finally:
            # A backward that is not compiled yet refers to this object, which must not keep parameters alive.
            del self._gm, self._example_inputs
            self._raised = None

    def _run(self) -> Callable[..., Any]:
        do = self._contained.do
        if "cuda" in self._devices:
            guard_float32_precision()
        do(guard_backends, self._gm)
        do(guard_the_rest, self._gm)
        refused = do(refused_mode, self._gm, self._example_inputs)
        if refused is not None:
            return self._as_written(*refused)
        left = do(left_to_python, self._gm, self._example_inputs, default="")
        if left:
            self._leave(left)
        with self.record.timed("recall"):
            key = do(self._key, name="recall")
            known = do(recall, key) if key is not None else None
        if known is not None:
            runner = do(known.runner, self._replay.graphs, self._gm, name="recall")
            known.record.name, known.record.seconds = self.record.name, self.record.seconds
            told = {name: value for name, value in self.record.details.items() if name in _OF_DYNAMO}
            known.record.details = {k: v for k, v in known.record.details.items() if k not in _OF_DYNAMO} | told
            self.record = known.record
            publish(known.record)
            self._tell()
            return runner
        if "cuda" in self._devices and do(triton.can_build, default=False):
            do(triton.start)
        compiled = self._compile()
        depends = key is None or do(depends_on_values, self._example_inputs, default=True)
        self._unsaved.key = None if depends else key
        self._contained.attempt(self._save)
        renamed = [k for k, x in enumerate(self._example_inputs) if is_renamed_tensor(x)]
        return of_plain_tensors(compiled, renamed) if renamed else compiled

    def _as_written(self, code: str, why: str) -> Callable[..., Any]:
        """Dynamo's graph itself."""
        self.record.fallbacks.append(Fallback("capture", code, f"{why} computed by the program as it was written"))
        publish(self.record)
        self._tell()
        return self._gm

    def _leave(self, why: str) -> NoReturn:
        """Let Python run the frame of this graph."""
        message = f"{why}: Python runs the frame as it was written, functions that it calls are compiled"
        self.record.fallbacks.append(Fallback("capture", "left-to-python", message))
        publish(self.record)
        self._tell()
        leave_to_python(message)

    def _save(self) -> None:
        self._unsaved.save(self.record)

    def _cuda_graphs(self) -> CudaGraphs | None:
        """The object that captures this program's CUDA graphs, if they were asked for and make sense."""
        if not self.options.triton.cudagraphs or self._observe is not None:
            return None
        if not self._devices:  # no inputs: at most a mask or random numbers between two graph breaks
            return None
        if "cuda" not in self._devices:
            message = f"CUDA graphs need inputs on a CUDA device, here: {', '.join(sorted(self._devices))}"
            self.record.fallbacks.append(Fallback("cudagraphs", "not-on-cuda", message))
            return None
        return CudaGraphs(self.options.cudagraph_limit, self._not_captured)

    def _not_captured(self, reason: Reason) -> None:
        self.record.fallbacks.append(Fallback.of("cudagraphs", reason))

    def _key(self) -> str | None:
        """The key of this compilation in the graph cache, if it may be cached."""
        if self.options.verify != "off" or self.options.debug or self._observe is not None:
            return None
        # Records and code contain weights; explanations and searches need a new compilation.
        if self.options.freezing or self._explained or searching():
            return None
        rules = None if self.options.rules is None else (self.rules,)
        key = graph_key(self._gm, self._example_inputs, replace(self.options, rules=rules))
        if not isinstance(key, str):
            return None
        self._unsaved.shared = share_memory([*held_by(self._gm), *self._example_inputs])
        return key

    def _compile(self) -> Callable[..., Any]:
        """Run all stages in order."""
        with self.record.timed("capture"):
            captured = None
            if allowed("capture", self.record.name):
                captured = self._contained.do(capture, self._gm, self._example_inputs)
            captured = captured or self._uncaptured()
        if captured.fallback is not None:
            self.record.fallbacks.append(Fallback.of("capture", captured.fallback))
            self._stages.wait_for_desugared(captured.graph_module)
        else:
            self.record.fallbacks.extend(Fallback.of("capture", reason) for reason in captured.kept)
            wanted = [self.training and requires_grad(x) for x in self._example_inputs]
            self._contained.do(mark_gradients, captured.graph_module.graph, wanted)
            if not self._contained.leaves_out("mark_gradients"):
                self._contained.do(self._stages.rewrite_program, captured.graph_module)
        self._code.note_graph("captured", captured.graph_module)
        with self.record.timed("differentiate"):
            compiled = captured.graph_module if captured.as_written else self._differentiate(captured)
        self.record.seconds["differentiate"] -= self._nested  # excludes a backward that is compiled at its first run
        publish(self.record)  # only now: Dynamo may start a compilation anew from within differentiate()
        self._tell()
        self._unsaved.barred |= captured.restore is not None
        self._unsaved.returned = compiled.places if isinstance(compiled, WithInputs) else ()
        return compiled if captured.restore is None else restored(compiled, captured.restore)

    def _tell(self) -> None:
        """Log the generated code, and write it to a folder, if either was asked for."""
        logger.info("regraft: compiled %s", self.record)
        self._contained.attempt(log_code, self.record.name, self.record.details, self._logged)
        if self._folder is not None:
            self._contained.attempt(write_dump, self.record, self._folder)

    def _uncaptured(self) -> Captured:
        flat, restore = flat_outputs(self._gm)
        return Captured(flat, self._example_inputs, Reason("capture-failed", "the program was not captured"), restore)

    def _differentiate(self, captured: Captured) -> Callable[..., Any]:
        """The program with its derivatives; Dynamo's own graph if the rewritten program does not compile."""
        self._unsaved.hold(captured.graph_module, self._gm)
        try:
            return differentiate(
                captured.graph_module,
                captured.example_inputs,
                self._compile_graph,
                prepare=self._stages.prepare,
                recompute=self._stages.generates(),
                memory_budget=self.options.memory_budget,
                continued=bool(graph_break(self._gm)[0]),
                exact_draws=self.options.rng == "eager",
                before=self._stages.change_before,
            )
        except Exception as error:
            if isinstance(error, PassFailedError):
                raise
            parts = self._in_parts(error) if captured.fallback is None else None
            if parts is not None:
                return parts
            if self._faults.is_signal(error):
                raise
            if captured.fallback is not None:
                return self._undifferentiated(captured, error)
            return self._unrewritten(self._uncaptured(), error)

    def _in_parts(self, error: Exception) -> Callable[..., Any] | None:
        """The program in parts around operators whose derivatives need values; None if `error` is another one."""
        if not depends_on_data(error) or error is self._raised:
            return None
        compiled = partial(_compiled_apart, options=self.options)
        parts = self._contained.do(in_parts, self._uncaptured().graph_module, compiled)
        if parts is None:
            return None
        for found in (self.record.applied, self.record.declined, self.record.near_misses):
            found.clear()  # they are found again in the parts
        message = f"AOTAutograd cannot trace a derivative, which needs values: {str(error).partition(chr(10))[0]}"
        self.record.fallbacks.append(Fallback("differentiate", "in-parts", message))
        forget_differentiated(self._differentiated)
        return parts

    def _unrewritten(self, written: Captured, error: Exception) -> Callable[..., Any]:
        """The program as it was written, after what we made of it has failed."""
        self.record.applied.clear()
        self._stages.disable_rewrites()
        self._unsaved.hold(written.graph_module, self._gm)
        try:
            compiled = differentiate(written.graph_module, written.example_inputs, self._compile_graph)
        except Exception as without:
            if isinstance(without, PassFailedError) or self._faults.is_signal(without):
                raise
            return self._undifferentiated(written, without)
        self._faults.tell("compiling the rewritten program", "it runs as it was written", error, stage="differentiate")
        return compiled

    def _undifferentiated(self, captured: Captured, error: Exception) -> Callable[..., Any]:
        """Dynamo's graph itself, if AOTAutograd cannot compile the program as written.

        If sizes are symbolic, the graph is compiled for each combination of sizes, since torch may have failed because
        of symbols. Errors of the program itself are raised when it runs.
        """
        self.record.applied.clear()
        forget_differentiated(self._differentiated)
        if error is self._raised:
            self._faults.tell("compiling the program", "the program runs uncompiled", error, stage="differentiate")
            return captured.graph_module
        message = f"AOTAutograd raised {type(error).__name__} on the program as it was written: {str(error)[:300]}"
        known = with_known_sizes(captured.example_inputs)
        self.record.fallbacks.append(Fallback("differentiate", "not-differentiated" if known else "by-sizes", message))
        program = captured.graph_module
        return program if known else BySizes(program, partial(_compiled_apart, program, options=self.options))

    @with_room
    def _compile_graph(
        self, graph_module: fx.GraphModule, inputs: Sequence[Any], kind: GraphKind
    ) -> Callable[..., Any]:
        """Compile one graph after differentiation.

        A backward may be compiled at its first run, perhaps by several threads: the first one compiles it for all. By
        then numbers of Python may become tensors of another dtype.
        """
        if kind != "backward":
            self._backward = None  # it belongs to an earlier attempt
            try:
                return self._compile_one(graph_module, inputs, kind)
            except Exception as error:
                self._raised = error
                raise
        with compile_lock(), left_out(self.options.without), default_dtype(self._default_dtype):
            if self._backward is None:
                self._backward = self._compile_one(graph_module, inputs, kind)
                self._tell()
            return self._backward

    def _compile_one(self, graph_module: fx.GraphModule, inputs: Sequence[Any], kind: GraphKind) -> Callable[..., Any]:
        """Compile one graph; its time is not counted as time for differentiating."""
        start = time.perf_counter()
        if kind == "backward":  # the forward is compiled already: only the backward can start again
            call = as_backward(as_saved(self._compiled_backward(graph_module, inputs), graph_module))
        else:
            call = at_eagers_place(self._compiled(graph_module, inputs, kind), graph_module)
            call = as_forward(call) if kind == "forward" else call
        self._nested += time.perf_counter() - start
        return call

    def _compiled_backward(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        backup = Backup(graph_module)
        backup.take()
        try:
            return self._contained.run(lambda: self._compiled(graph_module, inputs, "backward"), backup.restore)
        except Exception as error:  # outside of all passes
            self._faults.tell("compiling the backward", "it runs by calls of ATen", error, stage="differentiate")
            backup.restore()
            return as_calls(graph_module)

    def _compiled(self, graph_module: fx.GraphModule, inputs: Sequence[Any], kind: GraphKind) -> Boxed:
        """A graph through all stages after differentiation."""
        do = self._contained.do
        if kind == "forward":
            keep_saved()
        if self._contained.leaves_out(*_AGREEMENTS):
            return as_calls(graph_module)
        if kind == "backward":
            do(take_strides, graph_module, inputs)
        returned = places()[1] if kind == "forward" else None
        if returned is not None:
            do(mark_returned, graph_module.graph, returned)
        protected = do(self._stages.lower, graph_module, kind, default=lambda call: call)
        if returned is not None:
            tell_strides(do(strides_of_outputs, graph_module))
        self._code.note_graph(kind, graph_module)
        self._unsaved.barred |= not all(ships_with_torch(node.target) for node in graph_module.graph.nodes)
        parts = do(split_host, graph_module) if self._replay.graphs is not None else None
        if parts is not None:
            return protected(self._compiled_apart(graph_module, parts, kind, returned))
        wrapped = partial(self._replay.wrapped, self.record.name, graph_module, kind, returned)
        captured = do(wrapped, name="cudagraphs", default=lambda call: call)
        call, wrapper = self._code.generated(graph_module, kind)
        code = self.record.code[-1:]  # none without a compiler
        short = self._replay.leaves_short(kind, code[0]) if code and wrapper is not None else None
        if short is not None:  # a choice, and no fallback
            self.record.details["cudagraphs"] = short.message
        if wrapper is not None and kind == "inference":
            self._unsaved.note_inference(graph_module, wrapper)
        if wrapper is not None and self.training:
            do(self._unsaved.note_step, graph_module, kind, wrapper, self.record)
        return protected(call if wrapper is None or short is not None else captured(call))

    def _compiled_apart(
        self, graph_module: fx.GraphModule, parts: Split, kind: GraphKind, returned: int | None
    ) -> Boxed:
        """A graph whose part on the CPU is split off, so that a CUDA graph can capture the rest."""
        name, left = self.record.name, parts.returned(returned)
        wrapped = partial(self._replay.wrapped, name, parts.device, kind, left, parts.static)
        captured = self._contained.do(wrapped, name="cudagraphs")
        if captured is None or kind not in self._replay.static:
            return self._code.generated(graph_module, kind)[0]
        host, _ = self._code.generated(parts.host, kind, "host")
        device, _ = self._code.generated(parts.device, kind)
        del self._replay.static[kind]  # the cache can only restore a single wrapper
        self._unsaved.forget_step()
        return parts.joined(host, captured(device))


@with_room
def _compiled_apart(program: fx.GraphModule, inputs: Sequence[Any], *, options: Options) -> Callable[..., Any]:
    """Compile a program anew for inputs whose sizes are numbers."""
    with collected_once():
        return Compilation(program, inputs, options).run()


def faults_of(record: GraphRecord, options: Options) -> Faults:
    """The settings for handling errors in regraft itself."""
    folder = cache_dir()
    return Faults(
        record,
        strict=options.strict or options.verify != "off",
        folder=folder and folder / "faults",
        signals=(dynamo_signal(),),
    )


complete_torch()
on_reset(backend, drop_captures)
