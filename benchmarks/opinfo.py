"""torch's operator database through AOTAutograd and generated kernels, against eager: values, dtypes, sizes, strides.

    python benchmarks/opinfo.py --jobs 2 --out benchmarks/opinfo.json
    python benchmarks/opinfo.py --only 'nn.functional.*pool.*'
    python benchmarks/opinfo.py --device cuda --jobs 12 --budget 270 --outcomes cuda.json --resume --out o.json
    python benchmarks/opinfo.py --ways 'dynamic.*|.*errors|dtypes' --outcomes outcomes.json --resume
    python benchmarks/opinfo.py --ways layouts
    python benchmarks/opinfo.py --device interpreter --only '.*softmax.*'
    python benchmarks/opinfo.py --shard 0/2 --outcomes shard0.json
    python benchmarks/opinfo.py --merge shard0.json,shard1.json --out benchmarks/opinfo.json

Float32 (forward, gradient, strided, in place, each with symbolic sizes too; Philox) and bfloat16, int64, bool; on a GPU
float16 too, with fewer samples. What eager refuses (the database's error inputs, dtypes that an operator does not take)
the whole compiler must refuse. Samples in other memory layouts ("layouts"): the strides that the graphs promise,
without kernels. A worker process runs one operator after the other; one that crashes, hangs or breaks the GPU is
replaced, and the case at hand recorded as the culprit. With --resume a run goes on where it was cut off.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Queue
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import typer
from rich.console import Console
from rich.table import Table
from support.workers import Worker, answering

BUILDING = "building the kernels"
OUTCOMES = ("ok", "wrong", "error", "crash", "skipped")
NOT_RIGHT = ("wrong", "error", "crash")
START_SECONDS = 180.0
# By device: samples of each way, and seconds that an operator may take.
SAMPLES = {"cpu": 4, "cuda": 2, "interpreter": 2}
LIMITS = {"cpu": 240.0, "cuda": 60.0, "interpreter": 240.0}


# -- the worker --------------------------------------------------------------------------------------------------------


def work(samples: int, device: str, ways: str) -> None:
    """Operators' names in, one a line; JSON out: ``{"at": case}`` before each case, then ``{"done": outcomes}``."""
    os.environ.setdefault("REGRAFT_CACHE_DIR", tempfile.mkdtemp(prefix="regraft-opinfo-"))
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    import torch
    from support.opinfo import CUDA_DTYPES, CUDA_HOWS, CUDA_OTHERS, HOWS, cases, check, device_lost, operators
    from support.opinfo_errors import check_refusals, refusals
    from support.opinfo_layouts import WAY, check_layouts, layout_cases

    torch.set_num_threads(1)
    sparing: dict[str, Any] = {}
    if device == "cuda":
        _prepare_gpu()
    if device != "cpu":
        sparing = {"dtypes": CUDA_DTYPES, "hows": CUDA_HOWS, "others": CUDA_OTHERS, "device": device}
    if ways:
        sparing["hows"] = [how for how in sparing.get("hows", HOWS) if re.fullmatch(ways, how)]
    known = operators()
    answers = answering()
    answers.write(json.dumps({"operators": list(known)}) + "\n")
    for line in sys.stdin:
        found = []
        try:
            op = known[line.strip()]
            found = check(list(cases(op, samples, **sparing)), lambda case: _tell(answers, {"at": case}))
            refused = [case for case in refusals(op, device) if re.fullmatch(ways or ".*", case.way)]
            found += check_refusals(refused, lambda case: _tell(answers, {"at": case}))
            if device == "cpu" and re.fullmatch(ways or ".*", WAY):
                found += check_layouts(list(layout_cases(op)), lambda case: _tell(answers, {"at": case}))
        except Exception as error:
            _tell(answers, {"failed": f"{type(error).__name__}: {error}"[:500]})
        lost = device_lost(device)
        _tell(answers, {"done": [asdict(outcome) for outcome in found], "lost": lost})
        if lost:
            return


def _prepare_gpu() -> None:
    """Eager's full precision, and one process that compiles for this one: others do the same beside it."""
    import importlib

    import torch

    from regraft.compiler.codegen.triton.compile_pool import CompilePool

    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device")
    # Torch's test helpers, which have the operators, forbid to assign these.
    torch.backends.cudnn.set_flags(_deterministic=True, _allow_tf32=False)
    one = CompilePool(1)
    importlib.import_module("regraft.compiler.codegen.triton.compiler").pool = lambda: one  # type: ignore[attr-defined]


