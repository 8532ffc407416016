"""Generated kernels on a GPU: error against eager, time, and bytes a second beside those of a copy.

    python benchmarks/gpu_kernels.py                   all
    python benchmarks/gpu_kernels.py softmax sum       those whose names begin so
    python benchmarks/gpu_kernels.py --rows 32768      of so many rows of 4096, in place of 8192

Bytes are those of what goes in and what comes out, each once; the copy is of 1 GiB. Exit status: how many are wrong.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="regraft-benchmark-")

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table


def error_of(found: Any, expected: Any) -> float:
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    assert pairs, "nothing to compare"
    worst = 0.0
    for a, b in pairs:
        assert (a.shape, a.dtype, a.device, a.stride()) == (b.shape, b.dtype, b.device, b.stride()), (a, b)
        a, b = a.detach().double(), b.detach().double()
        assert torch.equal(a.isnan(), b.isnan()), "NaN in other places"
        a, b = a.nan_to_num(), b.nan_to_num()
        worst = max(worst, float((a - b).norm() / b.norm().clamp_min(1e-30)) if b.numel() else 0.0)
    return worst


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if hasattr(tree, "values") else tree if isinstance(tree, (tuple, list)) else ()
    return [leaf for value in values for leaf in leaves(value)]


def milliseconds(step: Callable[[], Any], seconds: float = 0.3) -> float:
    """The GPU's own time of one step, and what of the CPU's it waits for."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = max(3, min(1000, int(seconds / max(time.perf_counter() - start, 1e-6))))
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(count):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / count


def kernel_cases(n: int = 8192) -> dict[str, Callable[[], tuple[Any, ...]]]:
    def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    half = {"dtype": torch.bfloat16}
    m = 4096
    return {
        "add": lambda: (lambda x, y: x + y, randn(n, m), randn(n, m)),
        "gelu-bf16": lambda: (lambda x, b: F.gelu(x + b), randn(n, m, **half), randn(m, **half)),
        "transpose": lambda: (lambda x: x.t().contiguous() * 2, randn(n, m)),
        "softmax": lambda: (lambda x: torch.softmax(x, -1), randn(n, m)),
        "softmax-bf16": lambda: (lambda x: torch.softmax(x.float(), -1).to(x.dtype), randn(n, m, **half)),
        "layer-norm": lambda: (lambda x, w, b: F.layer_norm(x, (m,), w, b), randn(n, m), randn(m), randn(m)),
        "layer-norm-768-bf16": lambda: (
            lambda x, y, w, b: F.layer_norm(x + y, (768,), w, b), *(randn(16, 512, 768, **half) for _ in range(2)),
            randn(768, **half), randn(768, **half),
        ),
        "sum-columns": lambda: (lambda x: x.sum(0), randn(n, m)),
        "sum-all": lambda: (lambda x: x.sum(), randn(n, m)),
        "max-argmax": lambda: (lambda x: (x.max(1).values, x.argmax(1)), randn(n, m)),
        "variance-both": lambda: (lambda x: (x.var(1), x.std(0)), randn(n, m)),
        "variance-rows": lambda: (lambda x: x.var(1), randn(n, m)),
        "variance-columns": lambda: (lambda x: x.var(0), randn(n, m)),
        "long-rows": lambda: (lambda x: (torch.softmax(x, -1), torch.logsumexp(x, -1)), randn(64, 100003)),
        "cumsum": lambda: (lambda x: x.cumsum(-1), randn(512, 4096)),
        "embedding": lambda: (
            lambda w, i: F.embedding(i, w) * 2, randn(30522, 768), torch.randint(30522, (16, 512), device="cuda"),
        ),
        "index-add": lambda: (
            lambda w, i, x: w.index_add(0, i, x), randn(1000, 64), torch.randint(1000, (5000,), device="cuda"),
            randn(5000, 64),
        ),
        "cross-entropy": lambda: (
            F.cross_entropy, randn(4096, 30522), torch.randint(30522, (4096,), device="cuda"),
        ),
        "double": lambda: (lambda x: (x.double().sin() + 1).sum(-1), randn(1000, 333)),
        "integers": lambda: (
            lambda x: (x // 7, x % 7, x.clamp(3, 9), (x > 4).sum()), torch.randint(-99, 99, (1000, 333), device="cuda"),
        ),
        "strange-sizes": lambda: (lambda x: (x.exp(), x.sum(1), x.flip(0), x[1:, ::3] + 1), randn(37, 1023)),
        "empty": lambda: (lambda x: (x + 1, x.sum(1)), randn(7, 0)),
        "scalar": lambda: (lambda x, s: x * s + s.exp(), randn(100, 100), randn()),
        "cpu-number": lambda: (lambda x, s: (x * s).exp(), randn(100, 100), torch.tensor(0.5)),
    }  # fmt: skip


def copied() -> float:
    """Bytes that a copy within the GPU moves in a millisecond."""
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / milliseconds(lambda: y.copy_(x))


def measured(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[float, float, float, int]:
    """Error, milliseconds of regraft and of eager, bytes."""
    torch.compiler.reset()
    run = torch.compile(function, backend="regraft")
    with torch.no_grad():
        expected = function(*inputs)
        error = error_of(run(*inputs), expected)
        ours, eager = milliseconds(lambda: run(*inputs), 0.1), milliseconds(lambda: function(*inputs), 0.1)
    return error, ours, eager, sum(x.nbytes for x in (*leaves(inputs), *leaves(expected)))


def main() -> int:
    """Run what was asked for."""
    table = Table("kernel", "error", "ms", "x eager", "TB/s", "of a copy", title=torch.cuda.get_device_name())
    rate, wrong = copied(), 0
    names, sizes = sys.argv[1:], list[int]()
    if "--rows" in names:
        at = names.index("--rows")
        sizes, names = [int(names[at + 1])], [*names[:at], *names[at + 2 :]]
    for name, make in kernel_cases(*sizes).items():
        if names and not name.startswith(tuple(names)):
            continue
        function, *inputs = make()
        error, ours, eager, moved = measured(function, tuple(inputs))
        wrong += error > (2e-2 if "bf16" in name else 2e-5)
        shown = (f"{error:.1e}", f"{ours:.3f}", f"{eager / ours:.2f}", f"{moved / ours / 1e9:.2f}")
        table.add_row(name, *shown, f"{moved / ours / rate:.0%}")
    Console().print(table)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
