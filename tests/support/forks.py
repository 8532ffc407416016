"""Tests run by processes that are forked after one collection: `pytest --forks 2`.

Modules are imported, and tables made, once rather than once for each worker. A worker has a run of tests, one file
after the other; when it has done its own, it gets half of what another one has left. Where one dies, the test that it
ran has failed, and another process is forked to go on.

Threads and CUDA do not survive a fork: torch must have one thread, and with a GPU there is but one process.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pytest

_MANY = 1000  # tests that need nearly all that is imported
_IMPORTED = (
    "torch._dynamo.repro.after_dynamo", "torch._functorch.partitioners", "torch._inductor.pattern_matcher",
    "transformers.modeling_utils", "transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip
_AHEAD = 2  # tests that a worker knows: the one that runs, and the next, for which it keeps what both share


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=1, help="processes that run tests side by side, after one collection")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """None where the tests are to run in this process."""
    option = session.config.option
    forks = min(option.forks, len(session.items))
    if forks < 2 or option.collectonly or option.usepdb or session.testsfailed or _has_gpu():
        return None
    if os.environ.get("OMP_NUM_THREADS") != "1":
        raise pytest.UsageError("--forks needs OMP_NUM_THREADS=1: threads do not survive a fork")
    _Forks(session).run(forks)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def _import_ahead() -> None:
    """What the first compilation imports, and the first model: two seconds that each worker would take."""
    for name in _IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


@dataclass
class _Worker:
    """A process, as the one sees it that forks: its tests by their number."""

    pid: int
    pipe: Connection
    left: deque[int]
    given: deque[int] = field(default_factory=deque)
    ends: bool = False  # it has been told that there are no more


class _Forks:
    """Hands out the tests of a session, and passes on what is reported of them."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._hook = session, session.config.hook
        self._folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._workers: dict[Connection, _Worker] = {}
        self._forked = 0

    def run(self, number: int) -> None:
        """Run all tests by this number of processes, or until too many have failed."""
        total = len(self._session.items)
        if total > _MANY:
            _import_ahead()
        ends = [total * k // number for k in range(number + 1)]
        try:
            for begin, end in pairwise(ends):
                self._fork(deque(range(begin, end)))
            while self._workers and not (self._session.shouldfail or self._session.shouldstop):
                for pipe in wait(list(self._workers)):
                    self._listen(self._workers[pipe])
        finally:  # who asks for another test ends
            for worker in self._workers.values():
                worker.pipe.close()
            for worker in self._workers.values():
                os.waitpid(worker.pid, 0)

    def _fork(self, tests: deque[int]) -> None:
        here, there = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._forked += 1
        pid = os.fork()
        if pid == 0:
            for pipe in (here, *self._workers):
                pipe.close()
            _work(self._session, there, self._folder / f"fork-{self._forked}")
        there.close()
        self._workers[here] = worker = _Worker(pid, here, tests)
        for _ in range(_AHEAD):
            self._give(worker)

    def _give(self, worker: _Worker) -> None:
        """Tell a worker its next test, once that there is none."""
        if worker.ends:
            return
        if not worker.left:
            longest = max((other.left for other in self._workers.values()), key=len)
            for _ in range((len(longest) + 1) // 2):
                worker.left.appendleft(longest.pop())
        worker.ends = not worker.left
        test = None if worker.ends else worker.left.popleft()
        if test is not None:
            worker.given.append(test)
        with suppress(BrokenPipeError, ConnectionResetError):  # it is found dead where it is listened to
            worker.pipe.send(test)

    def _listen(self, worker: _Worker) -> None:
        """Pass on what a worker reports of a test."""
        try:
            reports, recorded = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._lose(worker)
            return
        test = worker.given.popleft()
        self._give(worker)
        for warning in recorded:
            self._hook.pytest_warning_recorded.call_historic(kwargs=_warning(**warning))
        config = self._session.config
        self._report(test, [self._hook.pytest_report_from_serializable(config=config, data=data) for data in reports])

    def _report(self, test: int, reports: Sequence[pytest.TestReport]) -> None:
        item = self._session.items[test]
        self._hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _lose(self, worker: _Worker) -> None:
        """A process has ended; if it should not have, its test has failed."""
        del self._workers[worker.pipe]
        worker.pipe.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not worker.given:
            return
        test, *others = worker.given
        item = self._session.items[test]
        how = f"killed by signal {-code}" if code < 0 else f"ended with {code}"
        self._report(
            test, [pytest.TestReport(item.nodeid, item.location, {}, "failed", f"the process was {how}", "call")]
        )
        if not self._session.shouldfail and (others or worker.left):
            self._fork(deque([*others, *worker.left]))


def _warning(message: str, category: str, filename: str, lineno: int, **others: Any) -> dict[str, Any]:
    """What is told of a warning, whose class may be of a process alone."""
    kind = type(category, (Warning,), {})
    return {"warning_message": warnings.WarningMessage(message, kind, filename, lineno), **others}


# -- in a process that was forked -------------------------------------------------------------------------------------


def _work(session: pytest.Session, pipe: Connection, folder: Path) -> None:
    """Run tests, and end the process."""
    code = 1
    try:
        _take_apart(session, folder)
        worker = _Reports(session, pipe)
        session.config.pluginmanager.register(worker)
        worker.run()
        atexit._run_exitfuncs()
        code = 0
    except (EOFError, BrokenPipeError, KeyboardInterrupt):  # who forked wants no more
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _take_apart(session: pytest.Session, folder: Path) -> None:
    """What is printed is caught in files of this process, temporary folders are its own, and it writes no progress."""
    plugins = session.config.pluginmanager
    plugins.unregister(name="terminalreporter")
    catches = plugins.getplugin("capturemanager")
    catches.stop_global_capturing()
    catches.start_global_capturing()
    catches.suspend_global_capture()
    folder.mkdir()
    session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]


class _Reports:
    """Runs the tests that it is told, and reports of each when it is done."""

    def __init__(self, session: pytest.Session, pipe: Connection) -> None:
        self._session, self._pipe = session, pipe
        self._made: tuple[list[Any], list[Mapping[str, Any]]] = [], []  # reports, warnings

    def run(self) -> None:
        """Until there are no more."""
        items, self._made = self._session.items, ([], [])  # without the warnings of the collection, told anew
        test = self._pipe.recv()
        while test is not None:
            following = self._pipe.recv()
            after = None if following is None else items[following]
            self._session.config.hook.pytest_runtest_protocol(item=items[test], nextitem=after)
            made, self._made = self._made, ([], [])
            self._pipe.send(made)
            test = following

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self._made[0].append(config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        told = warning_message
        self._made[1].append(
            {
                "message": str(told.message),
                "category": told.category.__name__,
                "filename": told.filename,
                "lineno": told.lineno,
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )
