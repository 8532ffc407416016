"""Several processes that share the work, on this machine: each runs a function and says what it computed."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .fresh import run_fresh

_SCRIPT = Path(__file__).with_name("process_of_group.py")


def in_processes(function: Callable[[], Any], folder: Path, count: int = 2) -> list[Any]:
    """What a function of a module gives in each of some processes, which are one group."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    told = [inspect.getfile(function), function.__name__, str(count), f"tcp://localhost:{port}", folder]
    for done in run_fresh([[_SCRIPT, *told, str(rank)] for rank in range(count)]):
        assert done.code == 0, done.errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]
