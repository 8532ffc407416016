"""Decoding with a cache of a fixed size, as a loop over tokens does it, and what a step must read.

cache = empty;  logits = forward(prompt)           the prefill, which fills the cache
                logits = forward(token)            a step, once for each further token
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..targets.target import TargetError

NEEDED = ("input_ids", "use_cache")
CACHE_NAMES = ("cache", "past_key_values")  # since transformers 5.24, and before it


def require_decoder(model: Any, name: str) -> None:
    """Raise where a model cannot decode token by token with a cache.

    Raises:
        TargetError: it cannot; the message says what is missing.
    """
    if not isinstance(model, torch.nn.Module):
        raise TargetError(f"{name} is no torch.nn.Module: generation needs a model of `transformers`")
    taken = inspect.signature(model.forward).parameters
    missing = [one for one in NEEDED if one not in taken]
    if not any(one in taken for one in CACHE_NAMES):
        missing.append(" or ".join(CACHE_NAMES))
    if missing:
        raise TargetError(f"{name}: generation needs a forward that takes {', '.join(missing)}; this one does not")
    if not isinstance(getattr(getattr(model, "config", None), "vocab_size", None), int):
        raise TargetError(f"{name}: generation needs a decoder with `config.vocab_size`, which it has not")
    if getattr(model.config, "is_encoder_decoder", False):
        raise TargetError(f"{name} has an encoder: generation is timed for models that are a decoder alone")


def empty_cache(model: Any, length: int, batch: int) -> Any:
    """A static cache for so many tokens, allocated by a token of each sequence, and empty again."""
    import transformers

    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
    device = next(model.parameters()).device
    forward(model, torch.zeros(batch, 1, dtype=torch.int64, device=device), cache, place_of(model, 0, 1, device))
    cache.reset()
    return cache


def forward(model: Any, tokens: torch.Tensor, cache: Any, place: torch.Tensor | None) -> torch.Tensor:
    """Logits of the last token: batch x 1 x vocabulary."""
    taken = _parameters(model)
    more: dict[str, Any] = {next(one for one in CACHE_NAMES if one in taken): cache}
    if place is not None:
        more["cache_position"] = place
    if "logits_to_keep" in taken:
        more["logits_to_keep"] = 1
    logits: torch.Tensor = model(input_ids=tokens, use_cache=True, **more).logits
    return logits[:, -1:]


def place_of(model: Any, first: int, count: int, device: torch.device) -> torch.Tensor | None:
    """Positions, for versions of `transformers` whose caches do not count themselves."""
    return torch.arange(first, first + count, device=device) if "cache_position" in _parameters(model) else None


def _parameters(model: Any) -> frozenset[str]:
    forward = getattr(model, "_orig_mod", model).forward
    if torch.compiler.is_compiling():  # Dynamo looks once, and warns of caches
        return frozenset(inspect.signature(forward).parameters)
    return _names_of(getattr(forward, "__func__", forward))


@functools.lru_cache(maxsize=64)
def _names_of(function: Callable[..., Any]) -> frozenset[str]:
    """Names of parameters, looked up once: asked at each token, they would take a tenth of a small model's step."""
    return frozenset(inspect.signature(function).parameters)


def rewind(cache: Any, length: int) -> None:
    """Let a cache whose layers hold all tokens forget those from `length` on."""
    for layer in cache.layers:
        counted = getattr(layer, "cumulative_length", None)
        if isinstance(counted, torch.Tensor):
            counted.fill_(length)


def weight_bytes(model: Any, batch: int) -> int:
    """Bytes of the weights that a step of so many sequences reads: of experts, at most as many as tokens choose.

    Tables of embeddings count where they are the last layer's weights, too.
    """
    tables = {module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    last = model.get_output_embeddings()
    tied = last.weight if last is not None and hasattr(last, "weight") else None
    share = _experts_read(model, batch)
    total = 0.0
    for parameter in model.parameters():
        if parameter not in tables or parameter is tied:
            total += parameter.nbytes * (share if _is_of_experts(model, parameter) else 1.0)
    return round(total) + sum(_few_bits(module) for module in model.modules())


def cache_bytes(cache: Any, used: int) -> int:
    """Bytes of the first `used` tokens of a cache."""
    total = 0
    for layer in cache.layers:
        for held in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            if isinstance(held, torch.Tensor) and held.dim() == 4 and held.shape[2]:
                total += held.nbytes * min(used, held.shape[2]) // held.shape[2]
    return total


def prefill_flops(model: Any, batch: int, prompt: int) -> int:
    """FLOPs of a prefill in weights: attention, and all of the last layer but one row of each sequence, not counted."""
    tables = {module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    last = model.get_output_embeddings()
    last_weight = getattr(last, "weight", None)
    chosen, experts = _experts(model)
    total = 0.0
    for parameter in model.parameters():
        if parameter.dim() < 2 or parameter in tables or parameter is last_weight:
            continue
        total += parameter.numel() * (chosen / experts if _is_of_experts(model, parameter) else 1.0)
    of_last = last_weight.numel() if isinstance(last_weight, torch.Tensor) else 0
    return round(2 * batch * (prompt * total + of_last))


def _few_bits(module: torch.nn.Module) -> int:
    """Bytes of the buffers of a module that holds weights of 8 bits or fewer."""
    buffers: Sequence[torch.Tensor] = list(module.buffers(recurse=False))
    return sum(b.nbytes for b in buffers) if any(b.dtype in (torch.int8, torch.uint8) for b in buffers) else 0


def _experts(model: Any) -> tuple[int, int]:
    """How many experts a token takes, and of how many; (1, 1) where there are none."""
    config = model.config
    count = next((n for key in ("num_local_experts", "num_experts") if (n := getattr(config, key, None))), 1)
    chosen = getattr(config, "num_experts_per_tok", None) or 1
    return (chosen, count) if count > 1 else (1, 1)


def _is_of_experts(model: Any, parameter: torch.Tensor) -> bool:
    count = _experts(model)[1]
    return count > 1 and parameter.dim() == 3 and parameter.shape[0] == count


def _experts_read(model: Any, batch: int) -> float:
    chosen, count = _experts(model)
    return min(1.0, batch * chosen / count)
