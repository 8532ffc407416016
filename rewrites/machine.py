"""The machine that measured numbers depend on: versions, processor, accelerator, threads."""

from __future__ import annotations

import contextlib
import functools
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from .._version import __version__


def environment() -> dict[str, str]:
    """This process in words, by name, for the head of a report."""
    import torch

    return {
        "regraft": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cpu": cpu_model(),
        "threads": str(torch.get_num_threads()),
    }


def origin() -> str:
    """Command line and day of this process, for the foot of a report: ``"regraft report hf:bert, 2026-11-23"``."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    words = ["regraft" if program == "__main__.py" else program, *sys.argv[1:]]
    return f"{shlex.join(words)}, {datetime.now(UTC).date().isoformat()}"


@functools.cache
def cpu_model() -> str:
    """The processor's name, e.g. ``"AMD EPYC 9654 96-Core Processor"``."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
