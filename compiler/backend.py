"""The backend: `torch.compile(model, backend="regraft")`.

    capture -> rewrite "forward" -> differentiate -> rewrite "lowered" -> generate kernels -> wrapper

What is done to the graphs before kernels is in `stages`. Every stage prints as text and runs; what happened in it goes
to one `GraphRecord`, published to `regraft.coverage()`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..patterns import default_rules
from ..rewrites.coverage import publish
from ..rewrites.effects import mark_gradients
from ..rewrites.graph import mark_returned
from ..rewrites.profit import Always, Never, Oracle
from ..rewrites.reason import Reason
from ..rewrites.record import Fallback, GraphRecord
from ..rewrites.rule import Rule, declared
from ..rewrites.ruleset import RuleSet, plugin_rules
from . import triton
from .autograd import GraphKind, differentiate
from .capture import Captured, capture
from .capture.outputs import flat_outputs
from .codegen import NotGeneratedError, generate_kernels
from .collector import collected_once
from .cudagraph_rules import skip_reason
from .cudagraphs import CudaGraphs
from .frames import with_room
from .freezing import Boxed, Freezer, refuse_training
from .measure import BUDGET_SECONDS, Measured
from .options import OptionError, Options
from .spaced_rows import strides_of_outputs, take_strides
from .stages import Stages
from .torch_compat import calls_plainly, compile_name, dynamo_signal, places, told_strides
from .warm.entry import Entry, recall, save
from .warm.key import graph_key
from .wrapper import Wrapper, generate

logger = logging.getLogger("regraft")
Observer = Callable[[str, GraphKind, fx.GraphModule, Wrapper], Boxed]
"""Told of each compiled graph: name of the program, kind, the graph, its wrapper; gives what is called in its place."""
_PATIENCE = 10  # times as long may measuring take where the mode says so


@with_room
def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo's.

    Args:
        gm: the graph; it is left as it is.
        example_inputs: its inputs.
        mode: as for `torch.compile`.
        options: see `Options`.

    Raises:
        OptionError: an unknown mode, option, value or rule; the message lists the valid ones.
    """
    with collected_once():
        return Compilation(gm, example_inputs, Options.parse(mode, options)).run()


