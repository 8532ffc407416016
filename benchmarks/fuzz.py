"""Random programs through eager, the interpreter of loop programs, and generated C++, which must agree.

    python benchmarks/fuzz.py --count 10000 --shard 0/2
    python benchmarks/fuzz.py --seed 4711 --count 1 --texts
    python benchmarks/fuzz.py --device cuda --count 2000 --budget 60
    python benchmarks/fuzz.py --device interpreter --count 200

Program number n comes from seed n: every third has symbolic sizes, kernels of small programs also run by the
interpreter. The kernels of many programs are compiled together. For a GPU they are Triton, run on one or by its
interpreter. A program that disagrees is made as small as it goes,
and printed with the first stage that is wrong; `--texts` adds its graph, loop program, fusion log and kernels.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

os.environ.setdefault("REGRAFT_CACHE_DIR", tempfile.mkdtemp(prefix="regraft-fuzz-"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
import typer
from support.fuzzing import BUILDERS, Failure, check_batch, shrink
from support.random_programs import draw
from support.stages import texts
from support.triton_kernels import device_lost

torch.set_num_threads(1)
TRIES = {"cpu": 200, "cuda": 40, "interpreter": 60}  # programs compiled to make a failing one smaller


def batches(seeds: range, size: int) -> Iterator[range]:
    for start in range(0, len(seeds), size):
        yield seeds[start : start + size]


def report(failure: Failure, device: str, *, tries: int, with_texts: bool) -> None:
    failure = shrink(failure, tries, device) if tries else failure
    print(failure, flush=True)
    if with_texts:
        print(texts(failure.program, failure.dynamic), flush=True)


def main(  # noqa: PLR0913 - the command's options
    count: int = 1000,
    seed: int = 0,
    shard: str = "0/1",
    batch: int = 50,
    device: Annotated[str, typer.Option(help="cpu (C++), cuda (Triton), or interpreter: Triton's.")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds after which no further programs are begun.")] = 1e9,
    small: Annotated[bool, typer.Option(help="Make failing programs as small as they go.")] = True,
    with_texts: Annotated[bool, typer.Option("--texts", help="Print all stages of failing programs.")] = False,
    out: Annotated[str, typer.Option(help="Write counts and failing seeds as JSON.")] = "",
) -> None:
    """Run `count` programs; exits with 1 where one disagrees."""
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    if device not in BUILDERS or (device == "cuda" and not torch.cuda.is_available()):
        raise typer.BadParameter(f"no device {device!r} here; there are {', '.join(BUILDERS)}")
    tries = TRIES[device] if small else 0
    part, parts = map(int, shard.split("/"))
    counts: Counter[str] = Counter()
    failed: list[int] = []
    start = time.perf_counter()
    for seeds in batches(range(seed + part, seed + count, parts), batch):
        if time.perf_counter() > start + budget:
            break
        programs = {n: (draw(random.Random(n)), n % 3 == 0) for n in seeds}
        found = check_batch(programs, counts, device)
        if reason := device_lost(device):
            raise SystemExit(f"one of the programs {seeds} breaks the device: {reason}")
        for failure in found:
            failed.append(failure.number)
            print(f"--- program {failure.number}", flush=True)
            late = time.perf_counter() > start + budget
            report(failure, device, tries=0 if late else tries, with_texts=with_texts)
    counts["seconds"] = round(time.perf_counter() - start)
    print(dict(counts), f"failed: {failed}")
    if out:
        Path(out).write_text(json.dumps({"counts": dict(counts), "failed": failed}, indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
