"""Small products of matrices on a GPU: a library's kernel beside a fold that regraft generates, and what it chooses.

    python benchmarks/small_products.py --jobs 8 --json rows.jsonl

Each product is compiled with the lowering's rule (`lowering/ops/products.py`), and twice with it overruled. The second
operand's rows or its columns lie side by side (as the weights of a linear layer do). Printed: microseconds of kernels
by the profiler, the fold's speed over the library's, and whether the rule chooses the fold; last, the products for
which it chooses wrongly by more than a tenth.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from gpu_programs import kernels_of

import regraft
from regraft.compiler.lowering.ops import products

# Of a batch: batch, rows, depth, columns.
BATCHES = (
    (24576, 64, 9, 1), (24576, 9, 64, 1), (24576, 64, 1, 9), (4096, 64, 64, 1), (4096, 1, 64, 64), (256, 512, 64, 1),
    (256, 1, 64, 512), (256, 64, 512, 1), (256, 1, 512, 64), (64, 512, 512, 1), (64, 1, 512, 512), (16, 2048, 128, 1),
    (16, 1, 128, 2048), (4, 1024, 1024, 1), (4, 1, 1024, 1024), (256, 512, 1, 64), (64, 512, 1, 512),
    (100000, 3, 3, 1), (100000, 3, 3, 3), (100000, 4, 4, 4), (30000, 6, 6, 6), (20000, 8, 8, 8), (8000, 16, 16, 16),
    (4096, 64, 4, 4), (4096, 4, 64, 4), (4096, 64, 8, 8), (512, 1024, 3, 3), (64, 4096, 3, 64), (4096, 32, 32, 2),
    (2048, 64, 64, 3),
)  # fmt: skip
# Of one matrix each, with and without a bias.
SINGLE = (
    (65536, 64, 1), (65536, 1024, 1), (65536, 64, 2), (65536, 64, 4), (65536, 3, 64), (65536, 3, 3), (65536, 2, 128),
    (65536, 4, 256), (65536, 8, 64), (65536, 8, 8), (4096, 1024, 1), (512, 768, 2), (4096, 768, 4), (1, 4096, 64),
    (65536, 1, 64), (4096, 16, 16), (65536, 16, 16), (32, 64, 64), (64, 64, 64), (64, 128, 10), (128, 784, 10),
    (8, 32, 32), (256, 64, 16), (3, 65536, 64), (64, 65536, 1), (64, 16, 64), (256, 256, 4), (16, 256, 64),
)  # fmt: skip
Case = tuple[str, tuple[int, ...], str, bool]
Row = dict[str, Any]


def cases() -> list[Case]:
    """Name of the operator, sizes, dtype, and whether columns of the second operand lie side by side."""
    named = [("bmm", sizes) for sizes in BATCHES] + [(name, sizes) for sizes in SINGLE for name in ("mm", "addmm")]
    return [(*case, dtype, turned) for case in named for dtype in ("bfloat16", "float32") for turned in (False, True)]


def measured(name: str, sizes: tuple[int, ...], dtype: str, turned: bool) -> Row:
    """Microseconds by the library and as a fold, and which of them is chosen."""
    *batch, rows, depth, columns = sizes
    make = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x, bias = torch.randn(*batch, rows, depth, **make), torch.randn(columns, **make)
    y = torch.randn(*batch, columns, depth, **make).mT if turned else torch.randn(*batch, depth, columns, **make)
    function = {"bmm": torch.bmm, "mm": torch.mm, "addmm": lambda x, y: torch.addmm(bias, x, y)}[name]
    row: Row = {"name": name, "sizes": sizes, "dtype": dtype, "turned": turned}
    rule = products._is_small_on_gpu
    for kind, overruled in (("library", lambda *_: False), ("fold", lambda *_: True), ("chosen", rule)):
        torch._dynamo.reset()
        asked: list[bool] = []
        products._is_small_on_gpu = lambda *given, by=overruled, to=asked: to.append(by(*given)) or to[-1]
        compiled = torch.compile(function, backend=regraft.backend, options={"debug": True})
        compiled(x, y)
        row[kind] = bool(asked and asked[-1]) if kind == "chosen" else kernels_of(lambda run=compiled: run(x, y))[0]
    products._is_small_on_gpu = rule
    return row


def work(queue: Any, to: str) -> None:
    """A process: measures one product after the other."""
    os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp()
    torch.set_num_threads(1)
    while (case := queue.get()) is not None:
        with Path(to).open("a", encoding="utf-8") as file:
            file.write(json.dumps(measured(*case)) + "\n")


def main(
    jobs: Annotated[int, typer.Option(help="Processes that share the GPU.")] = 8,
    to: Annotated[str, typer.Option("--json", help="A file for the rows.")] = "small_products.jsonl",
) -> None:
    """Measure all, and print what was found."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for case in [*cases(), *[None] * jobs]:
        queue.put(case)
    workers = [context.Process(target=work, args=(queue, to)) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rows = [json.loads(line) for line in Path(to).read_text(encoding="utf-8").splitlines()]
    wrong = [
        row for row in rows if (row["fold"] < 0.9 * row["library"], row["library"] < 0.9 * row["fold"])[row["chosen"]]
    ]
    for title, listed in (("all", rows), ("chosen wrongly", wrong)):
        print(f"{title}: {len(listed)}")
        for row in sorted(listed, key=lambda row: row["library"] / row["fold"]):
            order = "columns" if row["turned"] else "rows"
            times = f"{row['library']:.1f} {row['fold']:.1f} {row['library'] / row['fold']:.2f}x"
            print(" ", row["name"], row["sizes"], row["dtype"], order, times, "fold" if row["chosen"] else "library")


if __name__ == "__main__":
    typer.run(main)