class Compilation:
    """The compilation of one graph: its options, rules, oracle and record.

    What is observed is neither recalled nor replayed as a CUDA graph: every call runs the wrapper.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        options: Options,
        *,
        near_miss_depth: int = 2,
        observe: Observer | None = None,
    ) -> None:
        self._observe = observe
        self.options = options
        self.rules = resolve_rules(options.rules)
        self.oracle = make_oracle(options)
        self.training = torch.is_grad_enabled() and any(_requires_grad(x) for x in example_inputs)
        kind = "training" if self.training else "inference"
        self.record = GraphRecord(compile_name(), kind, nodes=len(gm.graph.nodes))
        self._devices = frozenset(x.device.type for x in example_inputs if isinstance(x, torch.Tensor))
        self._graphs = self._cuda_graphs()
        if options.freezing:
            refuse_training(example_inputs)
        self._stages = Stages(
            options,
            self.rules,
            self.oracle,
            self.record,
            self._devices,
            training=self.training,
            freezer=Freezer(gm, example_inputs) if options.freezing else None,
            near_miss_depth=near_miss_depth,
        )
        self._gm = gm
        self._example_inputs = example_inputs
        self._nested = 0.0  # seconds that graphs took which were compiled while differentiating
        self._static: frozenset[int] | None = None  # positions of inputs of a graph that is captured
        self._plain: Wrapper | None = None  # the wrapper of an inference graph that needs nothing of AOTAutograd

    def run(self) -> Callable[..., Any]:
        """The graph as compiled before, or through all stages; the record is published when all has succeeded."""
        with self.record.timed("recall"):
            key = self._key()
            known = recall(key) if key is not None else None
        if known is not None:
            known.record.name, known.record.seconds = self.record.name, self.record.seconds
            self.record = known.record
            publish(known.record)
            return known.runner(self._graphs)
        if "cuda" in self._devices and triton.can_build():
            triton.start()
        compiled = self._compile()
        if key is not None and self._plain is not None and not self.record.fallbacks:
            save(key, Entry(self._plain.name, self._plain.parts, self.record, self._static))
        return compiled

    def _cuda_graphs(self) -> CudaGraphs | None:
        """What captures this program's graphs, where that was asked for and makes sense."""
        if not self.options.cudagraphs or self._observe is not None:
            return None
        if self._devices != {"cuda"}:
            message = (
                f"CUDA graphs need all inputs on a CUDA device, here: {', '.join(sorted(self._devices)) or 'none'}"
            )
            self.record.fallbacks.append(Fallback("cudagraphs", "not-on-cuda", message))
            return None
        return CudaGraphs(self.options.cudagraph_limit, self._not_captured)

    def _not_captured(self, reason: Reason) -> None:
        self.record.fallbacks.append(Fallback.of("cudagraphs", reason))

    def _key(self) -> str | None:
        """The key of this compilation in the cache of graphs, if it has one."""
        if self.training or self.options.verify != "off" or self.options.debug or self._observe is not None:
            return None
        if self.options.freezing:  # the record and the code hold weights
            return None
        key = graph_key(self._gm, self._example_inputs, self.options)
        return key if isinstance(key, str) else None

    def _compile(self) -> Callable[..., Any]:
        """All stages, one after the other."""
        with self.record.timed("capture"):
            captured = capture(self._gm, self._example_inputs)
        if captured.fallback is not None:
            self.record.fallbacks.append(Fallback.of("capture", captured.fallback))
        else:
            wanted = [self.training and _requires_grad(x) for x in self._example_inputs]
            mark_gradients(captured.graph_module.graph, wanted)
            self._stages.rewrite_program(captured.graph_module)
        self._note_graph("captured", captured.graph_module)
        with self.record.timed("differentiate"):
            compiled = self._differentiate(captured)
        self.record.seconds["differentiate"] -= self._nested  # a backward compiled later, when first run, is not in it
        publish(self.record)  # only now: Dynamo may start a compilation anew from within differentiate()
        return compiled if captured.restore is None else _restored(compiled, captured.restore)

    def _differentiate(self, captured: Captured) -> Callable[..., Any]:
        """The program with its derivatives; as Dynamo handed it over, where what we made of it does not compile."""
        try:
            return differentiate(
                captured.graph_module,
                captured.example_inputs,
                self._compile_graph,
                prepare=self._stages.prepare,
                recompute=self._stages.generates(),
            )
        except dynamo_signal():
            raise
        except Exception as error:
            if captured.fallback is not None or self.options.verify != "off":
                raise
            self._give_up("differentiate", error)
            return differentiate(flat_outputs(self._gm)[0], captured.example_inputs, self._compile_graph)

    def _give_up(self, stage: str, error: Exception) -> None:
        """Note that the user's program runs as it was written, for a fault of ours."""
        reason = Reason(f"{stage}-failed", f"the rewritten program did not compile: {type(error).__name__}: {error}")
        logger.warning("regraft: %s; it runs as it was written", reason.message, exc_info=True)
        self.record.fallbacks.append(Fallback.of(stage, reason))
        self.record.applied.clear()
        self._stages.stand_back()

    @with_room  # a backward may be compiled when it is first run
    def _compile_graph(
        self, graph_module: fx.GraphModule, inputs: Sequence[Any], kind: GraphKind
    ) -> Callable[..., Any]:
        """Compile one graph after differentiation."""
        start = time.perf_counter()
        if kind == "backward":
            take_strides(graph_module, inputs)
        told, returned = told_strides() if kind == "forward" else None, places()[1]
        if told is not None and returned is not None:
            mark_returned(graph_module.graph, returned)
        protected = self._stages.lower(graph_module, kind)
        if told is not None and returned is not None:
            told.extend(strides_of_outputs(graph_module))
        self._note_graph(kind, graph_module)
        captured = self._captured(graph_module, kind)
        with self.record.timed("kernels"):
            self._generate_kernels(graph_module, kind)
        with self.record.timed("generate"):
            wrapper = generate(graph_module, name=f"{self.record.name} {kind}")
        if kind == "inference" and calls_plainly():
            self._plain = wrapper
        self.record.details[f"source:{kind}"] = wrapper.source
        self.record.details[f"stats:{kind}"] = wrapper.stats
        self._nested += time.perf_counter() - start
        call = wrapper.call if self._observe is None else self._observe(self.record.name, kind, graph_module, wrapper)
        return protected(captured(call))

    def _captured(self, graph_module: fx.GraphModule, kind: GraphKind) -> Callable[[Boxed], Boxed]:
        """What to wrap a compiled graph in, so that it is replayed as a CUDA graph where that may be."""
        graphs = self._graphs
        if graphs is None:
            return lambda call: call
        static, returned = places()
        if kind == "backward":  # what it reads stays where it is while it runs
            static = frozenset(range(len(graph_module.graph.nodes)))
        reason = skip_reason(graph_module.graph, static, self.options.rng)
        if reason is None and kind == "forward" and returned is None:
            reason = Reason("unknown-outputs", "which outputs the backward keeps is not known")
        if reason is not None:
            self._not_captured(reason)
            return lambda call: call
        self._static = static
        if kind == "inference":
            return lambda call: graphs.inference(call, static)
        if kind == "forward":
            return lambda call: graphs.forward(call, static, returned or 0)
        return graphs.backward

    def _generate_kernels(self, graph_module: fx.GraphModule, kind: GraphKind) -> None:
        """Put generated kernels into the graph; where that fails, the calls of ATen stay."""
        try:
            made = generate_kernels(graph_module, kind, verify=self.options.verify != "off")
        except NotGeneratedError as refusal:
            self.record.fallbacks.append(Fallback.of("kernels", refusal.reason))
        except Exception as error:
            if self.options.verify != "off":
                raise
            self._keep_calls(error)
        else:
            graph_module.graph = made.graph
            self._stages.draw(kind, "kernels", made.graph)
            self.record.code.append(made.code)
            if self.options.debug:
                self.record.details.update((f"{stage}:{kind}", text) for stage, text in made.texts().items())

    def _note_graph(self, stage: str, graph_module: fx.GraphModule) -> None:
        """Keep a graph as text, where asked to."""
        if self.options.debug:
            self.record.details[f"graph:{stage}"] = str(graph_module.graph)

    def _keep_calls(self, error: Exception) -> None:
        """Note that a graph runs by calls of ATen, for a fault of ours."""
        reason = Reason("kernels-failed", f"no kernels were generated: {type(error).__name__}: {error}")
        logger.warning("regraft: %s; the graph runs by calls of ATen", reason.message, exc_info=True)
        self.record.fallbacks.append(Fallback.of("kernels", reason))


