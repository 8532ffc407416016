"""From sources to one shared library: kernels with their own flags, and the functions that need torch's headers."""

from __future__ import annotations

import platform
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...rewrites.compat import export
from ..codegen.cpp.compiler import SECONDS, LibrarySource, find_compiler, kernel_flags
from ..codegen.cpp.errors import CompileFailed
from ..codegen.cpp.target import host_target

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
    """The function `missing_instructions`: the first feature that the machine lacks, or null."""
    _, features = instructions()
    checks = "".join(f'  if (!__builtin_cpu_supports("{f}")) return "{f}";\n' for f in features)
    start = "  __builtin_cpu_init();\n" if features else ""
    return f"const char* missing_instructions() {{\n{start}{checks}  return nullptr;\n}}\n"


def build(wrapper: str, units: Sequence[LibrarySource]) -> bytes:
    """The shared library of an artifact.

    Args:
        wrapper: C++ that includes torch's headers.
        units: C++ of kernels.

    Raises:
        CompilerMissing, CompileFailed: there is no compiler, or it refuses a source.
    """
    compiler = find_compiler().path
    include, libraries = export.library_paths()
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(export.uses_new_strings())}"
    # Only the functions that are declared to be are seen outside; no instructions that the check has not asked for.
    flags = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-w",
        "-fvisibility=hidden",
        abi,
        f"-I{include}",
        f"-I{include}/torch/csrc/api/include",
    ]
    if is_x86():
        flags.append("-mtune=generic")
    with tempfile.TemporaryDirectory(prefix="regraft-aot-") as name:
        folder = Path(name)
        jobs = [(folder / "wrapper.cpp", wrapper, flags)]
        jobs += [(folder / f"kernels{k}.cpp", u.text, _portable(u.flags)) for k, u in enumerate(units)]
        with ThreadPoolExecutor(len(jobs)) as pool:
            objects = list(pool.map(lambda job: _object(compiler, *job), jobs))
        made = folder / "library.so"
        linked = [f for unit in units for f in unit.flags if f.startswith("-l")]
        link = ["-shared", "-Wl,--gc-sections", *map(str, objects), "-o", str(made), f"-L{libraries}"]
        _run([compiler, *link, "-ltorch_cpu", "-lc10", "-ldl", *dict.fromkeys(linked)], made)
        return made.read_bytes()


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
