"""Machine code of kernels: made by workers, kept on disk, equal kernels once; what fails says why."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch
from support.fake_cuda import with_fake_driver
from support.lowering import trace

from regraft.compiler.codegen.triton import UnsupportedKernels, build, compile_worker, compiler
from regraft.compiler.codegen.triton.compile_pool import CompilePool, Worker, WorkerLostError, pool
from regraft.compiler.codegen.triton.compiler import Cubin, Unit, begin_units, compile_units
from regraft.compiler.codegen.triton.errors import TritonFailed, TritonMissing
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import schedule
from regraft.compiler.schedule.launches.kernel_launches import planned

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)
"""
UNIT = Unit(SOURCE, "double", (("x_ptr", "*fp32"), ("y_ptr", "*fp32"), ("n", "i64")), (0, 1), 4, 90)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    return tmp_path / "triton"


def on_cuda(kernels):
    """Kernels as if their buffers lay on a GPU."""
    device = torch.device("cuda", 0)
    return [
        replace(k, params=tuple(replace(p, buffer=replace(p.buffer, device=device)) for p in k.params)) for k in kernels
    ]


def kernels_of(function, *inputs, dynamic=False):
    module = trace(function, *inputs, dynamic=dynamic)
    return on_cuda([planned(k, 132) for k in schedule(lower(module, strict=True).program).kernels])


def refuse(*args):
    raise AssertionError("nothing should be compiled")


def lost(*args):
    raise WorkerLostError("no processes")


def test_machine_code_is_for_the_gpu_that_was_asked_for():
    (cubin,) = compile_units([UNIT])
    assert isinstance(cubin, Cubin)
    assert cubin.code[:4] == b"\x7fELF" and (cubin.name, cubin.warps, cubin.shared) == ("double", 4, 0)
    assert cubin.source.read_text() == SOURCE


def test_what_is_on_disk_is_not_compiled_again(monkeypatch):
    first = compile_units([UNIT])
    monkeypatch.setattr(CompilePool, "submit", refuse)
    assert compile_units([UNIT, UNIT]) == first * 2


@pytest.mark.parametrize("change", [{"aligned": ()}, {"warps": 8}, {"capability": 80}, {"text": SOURCE + "\n"}])
def test_everything_that_counts_is_part_of_the_key(change, monkeypatch):
    compile_units([UNIT])
    monkeypatch.setattr(CompilePool, "submit", refuse)
    with pytest.raises(AssertionError, match="nothing should"):
        compile_units([replace(UNIT, **change)])


def test_variants_share_their_source(folder):
    compile_units([UNIT, replace(UNIT, aligned=())])
    assert len(list(folder.rglob("*.py"))) == 1 and len(list(folder.rglob("*.cubin"))) == 2
    assert not [path for path in folder.rglob(".*") if path.is_file()]


def test_damaged_files_are_made_again(folder):
    compile_units([UNIT])
    (path,) = folder.rglob("*.cubin")
    path.write_bytes(b"damaged")
    (cubin,) = compile_units([UNIT])
    assert isinstance(cubin, Cubin) and path.read_bytes().startswith(cubin.code) and cubin.name == "double"
    (source,) = folder.rglob("*.py")
    source.write_text("raise RuntimeError")  # a worker would run it
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    (cubin,) = compile_units([UNIT])
    assert isinstance(cubin, Cubin) and source.read_text() == UNIT.text
    (facts,) = folder.rglob("*.json")
    assert json.loads(facts.read_text())["name"] == "double"


def test_vectors_need_alignment(folder):
    aligned, any_pointer = compile_units([UNIT, replace(UNIT, aligned=())])
    assert aligned.code != any_pointer.code


PAIRS = """
import triton
import triton.language as tl


@triton.jit
def turned(x_ptr, y_ptr):
    i = tl.arange(0, 64)[None, :]
    at = 8 * (i // 21) + ((i % 7 + 3) % 4) + 4 * (((i // 7) % 3) % 2)
    tl.store(y_ptr + i, tl.load(x_ptr + at, mask=i < 42), mask=i < 42)
"""


