"""What is done to a program's graphs between capture and kernels, in order.

as captured                    masks settled, rules of stage "forward"                          `rewrite_program`
forward and backward in one    what the forward keeps, layout of images, random seeds           `prepare`
each graph after autograd      constants, rules, freezing, layouts, kernels from templates      `lower`
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from torch import fx

from ..rewrites.coverage import is_watched
from ..rewrites.driver import Settings, rewrite
from ..rewrites.profit import Never, Oracle
from ..rewrites.record import Fallback, GraphRecord
from ..rewrites.ruleset import RuleSet
from ..rewrites.snapshot import regions_by_name, snapshot
from . import triton
from .attention_masks import settle_masks
from .autograd import GraphKind
from .codegen import begin_kernels
from .common_calls import share_calls
from .cpp import can_build
from .cudnn_gradients import lay_out_gradients
from .freezing import (
    Boxed,
    Freezer,
    Spread,
    convolutions_as_products,
    fold_tables,
    fold_uniform,
    images_as_rows,
    pad_channels,
    split_biases,
    spread_channels_last,
    sum_bias_gradients,
)
from .freezing.scalars import move_scalars
from .normal import FORMS
from .options import Options
from .pooled_places import keep_places
from .seeding import seed_calls
from .softmax_rows import keep_rows
from .spaced_rows import space_rows
from .templates import (
    fuse_attention,
    fuse_attention_training,
    fuse_gemm,
    fuse_on_gpu,
)
from .templates.task import Task, task_of
from .wide_products import widen_products

logger = logging.getLogger("regraft")


class Stages:
    """The passes over the graphs of one program.

    Args:
        options: of the compilation.
        rules: what to match.
        oracle: who decides what is worth it.
        record: gets what was done.
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
        record: GraphRecord,
        devices: frozenset[str],
        *,
        training: bool,
        freezer: Freezer | None,
        near_miss_depth: int,
    ) -> None:
        self._options, self._rules, self._oracle, self._record = options, rules, oracle, record
        self._devices, self._training, self._near_miss_depth = devices, training, near_miss_depth
        self._freezer = freezer
        self._lays_out = True
        self._thorough = options.mode.startswith("max-autotune")
        self._drawn = is_watched()  # somebody will look at the graphs

    def stand_back(self) -> None:
        """The program runs as it was written: no weights are frozen, no layouts changed from now on."""
        self._freezer, self._lays_out = None, False

    def rewrite_program(self, graph_module: fx.GraphModule) -> None:
        """Rewrite a graph as it was captured."""
        if self._freezer is not None:
            self._freezer.mark(graph_module)
        with self._record.timed("masks"):
            masks = settle_masks(graph_module, keep_stream=self._options.rng == "eager")
        self._record.details["masks"] = masks
        rewrite(graph_module, self._rules, self._settings("forward", "program"), self._record)

    def prepare(self, graph_module: fx.GraphModule) -> None:
        """Have a graph ready for kernels before it is split: what the forward keeps for the backward."""
        if not self.generates():
            return
        if self._training:
            keep_rows(graph_module)
            if self._spread(graph_module, training=True).convolutions and not isinstance(self._oracle, Never):
                biases = {"biases": split_biases(graph_module), "bias_gradients": sum_bias_gradients(graph_module)}
                self._record.details["convolutions"] = biases
            keep_places(graph_module)
        self._seed(graph_module)
        if self._training and "cuda" in self._devices:
            self._fuse_attention_training(graph_module)

    def _fuse_attention_training(self, graph_module: fx.GraphModule) -> None:
        """Put kernels in place of attentions and their backwards, where they are worth it."""
        rng = self._options.rng
        with self._record.timed("templates"), self._contained("attention in training stays as it is"):
            task = self._task(graph_module, training=True)
            if task is not None:
                fuse_attention_training(task, seeds=rng != "eager", fast=rng == "fast")

    def _seed(self, graph_module: fx.GraphModule) -> None:
        """Where kernels draw the random numbers, have them drawn from seeds."""
        if self._options.rng == "eager":
            return
        self._record.details["seeded"] = dict(seed_calls(graph_module, fast=self._options.rng == "fast"))

    def generates(self) -> bool:
        """Whether kernels are generated for all inputs' devices.

        Then the backward may compute cheap values again within what reads them, random ones among these.
        """
        builders = {"cpu": can_build, "cuda": triton.can_build}
        return all(device in builders and builders[device]() for device in self._devices or ("cpu",))

    def lower(self, graph_module: fx.GraphModule, kind: GraphKind) -> Callable[[Boxed], Boxed]:
        """Rewrite a graph after autograd, its weights frozen where asked; gives what to wrap the compiled graph in."""
        freezer = self._freezer if kind == "inference" else None
        fold_uniform(graph_module)
        fold_tables(graph_module)
        move_scalars(graph_module)
        if kind == "inference":  # of a joint graph, autograd's partition does it
            share_calls(graph_module)
        rewrite(graph_module, self._rules, self._settings("simplify", kind), self._record)
        if freezer is not None:
            with self._record.timed("freeze"):
                freezer.begin(graph_module)
        if kind == "inference" and self._lays_out:
            self._lay_out(graph_module)
        if kind == "forward" and self._lays_out and not isinstance(self._oracle, Never):
            self._record.details["padded:forward"] = pad_channels(graph_module)
        if self._lays_out:
            self._record.details[f"spaced:{kind}"] = space_rows(graph_module)
        rewrite(graph_module, self._rules, self._settings("lowered", kind), self._record)
        lay_out_gradients(graph_module)
        if self._lays_out:
            self._record.details[f"widened:{kind}"] = widen_products(graph_module)
        if kind == "inference" or "cuda" in self._devices:
            self._fuse_templates(graph_module, kind, packed=freezer is not None)
        if freezer is None:
            return lambda call: call
        with self._record.timed("freeze"):
            protected = freezer.finish(graph_module)
        self._record.details["freezing"] = freezer.counts
        return protected

    def _lay_out(self, graph_module: fx.GraphModule) -> None:
        """Choose the layout of images, and what convolutions are in it."""
        if not self._spread(graph_module).convolutions or isinstance(self._oracle, Never):
            return
        with self._record.timed("layout"):
            products, biases = convolutions_as_products(graph_module), split_biases(graph_module)
            images_as_rows(graph_module)
            padded = pad_channels(graph_module)
        self._record.details["convolutions"] = {"products": products, "biases": biases, "padded": padded}

    def _spread(self, graph_module: fx.GraphModule, *, training: bool = False) -> Spread:
        """Choose the layout of images."""
        with self._record.timed("layout"):
            spread = spread_channels_last(graph_module, self._oracle, self._record, training=training)
        if spread.convolutions or not training:
            self._record.details["channels_last"] = asdict(spread)
        return spread

    def _fuse_templates(self, graph_module: fx.GraphModule, kind: GraphKind, packed: bool) -> None:
        """Put kernels from templates into the graph, where they are worth it."""
        known = len(self._record.applied), len(self._record.declined)
        if not any(taken.graph == kind for taken in self._record.snapshots):
            self.draw(kind, "differentiate", graph_module.graph)
        with self._record.timed("templates"):
            if kind == "inference":
                fuse_attention(graph_module, self._oracle, self._record)
            if "cuda" in self._devices:
                self._fuse_on_gpu(graph_module, kind)
            # With plain weights it gains too little to be worth its compile time by default.
            elif packed or self._thorough:
                with self._contained("products are left to the library"):
                    fuse_gemm(graph_module, self._oracle, self._record, packed=packed)
        if self._drawn:
            self._record.snapshots[-1] = regions_by_name(self._record.snapshots[-1], self._record, known)
            if len(self._record.applied) > known[0]:
                self.draw(kind, "templates", graph_module.graph)

    def _fuse_on_gpu(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """The same on a GPU."""
        meanwhile = _begun_ahead(graph_module)
        task = self._task(graph_module, training=kind != "inference", meanwhile=meanwhile)
        if task is not None:
            fuse_on_gpu(task, self._contained)

    def _task(self, graph_module: fx.GraphModule, **how: Any) -> Task | None:
        return task_of(graph_module.graph, self._oracle, self._record, thorough=self._thorough, **how)

    @contextmanager
    def _contained(self, outcome: str) -> Iterator[None]:
        """A pass over templates that may fail: then `outcome`, and the record says so."""
        try:
            yield
        except Exception as error:
            if self._options.verify != "off":
                raise
            message = f"{outcome}: {type(error).__name__}: {error}"
            logger.warning("regraft: %s", message, exc_info=True)
            self._record.fallbacks.append(Fallback("templates", "templates-failed", message))

    def draw(self, name: str, stage: str, graph: fx.Graph) -> None:
        """Keep a snapshot, where somebody will look at it."""
        if self._drawn:
            self._record.snapshots.append(snapshot(graph, name, stage))

    def _settings(self, stage: Any, graph: str) -> Settings:
        return Settings(
            stage=stage,
            normal_form=FORMS[stage],
            oracle=self._oracle,
            training=self._training and graph == "program",
            keep_stream=self._options.rng == "eager",
            verify=self._options.verify,
            near_miss_depth=self._near_miss_depth,
            drawn=graph if self._drawn else "",
            policy=(("nan", self._options.nan), ("rng", self._options.rng)),
        )


def _begun_ahead(graph_module: fx.GraphModule) -> Callable[[], None]:
    """What begins to compile a graph's kernels, once: most are the same when templates are in it."""

    @functools.cache
    def begin() -> None:
        with suppress(Exception):  # whatever is wrong is found again, where it is told
            begin_kernels(graph_module)

    return begin
