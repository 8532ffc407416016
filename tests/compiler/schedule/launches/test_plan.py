"""What programs enumerate and how large blocks are: defaults, alternatives, and the memory accesses that follow."""

import functools
import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from support.lowering import trace
from support.schedules import SMALL_GPU
from support.thorough import one_row_in
from support.triton_kernels import (
    compile_for,
    compiled,
    compiles,
    interpreted_agrees,
    kernel_source,
    run_interpreted,
    spilled,
)

from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import GPU, schedule
from regraft.compiler.schedule.launches import kernel_launches, row_blocks
from regraft.compiler.schedule.launches.plan import candidates, launches
from regraft.compiler.schedule.target import gpu

from ...codegen.cpp.test_kernels import PROGRAMS
from ...codegen.cpp.test_reductions import close, elements, fold_kernel, whole

R, S = torch.randn, torch.empty  # S: where sizes are all that counts
F32, I64 = torch.float32, torch.int64


def near():
    return (torch.arange(512)[:, None] - torch.arange(512)).clamp(0, 511).expand(64, 512, 512)


def kernels(function, *inputs):
    return schedule(lower(trace(function, *inputs), strict=True).program, target=GPU).kernels


def launch(function, *inputs):
    (kernel,) = kernels(function, *inputs)
    (made,) = launches(kernel.body, {p.buffer.name: p.buffer.dtype.itemsize for p in kernel.params})
    return made


def sizes(blocks):
    return blocks.row_block, blocks.column_block, blocks.warps


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (lambda x: x + 1, [S(4096, 1024)], (1, 1024, 4)),
        (lambda x: x + 1, [S(64, 1024)], (1, 256, 8)),  # elements are few
        (lambda x: x + 1, [S(3)], (1, 4, 1)),
        (lambda x: x.t().contiguous(), [S(2048, 2048)], (64, 64, 8)),
        (lambda x: x.t().contiguous(), [S(256, 256)], (32, 32, 2)),
        # Indices that are read: along j elements are 512 apart, along i close by, as far as can be told.
        (lambda x: x.gather(-1, near()).transpose(1, 2).contiguous(), [S(64, 512, 512)], (64, 64, 8)),
        (
            lambda x, i: x.transpose(1, 2).gather(-1, i),
            [S(64, 512, 512), S(64, 512, 512, dtype=I64)],
            (64, 64, 8),
        ),
        (lambda x: x.gather(-1, near()).transpose(1, 2).softmax(-1), [S(64, 512, 512)], (16, 512, 16)),
        (lambda x: x.gather(-1, near()).softmax(-1), [S(64, 512, 512)], (2, 512, 4)),
        (lambda x, i: x.gather(-1, i), [S(64, 512, 512), S(64, 512, 512, dtype=I64)], (2, 512, 4)),
        (
            lambda x, i, j: x[i, j],
            [S(512, 512), S(512, 512, dtype=I64), S(512, 512, dtype=I64)],
            (1, 1024, 8),
        ),
        (lambda x: x.softmax(-1), [S(2048, 1024)], (1, 1024, 4)),
        (lambda x: x.softmax(-1), [S(2048, 4096)], (1, 4096, 8)),
        (lambda x: x.softmax(-1), [S(2048, 50000)], (1, 4096, 16)),
        (lambda x: x.softmax(-1), [S(8192, 64)], (16, 64, 4)),
        (lambda x: x.softmax(-1), [S(512, 64)], (2, 64, 1)),
        (lambda x: x.sum(0), [S(512, 50257)], (32, 16, 4)),
        (lambda x: x.sum(1), [S(4096, 4, 64)], (256, 1, 4)),
        (lambda x, b: x + b, [S(4096, 768), S(4096, 1)], (4, 256, 4)),
        (lambda x, b: x + b, [S(4096, 768), S(768)], (4, 256, 4)),
        (lambda x, b: x + b, [S(4096, 770), S(4096, 1)], (1, 1024, 4)),
        (lambda x, b, c, d: x * b + c - d, [S(4096, 7777), S(4096, 1), S(4096, 1), S(4096, 1)], (1, 1024, 4)),
        (lambda x, b: x + b, [S(8, 512, 16, 64), S(512, 1, 64)], (16, 64, 4)),
        (lambda x, b: x + b, [S(4096, 33), S(4096, 1)], (1, 512, 8)),
    ],
)
def test_defaults(function, inputs, expected):
    assert sizes(launch(function, *inputs).blocks) == expected


