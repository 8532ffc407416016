"""The backend: `torch.compile(model, backend="regraft")`.

    capture -> rewrite "forward" -> differentiate -> rewrite "lowered" -> generate        one line of code a stage

Every stage prints as text and runs; what happened in it goes to one `GraphRecord`, published to `regraft.coverage()`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ..patterns import default_rules
from ..rewrites.coverage import publish
from ..rewrites.driver import Settings, rewrite
from ..rewrites.effects import mark_gradients
from ..rewrites.profit import Always, Never, Oracle
from ..rewrites.reason import Reason
from ..rewrites.record import Fallback, GraphRecord
from ..rewrites.rule import Rule, declared
from ..rewrites.ruleset import RuleSet, plugin_rules
from .autograd import GraphKind, differentiate
from .capture import Captured, capture
from .capture.outputs import flat_outputs
from .measure import Measured
from .normal import LOWERED_FORM, NORMAL_FORM
from .options import OptionError, Options
from .torch_compat import compile_name, dynamo_signal
from .wrapper import generate

logger = logging.getLogger("regraft")


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
    return Compilation(gm, example_inputs, Options.parse(mode, options)).run()


class Compilation:
    """The compilation of one graph: its options, rules, oracle and record."""

    def __init__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, *, near_miss_depth: int = 2
    ) -> None:
        self._near_miss_depth = near_miss_depth
        self.options = options
        self.rules = resolve_rules(options.rules)
        self.oracle = make_oracle(options)
        self.training = torch.is_grad_enabled() and any(_requires_grad(x) for x in example_inputs)
        kind = "training" if self.training else "inference"
        self.record = GraphRecord(compile_name(), kind, nodes=len(gm.graph.nodes))
        if options.mode != "default":
            message = f"mode {options.mode!r} compiles as 'default': CUDA graphs and tuning are not there yet"
            self.record.fallbacks.append(Fallback("mode", "mode-not-built", message))
        self._gm = gm
        self._example_inputs = example_inputs

    def run(self) -> Callable[..., Any]:
        """Run all stages; the record is published when the last one has succeeded."""
        with self._timed("capture"):
            captured = capture(self._gm, self._example_inputs)
        if captured.fallback is not None:
            self.record.fallbacks.append(Fallback.of("capture", captured.fallback))
        else:
            wanted = [self.training and _requires_grad(x) for x in self._example_inputs]
            mark_gradients(captured.graph_module.graph, wanted)
            rewrite(captured.graph_module, self.rules, self._settings("forward", self.training), self.record)
        with self._timed("differentiate"):
            compiled = self._differentiate(captured)
        publish(self.record)  # only now: Dynamo may start a compilation anew from within differentiate()
        return compiled if captured.restore is None else _restored(compiled, captured.restore)

    def _differentiate(self, captured: Captured) -> Callable[..., Any]:
        """The program with its derivatives; as Dynamo handed it over, where what we made of it does not compile."""
        try:
            return differentiate(captured.graph_module, captured.example_inputs, self._compile_graph)
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

    def _compile_graph(
        self, graph_module: fx.GraphModule, _inputs: Sequence[Any], kind: GraphKind
    ) -> Callable[..., Any]:
        """Compile one graph after differentiation."""
        start = time.perf_counter()
        rewrite(graph_module, self.rules, self._settings("lowered", training=False), self.record)
        with self._timed("generate"):
            wrapper = generate(graph_module, name=f"{self.record.name} {kind}")
        self.record.details[f"source:{kind}"] = wrapper.source
        self.record.details[f"stats:{kind}"] = wrapper.stats
        self.record.seconds["differentiate"] = self.record.seconds.get("differentiate", 0.0) - (
            time.perf_counter() - start
        )
        return wrapper.call

    def _settings(self, stage: Any, training: bool) -> Settings:
        return Settings(
            stage=stage,
            normal_form=NORMAL_FORM if stage == "forward" else LOWERED_FORM,
            oracle=self.oracle,
            training=training,
            keep_stream=self.options.rng == "eager",
            verify=self.options.verify,
            near_miss_depth=self._near_miss_depth,
            policy=(("nan", self.options.nan), ("rng", self.options.rng)),
        )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.record.seconds[stage] = self.record.seconds.get(stage, 0.0) + spent


def _restored(compiled: Callable[..., Any], restore: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
    """`compiled`, its flat results in the structure of the program's own."""

    def run(*inputs: Any) -> Any:
        return restore(compiled(*inputs))

    return run


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def make_oracle(options: Options) -> Oracle:
    """Who decides what is worth it."""
    oracles: dict[str, Callable[[], Oracle]] = {"always": Always, "never": Never, "measured": Measured}
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
