"""Several processes that share the work, on this machine: each runs a function and says what it computed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def in_processes(function: Callable[[], Any], folder: Path, count: int = 2) -> list[Any]:
    """What a function of a module gives in each of some processes, which are one group."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(_run, (function, count, f"tcp://localhost:{port}", folder), nprocs=count)
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def _run(rank: int, function: Callable[[], Any], count: int, address: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
    try:
        torch.save(function(), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