def H(*shape):
    return S(*shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (F.gelu, [H(8192, 1024)], (1, 1024, 4)),
        (lambda x, b: F.gelu(x + b), [H(4096, 1024), S(1024)], (2, 1024, 4)),  # what a column has does not count
        (lambda x, y: x + y, [H(4096, 1024), H(4096, 1024)], (1, 1024, 4)),
        (lambda x, y: x + y, [H(4096, 1024), S(4096, 1024)], (1, 1024, 4)),
        (lambda x: x.bfloat16(), [S(4096, 1024)], (1, 1024, 4)),
        (F.gelu, [H(512, 1024)], (1, 1024, 8)),  # programs are few
        (F.relu, [H(512, 1024)], (1, 1024, 8)),
        (F.relu, [H(1024, 1024)], (1, 2048, 4)),  # code is short
        (torch.sin, [H(1024, 1024)], (1, 1024, 4)),
        (lambda x: x.softmax(-1), [H(2048, 4096)], (1, 4096, 4)),
        (lambda x: x.softmax(-1), [H(512, 4096)], (1, 4096, 4)),
        (lambda x: x.softmax(-1), [H(2048, 50000)], (1, 4096, 16)),
        (lambda x, w: F.layer_norm(x, (768,), w), [H(4096, 768), S(768)], (2, 1024, 4)),  # programs are many
        (lambda x, w: F.layer_norm(x, (768,), w), [S(4096, 768), S(768)], (1, 1024, 4)),
        (lambda x: x.sum(0), [H(512, 50257)], (64, 16, 8)),
        (lambda x: x.sum(0), [S(512, 50257)], (32, 16, 4)),
        (lambda x: x.sum(0), [H(512, 50256)], (64, 16, 8)),
        (lambda x: x.sum(0), [H(8, 1 << 21)], (1024, 1, 4)),  # no lanes meet
        (lambda x: x.sum(0), [S(3, 1 << 21)], (1024, 1, 4)),
        (lambda x: x.sum(0), [H(16, 8, 1 << 17)], (1024, 8, 4)),
    ],
)
def test_lanes_of_16_bits(function, inputs, expected):
    """As many bytes on their way as of 32 bits; of columns, no more than registers hold sums for."""
    assert sizes(launch(function, *inputs).blocks) == expected


def test_what_is_the_same_for_a_row_is_found_once_a_row():
    function, inputs = (lambda x, b, c, d: x * b / c - d), [R(64, 7777), *(R(64, 1) for _ in range(3))]
    (source,) = interpreted_agrees(function, *inputs)
    assert "% 7777" not in source.text and launch(function, *inputs).blocks.columns


def test_what_all_blocks_of_a_row_load_is_loaded_before_the_first():
    x, b = R(150, 18000), R(150, 1)
    (source,) = interpreted_agrees(lambda x, b: (x - b).abs().sum(1), x, b, rtol=1e-4, atol=1e-4)
    before, after = source.text.split("for first")
    assert before.count("tl.load") == 1
    assert [line.count("mask") for line in after.splitlines() if "tl.load" in line] == [
        0,
        1,
    ]  # blocks, and what is left


def test_what_is_there_is_loaded_once_a_row_whatever_is_chosen():
    function = lambda x, m: F.pad((x - m).exp(), (0, 8))  # noqa: E731
    for rows, width in ((300, 120), (30, 9000)):
        (source,) = interpreted_agrees(function, R(rows, width), R(rows, 1))
        loads = [line for line in source.text.splitlines() if "tl.load" in line]
        assert [line for line in loads if "arg1" in line and "mask" not in line], source.text


