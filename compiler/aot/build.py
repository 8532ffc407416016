"""From sources to one shared library: kernels with their own flags, the graph, and what needs torch's headers."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ...rewrites.compat import export
from ..codegen.code_cache_dir import code_folder
from ..codegen.cpp.compiler import SECONDS, Compiler, LibrarySource, find_compiler, kernel_flags
from ..codegen.cpp.errors import CompileFailed
from ..codegen.cpp.target import host_target
from ..storage import seal
from ..storage.files import note_use, write_whole
from ..storage.space import note_written
from .runtime_source import RUNTIME

# What artifacts may use, by the name of the target: all machines with these instructions run them.
_LEVELS = {
    "avx512": ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma", "bmi", "bmi2")),
    "avx2": ("x86-64-v3", ("avx2", "fma", "bmi", "bmi2")),
}
_GENERIC = ("x86-64-v2", ("sse4.2", "ssse3", "popcnt"))


def is_x86() -> bool:
    """Whether this machine's instructions have levels that others share."""
    return platform.machine() in ("x86_64", "AMD64")


def instructions() -> tuple[str, tuple[str, ...]]:
    """The instruction set that artifacts made here use, and the features that a machine must have to run them."""
    if not is_x86():
        return platform.machine(), ()
    return _LEVELS.get(host_target().name, _GENERIC)


def missing_text() -> str:
    """The function `regraft_missing`: the first feature that the machine lacks, or null."""
    _, features = instructions()
    checks = "".join(f'  if (!__builtin_cpu_supports("{f}")) return "{f}";\n' for f in features)
    start = "  __builtin_cpu_init();\n" if features else ""
    return f"const char* regraft_missing() {{\n{start}{checks}  return nullptr;\n}}\n"


def build(graph: str, units: Sequence[LibrarySource]) -> bytes:
    """The shared library of an artifact.

    Args:
        graph: C++ of its own functions, without torch's headers.
        units: C++ of kernels.

    Raises:
        CompilerMissing, CompileFailed: there is no compiler, or it refuses a source.
    """
    compiler = find_compiler()
    include, libraries = export.library_paths()
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(export.uses_new_strings())}"
    headers = [abi, f"-I{include}", f"-I{include}/torch/csrc/api/include"]
    with tempfile.TemporaryDirectory(prefix="regraft-aot-") as name:
        folder = Path(name)
        jobs: list[Callable[[], Path]] = [
            partial(_kept_object, compiler, folder / "runtime.cpp", RUNTIME, [*_common_flags(), *headers]),
            partial(_object, compiler.path, folder / "graph.cpp", graph, _common_flags()),
        ]
        for k, unit in enumerate(units):
            source = folder / f"kernels{k}.cpp"
            jobs.append(partial(_object, compiler.path, source, unit.text, _portable(unit.flags)))
        with ThreadPoolExecutor(len(jobs)) as pool:
            objects = list(pool.map(lambda job: job(), jobs))
        made = folder / "library.so"
        linked = [f for unit in units for f in unit.flags if f.startswith("-l")]
        link = ["-shared", "-Wl,--gc-sections", *map(str, objects), "-o", str(made), f"-L{libraries}"]
        _run([compiler.path, *link, "-ltorch_cpu", "-lc10", "-ldl", *dict.fromkeys(linked)], made)
        return made.read_bytes()


def _common_flags() -> list[str]:
    """Flags of both parts: only functions that are declared to be are seen outside, and any machine runs them."""
    flags = ["-std=c++20", "-O1", "-fPIC", "-w", "-fvisibility=hidden"]
    return [*flags, "-mtune=generic"] if is_x86() else flags


def _kept_object(compiler: Compiler, source: Path, text: str, flags: Sequence[str]) -> Path:
    """The object of a source that is compiled once for a machine: its copy in the cache, if that is whole and ours."""
    parts = [text, *flags, compiler.path, compiler.version, export.version()]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    kept, entry = code_folder("code") / name[:2] / f"{name}.o", f"code/{name}.o"
    made = source.with_suffix(".o")
    with contextlib.suppress(OSError):
        content = seal.opened(entry, kept.read_bytes())
        if content is not None:
            note_use(kept)
            made.write_bytes(content)
            return made
    made = _object(compiler.path, source, text, flags)
    content = made.read_bytes()
    with contextlib.suppress(OSError):  # the next one compiles it again
        write_whole(kept, seal.sealed(entry, content))
        note_written(len(content))
    return made


def _portable(flags: Sequence[str]) -> list[str]:
    """A kernel's flags, for all machines of its level rather than for this one."""
    level, _ = instructions()
    kept = [f for f in flags if not f.startswith("-l")]
    return [*kernel_flags(), *(f"-march={level}" if f == "-march=native" else f for f in kept)]


def _object(compiler: str, source: Path, text: str, flags: Sequence[str]) -> Path:
    source.write_text(text, encoding="utf-8")
    made = source.with_suffix(".o")
    _run([compiler, "-c", *flags, str(source), "-o", str(made)], source)
    return made


def _run(command: Sequence[str], source: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        raise CompileFailed(source, f"{command[0]} was not done after {SECONDS:g} s") from late
    if done.returncode:
        raise CompileFailed(source, (done.stderr or done.stdout).strip()[-4000:])
