"""Random shapes through one dynamic BERT and one dynamic Llama: no wrong result, and few compilations.

    python benchmarks/dynamic_shapes.py [--shapes 500] [--most 3] [--shortest 2] [--seed 0]

Batches of 1 to 9 and sequences of 2 to 130, the smallest and largest among them. torch traces a program anew for each
dimension of size 1, whatever the backend: with `--shortest 1` that makes four graphs of two dimensions. How often it
traced with backend "eager" is printed beside.
Exit code 1 where a result is wrong, or where a program was compiled more than `--most` times and more often than with
"eager"; what was compiled again is told with the reason that torch gives.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch._dynamo import utils

import regraft

BATCHES, LENGTHS = (1, 9), (2, 130)
TOLERANCE = 1e-4


@dataclass
class Run:
    """The result for one model; `traced` is how often torch traces it with backend "eager"."""

    name: str
    shapes: int = 0
    compiled: int = 0
    traced: int = 0
    worst: float = 0.0
    wrong: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def right(self, most: int) -> bool:
        return not self.wrong and self.compiled <= max(most, self.traced)


def bert(layers: int) -> Callable[..., torch.Tensor]:
    """A tiny BERT."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=99,
        max_position_embeddings=256, attn_implementation="eager",
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    return lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state


def llama(layers: int) -> Callable[..., torch.Tensor]:
    """A tiny Llama."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=99, max_position_embeddings=256, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaModel(config).eval()
    return lambda ids, mask: model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state


MODELS = {"bert": bert, "llama": llama}


def shapes(count: int, seed: int, shortest: int) -> Iterator[tuple[int, int]]:
    """Random sizes, corners first."""
    draw, longest = random.Random(seed), LENGTHS[1]
    corners = [(3, 17), (BATCHES[1], longest), (1, longest), (1, shortest), (2, shortest), (BATCHES[1], shortest)]
    yield from corners[:count]
    for _ in range(count - len(corners)):
        yield draw.randint(*BATCHES), draw.randint(shortest, longest)


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and a mask of them whose last third is padding."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[:, length - length // 3 :] = 0
    return torch.randint(0, 99, (batch, length)), mask


def traced(model: Callable[..., torch.Tensor], sizes: Iterable[tuple[int, int]]) -> int:
    """How often torch traces a model for these sizes, whatever the backend."""
    torch.compiler.reset()
    utils.counters.clear()
    plain = torch.compile(model, backend="eager", dynamic=True)
    with torch.no_grad():
        for batch, length in sizes:
            plain(*inputs(batch, length))
    return int(utils.counters["stats"]["unique_graphs"])


def run(name: str, count: int, seed: int = 0, layers: int = 2, shortest: int = LENGTHS[0]) -> Run:
    """One model through `count` shapes."""
    torch.manual_seed(seed)
    made, start = Run(name), time.perf_counter()
    model = MODELS[name](layers)
    made.traced = traced(model, shapes(min(count, 60), seed, shortest))
    torch.compiler.reset()
    utils.counters.clear()
    compiled = torch.compile(model, backend="regraft", dynamic=True)
    with torch.no_grad(), regraft.coverage() as cov:
        for batch, length in shapes(count, seed, shortest):
            ids, mask = inputs(batch, length)
            expected, found = model(ids, mask), compiled(ids, mask)
            error = float((found - expected).norm() / expected.norm().clamp_min(1e-12))
            made.worst = max(made.worst, error)
            if not error < TOLERANCE or found.shape != expected.shape:
                made.wrong.append((batch, length))
            made.shapes += 1
    made.compiled = len(cov.graphs)
    made.reasons = [g.details["recompiled"]["why"] for g in cov.graphs if "recompiled" in g.details]
    made.seconds = time.perf_counter() - start
    return made


def main() -> int:
    """All models; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", type=int, default=500)
    parser.add_argument("--most", type=int, default=3, help="compilations of one model")
    parser.add_argument("--shortest", type=int, default=LENGTHS[0], help="sequence")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", default=",".join(MODELS))
    arguments = parser.parse_args()
    failed = False
    for name in arguments.models.split(","):
        made = run(name, arguments.shapes, arguments.seed, shortest=arguments.shortest)
        failed |= not made.right(arguments.most)
        print(
            f"{made.name}: {made.shapes} shapes, {made.compiled} compilations (torch traces {made.traced}), "
            f"worst error {made.worst:.1e}, {len(made.wrong)} wrong {made.wrong[:5]}, {made.seconds:.0f} s"
        )
        print("".join(f"  compiled again: {reason}\n" for reason in made.reasons), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