def test_long_rows_of_softmax_take_one_power_an_element():
    x = R(8, 17000) * 5  # rows enough not to be split
    sources = interpreted_agrees(lambda x: x.log_softmax(1), x, target=gpu(4), rtol=1e-6, atol=5e-6)
    assert any("= add_softmax(" in source.text for source in sources)


def test_candidates_begin_with_the_default_and_differ():
    for function, x in ((torch.exp, S(4096, 1024)), (lambda x: x.softmax(-1), S(2048, 1024)), (torch.t, S(999, 999))):
        (kernel,) = kernels(lambda x, function=function: function(x).contiguous() + 1, x)
        (found,) = candidates(kernel.body, {p.buffer.name: p.buffer.dtype.itemsize for p in kernel.params})
        assert found[:1] == kernel.launches and 3 <= len(found) <= 6
        assert len(set(found)) == len(found)


NARROW = [
    "pointwise with broadcasts", "transposed with another", "heads", "layer_norm bfloat16", "maxima over two dims",
    "argmax", "cumulative sum", "cross entropy",
]  # fmt: skip


@one_row_in(3)
@pytest.mark.parametrize("name", NARROW)
def test_every_candidate_computes_the_same(name, monkeypatch):
    function, *inputs = PROGRAMS[name]
    for pick in range(1, 5):
        monkeypatch.setattr(kernel_launches, "launches", functools.partial(picked, pick))
        interpreted_agrees(function, *inputs)


def picked(pick, *kernel):
    return tuple(found[pick % len(found)] for found in candidates(*kernel))


@pytest.mark.parametrize("along", [True, False])
def test_so_do_those_of_reductions(along):
    made, x = fold_kernel("welford", F32, 19, 77, along), elements(F32, 19 * 77)
    expected = run_kernel(made, {"x": x})
    (found,) = candidates(made.body)
    for one in found:
        text = kernel_source(made, [one]).text
        assert str(one.blocks.column_block) in text
        close(run_interpreted(made, {"x": x}, plans=[one]), expected, F32)


def test_rows_of_which_lanes_would_load_too_much_come_in_blocks():
    """Sums of windows: nine loads an element, of 16 elements a lane."""
    (kernel,) = kernels(lambda x: F.avg_pool2d(x, 3, 1, 1).sum((1, 2, 3)), S(512, 32, 14, 14))
    (ways,) = candidates(kernel.body, {p.buffer.name: p.buffer.dtype.itemsize for p in kernel.params})
    made = ways[0]
    assert sizes(made.blocks) == (1, 512, 16) and (1, 2048, 8) in [sizes(one.blocks) for one in ways]
    assert sizes(launch(lambda x: x.sum((1, 2, 3)), S(512, 32, 14, 14)).blocks) == (1, 8192, 8)
    assert not any(map(spilled, compiled(kernel_source(kernel, [made]), 90)))


SPLIT = [
    "layer_norm", "group_norm", "maxima over two dims", "argmax", "sum of a mask", "softmax across", "cross entropy",
    "variance",
]  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_split_reductions_are_eagers(name):
    function, *inputs = PROGRAMS[name]
    interpreted_agrees(function, *inputs, target=SMALL_GPU)


@one_row_in(2)
@pytest.mark.parametrize(
    "function", [torch.var, torch.argmax, torch.sum, torch.logsumexp, lambda x: (x > 0).any(), lambda x: x.prod()]
)
def test_those_to_one_number_too(function):
    dims = (0,) if function is torch.logsumexp else ()
    for made in interpreted_agrees(lambda x: function(x, *dims), R(1013).double(), target=SMALL_GPU):
        assert compiles(made)


def test_symbolic_lengths_are_split(monkeypatch):
    for step in ("_LOOPED", "_LOOPED_MOMENTS"):
        monkeypatch.setattr(row_blocks, step, 64)
    for function in (torch.sum, torch.var):
        sources = interpreted_agrees(lambda x, function=function: function(x), R(67, 9), dynamic=True, target=SMALL_GPU)
        assert len(sources) == 2
        assert all(map(compiles, sources))


