"""The plan of a comparison of generation: texts, backends, and the least time."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..profile.contestants import Contestant


@dataclass
class Decoder(Contestant):
    """One way to generate: what `Contestant` says, a call being a token.

    Args:
        seconds: median of a token after the first.
        prefill_seconds: median of the prefill; `prefill_samples` all of them.
        cold_seconds: the first prefill and the first step, compilation included; `cold_step_seconds` of it the step.
        error: of logits, relative to eager's in float32 in the 2-norm, the worst of all tokens.
        equal: of how many tokens the logits are largest at eager's token in float32.
    """

    prefill_seconds: float = 0.0
    prefill_samples: list[float] = field(default_factory=list)
    cold_step_seconds: float = 0.0
    equal: int = 0


@dataclass(frozen=True)
class GenerationPlan:
    """The texts to generate: sequences, tokens of each prompt and of each text, tokens that the cache has room for."""

    batch: int
    prompt: int
    tokens: int

    @property
    def room(self) -> int:
        """Tokens that the cache holds in the end: the last that is generated is not read again."""
        return self.prompt + self.tokens - 1


@dataclass(frozen=True)
class LeastTime:
    """The least time on this machine.

    Args:
        step: seconds to read the weights and the used cache once, in the middle of the text.
        prefill: seconds for the prefill's products at the rate of a large one, or to read the weights, the longer.
        weights, cache: bytes that a step reads.
        flops: of the prefill, in weights.
        bandwidth: bytes a second.
        rate: FLOPs a second; 0 where not known.
    """

    step: float
    prefill: float
    weights: int
    cache: int
    flops: int
    bandwidth: float
    rate: float
