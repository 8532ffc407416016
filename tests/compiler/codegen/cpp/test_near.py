"""Gathers at places that follow from a formula: whole vectors are read where they are near, nothing beyond a buffer."""

import ctypes
import mmap

import pytest
import torch
import torch.nn.functional as F
from support.kernels import compiled_agrees, one_unit
from support.lowering import trace
from support.thorough import one_row_in

import regraft
from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, schedule

HOST = cpp.host_target()
TARGETS = [HOST.name, *(["avx2", "generic"] if HOST.vector_bytes >= 32 else []), "scalar"]


def taken(step, count, start=0):
    """Columns ``start + i * step``, modulo how many there are."""
    return lambda x: x[:, (torch.arange(count) * step + start) % x.shape[1]] * 2


# Each reads along lanes at places that are no multiple of the lane: near, far, backwards, before the first.
PROGRAMS = {
    "halves": lambda x: x.repeat_interleave(2, -1) * 2,
    "thirds": lambda x: x.repeat_interleave(3, -1) * 2,
    "reflected": lambda x: F.pad(x[None], (5, 7), mode="reflect") * 2,
    "edges": lambda x: F.pad(x[None], (5, 7), mode="replicate") * 2,
    "shares": lambda x: F.adaptive_max_pool1d(x, 21),
    "nearest": lambda x: F.interpolate(x[None], size=97) * 2,
    "words": lambda x: x.repeat_interleave(8, -1) * 2,
    "periods": lambda x: x[:, torch.arange(x.shape[1]) % 8] + x,
    "places in words": lambda x: x.repeat_interleave(8, -1) * (torch.arange(x.shape[1] * 8) % 8),
    "backwards": lambda x: x.flip(-1).repeat_interleave(2, -1) * 2,
    "skewed": lambda x: F.pad(x, (0, 1)).flatten()[: -x.shape[0]].view(x.shape[0], -1) * 2,
    "wrapped around": taken(1, 64, 37),
    "far apart": taken(7, 64),
    "backwards, wrapped around": taken(-3, 64, 5),
    "one place": taken(0, 64, 12),
}


@one_row_in(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_places_that_follow_from_a_formula(name, target):
    compiled_agrees(PROGRAMS[name], torch.randn(5, 43), target=cpp.target(target))


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool], ids=str)
@one_unit()
def test_of_every_width(dtype):
    x = (torch.randn(5, 43) * 9).to(dtype)
    compiled_agrees(lambda x: x.repeat_interleave(2, -1), x)
    compiled_agrees(lambda x: x[:, :40].repeat_interleave(8, -1), x)
    compiled_agrees(lambda x: x[:, :4].repeat(1, 8), x)
    compiled_agrees(lambda x: x[:, (torch.arange(64) * 5) % 43], x)


@one_row_in(3)
@pytest.mark.parametrize("entries", [2, 5, 8, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8], ids=str)
@one_unit()
def test_numbers_of_small_tables(dtype, entries):
    """Tables that two vectors hold are read as a whole, and nothing behind them; places are checked, or known."""
    table, generator = (torch.randn(entries) * 9).to(dtype), torch.Generator().manual_seed(0)
    bits, places = (
        torch.randint(256, (3, 37), generator=generator),
        torch.randint(entries, (3, 37), generator=generator),
    )
    most = (1 << entries.bit_length() - 1) - 1
    compiled_agrees(lambda t, b: t[(b & most).long()], table, bits.to(torch.uint8))
    compiled_agrees(lambda t, i: t[i], table, places.where(places % 2 == 0, places - entries))
    compiled_agrees(lambda t, i: t[i], table, places.int())


def test_small_tables_are_read_as_a_whole():
    given = torch.randn(16), torch.randint(16, (3, 48), dtype=torch.uint8)
    program = lower(trace(lambda t, b: t[(b & 15).long()], *given), strict=True).program
    text = "".join(kernel_text(k, cpp.target("avx512")) for k in schedule(program, target=CPU).kernels)
    assert "looked_up<16, 16>" in text and "i64, 16>" not in text


