"""Workers that compile Triton kernels side by side, each a process of its own.

They are started by executing Python anew, never by forking this process: its CUDA context would not survive that, and
its `__main__` is not run again. They end with this process, and when nothing was to do for minutes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

_MOST = 8
_WORKER = Path(__file__).with_name("compile_worker.py")
_SWITCHES = ("TRITON_INTERPRET",)  # of the user's, about kernels of the user's


class WorkerLostError(Exception):
    """A worker could not be started, or ended in the middle of a job."""


Reply = dict[str, Any] | WorkerLostError


class Worker:
    """One process; it is started when first needed, and again if it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._folder = ""  # the process's temporary files
        self._ready = self._closed = False
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the process, without waiting for it."""
        with self._starting:
            self._start()

    def _start(self) -> None:
        if self._closed:
            raise WorkerLostError("this process is exiting: no worker is started")
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        environment = {name: value for name, value in os.environ.items() if name not in _SWITCHES}
        command = [sys.executable, "-P", str(_WORKER)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._ready = False
        try:
            self._folder = tempfile.mkdtemp(prefix="regraft-triton-")
            self._process = subprocess.Popen(command, text=True, env=environment, **pipes)  # type: ignore[call-overload]
            self._send(json.dumps({"path": [path for path in sys.path if path], "folder": self._folder}))
        except OSError as error:
            self._process = None
            self._remove_folder()
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
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the process's temporary files, which a process that is killed leaves behind."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""

    def close(self) -> None:
        """End the process, for good."""
        self._closed = True
        self.stop()

    def forget(self) -> None:
        """Leave the process to whom it belongs: this one is a fork."""
        self._process, self._folder = None, ""

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


class Job(Future[Any]):
    """A kernel to compile: a future of the result made from the worker's reply (see `CompilePool.submit`)."""

    def __init__(self, asked: dict[str, Any], made: Callable[[Reply], Any]) -> None:
        super().__init__()
        self._asked, self._made = asked, made

    def run(self, worker: Worker) -> None:
        """Have it compiled."""
        try:
            self.set_result(self._made(self._reply(worker)))
        except BaseException as error:
            self.set_exception(error)

    def _reply(self, worker: Worker) -> Reply:
        try:
            try:
                return worker.ask(self._asked)
            except WorkerLostError:  # it may have gone for want of work
                return worker.ask(self._asked)
        except WorkerLostError as lost:
            return lost


class CompilePool:
    """Workers, as many as jobs and cores ask for, each with a thread that hands it jobs.

    Jobs that somebody waits for come before jobs that were only begun.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size = size or min(_MOST, _cores())
        self._workers = [Worker() for _ in range(self._size)]
        self._threads: list[threading.Thread] = []
        self._begun: dict[Job, None] = {}
        self._awaited: dict[Job, None] = {}
        self._changed = threading.Condition()
        self._under_way: dict[Path, Job] = {}

    def start(self) -> None:
        """Start all workers ahead of time, so that they are ready when jobs come."""
        for worker in self._workers:
            with contextlib.suppress(WorkerLostError):
                worker.start()

    def under_way(self, file: Path) -> Job | None:
        """The job that makes a file. To be asked before the file is looked for: it goes when the file is there."""
        return self._under_way.get(file)

    def submit(
        self, asked: dict[str, Any], made: Callable[[Reply], Any] = lambda reply: reply, file: Path | None = None
    ) -> Job:
        """Begin a job.

        Args:
            asked: the argument of `compile_worker.compile_job`.
            made: makes the result from the worker's reply, or from the loss of two workers; called in another thread.
            file: the file that the job writes last.
        """
        job = Job(asked, made)
        if file is not None:
            self._under_way[file] = job
            job.add_done_callback(lambda _: self._under_way.pop(file, None))
        with self._changed:
            self._begun[job] = None
            if len(self._threads) < self._size:
                worker = self._workers[len(self._threads)]
                self._threads.append(threading.Thread(target=self._serve, args=[worker], daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return job

    def results(self, jobs: Sequence[Job]) -> list[Any]:
        """The results of jobs, in order; these jobs go before others now."""
        with self._changed:
            for job in jobs:
                if job in self._begun:
                    del self._begun[job]
                    self._awaited[job] = None
        return [job.result() for job in jobs]

    def stop(self) -> None:
        """End all workers, for good."""
        for worker in self._workers:
            worker.close()

    def forget(self) -> None:
        """Leave all workers to whom they belong: this process is a fork."""
        for worker in self._workers:
            worker.forget()

    def _serve(self, worker: Worker) -> None:
        while True:
            with self._changed:
                while not (queue := self._awaited or self._begun):
                    self._changed.wait()
                job = next(iter(queue))
                del queue[job]
            job.run(worker)


@functools.cache
def pool() -> CompilePool:
    """The workers of this process."""
    import atexit

    made = CompilePool()
    atexit.register(made.stop)

    def forget() -> None:
        made.forget()
        pool.cache_clear()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
    return made


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
