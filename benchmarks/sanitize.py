"""Run tests with their generated kernels under sanitizers: no kernel may touch memory outside its buffers.

    python benchmarks/sanitize.py                              the kernels' own tests, C++ under ASan and UBSan
    python benchmarks/sanitize.py tests/compiler/cpp -k tail   what pytest is given
    python benchmarks/sanitize.py --cuda tests/compiler        CUDA kernels under compute-sanitizer

Generated C++ is compiled by a wrapper of the compiler that adds the sanitizers' flags, into a cache of its own; the
process has AddressSanitizer's allocator, so that each tensor is an allocation with guards around it. Findings are
counted by place, and the run goes on. Exits with 1 where there are any, or a test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = (
    "tests/compiler/cpp", "tests/compiler/lowering", "tests/compiler/schedule", "tests/compiler/templates",
    "tests/compiler/codegen/test_generate.py", "tests/compiler/test_random_programs.py",
)  # fmt: skip
# Frames stay, so that a finding names its kernel; the run goes on after one.
FLAGS = (
    "-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fsanitize-recover=address,undefined", "-g1",
    "-fno-omit-frame-pointer", "-O1", "-lasan", "-lubsan",
)  # fmt: skip
ASAN = {
    "detect_leaks": "0", "halt_on_error": "0", "alloc_dealloc_mismatch": "0", "new_delete_type_mismatch": "0",
    "allocator_may_return_null": "1", "detect_odr_violation": "0", "handle_segv": "1",
}  # fmt: skip
_FINDING = re.compile(r"(?:ERROR: AddressSanitizer: [^\n]*|runtime error: [^\n]*)")
_FRAME = re.compile(r"#\d+ 0x[0-9a-f]+ (?:in )?(k[0-9a-f]{16}[^\n]*|[^\n]*\.cpp:\d+[^\n]*)")


def environment(folder: Path, compiler: str) -> dict[str, str]:
    """The variables that a process needs for sanitized kernels, which are kept in `folder`.

    Raises:
        FileNotFoundError: the compiler has no AddressSanitizer.
    """
    wrapper = folder / "sanitizing-compiler"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" {" ".join(FLAGS)}\n')
    wrapper.chmod(0o755)
    # The library of C++ is loaded at once: AddressSanitizer looks for it when it starts.
    libraries = [_library(compiler, name) for name in ("libasan.so", "libstdc++.so")]
    options = ":".join(f"{key}={value}" for key, value in (ASAN | {"log_path": str(folder / "found")}).items())
    return os.environ | {
        "CXX": str(wrapper),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={folder / 'found'}",
        "REGRAFT_CACHE_DIR": str(folder / "cache"),
        "REGRAFT_DISABLE_CACHE": "",
    }


def _library(compiler: str, name: str) -> str:
    done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = Path(done.stdout.strip())
    if not path.is_absolute() or not path.exists():
        raise FileNotFoundError(f"{compiler} has no {name}")
    return str(path.resolve())


def findings(folder: Path) -> Counter[str]:
    """The findings of the sanitizers: the kind of each and the kernel's line, and how often."""
    return Counter(found for log in sorted(folder.glob("found*")) for found in _found(log.read_text(errors="replace")))


def _found(text: str) -> Iterator[str]:
    starts = [match.start() for match in _FINDING.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        line_start = text.rfind("\n", 0, start) + 1
        kind = re.sub(r"0x[0-9a-f]+|==\d+==", "", text[line_start : text.find("\n", start)]).strip()
        frame = _FRAME.search(text, start, end)
        yield f"{kind}  at  {frame[1].strip()}" if frame else kind


def cpp(arguments: list[str], folder: Path) -> int:
    """Run pytest with sanitized C++ kernels; tells what was found."""
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "clang++"))), "")
    if not compiler:
        print("no C++ compiler")
        return 2
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(folder, compiler), check=False)
    found = findings(folder)
    for what, count in found.most_common():
        print(f"{count:6}  {what}")
    print(f"{found.total()} findings; logs and kernels: {folder}" if found else "0 findings")
    return 1 if found else done.returncode


def cuda(arguments: list[str]) -> int:
    """Run pytest under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        print("compute-sanitizer is not installed: it comes with the CUDA toolkit")
        return 2
    # torch keeps freed memory for later: without that, each tensor is an allocation of its own. CUDA graphs cannot
    # be captured then: tests/conftest.py skips the tests that do.
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [tool, "--tool", "memcheck", "--error-exitcode", "1", "--target-processes", "all", "--print-limit", "20"]
    command += [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="kernels for GPUs, under compute-sanitizer")
    parser.add_argument("--folder", type=Path, help="where sanitized kernels and logs are kept (default: a new one)")
    given, arguments = parser.parse_known_args()
    arguments = arguments or [*KERNELS, "-q", "-p", "no:cacheprovider"]
    if given.cuda:
        return cuda(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="regraft-sanitize-"))
    folder.mkdir(parents=True, exist_ok=True)
    return cpp(arguments, folder)


if __name__ == "__main__":
    sys.exit(main())
