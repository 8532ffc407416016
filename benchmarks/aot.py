"""The overhead of a call of an artifact: regraft's, AOTInductor's and eager's, taking turns.

python benchmarks/aot.py --calls 2000        a linear layer of a few numbers: all that is left is overhead
python benchmarks/aot.py --wrappers          tiny models by `torch.compile`, through wrappers in Python and in C++
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import regraft

ROUNDS = 15
TURNS = 40  # of tiny models, a few calls each: the least of them is shown, since others use the machine


def microseconds(call: Callable[[], Any], calls: int) -> float:
    """The mean time of one of so many calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def artifacts(calls: int, width: int) -> None:
    """Print medians of one call of an artifact in microseconds."""
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()).eval()
    x = torch.randn(4, width)
    shapes = ({0: torch.export.Dim("rows", min=1, max=64)},)
    exported = torch.export.export(model, (x,), dynamic_shapes=shapes)
    with tempfile.TemporaryDirectory() as folder:
        ours = regraft.load(regraft.aot_compile(exported, None, Path(folder) / "model.rgx"))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(Path(folder) / "model.pt2"))
        theirs = torch._inductor.aoti_load_package(package)
        runs: dict[str, Callable[[], Any]] = {
            "eager": lambda: model(x),
            "regraft": lambda: ours(x),
            "AOTInductor": lambda: theirs(x),
            "AOTInductor, its loader alone": lambda: theirs.loader.run([x]),
        }
        for name, run in runs.items():
            torch.testing.assert_close(run()[0] if name.endswith("alone") else run(), model(x), msg=name)
        times = [[microseconds(run, calls) for run in runs.values()] for _ in range(ROUNDS)]
    for name, taken in zip(runs, zip(*times, strict=True), strict=True):
        typer.echo(f"{name:32} {statistics.median(taken):8.2f} us")


def tiny_models() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Models of which most of a call is overhead, and inputs."""
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    layers = [
        torch.nn.Linear(16, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 4),
    ]
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    bert = BertModel(BertConfig(vocab_size=100, **sizes)).eval()
    llama = LlamaModel(LlamaConfig(vocab_size=100, use_cache=False, **sizes)).eval()
    tokens = torch.randint(0, 100, (1, 16))
    state = (torch.randn(1, 32), torch.randn(1, 32))
    return {
        "MLP": (torch.nn.Sequential(*layers).eval(), (torch.randn(4, 16),)),
        "LSTM step": (torch.nn.LSTMCell(16, 32).eval(), (torch.randn(1, 16), state)),
        "tiny BERT": (lambda ids: bert(ids).last_hidden_state, (tokens,)),
        "tiny Llama": (lambda ids: llama(ids).last_hidden_state, (tokens,)),
    }


COMPILERS: dict[str, dict[str, Any]] = {
    "regraft": {"backend": "regraft"},
    "regraft, C++": {"backend": "regraft", "options": {"cpp.wrapper": True, "strict": True}},
    "Inductor": {"backend": "inductor"},
    "Inductor, C++": {"backend": "inductor", "options": {"cpp_wrapper": True}},
}


def of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with code of its own, so that compilers do not share a cache."""

    def call(*args: Any) -> Any:
        return function(*args)

    return type(call)(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)


def wrappers(calls: int, only: str) -> None:
    """Print the least of one call of each model by each compiler in microseconds, and the seconds of its first call."""
    for name, (model, inputs) in tiny_models().items():
        if only and only not in name:
            continue
        torch.compiler.reset()
        runs: dict[str, Callable[..., Any]] = {"eager": model}
        first = {"eager": 0.0}
        for kind, how in COMPILERS.items():
            runs[kind] = torch.compile(of_its_own(model), **how)
            start = time.perf_counter()
            torch.testing.assert_close(runs[kind](*inputs), model(*inputs), rtol=1e-3, atol=1e-4)
            first[kind] = time.perf_counter() - start
        times: dict[str, list[float]] = {kind: [] for kind in runs}
        for _ in range(TURNS):
            for kind, run in runs.items():
                run(*inputs)
                times[kind].append(microseconds(partial(run, *inputs), calls))
        told = (f"{kind} {min(times[kind]):.1f} us ({first[kind]:.1f} s)" for kind in runs)
        typer.echo(f"{name:12} {'   '.join(told)}")


def main(
    calls: Annotated[int, typer.Option(help="In each of the rounds.")] = 1000,
    width: int = 8,
    wrappers_too: Annotated[bool, typer.Option("--wrappers", help="Tiny models by torch.compile instead.")] = False,
    only: Annotated[str, typer.Option(help="The model whose name has this.")] = "",
) -> None:
    """Print what calls cost."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if wrappers_too:
        wrappers(max(1, calls // 20), only)
    else:
        artifacts(calls, width)


if __name__ == "__main__":
    typer.run(main)
