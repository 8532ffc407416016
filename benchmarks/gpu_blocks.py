"""Generated kernels on a GPU with other blocks and warps: where the plan is far from the best.

    python benchmarks/gpu_blocks.py --jobs 15 --budget 500 --json rows.jsonl
    python benchmarks/gpu_blocks.py --tables models --names '.*norm.*' --parts 1,2,4

Each program of the tables of `gpu_programs.py` is compiled once, and each of its kernels built once for each variant: a
factor of the block, of its rows or of its columns, and a factor of the warps. Microseconds are the least of many
launches by the profiler, so that processes share the GPU. `--parts` also compiles programs with another number of parts
of a split reduction for each multiprocessor.

Printed: kernels whose best variant is much faster than the plan's choice.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import typer
from gpu_programs import Row, read, run_all
from operators import prepared, stepping
from program_tables import Budget, Dtype, Jobs, Json, Names, Tables, rows_file, shuffled
from rich.console import Console
from rich.table import Table

CALLS, RUNS = 8, 3
# Factors of the rows, the columns and the warps of a launch.
VARIANTS = (
    (1, 1, 1), (1, 1, 0.5), (1, 1, 2), (0.5, 1, 1), (0.5, 1, 0.5), (1, 0.5, 1), (1, 0.5, 0.5), (2, 1, 1), (2, 1, 2),
    (1, 2, 1), (1, 2, 2), (0.25, 1, 0.25), (1, 0.25, 0.25), (0.25, 1, 1), (1, 0.25, 1), (1, 1, 0.25), (1, 1, 4),
    (1, 0.5, 0.25), (1, 2, 0.5), (1, 4, 1), (1, 4, 2), (2, 0.5, 1), (0.5, 2, 1),
)  # fmt: skip
MOST = 32  # warps of a program


def varied(blocks: Any, variant: Sequence[float]) -> Any:
    """Blocks by a variant; None where it makes no difference or no sense."""
    rows, columns, warps = variant
    r, c, w = int(blocks.row_block * rows), int(blocks.column_block * columns), int(blocks.warps * warps)
    if not (r and c and 1 <= w <= MOST):
        return None
    return replace(blocks, row_block=r, column_block=c, warps=w)


class Variants:
    """Builds kernels in all variants; `now` says which of them runs."""

    def __init__(self) -> None:
        self.now = 0
        self.texts: dict[str, list[str]] = {}
        self._package = importlib.import_module("regraft.compiler.codegen.triton")
        self._build = self._package.build
        self._package.build = self._built

    def close(self) -> None:
        """Let kernels be built as they were."""
        self._package.build = self._build

    def _built(self, kernels: Sequence[Any]) -> list[Any]:
        made = [self._in(kernels, variant) for variant in VARIANTS]
        for number, kernel in enumerate(made[0]):
            self.texts[kernel.plans[0].unit.function] = [
                str(launch.blocks)
                for part in kernels[number].parts or kernels[number : number + 1]
                for launch in part.launches
            ]
        return [replace(one, bare=self._one_of(made, number)) for number, one in enumerate(made[0])]

    def _one_of(self, made: list[list[Any]], number: int) -> Callable[..., None]:
        def run(*args: Any) -> None:
            made[self.now if made[self.now] else 0][number].bare(*args)

        return run

    def _in(self, kernels: Sequence[Any], variant: Sequence[float]) -> list[Any]:
        """The kernels in one variant; nothing where one of them cannot be built so."""
        try:
            return list(self._build([_in_variant(kernel, variant) for kernel in kernels]))
        except Exception:
            if variant == VARIANTS[0]:
                raise
            return []


def _in_variant(kernel: Any, variant: Sequence[float]) -> Any:
    """A kernel whose launches, and those of its parts, have other blocks."""
    own = [replace(one, blocks=varied(one.blocks, variant) or one.blocks) for one in kernel.launches]
    parts = tuple(_in_variant(part, variant) for part in kernel.parts)
    return replace(kernel, launches=tuple(own), parts=parts)


def kernels_of(step: Callable[[], Any]) -> dict[str, float]:
    """The least microseconds that each kernel of a call takes, those of one name in order, by name and place."""
    least: dict[str, float] = defaultdict(lambda: float("inf"))
    for _ in range(RUNS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(CALLS):
                step()
            torch.cuda.synchronize()
        events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        events.sort(key=lambda e: e.time_range.start)
        each = len(events) // CALLS
        for number, event in enumerate(events):
            key = f"{number % max(each, 1)} {re.sub(r'_[0-9a-f]{8}$', '', event.name)}"
            least[key] = min(least[key], event.time_range.elapsed_us())
    return dict(least)


def measured(module: str, kind: str, name: str, dtype: str, parts: tuple[int, ...]) -> Row | None:
    """One program: the kernels of all variants."""
    import regraft

    function, inputs = importlib.import_module(module).PROGRAMS[kind][name]
    if isinstance(function, torch.nn.Module):
        function = function.cuda()
    function, given, leaves = prepared(function, inputs, "cuda", dtype, False, kind.startswith("gradients"))
    row: Row = {"kind": kind, "name": name, "parts": {}}
    target = importlib.import_module("regraft.compiler.schedule.target")
    usual = target._MULTIPROCESSOR
    for count in parts:
        target._MULTIPROCESSOR = replace(usual, programs=count) if count else usual
        torch._dynamo.reset()
        os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp()  # graphs are recalled from it
        variants = Variants()
        try:
            called = stepping(torch.compile(function, backend=regraft.backend), given, leaves)
            called()
            found = {}
            for variants.now in range(len(VARIANTS)):
                called()
                found[variants.now] = kernels_of(called)
            row["parts"][count] = {"us": found, "blocks": variants.texts}
        finally:
            variants.close()
            target._MULTIPROCESSOR = usual
    return row


def shown(rows: list[Row], worth: float) -> None:
    """Print kernels that a variant makes much faster."""
    table = Table("kind", "program", "kernel", "us", "best us", "variant")
    found = []
    for row in rows:
        for count, one in row.get("parts", {}).items():
            plan = one["us"]["0"]
            for kernel, us in plan.items():
                best = min(one["us"], key=lambda v: one["us"][v].get(kernel, float("inf")))
                least = one["us"][best].get(kernel, us)
                if us > worth * least:
                    variant = str(VARIANTS[int(best)])
                    found.append((us / least, row["kind"], f"{row['name']} ({count})", kernel, us, least, variant))
    for _, kind, name, kernel, us, least, variant in sorted(found, reverse=True):
        table.add_row(kind, name, kernel[:40], f"{us:.1f}", f"{least:.1f}", variant)
    Console(width=160).print(table)


def main(
    tables: Tables = "models,operators,blocks",
    names: Names = ".*",
    dtype: Dtype = "bfloat16",
    parts: Annotated[str, typer.Option(help="Parts of split reductions for each multiprocessor; 0: as planned.")] = "0",
    jobs: Jobs = 8,
    budget: Budget = 1e9,
    worth: Annotated[float, typer.Option(help="How many times as fast a variant is that is printed.")] = 1.2,
    to: Json = "",
) -> None:
    """Run the tables and print what other blocks would make faster."""
    with rows_file(to) as path:
        run_all(measured, shuffled(tables, names), path, jobs, budget, dtype, tuple(map(int, parts.split(","))))
        shown(read(path), worth)


if __name__ == "__main__":
    typer.run(main)
