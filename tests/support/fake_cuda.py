"""A CUDA driver that runs nothing: what would be launched on a GPU, looked at without one.

with_fake_driver(monkeypatch)      kernels are built for Hopper, and launches recorded
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

STREAM = 77
_MODULES = ("build", "driver", "launch")
_USED: list[Any] = []  # the launcher's module, while it has this driver's functions


class _Launch(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 128),
        *((name, ctypes.c_ulonglong) for name in ("programs", "threads", "shared", "stream", "context", "early")),
        ("values", ctypes.c_ulonglong * 64),
    )


class FakeDriver:
    """The library, and what it was asked."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.library = ctypes.CDLL(path)
        self.library.fake_launch.restype = ctypes.POINTER(_Launch)

    def reset(self, slots: int = 1) -> None:
        """Forget everything; of later launches, remember so many arguments."""
        self.library.fake_reset()
        self.library.fake_slots(slots)

    def launches(self) -> list[Any]:
        """What was launched."""
        return [self.library.fake_launch(k).contents for k in range(self.library.fake_launched())]


@functools.cache
def library() -> FakeDriver:
    """The library, compiled once a process."""
    folder = tempfile.mkdtemp(prefix="fake-cuda-")
    path = Path(folder) / "libfakecuda.so"
    source = Path(__file__).with_name("fake_cuda.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-O1", str(source), "-o", str(path)], check=True)
    return FakeDriver(str(path))


def with_fake_driver(monkeypatch: Any, slots: int = 1) -> FakeDriver:
    """Build for Hopper, on the fake driver."""
    import torch

    import regraft.compiler.codegen.triton
    from regraft.compiler.passes import fold_constant_tables
    from regraft.rewrites.compat import memory

    build, driver, launch = (importlib.import_module(f"regraft.compiler.codegen.triton.{n}") for n in _MODULES)
    fake = library()
    fake.reset(slots)
    one = driver.Driver(fake.path)
    for module in (driver, build, launch):
        monkeypatch.setattr(module, "driver", lambda: one)
    monkeypatch.setattr(build, "capability", lambda device: 90)
    monkeypatch.setattr(regraft.compiler.codegen.triton, "processors", lambda device: 132)
    monkeypatch.setattr(memory, "cuda_stream", lambda: lambda device: STREAM + device)
    monkeypatch.setattr(fold_constant_tables, "memory_like", memory_on_cpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    launch._module.cache_clear()
    _USED.append(launch)
    return fake


def forget() -> None:
    """Point the launcher at the machine's own driver again, after a test that had this one."""
    import torch

    if not _USED:
        return
    launch = _USED[0]
    _USED.clear()
    launch._module.cache_clear()
    if torch.cuda.is_available():
        launch._module()  # its functions are those of kernels that were made before, too


def memory_on_cpu(promised: Any, sizes: list[int]) -> Any:
    """Memory for a constant of a GPU, where there is none."""
    import torch

    return torch.empty_strided(sizes, promised.stride(), dtype=promised.dtype, device="cpu")
