"""Inference and training steps of many kinds of models: each backend in a process of its own, timed in turns.

    python benchmarks/training.py --models opt,unet --kinds infer,train --size small --jobs 6

Models are those of `training_models` and `user_data`, any type of `transformers` as ``hf:TYPE``
(``hf:hubert@32000``: 32,000 samples of sound), and ``timm:NAME``, with random weights. Inference runs in bfloat16,
training (forward and backward) under autocast to it; backends run in the mode ``reduce-overhead``. Each process
compiles with empty caches and warms up, `--jobs` of them at a time; then, with nothing else running, a model's
processes take turns of a few steps. Printed for each: median ms of a step, speed over the first backend, seconds of the
first call, peak memory of all calls, the relative error of the first result against eager's (inference), and why
regraft captured no CUDA graph. `--profile N` adds the N kernels that took longest.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import user_data  # noqa: F401 - enters its models, and those of `user_images`
from training_models import MODELS, built

import regraft

TURNS, STEPS, WARM = 8, 5, 8
Row = dict[str, Any]


def first(result: Any) -> torch.Tensor:
    """A tensor of what a model gave: itself, its logits, or the first output of a model without a head."""
    if isinstance(result, torch.Tensor):
        return result
    return result.logits if "logits" in result else next(x for x in result.values() if isinstance(x, torch.Tensor))


def objective(result: Any) -> torch.Tensor:
    """The loss that a model gave, or the mean square of its first output."""
    if not isinstance(result, torch.Tensor) and result.get("loss") is not None:
        return result.loss
    value = first(result)
    return value if value.dim() == 0 else value.float().square().mean()


class Runner:
    """One model under one backend, in the process that runs it."""

    def __init__(self, name: str, kind: str, backend: str, size: str, device: str, dynamic: bool) -> None:
        torch.manual_seed(0)
        self.train, self.device, self.backend = kind == "train", device, backend
        with torch.device(device):  # weights of billions of parameters take minutes to draw on a CPU
            model, inputs = built(name, size)
        self.model = model.to(device).train(self.train)
        if not self.train and device != "cpu":
            self.model.bfloat16()
        drop = () if self.train or name == "bart" else ("labels",)
        self.inputs = {key: self._placed(x) for key, x in inputs.items() if key not in drop}
        self.call = self.forward
        if backend != "eager":
            compiler = regraft.backend if backend == "regraft" else backend
            how = {"dynamic": True} if dynamic else {}
            self.call = torch.compile(self.forward, backend=compiler, mode="reduce-overhead", **how)

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        low = x.is_floating_point() and not self.train and self.device != "cpu"
        return x.to(self.device, torch.bfloat16 if low else None)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """The loss in training, else logits."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.train), torch.set_grad_enabled(self.train):
            result = self.model(**inputs)
        return objective(result) if self.train else first(result)

    def step(self) -> torch.Tensor:
        """One step, without an optimizer."""
        if not self.train:
            return self.call(**self.inputs)
        self.model.zero_grad(set_to_none=True)
        loss = self.call(**self.inputs)
        loss.backward()
        return loss.detach()

    def begin(self) -> Row:
        """Compile and warm up."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        with self._watched() as refused:
            first = self.step().float().clone()
            self._wait()
            row: Row = {"cold s": time.perf_counter() - start}
            for _ in range(WARM):
                self.step()
            self._wait()
        if self.device == "cuda":
            row["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
        if not self.train:
            expected = self.forward(**self.inputs).float()
            row["error"] = float((first - expected).norm() / expected.norm())
        return row | {"refused": refused()}

    @contextlib.contextmanager
    def _watched(self) -> Any:
        if self.backend != "regraft":
            yield dict
            return
        with regraft.coverage() as cov:
            yield lambda: Counter(f.message for g in cov.graphs for f in g.fallbacks if f.stage == "cudagraphs")

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def times(self) -> list[float]:
        """Milliseconds of a few steps, after one."""
        self.step()
        self._wait()
        return [self._timed() for _ in range(STEPS)]

    def _timed(self) -> float:
        if self.device != "cuda":
            start = time.perf_counter()
            self.step()
            return 1e3 * (time.perf_counter() - start)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        self.step()
        last.record()
        last.synchronize()
        return first.elapsed_time(last)

    def profile(self, count: int) -> list[str]:
        """All kernels' time and number in a step, and those that take longest."""
        if self.device != "cuda":
            return []
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profiler:
            for _ in range(3):
                self.step()
            self._wait()
        rows = sorted(profiler.key_averages(), key=lambda row: -row.device_time_total)
        total = sum(row.device_time_total for row in rows) / 3e3
        lines = [f"kernels {total:.2f} ms, {sum(row.count for row in rows) // 3} launches"]
        return lines + [f"{r.device_time_total / 3e3:.3f} ms {r.count // 3:4d} x {r.key[:90]}" for r in rows[:count]]


