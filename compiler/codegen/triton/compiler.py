"""Runs Triton: functions in, machine code out, kept on disk by the hash of all that it depends on.

    triton/3f/3f9a...c1.py       the source, to read; the same for all variants of a kernel
    triton/a0/a07c...44.cubin    the machine code of one variant; behind it the facts of its launch (name, memory,
                                 warps), and a seal
    triton/a0/a07c...44.json     these facts, to read

Files are written aside and renamed into place: readers in other processes see a whole entry or none. A damaged entry,
or one that this user's regraft did not write, is compiled again. What is on disk needs neither Triton nor a worker.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...storage import seal
from ...storage.artifacts import note_entry
from ...storage.files import discard, note_use, write_whole
from ...storage.space import note_written
from ..code_cache_dir import code_folder
from . import compile_worker
from .compile_pool import Job, Reply, WorkerLostError, pool
from .errors import TritonFailed, TritonMissing

_KIND = "triton"
_STAGES = 3
_FAST = re.compile(r"def (fast_|softmax_step|scaled_softmax_step|shifted_power|tanh_|normal_|\w+_double)")
_UNSERVED = ("profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "tmem_size")


@dataclass(frozen=True)
class Unit:
    """The source of one function on a GPU.

    Args:
        text: a module.
        function: its name in the module.
        signature: Triton's type of every parameter, in order.
        aligned: positions of pointers that are multiples of 16 bytes.
        warps: of a program.
        capability: of the GPU: 90 for Hopper.
        stages: of software pipelines in it.
    """

    text: str
    function: str
    signature: tuple[tuple[str, str], ...]
    aligned: tuple[int, ...]
    warps: int
    capability: int
    stages: int = _STAGES


@dataclass(frozen=True)
class Cubin:
    """Machine code.

    Args:
        code: the cubin.
        name: of its function.
        shared: bytes of shared memory that a program needs.
        warps: of a program.
        source: where its Triton lies, to read.
        scratch: bytes of global memory that a program needs, one more argument: where it keeps descriptors.
    """

    code: bytes
    name: str
    shared: int
    warps: int
    source: Path
    scratch: int = 0


def can_build() -> bool:
    """Whether there is a Triton."""
    return triton_version() is not None


@functools.cache
def triton_version() -> str | None:
    """The version of Triton, without importing it; None where there is none."""
    for name in ("triton", "pytorch-triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    if importlib.util.find_spec("triton") is None:
        return None
    import triton

    return str(triton.__version__)


@functools.cache
def _worker() -> str:
    """A digest of the compile worker, which reads Triton's results."""
    return _digest(Path(compile_worker.__file__).read_text())


def begin_units(units: Sequence[Unit]) -> None:
    """Have units compiled that are not on disk, side by side, for whoever asks for them later."""
    if not can_build():
        return
    for unit in dict.fromkeys(units):
        entry = _Entry(unit)
        if pool().under_way(entry.facts) is None and entry.read() is None:
            _begun(entry)


def are_under_way(units: Sequence[Unit]) -> bool:
    """Whether some are being compiled."""
    return any(pool().under_way(_Entry(unit).facts) for unit in units)


def compile_units(units: Sequence[Unit]) -> list[Cubin | TritonFailed]:
    """The machine code of units, or why there is none; those not on disk are compiled side by side.

    Raises:
        TritonMissing: something must be compiled, and there is no Triton.
    """
    entries = {unit: _Entry(unit) for unit in units}
    known: dict[Unit, Cubin | TritonFailed] = {}
    jobs: dict[Unit, Job] = {}
    for unit, entry in entries.items():
        job = pool().under_way(entry.facts)
        found = entry.read() if job is None else None
        if found is not None:
            known[unit] = found
        else:
            jobs[unit] = job or _begun(entry)
    made: list[Any] = pool().results(list(jobs.values()))
    if made and all(isinstance(one, WorkerLostError) for one in made):
        made = [_here(entries[unit]) for unit in jobs]  # a machine without processes to spare
    for unit, one in zip(jobs, made, strict=True):
        known[unit] = _lost(entries[unit], one) if isinstance(one, WorkerLostError) else one
    return [known[unit] for unit in units]


