"""Compiles Triton kernels, in this process or in one of its own: the one place that runs Triton (3.6 to 3.9).

    parent  ->  {"path": the parent's sys.path, "folder": for temporary files}, then a job a line, as JSON
    worker  ->  {} when it is ready, then {"made": {...}} or {"error": "..."} a line; it ends when its input does

Needs Triton and the standard library, nothing else: a worker starts in a third of a second, without torch or CUDA.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

_IDLE_SECONDS = 300
# Properties of a kernel that the launcher has to know, or cannot serve.
_METADATA = (
    "name", "shared", "num_warps", "num_ctas", "global_scratch_size", "profile_scratch_size",
    "launch_cooperative_grid", "launch_pdl", "tmem_size", "triton_version",
)  # fmt: skip


def compile_job(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one kernel; gives the properties that `_METADATA` lists.

    Args:
        job: `source` the module's file, `function` in it, `signature` (type by parameter), `aligned` (positions of
            pointers to multiples of 16 bytes), `capability` (90 for Hopper), `options` of the compiler, and `cubin`,
            the file to write the machine code to.

    Raises:
        ImportError: there is no Triton.
        Exception: whatever Triton raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = _loaded(Path(job["source"]))
    attrs = {(position,): [["tt.divisibility", 16]] for position in job["aligned"]}
    source = ASTSource(getattr(module, job["function"]), dict(job["signature"]), {}, attrs)
    target = GPUTarget("cuda", job["capability"], 32)
    made = triton.compile(source, target=target, options=job["options"])
    check_layouts(made.asm["ttgir"])
    text = apart(made.asm["ptx"])
    code = made.asm["cubin"] if text == made.asm["ptx"] else _assembled(text, target, source, job["options"])
    Path(job["cubin"]).write_bytes(code)
    return {name: getattr(made.metadata, name, None) for name in _METADATA}


_PAIRS = re.compile(r"add[.]s16x2\s+(%\w+), (%\w+), (%\w+);")
_EACH = (
    "{{.reg .b16 %low<2>, %high<2>; mov.b32 {{%low0, %high0}}, {1}; mov.b32 {{%low1, %high1}}, {2}; "
    "add.s16 %low0, %low0, %low1; add.s16 %high0, %high0, %high1; mov.b32 {0}, {{%low0, %high0}};}}"
)


def apart(text: str) -> str:
    """Assembly without sums of two 16-bit integers at once.

    To one half of a sum with a constant, if it is used alone, ptxas (12.8 to 13.0) adds 0. LLVM computes indices that
    fit in 16 bits so.
    """
    return _PAIRS.sub(lambda found: _EACH.format(*found.groups()), text)


def _assembled(text: str, target: Any, source: Any, options: dict[str, Any]) -> bytes:
    """The machine code of assembly, by Triton's own last stage."""
    from triton.compiler import make_backend

    stages: dict[str, Any] = {}
    backend = make_backend(target)
    backend.add_stages(stages, backend.parse_options(dict(options)), source.language)
    code: bytes = stages["cubin"](text, {})
    return code


def check_layouts(text: str) -> None:
    """Refuse products on tensor cores unless each lane holds four neighbours, and each warp one column.

    Raises:
        ValueError: `add_products_of_bytes` would sum elements of different columns.
    """
    multiplied = re.findall(r"elementwise_inline_asm [^\n]*mma[.]sync[^\n]*-> tensor<[^\n>]*, (#\w+)>", text)
    if len(multiplied) != len(re.findall(r"elementwise_inline_asm [^\n]*mma[.]sync", text)):
        raise ValueError("products of bytes in a layout that is not known")
    for name in set(multiplied):
        found = re.search(rf"^{name} = #ttg.blocked<(.*)>$", text, re.MULTILINE)
        shape = _LAYOUT.search(found[1]) if found is not None else None
        if shape is None or int(shape["each"]) % 4:
            raise ValueError(f"products of bytes in the layout {found[1] if found else name}")


_LAYOUT = re.compile(r"sizePerThread = \[(?P<each>\d+), 1\], threadsPerWarp = \[32, 1\], .* order = \[0, 1\]")
_NOTHING = """
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def nothing(x_ptr):
    i = tl.arange(0, 128)
    tl.store(x_ptr + i, libdevice.exp(tl.sum(tl.load(x_ptr + i), 0)))
"""


def _warm_up(folder: Path) -> None:
    """Compile a kernel for nobody: the first one takes half a second more than others, the GPU does not matter."""
    source = folder / "nothing.py"
    source.write_text(_NOTHING)
    job = {"source": str(source), "function": "nothing", "signature": [("x_ptr", "*fp32")], "aligned": [0]}
    with contextlib.suppress(Exception):
        compile_job({**job, "capability": 90, "options": {}, "cubin": str(folder / "nothing.cubin")})


def _loaded(path: Path) -> Any:
    """The module in a file; it need not be on the path."""
    spec = importlib.util.spec_from_file_location(f"regraft_triton_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answer(line: str) -> dict[str, Any]:
    try:
        return {"made": compile_job(json.loads(line))}
    except Exception:
        return {"error": traceback.format_exc()}


def main() -> None:
    """Serve jobs until the parent goes, or nothing has come for minutes."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # text that Triton prints is no reply
    given = json.loads(sys.stdin.readline())
    sys.path[:], folder = given["path"], given["folder"]
    os.environ["TRITON_CACHE_DIR"] = folder  # the caller keeps the files that are worth keeping
    try:
        import triton  # noqa: F401

        replies.write("{}\n")
        replies.flush()
        if not select.select([sys.stdin], [], [], 0)[0]:
            _warm_up(Path(folder))
        while select.select([sys.stdin], [], [], _IDLE_SECONDS)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            replies.write(json.dumps(_answer(line)) + "\n")
            replies.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # where the caller was killed, nobody else does


if __name__ == "__main__":
    main()
