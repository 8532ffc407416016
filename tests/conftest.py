"""What all tests share. Functions import torch: the process that only hands out tests need not wait for it."""

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.thorough import ROW, THOROUGH, leave_out_turns, number_rows

# How long an example takes to draw says how busy the machine is, and nothing of the code.
settings.register_profile("regraft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("regraft")

pytest_plugins = ["support.forks", "support.golden"]

_FAKE_CUDA = ("support.fake_cuda", "tests.support.fake_cuda")  # tests import it by two names


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the texts under golden/ anew")


@pytest.hookimpl(tryfirst=True)  # before rows are chosen by -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("[" in argument for argument in config.args):  # who names a row wants it
        leave_out_turns(items)
        number_rows(items)
        run = [item for item in items if ROW in item.stash]
        if run:  # skipping 4,000 rows takes seconds, and reports of them
            config.hook.pytest_deselected(items=[item for item in items if ROW not in item.stash])
            items[:] = run


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What is imported and collected stays: Python need not look for garbage among it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """All modules are imported; garbage is collected between tests, or whenever Python does in thorough runs."""
    from support.quiet_torch import quieten

    quieten()
    if THOROUGH:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    from support.caches import left_behind
    from support.quiet_torch import GARBAGE

    yield
    for name in _FAKE_CUDA:
        if name in sys.modules:
            sys.modules[name].forget()
    GARBAGE.collect()
    left = left_behind()
    assert left is None, f"{item.nodeid} leaves the cache {left} to the tests that follow"


def pytest_unconfigure() -> None:
    """Pytest is about to collect ten times, to tell of errors in what is garbage: once is enough."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def few_objects() -> None:
    """For tests that collect garbage: only what they make is looked at, not all that other tests have left."""
    gc.freeze()


@pytest.fixture
def collecting() -> Iterator[None]:
    """For tests that look at Python's collector: it runs, as it does for users."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    if not was_enabled:
        gc.disable()


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from support.caches import cache_in
    from support.light_code import light

    with cache_in(tmp_path_factory.mktemp("cache")), light():
        yield


def refuse_capture(*args: Any, **kwargs: Any) -> None:
    """Skip the test that captures a CUDA graph."""
    pytest.skip("CUDA graphs need torch's caching allocator")


@pytest.fixture(autouse=True)
def _no_graphs_without_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under compute-sanitizer each tensor is an allocation of its own, which a capture must not make."""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        import torch

        monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", refuse_capture)
