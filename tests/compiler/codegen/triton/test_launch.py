"""Launches: what reaches the driver is what Triton's own launcher would pass; both bindings alike."""

import ctypes
import pickle
import struct
import threading
import time

import pytest

pytest.importorskip("triton")

import torch
from support.fake_cuda import STREAM, with_fake_driver

from regraft.compiler.codegen.cpp.errors import CompilerMissing
from regraft.compiler.codegen.triton import build, launch
from regraft.compiler.codegen.triton.driver import Driver, GpuFunction
from regraft.compiler.codegen.triton.errors import TritonFailed
from regraft.compiler.codegen.triton.launch import Convention, launcher
from regraft.compiler.ir.index.index import Size
from regraft.compiler.schedule.launches.kernel_launches import planned

from ..cpp.test_reductions import fold_kernel
from .test_build import kernels_of, on_cuda


@pytest.fixture(autouse=True)
def folder(tmp_path_factory, monkeypatch):
    """Machine code is shared by the tests of this file."""
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "launches"))


@pytest.fixture(params=["extension", "ctypes"])
def driver(request, monkeypatch):
    """The fake driver, called through either binding."""
    fake = with_fake_driver(monkeypatch)
    if request.param == "ctypes":

        def missing(sources):
            raise CompilerMissing("none")

        monkeypatch.setattr(launch, "compile_all", missing)
    yield fake
    launch._module.cache_clear()


def refuse(*args):
    raise AssertionError("this variant should not be needed")


def double(number):
    return struct.unpack("Q", struct.pack("d", number))[0]


def test_the_extension_is_made_once_for_whoever_comes_first(driver, monkeypatch):
    making, made = threading.Event(), []

    def compiled(sources):
        making.set()
        time.sleep(0.05)
        made.append(sources)
        raise CompilerMissing("none")

    monkeypatch.setattr(launch, "compile_all", compiled)
    launch.begin_launcher()
    assert making.wait(10)
    run = launcher(_loaded(driver.library), 0, Convention(1, (0,), "t", 0), refuse)
    run(torch.ones(1))
    assert len(made) == 1


def test_arguments_take_eight_bytes_each_and_two_null_pointers_follow(driver):
    x = torch.randn(8)
    (kernel,) = kernels_of(lambda x: (x.exp(),), x)
    (made,) = build([kernel])
    out = torch.empty(8)
    driver.library.fake_slots(4)
    made(x, out)
    made(x.data_ptr(), out.data_ptr())  # of what lies with others in one allocation
    launched, by_address = driver.launches()
    assert list(launched.values[:4]) == list(by_address.values[:4]) == [x.data_ptr(), out.data_ptr(), 0, 0]
    assert (launched.programs, launched.threads, launched.stream, launched.context) == (1, 32, STREAM, 1000)
    assert launched.name.decode() == made.plans[0].unit.function


def test_numbers_go_by_value(driver):
    run = launcher(_loaded(driver.library), 0, Convention(4, (2, 0, 1, 3), "itfi", 5), refuse)
    x = torch.ones(1)
    driver.library.fake_slots(6)
    run(x, 2.5, -3, 2**40)
    (launched,) = driver.launches()
    assert list(launched.values[:6]) == [2**64 - 3, x.data_ptr(), double(2.5), 2**40, 0, 0]
    assert (launched.programs, launched.shared) == (5, 512)


def _loaded(library):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    library.cuModuleLoadData(ctypes.byref(module), b"\x7fELF")
    library.cuModuleGetFunction(ctypes.byref(function), module, b"kernel")
    return GpuFunction(function.value, 1000, "kernel", 512, 128)


def test_the_number_of_programs_may_come_with_the_call(driver):
    run = launcher(_loaded(driver.library), 0, Convention(2, (0,), "i", -1), refuse)
    run(1, 0)
    assert driver.launches() == []
    run(1, 7)
    assert [one.programs for one in driver.launches()] == [7]
    for programs in (-1, 2**31):
        with pytest.raises(ValueError, match="cannot run"):
            run(1, programs)


def test_no_programs_no_launch(driver):
    run = launcher(_loaded(driver.library), 0, Convention(1, (0,), "a", 0), refuse)
    run(torch.empty(0))
    assert driver.launches() == []