def serve(pipe: Any, *what: Any) -> None:
    """A process for one model, kind and backend: answers until told to stop."""
    folder = tempfile.mkdtemp()
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "REGRAFT_CACHE_DIR"):
        os.environ[variable] = f"{folder}/{variable}"
    try:
        runner = Runner(*what)
        pipe.send(runner.begin())
        while (message := pipe.recv()) is not None:
            pipe.send(runner.times() if message == "times" else runner.profile(message))
    except Exception as error:  # told to whoever waits
        pipe.send({"failed": f"{type(error).__name__}: {error}"[:500]})


def started(what: tuple[Any, ...], seconds: float) -> tuple[Any, Any, Row]:
    """A process that has compiled and warmed up: itself, its pipe, its row."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=serve, args=(other, *what), daemon=True)
    process.start()
    other.close()
    try:
        row = pipe.recv() if pipe.poll(max(1.0, seconds)) else {"failed": "out of time"}
    except EOFError:
        row = {"failed": "the process died"}
    if "failed" in row:
        process.kill()
    return process, pipe, row


def text(value: Any) -> str:
    """A cell of a row."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def timed(found: dict[str, tuple[Any, Any, Row]], profile: int) -> dict[str, Row]:
    """Rows of one model's backends, which take turns."""
    alive = {backend: pipe for backend, (_, pipe, row) in found.items() if "failed" not in row}
    times: dict[str, list[float]] = {backend: [] for backend in alive}
    for _ in range(TURNS):
        for backend, pipe in list(alive.items()):
            pipe.send("times")
            reply = pipe.recv()
            if isinstance(reply, dict):
                found[backend][2].update(reply)
                del alive[backend]
            else:
                times[backend] += reply
    rows = {backend: dict(row) for backend, (_, _, row) in found.items()}
    for backend, pipe in alive.items():
        rows[backend] = {"ms": statistics.median(times[backend])} | rows[backend]
        if profile:
            pipe.send(profile)
            rows[backend]["profile"] = pipe.recv()
        pipe.send(None)
    return rows


def shown(name: str, kind: str, rows: dict[str, Row], out: str) -> Iterator[tuple[str, float]]:
    """Print one model's rows, and write them to a file; gives each backend's speed over the first."""
    base = next(iter(rows.values())).get("ms")
    for backend, row in rows.items():
        lines, refused = row.pop("profile", []), row.pop("refused", {})
        if base and "ms" in row:
            row["speed"] = base / row["ms"]
            yield backend, row["speed"]
        print(name, kind, backend, *(f"{key} {text(value)}" for key, value in row.items()), flush=True)
        for line in [*(f"{n} x {message[:200]}" for message, n in refused.items()), *lines]:
            print("    ", line, flush=True)
        if out:
            with Path(out).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"model": name, "kind": kind, "backend": backend} | row) + "\n")


def main(  # noqa: PLR0913
    models: Annotated[str, typer.Option(help="Names, by commas.")] = ",".join(MODELS),
    kinds: Annotated[str, typer.Option(help="infer, train")] = "infer,train",
    backends: Annotated[str, typer.Option(help="Of torch.compile, or eager.")] = "inductor,regraft,eager",
    size: Annotated[str, typer.Option(help="tiny, small or base")] = "base",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    dynamic: Annotated[bool, typer.Option(help="All sizes of inputs are symbolic.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes that compile at a time.")] = 2,
    group: Annotated[int, typer.Option(help="Models and kinds whose processes are alive together.")] = 12,
    seconds: Annotated[float, typer.Option(help="What has not compiled by then is left out.")] = 3600.0,
    each: Annotated[float, typer.Option(help="The same, for each process.")] = 3600.0,
    profile: Annotated[int, typer.Option(help="Print that many kernels of each.")] = 0,
    out: Annotated[str, typer.Option(help="A file for the rows, as JSON lines.")] = "",
) -> None:
    """Time models."""
    end = time.monotonic() + seconds
    names, runs = [(m, k) for m in models.split(",") for k in kinds.split(",")], backends.split(",")
    speeds: dict[tuple[str, str], list[float]] = {}
    for part in (names[i : i + group] for i in range(0, len(names), group)):
        with ThreadPoolExecutor(jobs) as pool:
            work = [(m, k, b, size, device, dynamic) for m, k in part for b in runs]
            made = dict(zip(work, pool.map(lambda w: started(w, min(each, end - time.monotonic())), work), strict=True))
        for name, kind in part:
            rows = timed({b: made[name, kind, b, size, device, dynamic] for b in runs}, profile)
            for backend, speed in shown(name, kind, rows, out):
                speeds.setdefault((kind, backend), []).append(speed)
    for (kind, backend), ratios in speeds.items():
        print(f"{kind} {backend}: {math.exp(statistics.fmean(map(math.log, ratios))):.2f}x over {len(ratios)} models")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