class _Entry:
    """A unit on disk."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.options = _options(unit)
        parts = [unit.text, unit.function, unit.signature, unit.aligned, unit.capability, self.options]
        self.key = _digest(json.dumps([*parts, triton_version(), _worker()], sort_keys=True))
        folder = code_folder(_KIND)
        self.source = _place(folder, _digest(unit.text), ".py")
        self._code, self.facts = (_place(folder, self.key, suffix) for suffix in (".cubin", ".json"))

    def read(self) -> Cubin | None:
        """The machine code, if it is there and can be believed."""
        try:
            content = seal.opened(self._sealed, self._code.read_bytes())
        except OSError:
            return None
        if content is None:
            discard(self._code)
            return None
        note_use(self._code)
        self._note()
        return _cubin(*_apart(content), self.source)

    @property
    def _sealed(self) -> str:
        return f"{_KIND}/{self.key}"

    def _note(self) -> None:
        for file in (self._code, self.facts, self.source):
            note_entry(f"{_KIND}/{file.parent.name}/{file.name}")

    def job(self) -> dict[str, Any]:
        """The job for a worker, whose source is written to disk."""
        text = self.unit.text.encode()
        if not _holds(self.source, text):
            write_whole(self.source, text)
        self._code.parent.mkdir(parents=True, exist_ok=True)
        return {
            "source": str(self.source), "function": self.unit.function, "signature": self.unit.signature,
            "aligned": self.unit.aligned, "capability": self.unit.capability, "options": self.options,
            "cubin": str(self._code.with_name(f".{self.key[:8]}-{uuid.uuid4().hex}")),
        }  # fmt: skip

    def adopt(self, job: dict[str, Any], made: dict[str, Any]) -> Cubin | TritonFailed:
        """Keep the machine code that a worker made."""
        aside = Path(job["cubin"])
        code = aside.read_bytes()
        asked = [name for name in _UNSERVED if made[name]]
        if asked or made["num_ctas"] not in (1, None):
            aside.unlink()
            return TritonFailed(f"{self.source}: needs {', '.join(asked) or 'clusters'}, which no launch gives it")
        content = _together(code, made)
        aside.write_bytes(seal.sealed(self._sealed, content))
        aside.replace(self._code)
        with contextlib.suppress(OSError):  # for people
            write_whole(self.facts, json.dumps(made, indent=2).encode())
        self._note()
        note_written(len(content))
        return _cubin(code, made, self.source)


def _together(code: bytes, facts: dict[str, Any]) -> bytes:
    """Machine code, the facts of its launch, and their length: tools read the machine code and no further."""
    text = json.dumps(facts).encode()
    return code + text + len(text).to_bytes(8, "little")


def _apart(content: bytes) -> tuple[bytes, dict[str, Any]]:
    end = len(content) - 8
    start = end - int.from_bytes(content[end:], "little")
    return content[:start], json.loads(content[start:end])


def _holds(path: Path, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        return path.read_bytes() == content
    return False


def _cubin(code: bytes, facts: dict[str, Any], source: Path) -> Cubin:
    scratch = facts.get("global_scratch_size") or 0
    return Cubin(code, facts["name"], facts["shared"], facts["num_warps"], source, scratch)


def _options(unit: Unit) -> dict[str, Any]:
    """Eager rounds between a multiplication and an addition; checks of indices are there where the source has them.

    The library of functions takes numbers below the least normal one for 0 where `enable_reflect_ftz` says so.
    """
    return {
        "num_warps": unit.warps, "num_stages": unit.stages, "enable_fp_fusion": False,
        "debug": "device_assert" in unit.text, "sanitize_overflow": False,
        "enable_reflect_ftz": _tiny_is_zero(unit.text),
    }  # fmt: skip


def _tiny_is_zero(text: str) -> bool:
    """Whether only those of our functions call the library that are as good where the tiniest numbers are 0."""
    functions = text.split("@triton.jit\n")
    others = (f for f in functions if not _FAST.match(f))
    return not any("libdevice." in f for f in others)


def _begun(entry: _Entry) -> Job:
    if not can_build():
        raise TritonMissing("no Triton: the package 'triton' is not installed")
    asked = entry.job()
    return pool().submit(asked, functools.partial(_adopted, entry, asked), entry.facts)


def _here(entry: _Entry) -> Cubin | TritonFailed:
    """In this process."""
    asked = entry.job()
    reply: Reply
    try:
        reply = {"made": compile_worker.compile_job(asked)}
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    made = _adopted(entry, asked, reply)
    assert not isinstance(made, WorkerLostError)
    return made


def _adopted(entry: _Entry, asked: dict[str, Any], reply: Reply) -> Cubin | TritonFailed | WorkerLostError:
    if isinstance(reply, WorkerLostError):
        return reply
    if "error" in reply:
        return TritonFailed(f"Triton refused {entry.source}:\n{reply['error'].strip()}")
    return entry.adopt(asked, reply["made"])


def _lost(entry: _Entry, lost: WorkerLostError) -> TritonFailed:
    return TritonFailed(f"Triton did not compile {entry.source}: {lost}")


# -- files ------------------------------------------------------------------------------------------------------------


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _place(folder: Path, key: str, suffix: str) -> Path:
    return folder / key[:2] / f"{key}{suffix}"
