"""A step of an optimizer over many parameters: eager, `foreach`, `fused=True`, and `torch.compile(optimizer.step)`.

    python benchmarks/optimizers.py --kinds adamw,sgd --tensors 150 --device cuda

Parameters are those of Transformer layers, in float32; eager takes them one by one. Printed for each: median ms of a
step, launches, compilations while the learning rate changes, and the largest difference of parameters from eager's
after all steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer

import regraft

KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=1e-3, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=1e-3, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=1e-2, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True, **k),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}
RUNS = {"eager": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
WITHOUT_FUSED = ("rmsprop", "adadelta", "adamax", "nadam", "radam")
STEPS = 12


def parameters(tensors: int, width: int, device: str) -> list[torch.Tensor]:
    """Weights and biases, by turns."""
    shapes = [(width, width), (width,), (4 * width, width), (4 * width,), (width,)]
    torch.manual_seed(0)
    return [torch.randn(shapes[k % 5], device=device).requires_grad_() for k in range(tensors)]


def milliseconds(step: Callable[[], Any], device: str) -> float:
    """The median of some steps, each waited for."""
    times = []
    for _ in range(STEPS):
        wait(device)
        start = time.perf_counter()
        step()
        wait(device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def wait(device: str) -> None:
    """Until the GPU is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def launches(step: Callable[[], Any], device: str) -> int:
    """Kernels and copies of one step on a GPU."""
    if device != "cuda":
        return 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        wait(device)
    return sum(row.count for row in profiler.key_averages())


def measured(kind: str, run: str, tensors: int, width: int, device: str) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """One row, and the parameters after it."""
    torch.compiler.reset()
    params = parameters(tensors, width, device)
    gradients = [torch.randn_like(p) for p in params]
    for p, g in zip(params, gradients, strict=True):
        p.grad = g
    optimizer = KINDS[kind](params, **RUNS.get(run, {}))
    step, compilations = optimizer.step, [0]
    if run in ("inductor", "regraft"):
        backend = regraft.backend if run == "regraft" else torch._dynamo.lookup_backend("inductor")

        def counted(module: Any, inputs: Any) -> Any:
            compilations[0] += 1
            return backend(module, inputs)

        step = torch.compile(optimizer.step, backend=counted)
    start = time.perf_counter()
    for k in range(5):
        for group in optimizer.param_groups:
            group["lr"] *= 1 - 0.1 * (k > 2)
        step()
    wait(device)
    seconds = time.perf_counter() - start
    row = {"ms": milliseconds(step, device), "launches": launches(step, device)}
    return row | {"first steps s": seconds, "compilations": compilations[0]}, params


def main(
    kinds: Annotated[str, typer.Option(help="Names, by commas.")] = ",".join(KINDS),
    tensors: Annotated[int, typer.Option(help="Parameters.")] = 150,
    width: Annotated[int, typer.Option(help="Of a layer.")] = 768,
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    runs: Annotated[str, typer.Option(help="Ways, by commas.")] = "eager,foreach,fused,inductor,regraft",
) -> None:
    """Time steps."""
    for kind in kinds.split(","):
        reference = None
        for run in runs.split(","):
            if run == "fused" and kind in WITHOUT_FUSED:
                continue
            row, params = measured(kind, run, tensors, width, device)
            reference = params if reference is None else reference
            pairs = zip(params, reference, strict=True)
            row["difference"] = max(float((a - b).detach().abs().max()) for a, b in pairs)
            cells = (
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
            print(kind, run, *cells, flush=True)


if __name__ == "__main__":
    typer.run(main)