def test_cross_entropy_is_rows_then_their_mean():
    logits, labels = R(4096, 1000), torch.randint(0, 1000, (4096,))
    rows, mean = kernels(F.cross_entropy, logits, labels)
    assert rows.body[0].parallel and rows.body[0].var.extent == 4096
    assert not any(getattr(statement, "parallel", False) for statement in mean.body)


WIDE = re.compile(r"(ld|st)\.global(?:\.\w+)*?\.(?:v4\.b32|v2\.b64)")


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, b: F.gelu(x + b), [S(8192, 768), S(768)]),
        (lambda x, b: F.gelu(x + b), [S(8192, 768, dtype=torch.bfloat16), S(768, dtype=torch.bfloat16)]),
        (lambda x, b: (x + b).relu(), [S(8192, 770, dtype=torch.bfloat16), S(8192, 1, dtype=torch.bfloat16)]),
        (lambda x: F.layer_norm(x, (1024,)), [S(4096, 1024, dtype=torch.bfloat16)]),
        (lambda x: x.t().contiguous(), [S(2048, 2048)]),
        (lambda x: x.t().contiguous(), [S(2048, 2048, dtype=torch.bfloat16)]),
    ],
)
def test_accesses_are_of_16_bytes(function, inputs):
    kernel = kernels(function, *inputs)[0]
    (assembly,) = compile_for(kernel_source(kernel), 90, aligned=True)
    assert {found.group(1) for found in WIDE.finditer(assembly)} >= {"ld", "st"}


def test_so_are_loads_of_column_sums():
    kernel = kernels(lambda x: x.sum(0), S(64, 50256, dtype=torch.bfloat16))[0]
    (assembly,) = compile_for(kernel_source(kernel), 90, aligned=True)
    assert {found.group(1) for found in WIDE.finditer(assembly)} >= {"ld"}


def test_rows_that_statistics_step_are_no_reason_to_go_across():
    """Column sums of x * mean[row]: memory is contiguous along columns, whatever single numbers a row has."""
    x, mean, spread = R(4096, 768), R(4096, 1), R(4096, 1)
    first = kernels(lambda x, m, s: (x * m * s).sum(0), x, mean, spread)[0]
    (made,) = launches(first.body)
    assert sizes(made.blocks)[:2] == (32, 16)


@pytest.mark.parametrize(("columns", "tiled"), [(96, True), (4, False)])
def test_sums_of_what_lies_both_ways_are_read_in_tiles(columns, tiled):
    """The gradient of a scale of channels, between an image and rows of channels: each is contiguous along one."""
    image, rows = R(4, columns, 784), R(4, 784, columns)
    first = kernels(lambda a, b: (a * b.transpose(1, 2)).sum((0, 2)), image, rows)[0]
    (made,) = launches(first.body)
    blocks = made.blocks
    assert (min(blocks.row_block, blocks.column_block) >= 16) == tiled


def test_rows_that_are_gone_through_twice_stay_rows():
    """A softmax with a bias that lies the other way: what was loaded for the maximum is still there for the sum."""
    last = kernels(lambda x, b: (x + b.mT).softmax(-1), R(64, 256, 256), R(256, 256))[-1]
    (made,) = launches(last.body)
    assert made.blocks.column_block == 256


def test_where_most_elements_are_decides_along_what_memory_is_contiguous():
    """A group norm of channels last by sums of its channels: 16 of them lie side by side, 1024 positions do not."""
    x = R(8, 512, 32, 32).to(memory_format=torch.channels_last)
    last = kernels(lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), x, R(512), R(512))[-1]
    (made,) = launches(last.body)
    assert "Fold" in str(last.body)
    assert made.blocks.row_block >= 8  # channels of a program


