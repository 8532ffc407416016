"""Faults from outside, by injection: compilers that fail, interrupts, forks. The model still runs, and is right."""

from __future__ import annotations

import gc
import inspect
import logging
import sys
import textwrap
import threading
from itertools import islice
from pathlib import Path

import pytest
import torch
from support.fresh import run_fresh

import regraft
from regraft.compiler import backend as backend_module
from regraft.compiler.codegen.cpp import compiler
from regraft.rewrites import faults


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    monkeypatch.setattr(compiler, "_given_up", {})
    monkeypatch.setattr(faults, "_told", set())
    torch.compiler.reset()
    compiler._version.cache_clear()


def program(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1) * 3


def run(**options):
    torch.compiler.reset()
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad(), regraft.coverage() as cov:
        out = torch.compile(program, backend="regraft", options=options)(x, w)
    torch.testing.assert_close(out, program(x, w), rtol=1e-4, atol=1e-5)
    return cov.graphs[0].fallbacks


VERSION = '[ "$1" = --version ] && echo fake && exit 0\n'
COMPILERS = {
    "refuses": (f"{VERSION}echo 'k.cpp:3: error: what is this' >&2; exit 1", "what is this"),
    "crashes": (f"{VERSION}kill -SEGV $$", "signal 11"),
    "hangs": (f"{VERSION}exec sleep 100", "was not done after 1 s"),
    "writes garbage": (f'{VERSION}while [ "$1" != -o ]; do shift; done; echo garbage > "$2"', "file too short"),
    "writes nothing": (f"{VERSION}exit 0", "wrote no library"),
    "fills the disk": (f"{VERSION}echo 'fatal error: No space left on device' >&2; exit 1", "No space left"),
    "hangs at once": ("exec sleep 100", "timed out"),
    "is no program": (None, "Exec format error"),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_that_fails(tmp_path, monkeypatch, name, caplog):
    body, words = COMPILERS[name]
    path = tmp_path / "c++"
    path.write_text("no program" if body is None else f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setattr(compiler, "SECONDS", 1.0)
    monkeypatch.setattr(compiler, "_VERSION_SECONDS", 1.0)
    with caplog.at_level(logging.WARNING, "regraft"):
        (fallback,) = run()
    assert fallback.stage == "kernels" and words in fallback.message
    if fallback.fault:
        (message,) = (r.getMessage() for r in caplog.records if r.name == "regraft" and "failed on" in r.getMessage())
        assert len(message.splitlines()) == 3 and words in message.splitlines()[0]
        assert words in Path(fallback.traceback).read_text()
    with pytest.raises(Exception, match=r"compiler|file too short|No space left"):
        run(strict=True)


def test_a_compiler_that_is_missing_is_an_error_where_faults_are(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert [f.code for f in run()] == ["no-compiler"]
    with pytest.raises(Exception, match="no C\\+\\+ compiler"):
        run(strict=True)


def state():
    grad = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    frozen = gc.get_freeze_count() > 0  # some of what is frozen may die
    return gc.isenabled(), frozen, sys.getrecursionlimit(), torch.get_num_threads(), grad


def within_operator(frame):
    """Whether one of torch's operators has called what calls a function: some abort where it raises."""
    callers = islice(iter_callers(frame), 24)
    return any(caller.f_globals.get("__name__") == "torch._ops" for caller in callers)


def iter_callers(frame):
    while (frame := frame.f_back) is not None:
        yield frame


def interrupted(stop, k):
    """Whether a compilation is interrupted at the given call of one of our functions; how many there were."""
    seen = 0

    def watch(frame, event, _):
        nonlocal seen
        generator = frame.f_code.co_flags & inspect.CO_GENERATOR  # one that is given up is called, and may not raise
        ours = frame.f_globals.get("__name__", "").startswith("regraft.")
        if event == "call" and ours and not generator and not within_operator(frame):
            seen += 1
            if seen == stop:
                raise KeyboardInterrupt

    def function(x, w):
        return torch.nn.functional.gelu(x @ w).softmax(-1) * k

    def step():
        torch.compiler.reset()
        x, w = torch.ones(4, 8) / 8, torch.ones(8, 8, requires_grad=True)
        out = torch.compile(function, backend="regraft")(x, w)
        out.square().sum().backward()
        torch.testing.assert_close(out, function(x, w))

    sys.setprofile(watch)
    try:
        step()
    except KeyboardInterrupt:
        sys.setprofile(None)
        step()  # as if nothing had been
        return True, seen
    finally:
        sys.setprofile(None)
    return False, seen


def test_interrupts_go_through_and_leave_nothing_behind():
    interrupted(-1, 1.25)  # what is looked up once is no part of the count
    _, calls = interrupted(-1, 1.5)
    before = state()
    for number, part in enumerate((0.02, 0.2, 0.4, 0.6)):
        assert interrupted(int(calls * part), 2.5 + number)[0]
        assert state() == before


_FORKS = textwrap.dedent("""
    import multiprocessing, threading, torch, regraft, sys
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    x = torch.randn(4, 8)
    def check(k):
        function = lambda x: torch.softmax(x * k, -1)
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(function, backend="regraft")(x), function(x))
    check(1.0)
    compiling = threading.Event()
    import regraft.compiler.backend as backend
    real = backend.capture
    def slow(*args):
        compiling.set()
        import time; time.sleep(0.5)
        return real(*args)
    backend.capture = slow
    other = threading.Thread(target=check, args=[2.0])
    other.start()
    compiling.wait()
    child = multiprocessing.get_context("fork").Process(target=check, args=[3.0])
    child.start()  # while the other thread holds the lock of compilations
    child.join(60)
    alive = child.is_alive()
    child.kill()
    other.join()
    print(alive, child.exitcode)
""")


@pytest.mark.skipif(not hasattr(threading, "get_native_id") or sys.platform != "linux", reason="forks")
def test_a_fork_while_another_thread_compiles(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(_FORKS)
    (done,) = run_fresh([[script]])
    assert done.output.split() == ["False", "0"], done.errors


def test_one_thread_may_fail_where_others_do_not(monkeypatch):
    """First calls from threads at once, in some of which a pass fails: all are right."""
    real, calls, lock = backend_module.capture, [0], threading.Lock()

    def capture(*args):
        with lock:
            calls[0] += 1
            fails = calls[0] % 2
        if fails:
            raise RuntimeError("planted")
        return real(*args)

    monkeypatch.setattr(backend_module, "capture", capture)
    x, results = torch.randn(4, 8), {}

    def work(number):
        function = lambda x: torch.softmax(x * number, -1)  # noqa: E731
        with torch.no_grad():
            results[number] = torch.compile(function, backend="regraft")(x), function(x)

    threads = [threading.Thread(target=work, args=[float(number)]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for made, expected in results.values():
        torch.testing.assert_close(made, expected)
