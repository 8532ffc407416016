"""Runs the pipeline on the graphs of one program: one runner for all passes.

Each pass is timed, may fail alone, is verified under option `verify`, and is recorded with what it changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from torch import fx

from ..rewrites.coverage import is_watched
from ..rewrites.driver import Settings, rewrite
from ..rewrites.effects import mark_gradients, wants_gradient
from ..rewrites.profit import Never, Oracle
from ..rewrites.reason import Reason
from ..rewrites.record import PassRun, Refusal
from ..rewrites.ruleset import RuleSet
from ..rewrites.sizes import sizes_unread
from ..rewrites.snapshot import regions_by_name, snapshot
from ..rewrites.switches import allowed, changing
from ..rewrites.verifier import verify_graph
from .autograd.differentiate import GraphKind
from .autograd.joint_graph import incoming_gradients
from .capture.checkpoints import captured_bodies
from .capture.scopes import backends_around, backends_throughout
from .codegen import triton
from .codegen.cpp import can_build
from .freezing import Folded, Freezer
from .normal import FORMS
from .options import Options
from .passes.containment import Containment
from .passes.registry import Context, Pass, changes, refusals
from .pipeline import BEFORE, BODY, CAPTURED, DESUGARED, JOINT, LOWERED, PROGRAM_RULES
from .runtime.calls import Boxed


class Stages:
    """The passes over the graphs of one program.

    Args:
        options: the options of the compilation.
        rules: the rules to match.
        oracle: decides whether a change is worth it.
        containment: runs the passes; the record of its faults receives all results.
        devices: the types of the devices of the program's inputs.
        training: whether gradients flow through the program.
        freezer: knows the weights, if they may be treated as constants.
        explained: rules whose near misses are recorded even if little of the pattern matched.
    """

    def __init__(
        self,
        options: Options,
        rules: RuleSet,
        oracle: Oracle,
        containment: Containment,
        devices: frozenset[str],
        *,
        training: bool,
        freezer: Freezer | None,
        explained: frozenset[str],
    ) -> None:
        self._options, self._rules, self._oracle = options, rules, oracle
        self._faults, self._do, self._fails = containment.faults, containment.do, containment.leaves_out
        self._record = self._faults.record
        self._devices, self._training, self._explained = devices, training, explained
        self._freezer = freezer
        self._layouts = True
        self._desugars = False  # the program was not captured: rules run after AOTAutograd has desugared it
        self._backends = self._backends_throughout = backends_around()
        self._drawn = is_watched()  # a report will show the graphs

    # -- called by the compilation ------------------------------------------------------------------------------------

    @property
    def folded(self) -> Folded | None:
        """The constants to which the inference graph's weights were folded."""
        return self._freezer.folded if self._freezer is not None else None

    def disable_rewrites(self) -> None:
        """Compile the program as written: from now on no weights are frozen and no layouts change."""
        self._freezer, self._layouts = None, False

    def wait_for_desugared(self, program: fx.GraphModule) -> None:
        """For a program that cannot be captured: run its rules on the graphs that AOTAutograd creates."""
        self._desugars, self._backends_throughout = True, backends_throughout(program)

    def rewrite_program(self, graph_module: fx.GraphModule) -> None:
        """Rewrite a captured graph."""
        self._run(CAPTURED, graph_module, "program")
        self._backends_throughout = backends_throughout(graph_module)
        self._run(PROGRAM_RULES, graph_module, "program")
        for call, body in captured_bodies(graph_module):
            mark_gradients(body.graph, [isinstance(x, fx.Node) and wants_gradient(x) for x in call.args[1:]])
            self._run(PROGRAM_RULES, body, "body")

    def rewrite_desugared(self, graph_module: fx.GraphModule, kind: str) -> None:
        """Run the rules for programs on a graph below autograd."""
        self._run(DESUGARED, graph_module, kind)

    def change_before(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Run the passes on a program that is about to be differentiated."""
        self._run(BEFORE, graph_module, "program", inputs)

    def prepare(self, graph_module: fx.GraphModule, kind: Literal["inference", "joint"]) -> None:
        """Run the passes that precede the split into forward and backward, and decide what the forward saves."""
        if self._desugars and kind == "inference":
            self.rewrite_desugared(graph_module, kind)
        if self.generates():
            with sizes_unread(self._do(incoming_gradients, graph_module.graph, default=[])):
                self._run(JOINT, graph_module, "joint")

    def generates(self) -> bool:
        """Whether kernels are generated for the devices of all inputs.

        The backward then recomputes cheap values, including random ones, inside of the kernels that read them.
        """
        builders = {"cpu": can_build, "cuda": triton.can_build}
        devices = self._devices or ("cpu",)
        return all(device in builders and self._do(builders[device], default=False) for device in devices)

    def lower(self, graph_module: fx.GraphModule, kind: GraphKind) -> Callable[[Boxed], Boxed]:
        """Rewrite a graph after autograd, with frozen weights if asked for; returns a wrapper for the call."""
        # Inference graphs were rewritten before their random numbers were seeded.
        if self._desugars and kind != "inference":
            self.rewrite_desugared(graph_module, kind)
        self._run(LOWERED, graph_module, kind)
        if self._freezer is None or kind != "inference":
            return _as_it_is
        self._record.details["freezing"] = self._freezer.counts
        return self._freezer.protected

    def lower_body(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """Rewrite a graph that control flow calls, as if it were a whole program."""
        self.rewrite_desugared(graph_module, kind)
        self._run(BODY, graph_module, kind)

    # -- the runner ----------------------------------------------------------------------------------------------------

    def _run(self, passes: Sequence[Pass], graph_module: fx.GraphModule, kind: str, inputs: Sequence[Any] = ()) -> None:
        """Run passes on a graph, in order."""
        context = Context(
            kind,
            self._options,
            self._oracle,
            self._record,
            self._devices,
            self._training,
            self._layouts,
            measured=not isinstance(self._oracle, Never),
            do=self._do,
            rewrite=lambda graph, stage: self._rewrite(graph, stage, kind),
            freezer=self._freezer if kind in ("program", "inference") else None,
            inputs=inputs,
        )
        for one in passes:
            why = self._why_not(one, context)
            if why is None:
                self._run_one(one, graph_module, context)
            elif one.name in self._explained:
                self._record.passes.append(PassRun(one.name, kind, refusals=_refused([why]), ran=False))

    def _why_not(self, one: Pass, context: Context) -> Reason | None:
        """Why a pass does not run on a graph; None if it runs."""
        why = one.refusal(context)
        if why is not None or one.made_of_steps or one.required or allowed("pass", one.name):
            return why
        return Reason("switched-off", "the pass is left out, by option `without` or by a bisection")

    def _run_one(self, one: Pass, graph_module: fx.GraphModule, context: Context) -> None:
        start = time.perf_counter()
        drawing = self._drawing(graph_module, context.kind, one.drawn)
        with changing("pass", graph_module.graph), drawing, refusals() as told:
            run = one.run if one.required else partial(self._do, one.run, name=one.name)
            made = changes(run(graph_module, context))
        seconds = time.perf_counter() - start
        if not one.seconds:  # rules record their own time
            return
        self._record.seconds[one.seconds] = self._record.seconds.get(one.seconds, 0.0) + seconds
        ran = not self._fails(one.name)
        told += (
            [] if ran else [Reason("failed", "the pass raised an error, and the program was compiled without the pass")]
        )
        self._record.passes.append(PassRun(one.name, context.kind, made, seconds, _refused(told), ran))
        if made and self._options.verify != "off":
            self._do(verify_graph, graph_module.graph, name=f"verify {one.name}")

    def _rewrite(self, graph_module: fx.GraphModule, stage: Any, kind: str) -> int:
        return int(rewrite(graph_module, self._rules, self._settings(stage, kind), self._record))

    @contextmanager
    def _drawing(self, graph_module: fx.GraphModule, kind: str, wanted: bool) -> Iterator[None]:
        """Snapshots of a graph before and after templates, if a report will show them."""
        if not wanted:
            yield
            return
        known = len(self._record.applied), len(self._record.declined)
        if not any(taken.graph == kind for taken in self._record.snapshots):
            self.draw(kind, "differentiate", graph_module.graph)
        yield
        if self._drawn and self._record.snapshots:
            self._do(self._draw_templates, graph_module, kind, known)

    def _draw_templates(self, graph_module: fx.GraphModule, kind: str, known: tuple[int, int]) -> None:
        self._record.snapshots[-1] = regions_by_name(self._record.snapshots[-1], self._record, known)
        if len(self._record.applied) > known[0]:
            self.draw(kind, "templates", graph_module.graph)

    def draw(self, name: str, stage: str, graph: fx.Graph) -> None:
        """Keep a snapshot, if a report will show it."""
        if self._drawn:
            drawn = self._do(snapshot, graph, name, stage)
            self._record.snapshots += [drawn] if drawn is not None else []

    def _settings(self, stage: Any, graph: str) -> Settings:
        return Settings(
            stage=stage,
            normal_form=FORMS[stage],
            oracle=self._oracle,
            training=self._training and graph in ("program", "body"),
            keep_stream=self._options.rng == "eager",
            verify=self._options.verify,
            explained=self._explained,
            keep_text=self._options.debug or bool(self._explained),
            faults=self._faults,
            drawn=graph if self._drawn and graph != "body" else "",
            policy=self._policy(self._backends if graph == "program" else self._backends_throughout),
        )

    def _policy(self, backends: str | None) -> tuple[tuple[str, str], ...]:
        given = (("nan", self._options.nan), ("rng", self._options.rng), ("profit", self._options.profit))
        return given if backends is None else (*given, ("backends", backends))


def _refused(reasons: Sequence[Reason]) -> tuple[Refusal, ...]:
    return tuple(Refusal(reason.code, reason.message, reason.site) for reason in reasons)


def _as_it_is(call: Boxed) -> Boxed:
    return call