def test_transposes_store_along_all_short_loops_of_a_line():
    """3 x 197 elements lie side by side: a tile stores 64 of them, of 64 lines."""
    blocks = launch(lambda x: x.transpose(0, 2).contiguous(), R(3, 197, 2048)).blocks
    assert (blocks.row_block, blocks.column_block) == (64, 64)
    assert [v.extent for v in blocks.columns] == [197, 3]
    interpreted_agrees(lambda x: x.transpose(0, 2).contiguous(), R(3, 7, 70))


def test_lanes_beside_each_other_store_short_rows():
    """Rows of 12, each stored twice: no lane stores a row alone, element by element."""

    def program(x):
        rows = x.unflatten(3, (-1, 4))
        return torch.cat([rows, rows.flip(1)], 1), (rows > 0).sum(3)

    last = kernels(program, R(128, 3, 128, 12))[-1]
    assert min(made.blocks.column_block for made in last.launches) >= 12
    interpreted_agrees(program, R(4, 3, 8, 12))


def test_elements_that_are_stored_while_columns_are_folded_are_loaded_before():
    """8 loads, then 8 stores: each load would wait for the store before it."""
    text = kernel_source(kernels(lambda x: (x * x - x, x.amin(0)), R(8, 1 << 18))[0]).text
    assert "static_range" not in text


def test_lanes_have_scratch_of_their_own():
    """What is too long to be computed twice is kept for the next statement: in registers of each lane."""

    def program(x):
        y = x + x.sum((1, 3), True)
        for _ in range(70):
            y = (y * 1.5).sin()
        return y * y.abs() + y

    sizes = (4, 2, 96, 500)
    assert "scratch" in kernel_text(kernels(program, S(sizes))[-1])
    found = interpreted_agrees(program, R(2, 2, 3, 50), target=replace(GPU, programs=0))
    assert not any(re.search(r"for i\d+ in range", source.text) for source in found)


def test_pieces_in_blocks_wait_for_nothing():
    """Blocks of a row store to pieces that never meet, while they are folded."""
    (kernel,) = kernels(lambda x: (torch.cat([x, x * 2], 0), x.sum(-1)), S(600, 40000))
    text = kernel_source(kernel).text
    assert "for first" in text and "debug_barrier" not in text


def test_nor_are_indices_that_rows_are_gathered_by():
    table, ids = R(5000, 768), torch.randint(0, 5000, (2048,))
    assert sizes(launch(lambda w, i: F.layer_norm(F.embedding(i, w), (768,)), table, ids).blocks) == (1, 1024, 4)


def test_folds_over_everything_have_one_program():
    (made,) = launches(whole(3001, "sum").body)
    assert made.blocks.rows == () and made.blocks.column_block == 4096


SCATTERS = {
    "rows of a cache": (lambda c, k, p: c.index_copy(2, p, k), R(2, 4, 16, 8), R(2, 4, 3, 8), torch.tensor([3, 7, 1])),
    "chosen rows": (lambda x, i, v: x.index_put((i,), v), R(20, 30), torch.randperm(20)[:7], R(7, 30)),
    "additions": (lambda x, i, v: x.index_add(0, i, v), R(20, 30), torch.randint(0, 20, (50,)), R(50, 30)),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_run_side_by_side(name):
    function, *inputs = SCATTERS[name]
    assert all(one.blocks.columns for kernel in kernels(function, *inputs) for one in launches(kernel.body))
    interpreted_agrees(function, *inputs)


def test_lanes_that_compute_moments_have_more_elements_of_16_bits():
    x = torch.randn(40_000, 512).bfloat16()
    made = [launches(k.body, {p.buffer.name: p.buffer.dtype.itemsize for p in k.params}) for k in kernels(_moments, x)]
    assert sizes(made[0][0].blocks) == (32, 16, 8)


def _moments(x):
    return torch.var_mean(x.float(), 0)


def test_pieces_that_one_program_stores_are_stored_by_its_lanes():
    """A sum over what a few stores have written, all in one program: they touch no element in common."""

    def function(*parts):
        out = torch.stack(parts, -1)
        return out, out.square().mean()

    (source,) = interpreted_agrees(function, *(torch.randn(40) for _ in range(3)))
    assert " in range(" not in source.text