def test_wrong_calls_raise(driver):
    run = launcher(_loaded(driver.library), 0, Convention(2, (0, 1), "ti", 1), refuse)
    x = torch.empty(4)
    for args in ((x,), (x, 1, 2), (1, x), (x, "a")):
        with pytest.raises((TypeError, AttributeError)):
            run(*args)
    assert driver.launches() == []


def test_what_the_driver_refuses_raises(driver):
    run = launcher(_loaded(driver.library), 0, Convention(1, (0,), "t", 1), refuse)
    driver.library.fake_fail(700)
    with pytest.raises(RuntimeError, match="kernel was not launched: CUDA error 700"):
        run(torch.empty(4))


@pytest.mark.parametrize("current", [0, 1000, 1001])
def test_launches_happen_in_the_context_of_their_device(driver, current):
    run = launcher(_loaded(driver.library), 1, Convention(1, (0,), "t", 1), refuse)
    if current:
        driver.library.fake_current(current)
    run(torch.empty(4))
    (launched,) = driver.launches()
    assert (launched.context, launched.stream) == (1000, STREAM + 1)


def test_pointers_that_are_not_aligned_take_the_other_variant(driver):
    memory = torch.zeros(4096)
    (kernel,) = kernels_of(lambda x: (x.exp(),), memory[:1024])
    (made,) = build([kernel])
    out = torch.empty(1024)
    made(memory[:1024], out)
    made(memory[1:1025], out)
    made(memory[4:1028], out)
    made(memory[3:1027], out)
    names = [one.name for one in driver.launches()]
    assert [int(one.values[0]) - memory.data_ptr() for one in driver.launches()] == [0, 4, 16, 12]
    assert driver.library.fake_loaded() == 2 and len(set(names)) == 1


def test_single_elements_may_lie_anywhere(driver):
    memory, x = torch.zeros(16, dtype=torch.int64), torch.randn(64)
    (kernel,) = kernels_of(lambda x, s: (x + s,), x, memory[0])
    (made,) = build([kernel])
    made(*(memory[1] if p.buffer.dtype == torch.int64 else x for p in kernel.params))
    assert driver.library.fake_loaded() == 1 and len(driver.launches()) == 1


def test_sizes_follow_the_tensors_and_give_the_programs(driver):
    rows, columns = Size("rows", 0, None).index(), Size("columns", 0, None).index()
    (kernel,) = on_cuda([planned(fold_kernel("sum", torch.float32, rows, columns, True, dynamic=True), 132)])
    (made,) = build([kernel])
    sizes = {"rows": 5000, "columns": 70}
    x, out = torch.zeros(5000 * 70), torch.zeros(5000)
    driver.library.fake_slots(6)
    made(x, out, *(sizes[s.name] for s in kernel.sizes))
    (launched,) = driver.launches()
    assert 0 < launched.programs <= 5000 and set(launched.values[:4]) >= {5000, 70, x.data_ptr(), out.data_ptr()}
    made(x, out, *(0 if s.name == "rows" else 70 for s in kernel.sizes))
    assert len(driver.launches()) == 1


def test_workspaces_are_allocated(driver, monkeypatch):
    x = torch.randn(64, 48)
    kernels = kernels_of(lambda x: (torch.softmax(x, -1).cumsum(-1).flip(-1),), x)
    plain = torch.empty
    made = build(kernels)
    asked = []

    def empty(elements, *, dtype, device):
        asked.append((elements, dtype, str(device)))
        return plain(elements, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty)
    for one, kernel in zip(made, kernels, strict=True):
        one(*(plain(64 * 48) for _ in kernel.params))
    wanted = [w for one in made for plan in one.plans for w in plan.workspaces]
    assert [(eval(w.elements), w.dtype, "cuda:0") for w in wanted] == asked


def test_a_kernel_pickles_as_its_source(driver):
    (made,) = build(kernels_of(lambda x: (x.exp() + 1,), torch.randn(8)))
    again = pickle.loads(pickle.dumps(made))
    assert (again.name, again.plans, again.device) == (made.name, made.plans, made.device)
    again(torch.randn(8), torch.empty(8))
    assert len(driver.launches()) == 1


def test_without_a_driver_the_error_says_so():
    with pytest.raises(TritonFailed, match="no CUDA driver"):
        Driver("libnone.so.1")
