"""A whole training step of a large language model: forward, backward and AdamW, one backend a process.

    python benchmarks/language_model_step.py --backends eager,inductor,regraft
    python benchmarks/language_model_step.py --layers 2 --hidden 64 --vocabulary 1000 --rows 2 --tokens 32 --device cpu

A Llama (1.2 billion parameters by default) with random weights, as `transformers` has it, trained under bfloat16
autocast; the compiled function gives the loss alone. Printed: milliseconds of a step (median), tokens a second, peak
memory of the steps after the first in GiB (parameters, gradients and the optimizer's state included), seconds of the
first step, and the loss after the last one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Annotated

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import typer

import regraft

WARM = 3


def model_of(hidden: int, layers: int, vocabulary: int) -> torch.nn.Module:
    """A Llama whose heads have 64 channels, four of them sharing keys and values."""
    heads = max(hidden // 64, 1)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1), vocab_size=vocabulary, max_position_embeddings=8192,
        use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def measure(  # noqa: PLR0913
    backend: str, device: str, mode: str, rows: int, tokens: int, steps: int, hidden: int, layers: int, vocabulary: int
) -> None:
    """Train with one backend, and print its line."""
    torch.manual_seed(0)
    with torch.device(device):
        model = model_of(hidden, layers, vocabulary)
    ids = torch.randint(0, vocabulary, (rows, tokens), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, labels=ids).loss

    compiler = {"eager": "eager", "regraft": regraft.backend}.get(backend, backend)
    function = loss_of if backend == "eager" else torch.compile(loss_of, backend=compiler, mode=mode or None)
    times = []
    for number in range(WARM + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = function(ids)
        loss.backward()
        optimizer.step()
        value = loss.item()  # waits for the device
        times.append(time.perf_counter() - start)
        if device == "cuda" and number == WARM - 1:
            torch.cuda.reset_peak_memory_stats()
    step = statistics.median(times[WARM:])
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    print(
        f"{backend:10} {1e3 * step:8.1f} ms {rows * tokens / step:10.0f} tokens/s {peak:6.2f} GiB "
        f"first {times[0]:6.1f} s loss {value:.4f}",
        flush=True,
    )


def main(  # noqa: PLR0913
    backends: Annotated[str, typer.Option(help="Names, by commas.")] = "eager,inductor,regraft",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    mode: Annotated[str, typer.Option(help="Of torch.compile.")] = "",
    rows: int = 4,
    tokens: int = 2048,
    steps: int = 10,
    hidden: int = 2048,
    layers: int = 16,
    vocabulary: int = 128256,
) -> None:
    """Time steps."""
    if "," not in backends:
        measure(backends, device, mode, rows, tokens, steps, hidden, layers, vocabulary)
        return
    given = [arg for arg in sys.argv[1:] if not arg.startswith("--backends") and arg != backends]
    for backend in backends.split(","):
        subprocess.run([sys.executable, __file__, *given, "--backends", backend], check=False)


if __name__ == "__main__":
    typer.run(main)
