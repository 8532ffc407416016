"""Backends held against eager at generating text: the work behind `regraft bench --generate`.

greedy tokens by eager in float32 -> each backend decodes these, error of its logits -> all take turns -> medians

Every backend compiles the prefill and the step apart, each for its sizes. The tokens are the same for all: where each
of a backend's logits has its largest at eager's token, it would have generated the same text by itself.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ....rewrites.machine import environment
from ...autotune.benchmark import one_line
from ..profile.comparison import Progress, compiled
from ..profile.contestants import EAGER, Contestant, Times
from ..profile.limits import measured_limits, read_bandwidth
from ..profile.running import seconds_of, wait
from ..targets.target import TargetError
from .decoding import cache_bytes, empty_cache, forward, place_of, prefill_flops, weight_bytes
from .plan import Decoder, GenerationPlan, LeastTime

if TYPE_CHECKING:
    from rich.console import RenderableType

SECONDS = 30.0  # for all timed turns
MIN_ROUNDS, MAX_ROUNDS = 3, 50
_FIRST_TOKEN = 5  # the first few have a meaning of their own in many vocabularies


@dataclass(frozen=True)
class Generation(Times):
    """Times of tokens: `speed` is that of one after the first.

    Attributes:
        plan: what was generated.
        roof: the least time on this machine.
    """

    schema = "regraft-generate"

    contestants: Sequence[Decoder]
    plan: GenerationPlan
    roof: LeastTime

    def view(self) -> RenderableType:
        """The comparison for a terminal."""
        from .table import generation_view

        return generation_view(self, self.contestants, self.plan, self.roof)


def compare_generation(
    model: Any,
    chosen: Sequence[Contestant],
    plan: GenerationPlan,
    *,
    name: str = "",
    progress: Progress = lambda doing, done: None,
) -> Generation:
    """Generate the same text by each contestant.

    Args:
        model: a decoder of `transformers` (see `require_decoder`).
        chosen: eager first.
        plan: what is generated.
        name: of the model.
        progress: told what is being done.

    Raises:
        TargetError: eager does not generate with this model.
    """
    decoders = [Decoder(**vars(one)) for one in chosen]
    device = next(model.parameters()).device
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        progress(f"{name}: eager in float32", 0.0)
        try:
            tokens, expected = _reference(model, plan, device)
        except Exception as error:
            told = f"{name} does not generate in eager mode with a static cache: {one_line(error)}"
            raise TargetError(told) from error
        running = []
        for number, one in enumerate(decoders):
            progress(f"{name}: {one.name}", (1 + number) / (2 + len(decoders)))
            turn = _started(one, model, plan, tokens, expected)
            running += [] if turn is None else [(one, turn)]
        progress(f"{name}: timing", (1 + len(decoders)) / (2 + len(decoders)))
        _take_turns(running)
        roof = _roof(model, plan, device)
    return Generation(name, decoders, environment(), plan, roof)


class Turn:
    """A backend with a cache of its own, that reads tokens one after the other."""

    def __init__(self, one: Decoder, model: Any, plan: GenerationPlan, tokens: Sequence[torch.Tensor]) -> None:
        self._model, self._plan, self.tokens = model, plan, tokens
        self._prefill, self._step = (_made(one, model) for _ in range(2))
        self.cache = empty_cache(model, plan.room, plan.batch)

    def prefill(self) -> torch.Tensor:
        """The logits after the prompt; `cache` must be empty."""
        prompt = self.tokens[0]
        torch.compiler.cudagraph_mark_step_begin()
        return self._prefill(prompt, self.cache, place_of(self._model, 0, prompt.shape[1], prompt.device))  # type: ignore[no-any-return]

    def step(self, number: int) -> torch.Tensor:
        """The logits after that token of the text, the first being 1."""
        token = self.tokens[number]
        place = place_of(self._model, self._plan.prompt + number - 1, 1, token.device)
        torch.compiler.cudagraph_mark_step_begin()
        return self._step(token, self.cache, place)  # type: ignore[no-any-return]

    def steps(self) -> None:
        """All steps, after the prefill."""
        for number in range(1, len(self.tokens)):
            self.step(number)

    def run(self) -> None:
        """The whole text."""
        self.cache.reset()
        self.prefill()
        self.steps()

    def logits(self) -> list[torch.Tensor]:
        """The logits of all tokens, in float32, copied: CUDA graphs write over theirs."""
        self.cache.reset()
        found = [self.prefill().float().clone()]
        return found + [self.step(number).float().clone() for number in range(1, len(self.tokens))]


def _made(one: Decoder, model: Any) -> Callable[..., Any]:
    def call(tokens: torch.Tensor, cache: Any, place: torch.Tensor | None) -> torch.Tensor:
        return forward(model, tokens, cache, place)

    return call if one.backend == EAGER else compiled(call, one)


def _reference(model: Any, plan: GenerationPlan, device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The prompt and the tokens that eager generates in float32, each as it is given, and all logits."""
    half = next(model.parameters()).dtype in (torch.bfloat16, torch.float16)
    exact = copy.deepcopy(model).float() if half else model
    torch.manual_seed(0)
    size = plan.batch, plan.prompt
    tokens = [torch.randint(_FIRST_TOKEN, model.config.vocab_size, size, device=device)]
    turn = Turn(Decoder(EAGER, ""), exact, plan, tokens)
    logits = [turn.prefill().float().clone()]
    for number in range(1, plan.tokens):
        tokens.append(logits[-1].argmax(-1))
        logits.append(turn.step(number).float().clone())
    return tokens, logits


