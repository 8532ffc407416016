"""Workers that compile Triton kernels side by side, each a process of its own.

They are started by executing Python anew, never by forking this process: its CUDA context would not survive that, and
its `__main__` is not run again. They end with this process, and when nothing was to do for minutes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

_MOST = 8
_WORKER = Path(__file__).with_name("worker.py")
_SWITCHES = ("TRITON_INTERPRET",)  # of the user's, about kernels of the user's


class WorkerLostError(Exception):
    """A worker could not be started, or ended in the middle of a job."""


class Worker:
    """One process; it is started when first needed, and again if it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._ready = False

    def start(self) -> None:
        """Start the process, without waiting for it."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        environment = {name: value for name, value in os.environ.items() if name not in _SWITCHES}
        command = [sys.executable, "-P", str(_WORKER)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._ready = False
        try:
            self._process = subprocess.Popen(command, text=True, env=environment, **pipes)  # type: ignore[call-overload]
            self._send(json.dumps([path for path in sys.path if path]))
        except OSError as error:
            self._process = None
            raise WorkerLostError(f"no worker was started: {error}") from error

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Have a kernel compiled: the worker's reply.

        Raises:
            WorkerLostError: it cannot be started, or ended meanwhile.
        """
        self.start()
        if not self._ready:
            self._receive()
            self._ready = True
        self._send(json.dumps(job))
        return self._receive()

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()

    def forget(self) -> None:
        """Leave the process to whom it belongs: this one is a fork."""
        self._process = None

    def _send(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            self.stop()
            raise WorkerLostError("the worker has ended") from error

    def _receive(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self.stop()
            raise WorkerLostError(f"the worker ended with status {code}")
        return json.loads(line)


class Pool:
    """Workers, as many as jobs and cores ask for."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size or min(_MOST, _cores())
        self._workers = [Worker() for _ in range(self._size)]
        self._free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)

    def start(self) -> None:
        """Start all workers ahead of time, so that they are ready when jobs come."""
        for worker in self._workers:
            with contextlib.suppress(WorkerLostError):
                worker.start()

    def run(self, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any] | WorkerLostError]:
        """Compile jobs side by side: the replies, in order; an error for what a worker was lost over, twice."""
        with ThreadPoolExecutor(max(1, min(self._size, len(jobs)))) as threads:
            return list(threads.map(self._one, jobs))

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop()

    def forget(self) -> None:
        """Leave all workers to whom they belong: this process is a fork."""
        for worker in self._workers:
            worker.forget()

    def _one(self, job: dict[str, Any]) -> dict[str, Any] | WorkerLostError:
        worker = self._free.get()
        try:
            try:
                return worker.ask(job)
            except WorkerLostError:  # it may have gone for want of work
                return worker.ask(job)
        except WorkerLostError as lost:
            return lost
        finally:
            self._free.put(worker)


@functools.cache
def pool() -> Pool:
    """The workers of this process."""
    import atexit

    made = Pool()
    atexit.register(made.stop)

    def forget() -> None:
        made.forget()
        pool.cache_clear()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
    return made


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