ARRANGED = {"halves", "words", "places in words"}  # alike in every vector


@pytest.mark.skipif(HOST.vector_bytes < 32, reason="vectors of four lanes read other elements")
@pytest.mark.parametrize("name", sorted(ARRANGED))
def test_are_arranged_alike(name):
    text = "".join(
        kernel_text(k, HOST)
        for k in schedule(lower(trace(PROGRAMS[name], torch.randn(5, 48)), strict=True).program, target=CPU).kernels
    )
    assert "arranged<" in text and "Near<" not in text and "gather" not in text


FAR = {"one place", "shares", "far apart", "backwards, wrapped around"}  # one of which is read once
APART = {"reflected", "edges", "wrapped around", "periods"}  # ranges of which are copies


@pytest.mark.skipif(HOST.name != "avx512", reason="vectors are chosen from with AVX-512 only")
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - FAR - APART - ARRANGED))
def test_are_seen(name):
    text = "".join(
        kernel_text(k, HOST)
        for k in schedule(lower(trace(PROGRAMS[name], torch.randn(5, 43)), strict=True).program, target=CPU).kernels
    )
    assert "Near<" in text


@pytest.mark.parametrize("name", sorted(FAR | APART))
def test_what_is_far_apart_is_gathered(name):
    plan = schedule(lower(trace(PROGRAMS[name], torch.randn(5, 43)), strict=True).program, target=CPU)
    texts = [kernel_text(k, cpp.target("avx512")) for k in plan.kernels]
    assert not any("Near<" in text for text in texts)
    assert name not in APART or not any("gather" in text for text in texts)


def test_what_users_give_is_gathered():
    traced = trace(lambda x, i: x[:, i] * 2, torch.randn(5, 43), torch.randint(0, 43, (64,)))
    (kernel,) = schedule(lower(traced, strict=True).program, target=CPU).kernels
    assert "Near<" not in kernel_text(kernel, cpp.target("avx512"))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, s: s[0, (torch.arange(48) // 3) % 5] * x.sum(),
        lambda x, s: s[1, :8].repeat(8) * 2 + x[0, 0],
        lambda x, s: torch.linalg.cross(x[:, :3], s[:1, :3].expand(x.shape[0], 3)),
    ],
)
def test_a_row_of_a_table_of_unknown_length(program):
    """The kernel is not given the number of rows, since it does not go through them."""
    torch.compiler.reset()
    with regraft.coverage() as found:
        compiled = torch.compile(program, backend="regraft", dynamic=True)
        for rows, others in [(66, 44), (80, 36)]:
            x, s = torch.randn(rows, 35), torch.randn(others, 35)
            torch.testing.assert_close(compiled(x, s), program(x, s), rtol=1e-4, atol=1e-4)  # sums of 2,800
    assert not found.fallbacks


@one_row_in(2)
@pytest.mark.parametrize("width", [1, 7, 16, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_is_read_past_the_end(width, dtype):
    """The buffer ends where a page that nobody may read begins."""
    page, size = mmap.PAGESIZE, 3 * width * dtype.itemsize
    memory = mmap.mmap(-1, 2 * page)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(at + page), page, 0) == 0
    x = torch.frombuffer(memory, dtype=dtype, count=3 * width, offset=page - size).view(3, width)
    x.copy_(torch.randn(3, width))
    try:
        compiled_agrees(lambda x: x.repeat_interleave(3, -1) * 2, x)
        compiled_agrees(lambda x: x[:, (torch.arange(50) * 2) % x.shape[1]] * 2, x)
    finally:
        assert libc.mprotect(ctypes.c_void_p(at + page), page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_places_of_resampling_have_32_bits(mode, dtype):
    """Places of 64 bits would halve the number of lanes."""
    x = torch.randn(2, 3, 40, 40).to(dtype)
    program = lower(trace(lambda x: F.interpolate(x, size=(70, 70), mode=mode), x)).program
    text = "".join(kernel_text(kernel, HOST) for kernel in schedule(program, target=CPU).kernels)
    assert "V<i64" not in text and (HOST.name != "avx512" or "V<f32, 16>" in text)
