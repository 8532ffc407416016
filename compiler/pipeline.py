"""What is done to a program's graphs between capture and kernels, in order.

as captured                    masks settled, rules of stage "forward"                          `rewrite_program`
as desugared                   the same rules, where capture refused                            `rewrite_desugared`
forward and backward in one    what the forward keeps, layout of images, random seeds           `prepare`
each graph after autograd      constants, rules, freezing, layouts, kernels from templates      `lower`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Literal

from torch import fx

from ..rewrites.coverage import is_watched
from ..rewrites.driver import Settings, rewrite
from ..rewrites.effects import mark_gradients, wants_gradient
from ..rewrites.profit import Never, Oracle
from ..rewrites.ruleset import RuleSet
from ..rewrites.snapshot import regions_by_name, snapshot
from .autograd.differentiate import GraphKind
from .autograd.seed_dropout import seed_calls
from .capture.checkpoints import captured_bodies, inline_bodies
from .capture.scopes import backends_around, backends_throughout
from .codegen import triton
from .codegen.cpp import can_build
from .codegen.generate import begin_kernels
from .freezing import Boxed, Freezer
from .normal import FORMS
from .options import Options
from .passes.align_rows import space_rows
from .passes.channels_last import Spread, spread_channels_last
from .passes.constant_sdpa_masks import settle_masks
from .passes.containment import Containment
from .passes.conv_as_mm import convolutions_as_products, images_as_rows
from .passes.cse import share_calls
from .passes.decompose_composites import write_out_composites
from .passes.fold_constant_tables import fold_tables
from .passes.fold_uniform import fold_uniform
from .passes.max_pool_offsets import keep_places
from .passes.mm_out_dtype import widen_products
from .passes.pad_conv_channels import pad_channels
from .passes.recompute_log_softmax import keep_rows
from .passes.scalars_to_device import move_scalars
from .passes.sdpa_backward_layout import lay_out_gradients
from .passes.split_conv_bias import split_biases, sum_bias_gradients
from .templates import (
    fuse_attention,
    fuse_attention_training,
    fuse_gemm,
    fuse_on_gpu,
)
from .templates.common.task import Task, task_of


class Stages:
    """The passes over the graphs of one program.

    Args:
        options: of the compilation.
        rules: what to match.
        oracle: who decides what is worth it.
        containment: runs the passes; the record of its faults gets what was done.
        devices: types of the devices of the program's inputs.
        training: gradients flow.
        freezer: knows the weights, where they may be taken as constants.
        near_miss_depth: how much of a pattern must match before its miss is noted.
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
        near_miss_depth: int,
    ) -> None:
        self._options, self._rules, self._oracle = options, rules, oracle
        self._faults, self._do = containment.faults, containment.do
        self._record = self._faults.record
        self._devices, self._training, self._near_miss_depth = devices, training, near_miss_depth
        self._freezer = freezer
        self._lays_out = True
        self._desugars = False  # the program was not captured: its rules wait until AOTAutograd has desugared it
        self._backends = self._backends_throughout = backends_around()
        self._thorough = options.mode.startswith("max-autotune")
        self._drawn = is_watched()  # somebody will look at the graphs

    def stand_back(self) -> None:
        """The program runs as it was written: no weights are frozen, no layouts changed from now on."""
        self._freezer, self._lays_out = None, False

    def wait_for_desugared(self, program: fx.GraphModule) -> None:
        """A program that cannot be captured: its rules run on the graphs that AOTAutograd makes of it."""
        self._desugars, self._backends_throughout = True, backends_throughout(program)

    def rewrite_program(self, graph_module: fx.GraphModule) -> None:
        """Rewrite a graph as it was captured."""
        if not self._training:
            self._do(inline_bodies, graph_module)
        if self._freezer is not None:
            self._do(self._freezer.mark, graph_module)
        with self._record.timed("masks"):
            masks = self._do(settle_masks, graph_module, keep_stream=self._options.rng == "eager")
        self._record.details["masks"] = masks
        self._backends_throughout = backends_throughout(graph_module)
        self._rewrite(graph_module, "forward", "program")
        for call, body in captured_bodies(graph_module):
            mark_gradients(body.graph, [isinstance(x, fx.Node) and wants_gradient(x) for x in call.args[1:]])
            self._rewrite(body, "forward", "body")

    def _rewrite(self, graph_module: fx.GraphModule, stage: Any, kind: str) -> bool:
        settings = self._settings(stage, kind)
        return bool(self._do(rewrite, graph_module, self._rules, settings, self._record, name=f"rewrite-{stage}"))

    def rewrite_desugared(self, graph_module: fx.GraphModule, kind: str) -> None:
        """Run the rules for programs on a graph below autograd."""
        if self._rewrite(graph_module, "forward", kind):
            self._do(write_out_composites, graph_module)

    def _rewrite_half(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """The same on a forward or backward; on an inference graph it was done before random numbers were seeded."""
        if self._desugars and kind != "inference":
            self.rewrite_desugared(graph_module, kind)

    def prepare(self, graph_module: fx.GraphModule, kind: Literal["inference", "joint"]) -> None:
        """Have a graph ready for kernels before it is split: what the forward keeps for the backward."""
        if self._desugars and kind == "inference":
            self.rewrite_desugared(graph_module, kind)
        if not self.generates():
            return
        if self._training:
            self._do(keep_rows, graph_module)
            if self._spread(graph_module, training=True).convolutions and not isinstance(self._oracle, Never):
                biases = self._do(split_biases, graph_module), self._do(sum_bias_gradients, graph_module)
                self._record.details["convolutions"] = dict(zip(("biases", "bias_gradients"), biases, strict=True))
            self._do(keep_places, graph_module)
        self._seed(graph_module)
        if self._training and "cuda" in self._devices:
            self._fuse_attention_training(graph_module)

    def _fuse_attention_training(self, graph_module: fx.GraphModule) -> None:
        """Put kernels in place of attentions and their backwards, where they are worth it."""
        rng = self._options.rng
        with self._record.timed("templates"):
            task = self._task(graph_module, training=True)
            if task is not None:
                self._do(fuse_attention_training, task, seeds=rng != "eager", fast=rng == "fast")

    def _seed(self, graph_module: fx.GraphModule) -> None:
        """Where kernels draw the random numbers, have them drawn from seeds."""
        if self._options.rng == "eager":
            return
        seeded = self._do(seed_calls, graph_module, fast=self._options.rng == "fast", default={})
        self._record.details["seeded"] = dict(seeded)

    def generates(self) -> bool:
        """Whether kernels are generated for all inputs' devices.

        Then the backward may compute cheap values again within what reads them, random ones among these.
        """
        builders = {"cpu": can_build, "cuda": triton.can_build}
        devices = self._devices or ("cpu",)
        return all(device in builders and self._do(builders[device], default=False) for device in devices)

    def lower(self, graph_module: fx.GraphModule, kind: GraphKind) -> Callable[[Boxed], Boxed]:
        """Rewrite a graph after autograd, its weights frozen where asked; gives what to wrap the compiled graph in."""
        freezer = self._freezer if kind == "inference" else None
        self._rewrite_half(graph_module, kind)
        for simplify in (fold_uniform, fold_tables, move_scalars):
            self._do(simplify, graph_module)
        if kind == "inference":  # of a joint graph, autograd's partition does it
            self._do(share_calls, graph_module)
        self._rewrite(graph_module, "simplify", kind)
        if freezer is not None:
            with self._record.timed("freeze"):
                self._do(freezer.begin, graph_module, name="freeze")
        if kind == "inference" and self._lays_out:
            self._lay_out(graph_module)
        if kind == "forward" and self._lays_out and not isinstance(self._oracle, Never):
            self._record.details["padded:forward"] = self._do(pad_channels, graph_module)
        if self._lays_out:
            self._record.details[f"spaced:{kind}"] = self._do(space_rows, graph_module)
        if kind == "inference":  # before single products of attentions are padded
            with self._drawing(graph_module, kind), self._record.timed("templates"):
                self._do(fuse_attention, graph_module, self._oracle, self._record)
        self._rewrite(graph_module, "lowered", kind)
        self._do(lay_out_gradients, graph_module)
        if self._lays_out:
            self._record.details[f"widened:{kind}"] = self._do(widen_products, graph_module)
        if kind == "inference" or "cuda" in self._devices:
            self._fuse_templates(graph_module, kind, packed=freezer is not None)
        return self._frozen(graph_module, freezer)

    def _frozen(self, graph_module: fx.GraphModule, freezer: Freezer | None) -> Callable[[Boxed], Boxed]:
        """Compute what follows from frozen weights; gives what to wrap the compiled graph in."""
        if freezer is None:
            return _as_it_is
        with self._record.timed("freeze"):
            protected = self._do(freezer.finish, graph_module, name="freeze", default=_as_it_is)
        self._record.details["freezing"] = freezer.counts
        return protected

    def lower_body(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """Rewrite a graph that the control flow of another one calls; to it that is a whole program."""
        self.rewrite_desugared(graph_module, kind)
        for simplify in (fold_uniform, fold_tables, move_scalars, share_calls):
            self._do(simplify, graph_module)
        self._rewrite(graph_module, "simplify", kind)
        self._do(fuse_attention, graph_module, self._oracle, self._record)
        self._rewrite(graph_module, "lowered", kind)
        if "cuda" in self._devices:
            self._fuse_on_gpu(graph_module, "inference")

    def _lay_out(self, graph_module: fx.GraphModule) -> None:
        """Choose the layout of images, and what convolutions are in it."""
        if not self._spread(graph_module).convolutions or isinstance(self._oracle, Never):
            return
        with self._record.timed("layout"):
            products, biases = self._do(convolutions_as_products, graph_module), self._do(split_biases, graph_module)
            self._do(images_as_rows, graph_module)
            padded = self._do(pad_channels, graph_module)
        self._record.details["convolutions"] = {"products": products, "biases": biases, "padded": padded}

    def _spread(self, graph_module: fx.GraphModule, *, training: bool = False) -> Spread:
        """Choose the layout of images."""
        with self._record.timed("layout"):
            arguments = graph_module, self._oracle, self._record
            spread = self._do(spread_channels_last, *arguments, training=training, default=Spread(0))
        if spread.convolutions or not training:
            self._record.details["channels_last"] = asdict(spread)
        return spread

    def _fuse_templates(self, graph_module: fx.GraphModule, kind: GraphKind, packed: bool) -> None:
        """Put kernels from templates into the graph, where they are worth it."""
        with self._drawing(graph_module, kind), self._record.timed("templates"):
            if "cuda" in self._devices:
                self._fuse_on_gpu(graph_module, kind)
            # With plain weights it gains too little to be worth its compile time by default.
            elif packed or self._thorough:
                self._do(fuse_gemm, graph_module, self._oracle, self._record, packed=packed)

    @contextmanager
    def _drawing(self, graph_module: fx.GraphModule, kind: GraphKind) -> Iterator[None]:
        """Snapshots of a graph around kernels from templates, where somebody will look at them."""
        known = len(self._record.applied), len(self._record.declined)
        if not any(taken.graph == kind for taken in self._record.snapshots):
            self.draw(kind, "differentiate", graph_module.graph)
        yield
        if self._drawn and self._record.snapshots:
            self._do(self._draw_templates, graph_module, kind, known)

    def _draw_templates(self, graph_module: fx.GraphModule, kind: GraphKind, known: tuple[int, int]) -> None:
        self._record.snapshots[-1] = regions_by_name(self._record.snapshots[-1], self._record, known)
        if len(self._record.applied) > known[0]:
            self.draw(kind, "templates", graph_module.graph)

    def _fuse_on_gpu(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """The same on a GPU."""
        meanwhile = _begun_ahead(graph_module)
        task = self._task(graph_module, training=kind != "inference", meanwhile=meanwhile)
        if task is not None:
            self._do(fuse_on_gpu, task, self._do)

    def _task(self, graph_module: fx.GraphModule, **how: Any) -> Task | None:
        arguments = graph_module.graph, self._oracle, self._record
        found: Task | None = self._do(task_of, *arguments, thorough=self._thorough, **how)
        return found

    def draw(self, name: str, stage: str, graph: fx.Graph) -> None:
        """Keep a snapshot, where somebody will look at it."""
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
            near_miss_depth=self._near_miss_depth,
            faults=self._faults,
            drawn=graph if self._drawn and graph != "body" else "",
            policy=self._policy(self._backends if graph == "program" else self._backends_throughout),
        )

    def _policy(self, backends: str | None) -> tuple[tuple[str, str], ...]:
        given = (("nan", self._options.nan), ("rng", self._options.rng))
        return given if backends is None else (*given, ("backends", backends))


def _as_it_is(call: Boxed) -> Boxed:
    return call


def _begun_ahead(graph_module: fx.GraphModule) -> Callable[[], None]:
    """What begins to compile a graph's kernels, once: most are the same when templates are in it."""

    @functools.cache
    def begin() -> None:
        with suppress(Exception):  # whatever is wrong is found again, where it is told
            begin_kernels(graph_module)

    return begin
