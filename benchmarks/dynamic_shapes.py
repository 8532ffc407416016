"""Random shapes through one dynamic BERT and one dynamic Llama: no wrong result, and few compilations.

    python benchmarks/dynamic_shapes.py [--shapes 500] [--most 3] [--seed 0]

Batches of 1 to 9 and sequences of 2 to 130, the smallest and largest among them. (torch compiles each dimension of size
1 apart, so that with sequences of 1 there would be four graphs of two dimensions: two more.)
Exit code 1 where a result is wrong or a program was compiled more than `--most` times; what was compiled again is told
with the reason that torch gives.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch._dynamo import utils

import regraft

BATCHES, LENGTHS = (1, 9), (2, 130)
TOLERANCE = 1e-4


@dataclass
class Run:
    """What came of one model."""

    name: str
    shapes: int = 0
    compiled: int = 0
    worst: float = 0.0
    wrong: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def right(self, most: int) -> bool:
        return not self.wrong and self.compiled <= most


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


def shapes(count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Random sizes, corners first."""
    draw = random.Random(seed)
    corners = [(3, 17), (BATCHES[1], LENGTHS[1]), (1, LENGTHS[1]), (1, 2), (2, 2), (BATCHES[1], 2)]
    yield from corners[:count]
    for _ in range(count - len(corners)):
        yield draw.randint(*BATCHES), draw.randint(*LENGTHS)


def run(name: str, count: int, seed: int = 0, layers: int = 2) -> Run:
    """One model through `count` shapes."""
    torch.manual_seed(seed)
    torch.compiler.reset()
    utils.counters.clear()
    made, start = Run(name), time.perf_counter()
    model = MODELS[name](layers)
    compiled = torch.compile(model, backend="regraft", dynamic=True)
    with torch.no_grad(), regraft.coverage() as cov:
        for batch, length in shapes(count, seed):
            ids = torch.randint(0, 99, (batch, length))
            mask = torch.ones(batch, length, dtype=torch.long)
            mask[:, length - length // 3 :] = 0
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", default=",".join(MODELS))
    arguments = parser.parse_args()
    failed = False
    for name in arguments.models.split(","):
        made = run(name, arguments.shapes, arguments.seed)
        failed |= not made.right(arguments.most)
        print(
            f"{made.name}: {made.shapes} shapes, {made.compiled} compilations, worst error {made.worst:.1e}, "
            f"{len(made.wrong)} wrong {made.wrong[:5]}, {made.seconds:.0f} s"
        )
        print("".join(f"  compiled again: {reason}\n" for reason in made.reasons), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
