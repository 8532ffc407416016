"""Random programs against eager: whole Python programs, and the kernels of straight ones.

    python benchmarks/fuzz.py --count 10000 --jobs 8 --state fuzz.jsonl --summary fuzz.json
    python benchmarks/fuzz.py --count 20000 --jobs 12 --device cuda --budget 500 --state fuzz_cuda.jsonl
    python benchmarks/fuzz.py --count 1000 --give-up
    python benchmarks/fuzz.py --count 1000 --recalled
    python benchmarks/fuzz.py show 4711
    python benchmarks/fuzz.py replay 4711 some_program.py
    python benchmarks/fuzz.py kernels --count 10000 --shard 0/2
    python benchmarks/fuzz.py kernels --device interpreter --count 200

Program number n comes from seed n. `programs`, which is meant where no command is named, compares values, gradients,
dtypes, strides, shared memory, writes, errors and further calls, and makes what differs smaller. A state file keeps
each outcome: the same command goes on where it was cut off. A worker that crashes or hangs is replaced.

With `--give-up`, something raises while each program is compiled: at any stage, in some direction.

With `--recalled`, each program is compiled, everything in memory is forgotten, and it is recalled from the cache on
disk, forward and backward. Calls differ from each other in one or two things: dtypes, strides, places and sharing of
inputs, what wants gradients, grad mode, settings of the process, the mode and the parameters of a model. The summary
counts the graphs that were recalled, among those that were asked for.

`kernels` holds lowering, schedule and code of straight programs against eager, the kernels of many compiled together;
for a GPU they are Triton, run on one or by its interpreter.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import typer

app = typer.Typer(add_completion=False, help=__doc__)
TRIES = {"cpu": 200, "cuda": 40, "interpreter": 60}  # programs compiled to make a failing one smaller
RECALLED = "Also recall each program from disk, in calls that differ."
COMMANDS = ("programs", "show", "replay", "kernels", "worker")


# -- whole programs ----------------------------------------------------------------------------------------------------


@app.command()
def programs(  # noqa: PLR0913 - the command's options
    count: int = 1000,
    seed: int = 0,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds after which no further programs are begun.")] = 1e9,
    small: Annotated[bool, typer.Option(help="Make failing programs as small as they go.")] = True,
    state: Annotated[str, typer.Option(help="Keep outcomes here, a line a program, and go on from it.")] = "",
    summary: Annotated[str, typer.Option(help="Write what came of all programs of the state here, as JSON.")] = "",
    again: Annotated[bool, typer.Option(help="Run what was not right once more.")] = False,
    give_up: Annotated[bool, typer.Option(help="Plant a fault in the compiler for each program.")] = False,
    recalled: Annotated[bool, typer.Option(help=RECALLED)] = False,
) -> None:
    """Run whole Python programs; exits with 1 where one is not right."""
    from support.fuzzer import service

    known = service.read(Path(state)) if state else {}
    if again:
        known = {n: made for n, made in known.items() if made["outcome"] not in service.BAD}
    left = [n for n in range(seed, seed + count) if n not in known]
    command = [sys.executable, __file__, "worker", "--device", device, "--small" if small else "--no-small"]
    command += ["--give-up"] * give_up + ["--recalled"] * recalled
    start, told = time.monotonic(), time.monotonic()
    for done, made in enumerate(service.Service(command, jobs, start + budget).run(left), 1):
        known[made["seed"]] = made
        if state:
            with Path(state).open("a", encoding="utf-8") as file:
                file.write(json.dumps(made) + "\n")
        if made["outcome"] in service.BAD:
            _tell(made)
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{done} of {len(left)}, {done / (told - start):.2f} a second", flush=True)
    found = service.summary(known)
    if summary:
        Path(summary).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, group in found["not right"].items():
        print(f"{group['programs']:5} {name}  seeds {group['seeds']}")
    print(f"{found['programs']} programs: {found['outcomes']} {found['of them']}; {time.monotonic() - start:.0f} s")
    raise typer.Exit(1 if found["not right"] else 0)


def _tell(made: dict[str, Any]) -> None:
    failure = made["failure"]
    print(f"--- program {made['seed']}: {failure['kind']}, call {failure['call']}: {failure['message']}", flush=True)
    print(made.get("source", ""), flush=True)


@app.command()
def worker(device: str = "cpu", small: bool = True, give_up: bool = False, recalled: bool = False) -> None:
    """Answer seeds of standard input: what `programs` starts."""
    from support.fuzzer.service import work

    work(device, small, give_up, recalled)


@app.command()
def show(seed: int) -> None:
    """Print the source of a program."""
    from support.fuzzer.grammar import draw

    print(draw(seed))


@app.command()
def replay(
    which: Annotated[list[str], typer.Argument(help="Seeds, and files of programs.")],
    device: str = "cpu",
    small: Annotated[bool, typer.Option(help="Make failing programs as small as they go.")] = False,
    give_up: Annotated[bool, typer.Option(help="Plant the fault that `programs` plants for this seed.")] = False,
    recalled: Annotated[bool, typer.Option(help=RECALLED)] = False,
) -> None:
    """Run programs in this process, and say what is wrong with them."""
    from support.fuzzer.grammar import draw
    from support.fuzzer.runner import check
    from support.fuzzer.shrink import shrink
    from support.giving_up import drawn

    logging.disable(logging.CRITICAL)
    wrong = 0
    for one in which:
        text = draw(int(one)) if one.isdigit() else Path(one).read_text(encoding="utf-8")
        run = partial(check, device=device, twisted=_seed(one, text) if recalled else None)
        with drawn(int(one)) if give_up and one.isdigit() else nullcontext():
            verdict = run(text)
        print(f"{one}: {verdict.outcome} {verdict.failure or ''} {verdict.counts}", flush=True)
        wrong += verdict.outcome == "wrong"
        if verdict.failure is not None and verdict.outcome == "wrong" and small:
            print(shrink(text, verdict.failure.kind, run, 300.0), flush=True)
    raise typer.Exit(1 if wrong else 0)


def _seed(one: str, text: str) -> int:
    """The seed of a program, which a source names in its first line."""
    return int(one) if one.isdigit() else int((re.findall(r"\d+", text.splitlines()[0]) or [0])[0])


# -- kernels of straight programs --------------------------------------------------------------------------------------


@app.command()
def kernels(  # noqa: PLR0913 - the command's options
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
    """Run straight programs stage by stage; exits with 1 where one disagrees."""
    import torch
    from support.fuzzing import BUILDERS, check_batch
    from support.random_programs import draw
    from support.triton_kernels import device_lost

    torch.set_num_threads(1)
    if device not in BUILDERS or (device == "cuda" and not torch.cuda.is_available()):
        raise typer.BadParameter(f"no device {device!r} here; there are {', '.join(BUILDERS)}")
    tries = TRIES[device] if small else 0
    part, parts = map(int, shard.split("/"))
    counts: Counter[str] = Counter()
    failed: list[int] = []
    start = time.perf_counter()
    for seeds in _batches(range(seed + part, seed + count, parts), batch):
        if time.perf_counter() > start + budget:
            break
        drawn = {n: (draw(random.Random(n)), n % 3 == 0) for n in seeds}
        found = check_batch(drawn, counts, device)
        if reason := device_lost(device):
            raise SystemExit(f"one of the programs {seeds} breaks the device: {reason}")
        for failure in found:
            failed.append(failure.number)
            print(f"--- program {failure.number}", flush=True)
            late = time.perf_counter() > start + budget
            _report(failure, device, tries=0 if late else tries, with_texts=with_texts)
    counts["seconds"] = round(time.perf_counter() - start)
    print(dict(counts), f"failed: {failed}")
    if out:
        Path(out).write_text(json.dumps({"counts": dict(counts), "failed": failed}, indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(1 if failed else 0)


def _batches(seeds: range, size: int) -> Iterator[range]:
    for start in range(0, len(seeds), size):
        yield seeds[start : start + size]


def _report(failure: Any, device: str, *, tries: int, with_texts: bool) -> None:
    from support.fuzzing import shrink
    from support.stages import texts

    failure = shrink(failure, tries, device) if tries else failure
    print(failure, flush=True)
    if with_texts:
        print(texts(failure.program, failure.dynamic), flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    os.environ.setdefault("REGRAFT_CACHE_DIR", tempfile.mkdtemp(prefix="regraft-fuzz-"))
    if not any(argument in COMMANDS or argument == "--help" for argument in sys.argv[1:]):
        sys.argv.insert(1, "programs")
    app()