def _started(
    one: Decoder, model: Any, plan: GenerationPlan, tokens: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> Turn | None:
    """Compile, compare with eager and warm up; a contestant that raises is out, and says why."""
    try:
        before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        turn = Turn(one, model, plan, tokens)
        prefill = seconds_of(turn.prefill)
        one.cold_step_seconds = seconds_of(lambda: turn.step(1))
        one.cold_seconds = prefill + one.cold_step_seconds
        pairs = list(zip(turn.logits(), expected, strict=True))
        one.error = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        one.equal = int(sum((a.argmax(-1) == b.argmax(-1)).sum() for a, b in pairs))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            turn.run()
            wait()
            one.peak_bytes = torch.cuda.max_memory_allocated() - before
    except Exception as error:
        one.failed = one_line(error)
        return None
    return turn


def _take_turns(running: Sequence[tuple[Decoder, Turn]]) -> None:
    """Time all by turns, so that a machine that slows down slows all alike."""
    start = time.perf_counter()
    for turn in range(MAX_ROUNDS):
        if turn >= MIN_ROUNDS and time.perf_counter() - start > SECONDS:
            break
        for one, decoder in running:
            decoder.cache.reset()
            one.prefill_samples.append(seconds_of(decoder.prefill))
            one.samples.append(seconds_of(decoder.steps))
    for one, decoder in running:
        steps = len(decoder.tokens) - 1
        one.samples = [seconds / steps for seconds in one.samples]
        one.seconds, one.prefill_seconds = statistics.median(one.samples), statistics.median(one.prefill_samples)


def _roof(model: Any, plan: GenerationPlan, device: torch.device) -> LeastTime:
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    limits, bandwidth = measured_limits(device, {dtype}), read_bandwidth(device)
    used = plan.prompt + plan.tokens // 2
    weights = weight_bytes(model, plan.batch)
    cache = cache_bytes(empty_cache(model, plan.room, plan.batch), used)
    flops, rate = prefill_flops(model, plan.batch, plan.prompt), limits.rates.get(dtype, 0.0)
    prefill = max(weight_bytes(model, plan.batch * plan.prompt) / bandwidth, flops / rate if rate else 0.0)
    return LeastTime((weights + cache) / bandwidth, prefill, weights, cache, flops, bandwidth, rate)
