"""Many threads of many processes compile and call models for minutes, while faults are injected: nothing may be wrong.

    python benchmarks/soak.py [--seconds 600] [--processes 4] [--threads 8] [--seed 0]

All processes share one cache. Meanwhile processes are killed (and started anew), entries of the cache are damaged, cut
off or deleted, the C++ compiler fails for a while, and writes to the cache fail as on a full disk. Exit code 1 where a
result is wrong, a process ends by itself, or no call ends for `STUCK` seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

STUCK = 240.0  # seconds without an ended call of a process
SIZES = (3, 8, 17, 32)


def models() -> list[Callable[..., object]]:
    """Twenty small programs of one matrix."""
    import torch
    from torch.nn import functional as F

    def attention(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT / 3).softmax(-1) @ x

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:])

    pieces = (F.gelu, norm, attention, lambda x: x.cumsum(-1).tanh(), lambda x: x.roll(1, 0) * x.amax(-1, True))
    ends = (lambda x: x.sin(), lambda x: x.softmax(0), lambda x: (x * x).mean(-1), lambda x: x.mT.contiguous())
    return [lambda x, f=f, g=g: g(f(x) + 0.5) for f in pieces for g in ends]


def worker(threads: int, seed: int, seconds: float) -> int:
    """One process: its threads compile and call until time is up, and tell of each call on standard output."""
    import torch

    torch.compiler.reset()  # threads that import torch's compiler at once get halves of it, with any backend
    torch.set_num_threads(1)
    draw, ends, lock = random.Random(seed), time.time() + seconds, threading.Lock()
    _fill_the_disk(draw)
    programs, turns = models(), Turns()

    def tell(**what: object) -> None:
        with lock:
            print(json.dumps(what), flush=True)

    def step(choice: random.Random) -> None:
        number, size = choice.randrange(len(programs)), choice.choice(SIZES)
        program, training = programs[number], choice.random() < 0.4
        x = torch.randn(size, 16, requires_grad=training)
        if choice.random() < 0.1:
            with turns.alone():
                torch.compiler.reset()
        with turns.shared(), torch.set_grad_enabled(training):
            found, expected = torch.compile(program, backend="regraft")(x), program(x)
            pairs = [(found, expected)]
            if training:
                pairs.append(tuple(torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)))
        wrong = [float((a - b).abs().max()) for a, b in pairs if not torch.allclose(a, b, 1e-3, 1e-4)]
        tell(call=number, training=training, wrong=wrong)

    def run(number: int) -> None:
        choice = random.Random(seed * 100 + number)
        while time.time() < ends:
            try:
                step(choice)
            except BaseException as error:
                tell(raised=f"{type(error).__name__}: {str(error)[:300]}")

    started = [threading.Thread(target=run, args=[number]) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return 0


def _fill_the_disk(draw: random.Random) -> None:
    """Let one write to the cache in twenty fail half way."""
    real, cache = Path.write_bytes, os.environ["REGRAFT_CACHE_DIR"]

    def write_bytes(path: Path, content: bytes) -> int:
        if str(path).startswith(cache) and draw.random() < 0.05:
            real(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, content)

    Path.write_bytes = write_bytes  # type: ignore[method-assign]


class Turns:
    """Many threads at once, or one alone: torch crashes, with any backend, where it forgets what others are calling."""

    def __init__(self) -> None:
        self._changed, self._inside, self._waiting = threading.Condition(), 0, 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._inside)
                yield
            finally:
                self._waiting -= 1
                self._changed.notify_all()


class Soak:
    """The processes, and what is done to them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments, self._folder, self._draw = arguments, folder, random.Random(arguments.seed)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._killed: set[int] = set()
        self._heard: dict[int, float] = {}
        self._ends = time.time() + arguments.seconds
        self._compiler_fails = folder / "compiler-fails"
        self._running: list[subprocess.Popen[str]] = []

    def run(self) -> None:
        compiler = self._folder / "c++"
        real = shutil.which("g++") or shutil.which("clang++") or "c++"
        compiler.write_text(
            f'#!/bin/sh\n[ "$1" != --version ] && [ -e {self._compiler_fails} ] && exit 1\nexec {real} "$@"\n'
        )
        compiler.chmod(0o755)
        for _ in range(self._arguments.processes):
            self._start()
        while time.time() < self._ends:
            time.sleep(self._draw.uniform(0.2, 1.0))
            self._inject()
            self._look_after()
        self._compiler_fails.unlink(missing_ok=True)
        for process in self._running:
            try:
                process.wait(STUCK)
            except subprocess.TimeoutExpired:
                self.problems.append(f"process {process.pid} does not end")
                process.kill()
        self._look_after(restart=False)

    def _start(self) -> None:
        seed, left = self._draw.randrange(1 << 30), max(self._ends - time.time(), 1)
        command = [sys.executable, "-X", "faulthandler", "-W", "ignore", __file__, "--worker"]
        command += ["--threads", str(self._arguments.threads), "--seed", str(seed), "--seconds", str(left)]
        environment = {
            **os.environ, "REGRAFT_CACHE_DIR": str(self._folder / "cache"), "CXX": str(self._folder / "c++"),
            "OMP_NUM_THREADS": "1", "REGRAFT_CACHE_LIMIT": "32",
        }  # fmt: skip
        errors = (self._folder / "errors.txt").open("a")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        self._running.append(process)
        self._heard[process.pid] = time.time()
        threading.Thread(target=self._listen, args=[process], daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard[process.pid] = time.time()
            try:
                told = json.loads(line)
            except ValueError:  # of a process that was killed in the middle of a line
                continue
            if "raised" in told:
                self.problems.append(f"raised {told['raised']}")
            else:
                self.counts["training" if told["training"] else "inference"] += 1
                self.problems += [f"wrong: program {told['call']} by {error:.1e}" for error in told["wrong"]]

    def _inject(self) -> None:
        fault = self._draw.choice(["kill", "damage", "damage", "delete", "compiler", "nothing", "nothing"])
        files = [path for path in (self._folder / "cache").rglob("*") if path.is_file()]
        if fault == "kill" and self._draw.random() < 0.2:
            process = self._draw.choice(self._running)
            self._killed.add(process.pid)
            process.send_signal(signal.SIGKILL)
            self.counts["killed"] += 1
        elif fault in ("damage", "delete") and files:
            self._spoil(self._draw.choice(files), fault)
            self.counts[fault] += 1
        elif fault == "compiler":
            if self._compiler_fails.exists():
                self._compiler_fails.unlink()
            elif self._draw.random() < 0.3:
                self._compiler_fails.touch()
                self.counts["compiler fails"] += 1

    def _spoil(self, path: Path, fault: str) -> None:
        try:
            data = bytearray(path.read_bytes())
            path.unlink()  # libraries are mapped by those who have loaded them
            if fault == "damage" and data:
                data[self._draw.randrange(len(data))] ^= 1 << self._draw.randrange(8)
                path.write_bytes(data if self._draw.random() < 0.6 else data[: len(data) // 2])
        except OSError:  # somebody was faster
            self.counts["missed"] += 1

    def _look_after(self, restart: bool = True) -> None:
        for process in list(self._running):
            code = process.poll()
            if code is None:
                if time.time() - self._heard[process.pid] > STUCK:
                    self.problems.append(f"process {process.pid} is stuck")
                    self._killed.add(process.pid)
                    process.kill()
                continue
            self._running.remove(process)
            if code and process.pid not in self._killed:
                self.problems.append(f"process {process.pid} ended with status {code}")
            if restart and time.time() < self._ends - 5:
                self._start()


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.threads, arguments.seed, arguments.seconds)
    with tempfile.TemporaryDirectory(prefix="regraft-soak-", ignore_cleanup_errors=True) as folder:
        soak = Soak(arguments, Path(folder))
        soak.run()
        print(", ".join(f"{count} {what}" for what, count in sorted(soak.counts.items())) or "no call ended")
        for problem, count in Counter(soak.problems).most_common(20):
            print(f"{count}x {problem}")
        if soak.problems:
            print((Path(folder) / "errors.txt").read_text()[-3000:])
    print("right" if not soak.problems else f"{len(soak.problems)} problems")
    return int(bool(soak.problems))


if __name__ == "__main__":
    sys.exit(main())
