"""Training steps of a Llama on several processes: DDP, FSDP2 and tensor parallel, each backend in turn.

    python benchmarks/distributed.py --processes 2
    python benchmarks/distributed.py --processes 2 --device cpu --size tiny --ways ddp,fsdp,tensor

Each process has a GPU of its own and NCCL, or a CPU thread and gloo. A step is forward, backward and AdamW, on GPUs
under autocast to bfloat16. All backends begin from the same weights, see the same rows, and take turns. Printed for
each: median ms of a step (of the slowest process), speed over the first backend, seconds of the first step, peak memory
of a process, and the greatest relative difference of its losses from the first backend's.
"""

from __future__ import annotations

import gc
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import transformers as tf
import typer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import regraft

SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256},
    "base": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "vocab_size": 32000},
}
HEADS = {"tiny": (4, 2), "base": (16, 4)}
ROWS = {"tiny": (2, 16), "base": (8, 512)}
TURNS, STEPS, WARM, HELD = 4, 5, 5, 4


def llama(size: str) -> nn.Module:
    """A Llama with random weights, the same in each process."""
    torch.manual_seed(0)
    heads, groups = HEADS[size]
    return tf.LlamaForCausalLM(
        tf.LlamaConfig(
            **SIZES[size],
            num_attention_heads=heads,
            num_key_value_heads=groups,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )


def by_data(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Each process has all weights and rows of its own."""
    devices = None if mesh.device_type == "cpu" else [torch.cuda.current_device()]
    return nn.parallel.DistributedDataParallel(model, device_ids=devices)


def by_parameters(model: Any, mesh: DeviceMesh) -> nn.Module:
    """Each process has a part of each parameter, and gathers a layer's before it runs."""
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_heads(model: Any, mesh: DeviceMesh) -> nn.Module:
    """Each process has a part of the heads and of the inner columns, and all rows."""
    plan: dict[str, Any] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    plan |= {f"{name}_proj": RowwiseParallel() for name in ("self_attn.o", "mlp.down")}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    return model


WAYS: dict[str, Callable[[nn.Module, DeviceMesh], nn.Module]] = {
    "ddp": by_data,
    "fsdp": by_parameters,
    "tensor": by_heads,
}


class Training:
    """One model spread over the processes, under one backend."""

    def __init__(self, way: str, backend: str, size: str, mesh: DeviceMesh) -> None:
        self.device = mesh.device_type
        self.others = self._allocated()
        self.model = WAYS[way](llama(size).to(self.device), mesh)
        self.call: Callable[..., Any] = self.forward
        if backend != "eager":
            self.call = torch.compile(self.forward, backend=regraft.backend if backend == "regraft" else backend)
        spread = [p for p in self.model.parameters() if isinstance(p, DTensor)]
        whole = [p for p in self.model.parameters() if not isinstance(p, DTensor)]
        groups = [{"params": kind} for kind in (spread, whole) if kind]  # kernels for many tensors take one kind
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4)
        torch.manual_seed(1 if way == "tensor" else 1 + dist.get_rank())
        self.rows = torch.randint(5, SIZES[size]["vocab_size"] - 1, ROWS[size], device=self.device)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The loss."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
            return self.model(input_ids=rows, labels=rows).loss

    def step(self) -> torch.Tensor:
        """Forward, backward, AdamW; gives the loss."""
        loss = self.call(self.rows)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = loss.detach()
        return value.full_tensor() if isinstance(value, DTensor) else value

    def begin(self) -> dict[str, Any]:
        """Compile, and tell the losses of the first steps."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        losses = [float(self.step())]
        cold = time.perf_counter() - start
        losses += [float(self.step()) for _ in range(HELD - 1)]
        for _ in range(WARM):
            self.step()
        return {"losses": losses, "first s": cold, "peak GiB": self._peak()}

    def times(self) -> list[float]:
        """Milliseconds of some steps."""
        return [self._timed() for _ in range(STEPS)]

    def _timed(self) -> float:
        dist.barrier()
        self._wait()
        start = time.perf_counter()
        self.step()
        self._wait()
        return 1e3 * (time.perf_counter() - start)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def _peak(self) -> float:
        most = torch.cuda.max_memory_allocated() if self.device == "cuda" else 0
        return (most - self.others) / 2**30


def serve(rank: int, count: int, port: int, ways: list[str], backends: list[str], size: str, device: str) -> None:
    """One process of the group."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=count)
    try:
        for way in ways:
            compared(way, backends, size, init_device_mesh(device, (count,)))
    finally:
        dist.destroy_process_group()


def compared(way: str, backends: list[str], size: str, mesh: DeviceMesh) -> None:
    """Train under each backend, and time them in turns; the first process prints."""
    made, rows = {}, {}
    for backend in backends:
        torch._dynamo.reset()
        gc.collect()  # what earlier ways leave in cycles would be freed within the peak of this one
        made[backend] = Training(way, backend, size, mesh)
        rows[backend] = made[backend].begin()
    times: dict[str, list[float]] = {backend: [] for backend in backends}
    for _ in range(TURNS):
        for backend in backends:
            times[backend] += made[backend].times()
    expected, base = rows[backends[0]]["losses"], slowest(times[backends[0]], mesh.device_type)
    for backend, row in rows.items():
        apart = max(abs(a / b - 1) for a, b in zip(row["losses"], expected, strict=True))
        ms = slowest(times[backend], mesh.device_type)
        if dist.get_rank() == 0:
            told = f"first {row['first s']:.1f} s  peak {row['peak GiB']:.2f} GiB  losses apart {apart:.1e}"
            print(f"{way:7s} {backend:9s} {ms:8.2f} ms  {base / ms:.2f}x  {told}", flush=True)


def slowest(times: list[float], device: str) -> float:
    """The median step of the slowest process."""
    value = torch.tensor(statistics.median(times), device=device)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def main(
    processes: Annotated[int, typer.Option(min=1, help="Processes, each with a GPU or a thread.")] = 2,
    ways: Annotated[str, typer.Option(help="ddp, fsdp, tensor")] = "ddp,fsdp,tensor",
    backends: Annotated[str, typer.Option(help="Of torch.compile, or eager.")] = "eager,inductor,regraft",
    size: Annotated[str, typer.Option(help="tiny or base")] = "base",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
) -> None:
    """Time training on several processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = (processes, port, ways.split(","), backends.split(","), size, device)
    multiprocessing.spawn(serve, args=given, nprocs=processes)


if __name__ == "__main__":
    typer.run(main)
