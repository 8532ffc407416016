"""How long does matching take, and does it grow linearly with the graph?

    python benchmarks/matching.py [--rules 100] [--sizes 1000 2000 5000 10000 20000]

A synthetic network is matched against rules of which most nearly match somewhere. "match" is what the matcher and its
index do; "mirror" is the working copy that a run makes first.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from regraft.rewrites.index import RuleIndex
from regraft.rewrites.matcher import Matcher
from regraft.rewrites.mirror import Mirror
from regraft.rewrites.rule import Rule, register_pattern
from regraft.rewrites.sample import Sample, T

aten = torch.ops.aten
UNARY = ("exp", "tanh", "relu", "sigmoid", "sin", "cos", "sqrt", "abs", "neg", "reciprocal")
BLOCK = (
    (aten.matmul.default, 2),
    (aten.mul.Tensor, 2), (aten.add.Tensor, 2), (aten.tanh.default, 1), (aten.relu.default, 1),
    (aten.add.Tensor, 2), (aten.exp.default, 1), (aten.mul.Tensor, 2), (aten.sigmoid.default, 1), (aten.sub.Tensor, 2),
)  # fmt: skip


def network(calls: int) -> fx.GraphModule:
    """A chain of blocks with skip connections, `calls` ATen calls long."""
    graph = fx.Graph()
    with FakeTensorMode():
        value = torch.empty(8, 8)
    last = graph.placeholder("x")
    last.meta["val"] = value
    skip = last
    for i, (target, operands) in zip(range(calls), itertools.cycle(BLOCK), strict=False):
        last = graph.call_function(target, (last, skip)[:operands])
        last.meta["val"] = torch.empty_like(value)
        skip = last if i % len(BLOCK) == 0 else skip
    graph.output(last)
    return fx.GraphModule(torch.nn.Module(), graph)


def library(count: int) -> list[Rule]:
    """Rules three to five operators deep, in rotation rooted at the operators of the network."""
    return [_declare(i, function) for i, function in zip(range(count), _patterns(), strict=False)]


def _patterns() -> Iterator[Callable[..., torch.Tensor]]:
    for names in itertools.product(("exp", "tanh", "relu", "sigmoid", "sin"), UNARY, ("exp", "tanh", "relu")):
        f, g, h = (getattr(torch, name) for name in names)
        yield lambda x, y, f=f, g=g, h=h: f(g(x) + h(x * y))
        yield lambda x, y, f=f, g=g, h=h: h(x @ y) * f(g(y)) + x


def _declare(i: int, function: Callable[..., torch.Tensor]) -> Rule:
    def pattern(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return function(x, y)

    return register_pattern(f"rule{i}", replacement=torch.add, samples=[Sample(x=T("N"), y=T("N"))])(pattern)


def match_all(rules: list[Rule], graph: fx.Graph) -> int:
    """One sweep of the driver's questions to the matcher; the number of matches."""
    index = RuleIndex(rules, graph)
    return sum(1 for node in graph.nodes for rule in index.candidates(node) for _ in Matcher(rule).match(node))


def best(function: Callable[[], object], rounds: int = 3) -> float:
    """Processor seconds of the fastest of several runs: other work on the machine does not count."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 2000, 5000, 10_000, 20_000])
    options = parser.parse_args()
    rules = library(options.rules)
    print(f"{'nodes':>8} {'matches':>8} {'match s':>9} {'us a node':>9} {'mirror s':>9}")
    for size in options.sizes:
        module = network(size)
        found = match_all(rules, module.graph)
        seconds = best(partial(match_all, rules, module.graph))
        mirror = best(partial(Mirror, module), rounds=1)
        print(f"{size:8} {found:8} {seconds:9.3f} {seconds / size * 1e6:9.1f} {mirror:9.3f}")


if __name__ == "__main__":
    main()
