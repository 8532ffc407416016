"""Kernels that begin early: they wait before they touch memory, and are launched so."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch

from regraft.compiler.codegen.triton import build
from regraft.compiler.schedule import GPU, schedule

from ....support.fake_cuda import with_fake_driver
from ....support.lowering import lowered
from ....support.triton_kernels import compile_for, interpret, kernel_source
from .test_build import kernels_of

PROGRAMS = {
    "a row": (lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), (torch.randn(1, 300),)),
    "two launches": (lambda x: x / x.abs().sum(), (torch.randn(1 << 15),)),
    "shared": (lambda x, y: (x.exp(), y.sin()), (torch.randn(40), torch.randn(7, 5))),
}


@pytest.fixture(autouse=True)
def folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "early"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_wait_before_memory_is_touched(name: str) -> None:
    function, inputs = PROGRAMS[name]
    usual = schedule(lowered(function, *inputs).program, target=GPU).kernels
    for kernel in usual:
        source = kernel_source(replace(kernel, early=True))
        assert all(launch.early for launch in source.launches)
        assert not any(launch.early for launch in kernel_source(kernel).launches)
        for ptx in compile_for(source, 90):
            begin, wait = ptx.index("griddepcontrol.launch_dependents"), ptx.index("griddepcontrol.wait")
            touched = [ptx.find(f"{what}.global") for what in ("ld", "st", "atom", "red")]
            assert begin < wait < min(at for at in touched if at >= 0)


def test_they_compute_the_same() -> None:
    function, inputs = PROGRAMS["shared"]
    for kernel in schedule(lowered(function, *inputs).program, target=GPU).kernels:
        found = []
        for early in (False, True):
            torch.manual_seed(0)
            memory = {p.buffer.name: torch.randn(p.buffer.sizes) for p in kernel.params}
            interpret(replace(kernel, early=early), memory, {})
            found.append(memory)
        assert all(torch.equal(a, b) for a, b in zip(*(one.values() for one in found), strict=True))


def test_they_are_launched_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = with_fake_driver(monkeypatch)
    (kernel,) = kernels_of(lambda x: x.sin(), torch.randn(64))
    runs = build([kernel, replace(kernel, early=True)])
    for run, early in zip(runs, (False, True), strict=True):
        fake.reset()
        run(torch.randn(64), torch.empty(64))
        (launch,) = fake.launches()
        assert launch.early == early