def test_no_two_numbers_of_16_bits_are_added_at_once():
    """ptxas adds 0 instead of a constant where one half of the sum is used."""
    unit = Unit(PAIRS, "turned", (("x_ptr", "*fp32"), ("y_ptr", "*fp32")), (0, 1), 1, 90)
    (cubin,) = compile_units([unit])
    assert isinstance(cubin, Cubin)
    text = disassembled(cubin.code)
    assert "STG" in text and "VIADD.16x2" not in text


def disassembled(code: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout


def test_a_refusal_names_the_source_and_what_triton_said():
    wrong = replace(UNIT, text=SOURCE.replace("tl.arange(0, 128)", "tl.arange(0, 100)"))
    refused, cubin = compile_units([wrong, UNIT])
    assert isinstance(refused, TritonFailed) and isinstance(cubin, Cubin)
    assert ".py" in str(refused) and "power of 2" in str(refused)


def test_without_triton_the_error_says_so(monkeypatch):
    monkeypatch.setattr(compiler, "triton_version", lambda: None)
    assert not compiler.can_build()
    with pytest.raises(TritonMissing, match="'triton' is not installed"):
        compile_units([UNIT])


def test_without_workers_this_process_compiles(monkeypatch):
    monkeypatch.setattr(Worker, "ask", lost)
    (cubin,) = compile_units([UNIT])
    assert isinstance(cubin, Cubin)


def test_kernels_that_need_what_no_launch_gives_are_refused(monkeypatch):
    plain = compile_worker.compile_job
    monkeypatch.setattr(Worker, "ask", lost)
    monkeypatch.setattr(compile_worker, "compile_job", lambda job: {**plain(job), "profile_scratch_size": 8})
    (refused,) = compile_units([UNIT])
    assert isinstance(refused, TritonFailed) and "profile_scratch_size" in str(refused)


def test_scratch_memory_is_told_to_who_launches(monkeypatch):
    plain = compile_worker.compile_job
    monkeypatch.setattr(Worker, "ask", lost)
    monkeypatch.setattr(compile_worker, "compile_job", lambda job: {**plain(job), "global_scratch_size": 8})
    assert [cubin.scratch for cubin in (*compile_units([UNIT]), *compile_units([UNIT]))] == [8, 8]


def test_stages_are_part_of_what_is_compiled():
    assert compiler._Entry(UNIT).key != compiler._Entry(replace(UNIT, stages=5)).key


# -- begun and asked for later ----------------------------------------------------------------------------------------


def test_what_was_begun_is_not_compiled_twice(monkeypatch):
    jobs = []
    plain = CompilePool.submit
    monkeypatch.setattr(CompilePool, "submit", lambda self, *args: jobs.append(args) or plain(self, *args))
    begin_units([UNIT, UNIT])
    begin_units([UNIT])
    (cubin,) = compile_units([UNIT])
    begin_units([UNIT])
    assert isinstance(cubin, Cubin) and len(jobs) == 1


def test_what_was_begun_in_vain_tells_who_asks():
    wrong = replace(UNIT, text=SOURCE.replace("tl.arange(0, 128)", "tl.arange(0, 100)"))
    begin_units([wrong])
    (refused,) = compile_units([wrong])
    assert isinstance(refused, TritonFailed) and "power of 2" in str(refused)


def test_nothing_is_begun_without_triton(monkeypatch):
    monkeypatch.setattr(compiler, "triton_version", lambda: None)
    monkeypatch.setattr(CompilePool, "submit", refuse)
    begin_units([UNIT])


def test_what_is_waited_for_goes_first(monkeypatch):
    going, order = threading.Event(), []

    def ask(self, job):
        assert going.wait(10)
        order.append(job)
        return {}

    monkeypatch.setattr(Worker, "ask", ask)
    one = CompilePool(1)
    begun = [one.submit(name) for name in "abc"]
    while one._begun.keys() & {begun[0]}:  # its worker has it
        time.sleep(0.001)
    waiting = threading.Thread(target=one.results, args=[begun[2:]])
    waiting.start()
    while begun[2] in one._begun:
        time.sleep(0.001)
    going.set()
    waiting.join()
    assert one.results(begun) == [{}] * 3 and order == ["a", "c", "b"]


def test_who_asks_is_told_what_went_wrong_here(monkeypatch):
    monkeypatch.setattr(Worker, "ask", lambda self, job: {"made": None})
    with pytest.raises(FileNotFoundError):
        compile_units([UNIT])


# -- workers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path):
    (tmp_path / "one.py").write_text(SOURCE)
    return {
        "source": str(tmp_path / "one.py"), "function": "double", "signature": UNIT.signature, "aligned": [0],
        "capability": 90, "options": {"num_warps": 4}, "cubin": str(tmp_path / "made"),
    }  # fmt: skip


def test_a_worker_that_ended_is_started_again(job):
    one = Worker()
    assert one.ask(job)["made"]["name"] == "double"
    one._process.kill()
    one._process.wait()
    assert one.ask(job)["made"]["name"] == "double"
    one.stop()


@pytest.mark.parametrize("killed", [False, True])
def test_a_worker_leaves_no_files(killed, tmp_path, monkeypatch):
    """Whether its caller ends it, or is gone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = Worker()
    one.start()
    process = one._process
    assert list(tmp_path.glob("regraft-triton-*"))
    one.stop() if killed else process.stdin.close()
    process.wait()
    assert not list(tmp_path.glob("regraft-triton-*"))
    one.stop()


def test_a_worker_that_dies_over_a_job_is_reported(job, tmp_path):
    (tmp_path / "one.py").write_text("import os\nos._exit(3)\n")
    pool = CompilePool(1)
    (lost,) = pool.results([pool.submit(job)])
    assert isinstance(lost, WorkerLostError) and "status 3" in str(lost)
    (tmp_path / "one.py").write_text(SOURCE)
    (reply,) = pool.results([pool.submit(job)])
    assert reply["made"]["name"] == "double"
    pool.stop()


def test_workers_do_not_interpret(job, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    one = Worker()
    assert one.ask(job)["made"]["name"] == "double"
    one.stop()


def test_without_an_interpreter_there_are_no_workers(job, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    one = CompilePool(1)
    (lost,) = one.results([one.submit(job)])
    assert isinstance(lost, WorkerLostError)


def test_a_pool_that_has_ended_starts_nothing(job):
    one = CompilePool(1)
    one.stop()
    (reply,) = one.results([one.submit(job)])
    assert isinstance(reply, WorkerLostError) and "is exiting" in str(reply)


def test_the_pool_of_a_process_is_one():
    assert pool() is pool()


# -- kernels ----------------------------------------------------------------------------------------------------------


def test_equal_kernels_are_compiled_once(monkeypatch, folder):
    with_fake_driver(monkeypatch)
    x, y = torch.randn(64, 32), torch.randn(64, 32)
    a = kernels_of(lambda x: (x.relu().sum(1),), x)
    b = kernels_of(lambda q, y: (q * 2, (y.relu()).sum(1)), y, x)
    made = build([*a, *b])
    assert [m.name for m in made] == [k.name for k in (*a, *b)]
    assert len(list(folder.rglob("*.cubin"))) == len({m.plans for m in made}) == 2


def test_kernels_that_triton_cannot_compute_are_named(monkeypatch):
    with_fake_driver(monkeypatch)
    x, i = torch.randn(8), torch.tensor([0, 0, 1])
    bad = kernels_of(lambda x, i: (x.scatter_reduce(0, i, x[:3], "prod"),), x, i)
    with pytest.raises(UnsupportedKernels) as refused:
        build([*kernels_of(lambda x: (x.tanh(),), x), *bad])
    assert list(refused.value.why) == [kernel.name for kernel in bad]
    assert "no atomic 'mul'" in str(refused.value)