def _restored(compiled: Callable[..., Any], restore: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
    """`compiled`, its flat results in the structure of the program's own."""

    def run(*inputs: Any) -> Any:
        return restore(compiled(*inputs))

    return run


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def make_oracle(options: Options) -> Oracle:
    """Who decides what is worth it."""
    patience = _PATIENCE if options.mode.startswith("max-autotune") else 1
    oracles: dict[str, Callable[[], Oracle]] = {
        "always": Always, "never": Never, "measured": lambda: Measured(patience * BUDGET_SECONDS),
    }  # fmt: skip
    return oracles[options.profit]()


def resolve_rules(items: tuple[Any, ...] | None) -> RuleSet:
    """The rule set that option ``rules`` asks for.

    Items are `Rule`s, `RuleSet`s, and names: of a rule, of an installed plugin, or ``"default"``.

    Raises:
        OptionError: an item is none of these.
    """
    if items is None:
        return default_rules()
    found = RuleSet()
    for item in items:
        found = found + _resolve(item)
    return found


def _resolve(item: Any) -> RuleSet:
    if isinstance(item, (Rule, RuleSet)):
        return RuleSet([item]) if isinstance(item, Rule) else item
    if not isinstance(item, str):
        raise OptionError(f"option 'rules' takes rules, rule sets and names, not {type(item).__name__}: {item!r}")
    if item == "default":
        return default_rules()
    defaults = default_rules()  # declares the library's own rules, so that their names are known
    if item in defaults:
        return RuleSet([defaults[item]])
    try:
        return RuleSet([declared(item)])
    except KeyError as unknown:
        try:
            return plugin_rules(item)
        except KeyError:
            raise OptionError(f"option 'rules': {unknown.args[0]}; nor does a plugin offer it") from None