def _tell(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")


class Operators:
    """A worker that runs operators, started anew when one brings it down.

    Args:
        options: of the worker's command line.
        limit: seconds that an operator may take.
        errors: where what it prints goes.
    """

    def __init__(self, options: Sequence[str], limit: float, errors: Path) -> None:
        self._worker = Worker([sys.executable, __file__, "--worker", *options], errors)
        self._limit, self._ready = limit, False

    def start(self) -> None:
        """Start the process, without waiting for it."""
        self._worker.start()
        self._ready = False

    def stop(self) -> None:
        """End the process."""
        self._worker.stop()
        self._ready = False

    def operators(self) -> list[str]:
        """All names, once it has started.

        Raises:
            RuntimeError: it has not.
        """
        if not self._worker.started:
            self.start()
        answer = self._worker.answer(time.monotonic() + START_SECONDS)
        if answer is None:
            raise RuntimeError(f"the worker did not start: {self._worker.end()}")
        self._ready = True
        return list(answer["operators"])

    def run(self, name: str, deadline: float = float("inf")) -> list[dict[str, Any]] | None:
        """The outcomes of one operator; None where time is up before it is done."""
        at = f"{name} (samples)"
        if not self._ready:
            try:
                self.operators()
            except RuntimeError as error:
                return [_nothing(at, "crash", str(error))]
        self._worker.tell(name)
        end, extra = min(time.monotonic() + self._limit, deadline), list[dict[str, Any]]()
        while True:
            answer = self._worker.answer(end)
            if answer is None:
                self._ready, how = False, self._worker.end()
                if time.monotonic() >= deadline:
                    return None
                return [*extra, _nothing(at, "crash", how)]
            if "done" in answer:
                if answer["lost"]:
                    self.stop()
                return [*extra, *answer["done"]]
            if "failed" in answer:
                extra.append(_nothing(at, "skipped", f"samples: {answer['failed']}"))
            at = answer.get("at", at) if answer.get("at") != BUILDING else f"{name} (kernels)"


def _nothing(case: str, outcome: str, message: str) -> dict[str, Any]:
    return {"case": case, "outcome": outcome, "message": message, "kept": [], "kernels": 0}


# -- the sweep ---------------------------------------------------------------------------------------------------------


class Sweep:
    """Operators over several workers.

    Args:
        workers: run side by side.
        deadline: by `time.monotonic`; what is not done by then is not run.
    """

    def __init__(self, workers: list[Operators], deadline: float) -> None:
        self._workers, self._deadline = workers, deadline
        self._names: Queue[str] = Queue()
        self._done: Queue[tuple[str, list[dict[str, Any]] | None]] = Queue()

    def run(self, chosen: Any) -> Iterator[tuple[str, list[dict[str, Any]] | None]]:
        """Operators that `chosen` picks of all names, each with its outcomes, or None where time was up."""
        for worker in self._workers:
            worker.start()
        names = chosen(self._workers[0].operators())
        for name in names:
            self._names.put(name)
        for worker in self._workers:
            threading.Thread(target=self._serve, args=(worker,), daemon=True).start()
        for _ in names:
            yield self._done.get()
        for worker in self._workers:
            worker.stop()

    def _serve(self, worker: Worker) -> None:
        with suppress(Empty):
            while True:
                name = self._names.get_nowait()
                late = time.monotonic() > self._deadline
                self._done.put((name, None if late else worker.run(name, self._deadline)))


# -- the summary -------------------------------------------------------------------------------------------------------


def merged(files: list[str]) -> list[dict[str, Any]]:
    """The outcomes of several runs; of an operator that several ran, the last counts."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        new: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for outcome in json.loads(Path(file).read_text(encoding="utf-8")):
            new[_parts(outcome["case"])[0]].append(outcome)
        found.update(new)
    return [outcome for outcomes in found.values() for outcome in outcomes]


def summary(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary that is committed: counts by way and outcome, all that is not right, the calls kept and why."""
    ways: dict[str, Counter[str]] = defaultdict(Counter)
    kept: dict[str, dict[str, Any]] = {}
    skipped: dict[str, set[str]] = defaultdict(set)
    operators: dict[str, str] = {}
    for found in outcomes:
        operator, way = _parts(found["case"])
        ways[way][found["outcome"]] += 1
        ways[way]["generated in full"] += found["outcome"] == "ok" and not found["kept"]
        ways[way]["kernels"] += found["kernels"]
        for name, code, message in found["kept"]:
            entry = kept.setdefault(f"{name} ({code})", {"why": message, "cases": 0})
            entry["cases"] += 1
        if found["outcome"] == "skipped":
            skipped[re.sub(r"[\d.]+", "N", found["message"])].add(operator)
        operators[operator] = _worse(operators.get(operator), found)
    return {
        "operators": dict(Counter(operators.values()).most_common()),
        "cases": {way: dict(counts) for way, counts in sorted(ways.items())},
        "not right": [f for f in outcomes if f["outcome"] in NOT_RIGHT],
        "kept": dict(sorted(kept.items())),
        "skipped": {reason: sorted(names) for reason, names in sorted(skipped.items())},
    }


def _parts(case: str) -> tuple[str, str]:
    """Operator, and dtype with way, of a case's name."""
    parts = case.split(" ")
    return parts[0], " ".join(parts[1:-1])


_RANK = ("wrong", "crash", "error", "with kept calls", "generated in full", "skipped")


def _worse(before: str | None, found: dict[str, Any]) -> str:
    now = found["outcome"]
    now = ("with kept calls" if found["kept"] else "generated in full") if now == "ok" else now
    return now if before is None else min(before, now, key=_RANK.index)


def show(made: dict[str, Any], *, kept: bool = True) -> None:
    """Print a summary: counts, with `kept` each call that was kept, and what is not right, one line each."""
    console = Console(width=140)
    table = Table("way", *OUTCOMES, "generated in full", "kernels", title="cases")
    for way, counts in made["cases"].items():
        table.add_row(way, *(str(counts.get(key, 0)) for key in (*OUTCOMES, "generated in full", "kernels")))
    total = Counter[str]()
    for counts in made["cases"].values():
        total.update(counts)
    table.add_row("all", *(str(total[key]) for key in (*OUTCOMES, "generated in full", "kernels")))
    console.print(table)
    console.print("operators:", made["operators"])
    for name, entry in made["kept"].items() if kept else ():
        console.print(
            f"kept {name}: {entry['cases']} cases; {entry['why']}", soft_wrap=True, highlight=False, markup=False
        )
    if made.get("not run"):
        names = f"not run, time was up: {len(made['not run'])}: {' '.join(made['not run'])}"
        console.print(names[:2000], soft_wrap=True, highlight=False, markup=False)
    for found in made["not right"]:
        line = " ".join(f"{found['outcome']} {found['case']}: {found['message']}".split())
        console.print(line[:300], soft_wrap=True, highlight=False, markup=False)


def tell(name: str, found: list[dict[str, Any]]) -> None:
    """Print what became of an operator."""
    print(name, dict(Counter(outcome["outcome"] for outcome in found)), flush=True)
    for bad in found:
        if bad["outcome"] in NOT_RIGHT:
            print("   ", bad["outcome"], bad["case"], bad["message"][:400], flush=True)


def write(path: str, content: Any, indent: int | None = None) -> None:
    """Write JSON, where there is a path."""
    if path:
        Path(path).write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


def main(  # noqa: PLR0913 - the command's options
    shard: str = "0/1",
    only: Annotated[str, typer.Option(help="A regular expression that operators' names match in full.")] = ".*",
    device: Annotated[
        str, typer.Option(help="cpu (C++), cuda (Triton), or interpreter: Triton's, of kernels for GPUs.")
    ] = "cpu",
    samples: Annotated[
        int, typer.Option(help="Samples of each operator forward and gradient; fewer of other ways. 0: the device's.")
    ] = 0,
    limit: Annotated[float, typer.Option(help="Seconds that one operator may take. 0: the device's.")] = 0.0,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    budget: Annotated[float, typer.Option(help="Seconds that all may take; what is left then is not run.")] = 1e9,
    merge: Annotated[str, typer.Option(help="Summarize these files of outcomes instead of running.")] = "",
    out: Annotated[str, typer.Option(help="Write the summary here.")] = "",
    outcomes: Annotated[str, typer.Option(help="Write the outcomes of all cases here, for --merge.")] = "",
    resume: Annotated[bool, typer.Option(help="Leave out the operators that --outcomes has.")] = False,
    ways: Annotated[str, typer.Option(help="A regular expression that the ways to run match in full.")] = "",
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run the sweep, or one of its shards."""
    start = time.monotonic()
    if device not in SAMPLES:
        raise typer.BadParameter(f"no device {device!r}; there are {', '.join(SAMPLES)}")
    samples, limit = samples or SAMPLES[device], limit or LIMITS[device]
    if worker:
        work(samples, device, ways)
        return
    if merge:
        made = summary(merged(merge.split(",")))
        show(made)
        write(out, made, 1)
        return
    part, parts = map(int, shard.split("/"))

    def chosen(names: list[str]) -> list[str]:
        return [name for name in names if re.fullmatch(only, name) and name not in done][part::parts]

    found = merged([outcomes]) if resume and Path(outcomes).exists() else []
    done = {_parts(outcome["case"])[0] for outcome in found}
    late: list[str] = []

    def made_of() -> dict[str, Any]:
        return summary(found) | ({"not run": late} if late else {})

    with tempfile.TemporaryDirectory(prefix="regraft-opinfo-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("REGRAFT_CACHE_DIR", folder)  # equal kernels are compiled once for all workers
        options = ["--samples", str(samples), "--device", device, "--ways", ways]
        workers = [Operators(options, limit, Path(folder) / f"worker{k}.txt") for k in range(jobs)]
        written = time.monotonic()
        for name, new in Sweep(workers, start + budget).run(chosen):
            if new is None:
                late.append(name)
                continue
            found += new
            if jobs == 1:
                tell(name, new)
            if time.monotonic() > written + 10:
                written = time.monotonic()
                write(outcomes, found)
                write(out, made_of(), 1)
    made = made_of()
    write(outcomes, found)
    write(out, made, 1)
    show(made, kept=device != "cuda")
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    typer.run(main)
