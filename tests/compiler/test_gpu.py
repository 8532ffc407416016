"""Descriptions of GPUs: as the driver gives them, and plans that are legal for them, without one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import torch
from support.lowering import trace
from support.triton_kernels import compile_for

from regraft.compiler import gpu as gpus
from regraft.compiler.codegen.triton import kernel_source
from regraft.compiler.gpu import A100, H100, L4
from regraft.compiler.ir.verify_launch import launch_findings
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import schedule, target
from regraft.compiler.schedule.check import check_schedule
from regraft.compiler.schedule.launches.plan import candidates
from regraft.compiler.templates.attention import triton_tiles as attention_tiles
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles
from regraft.compiler.templates.gemm.triton_tiles import fits

from .codegen.cpp.test_kernels import PROGRAMS
from .templates.attention.test_triton_tiles import attention
from .templates.gemm.test_triton_tiles import product

GPUS = {"H100": H100, "A100": A100, "L4": L4}
ON_GPUS = pytest.mark.parametrize("name", GPUS)


def test_descriptions_are_the_drivers(monkeypatch):
    """As published: 1.98 GHz and 3.35 TB/s, 2.04 GHz and 0.3 TB/s; of other drivers, without clocks."""
    shared = {"shared_memory_per_block_optin": 227 << 10}
    h100 = {"clock_rate": 1_980_000, "memory_clock_rate": 2_619_000, "memory_bus_width": 5120}
    l4 = {"clock_rate": 2_040_000, "memory_clock_rate": 6_251_000, "memory_bus_width": 192}
    for major, minor, count, found, expected in (
        (9, 0, 132, shared | h100, H100),
        (9, 0, 132, shared, H100),
        (8, 9, 58, {"shared_memory_per_block_optin": 99 << 10} | l4, L4),
    ):
        made = SimpleNamespace(major=major, minor=minor, multi_processor_count=count, **found)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index, made=made: made)
        gpus.gpu_at.cache_clear()
        described = gpus.gpu_at(0)
        assert described.bytes_per_cycle == pytest.approx(expected.bytes_per_cycle, rel=0.05)
        assert (described.capability, described.shared_bytes) == (expected.capability, expected.shared_bytes)
    gpus.gpu_at.cache_clear()


@ON_GPUS
def test_tiles_are_legal(name):
    gpu = GPUS[name]
    for sizes in ((8192, 3072, 768), (128, 3072, 768), (4096, 50257, 768), (1, 4096, 4096), (17, 100, 33)):
        found = gemm_tiles(product(*sizes), gpu, 12)
        assert found and all(fits(product(*sizes), tile, gpu) for tile in found)
    for depth in (16, 64, 128, 256):
        one = attention(4, 8, 512, 512, depth, torch.bfloat16)
        assert attention_tiles.backward_tiles(one, gpu)
        assert all(attention_tiles.fits(tile, one, gpu) for tile in attention_tiles.tiles(one, gpu))


@ON_GPUS
def test_schedules_and_plans_are_legal(name):
    """Every program of the golden texts: dependences are kept, and GPUs can run all tiles that may be measured."""
    gpu = GPUS[name]
    for function, *inputs in PROGRAMS.values():
        program = lower(trace(function, *inputs), strict=True).program
        made = schedule(program, target=target.gpu(gpu.processors))
        assert not check_schedule(program, made)
        for kernel in [part for whole in made.kernels for part in whole.parts or (whole,)]:
            found = candidates(kernel.body, processors=gpu.processors)
            for pick in range(max(map(len, found))):
                plans = tuple(ways[pick % len(ways)] for ways in found)
                assert not list(launch_findings(replace(kernel, launches=plans)))


@ON_GPUS
def test_kernels_compile_and_fit(name):
    """Into the shared memory of a program."""
    gpu = GPUS[name]
    for program in ("layer_norm", "softmax across", "transposed"):
        function, *inputs = PROGRAMS[program]
        lowered = lower(trace(function, *inputs), strict=True).program
        for kernel in schedule(lowered, target=target.gpu(gpu.processors)).kernels:
            assert compile_for(kernel_source(kernel), gpu.capability)
