"""How many elements lanes have: few where they lie apart, have long code, or are few in all; else 16 bytes."""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from support.lowering import trace
from support.thorough import one_row_in
from support.triton_kernels import compiled, compiles, interpreted_agrees, kernel_source, spilled
from support.versions import OLD_TRITON

from regraft.compiler.lowering import lower
from regraft.compiler.schedule import GPU, schedule
from regraft.compiler.schedule.launches.plan import candidates, launches

R, S = torch.randn, torch.empty  # S: where sizes are all that counts, so that nothing is written to memory


def kernels(function, *inputs):
    return schedule(lower(trace(function, *inputs), strict=True).program, target=GPU).kernels


def planned(kernel, processors=132):
    return launches(kernel.body, {p.buffer.name: p.buffer.dtype.itemsize for p in kernel.params}, processors)


def elements(function, *inputs, processors=132):
    """Of each lane, of the kernel that does most."""
    made = [one for kernel in kernels(function, *inputs) for one in planned(kernel, processors)]
    blocks = max((one.blocks for one in made), key=lambda b: b.row_block * b.column_block * b.warps)
    return blocks.row_block * blocks.column_block / (32 * blocks.warps)


def pooled(x):
    return F.avg_pool2d(x, 2)


def fourier(x):
    return torch.cat([x, *(wave(x * 2**k) for k in range(6) for wave in (torch.sin, torch.cos))], -1)


LARGE = S(64, 64, 128, 128)


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (torch.exp, [LARGE], 8),
        (lambda x: x.flip(-1), [LARGE], 8),  # one access is narrow: memory takes longer
        (lambda x: torch.cat([x[..., 1:], x[..., :1]], -1) + 1, [LARGE], 8),
        (lambda x: x[..., ::2] + x[..., 1::2], [LARGE], 1),
        (pooled, [LARGE], 1),
        (pooled, [S(8, 64, 56, 56, dtype=torch.bfloat16)], 2),  # a lane stores 4 bytes
        (pooled, [S(64, 64, 128, 128, dtype=torch.bfloat16)], 4),  # twice that, of very many
        (lambda x: F.avg_pool2d(x, 3, 1, 1), [LARGE], 1),
        (lambda x: F.avg_pool2d(x, 3, 1, 1), [S(64, 64, 128, 128, memory_format=torch.channels_last)], 8),
        (lambda x: x.sin() + x.cos(), [LARGE], 8),
        (lambda x: x.sin() + x.cos() * x.tan() + (2 * x).sin(), [LARGE], 4),
        (torch.exp, [S(64, 1024)], 1),
        (torch.exp, [S(64, 1024, dtype=torch.bfloat16)], 1),
        (torch.exp, [S(128, 1024)], 2),
        (torch.exp, [S(256, 1024)], 4),
        (torch.lgamma, [S(256, 1024)], 2),  # long code
        (torch.exp, [S(2048, 1024)], 8),
    ],
)
def test_elements_of_a_lane(function, inputs, expected):
    assert elements(function, *inputs) == expected


@pytest.mark.parametrize(("processors", "expected"), [(132, 4), (170, 2), (58, 8)])
def test_smaller_gpus_are_busy_with_fewer_elements(processors, expected):
    assert elements(torch.exp, S(256, 1024), processors=processors) == expected


@pytest.mark.parametrize(("processors", "rows"), [(132, 8), (58, 16)])
def test_smaller_gpus_are_busy_with_fewer_programs(processors, rows):
    (kernel,) = kernels(lambda x: x.softmax(-1), S(2000, 60))
    (launch,) = planned(kernel, processors)
    assert launch.blocks.row_block == rows


def test_folds_keep_their_lanes_unless_their_elements_lie_apart():
    """Lanes of a fold meet at its end, so that fewer elements for each are no gain in themselves."""
    assert elements(lambda x: x.sum(1), R(300, 1024)) == 8
    assert elements(lambda x: F.avg_pool2d(x, 3, 1, 1).sum((1, 2, 3)), S(512, 32, 14, 14)) == 1


APART = {
    "maxima of windows": (lambda x: F.max_pool2d(x, 3, 2, 1), R(2, 8, 30, 30)),
    "maxima of windows of 16 bits": (lambda x: F.max_pool2d(x, 3, 2, 1), R(2, 8, 30, 30).bfloat16()),
    "means of windows": (lambda x: F.avg_pool2d(x, 3, 1, 1) - x, R(2, 8, 17, 17)),
    "sums of windows": (lambda x: F.avg_pool2d(x, 3, 1, 1).sum((1, 2, 3)), R(3, 32, 14, 14)),
    "waves": (fourier, R(70, 3)),
    "stacked": (lambda *x: torch.stack(x, -1), *(R(9, 64) for _ in range(4))),
}


@one_row_in(2)
@pytest.mark.parametrize("name", APART)
def test_fewer_elements_compute_the_same(name):
    function, *inputs = APART[name]
    for source in interpreted_agrees(function, *inputs, rtol=1e-4, atol=1e-4):
        assert compiles(source)


def test_long_code_is_written_out_once_a_lane():
    """Twelve waves of each element: with 8 elements per lane, their code takes registers and instruction caches."""
    (kernel,) = kernels(fourier, S(16384, 3))
    (made,) = compiled(kernel_source(kernel), 90)
    assert spilled(made) <= (32 if OLD_TRITON else 0)
    assert elements(fourier, S(16384, 3)) == 1


def patches(x):
    return x.reshape(8, 3, 14, 16, 14, 16).permute(0, 2, 4, 3, 5, 1).contiguous()


def test_thin_transpositions_take_the_rows_of_all_loops():
    """Three channels by 16 columns of a patch: programs of 48 elements would take longer to start than to run."""
    (kernel,) = kernels(patches, S(8, 3, 224, 224))
    (made,) = planned(kernel)
    assert (made.blocks.row_block, made.blocks.column_block, made.outer) == (256, 4, ())
    (ways,) = candidates(kernel.body, {p.buffer.name: p.buffer.dtype.itemsize for p in kernel.params})
    assert all(one.blocks.row_block >= 16 for one in ways)
    (wide,) = planned(kernels(lambda x: x.mT.contiguous(), S(8, 512, 512))[0])
    assert (wide.blocks.row_block, wide.blocks.column_block) == (64, 64) and wide.outer


def test_thin_transpositions_compute_the_same():
    images = lambda x: x.reshape(2, 3, 4, 16, 4, 16).permute(0, 2, 4, 3, 5, 1).contiguous()  # noqa: E731
    for source in interpreted_agrees(images, R(2, 3, 64, 64)):
        assert compiles(source)


def hue(x):
    return (x.amax(1) - x.amin(1)) / (x.sum(1) + 4)


def largest_class(x):
    return x.argmax(1)  # a sum or maximum of so few is written out as a value (`schedule.few_folds`)


@pytest.mark.parametrize(("size", "expected"), [(64, (64, 1, 2)), (160, (256, 1, 4)), (1024, (1024, 1, 4))])
def test_folds_of_few_columns_have_a_row_for_each_lane(size, expected):
    """Three classes of each pixel: of few pixels, each has a lane of its own, which goes through its classes alone."""
    (made,) = planned(kernels(largest_class, S(4, 3, size, size))[0])
    assert (made.blocks.row_block, made.blocks.column_block, made.blocks.warps) == expected


def test_few_columns_compute_the_same():
    for source in interpreted_agrees(hue, R(2, 3, 20, 20)):
        assert compiles(source)


@pytest.mark.parametrize("function", [lambda x: x.sum(2), largest_class, lambda x: F.adaptive_max_pool2d(x, 3)])
def test_code_of_few_elements_is_written_out(function):
    """No lane waits for another one, and neighbors in memory are read together."""
    for source in interpreted_agrees(function, R(2, 3, 8, 8) if function is not largest_class else R(2, 3, 20, 20)):
        assert "static_range" in source.text
        assert compiles(source)


def test_pairs_of_few_places_fill_the_gpu():
    """Fifty sums over the pairs of one with two thousand: a program for each, not for sixteen of them."""
    pairs = lambda d, c: torch.exp(-((d[:, None] - c) ** 2)).sum(0)  # noqa: E731
    made = [one for kernel in kernels(pairs, S(20000), S(50)) for one in planned(kernel)]
    assert made[0].blocks.column_block > 512
    assert made[0].blocks.row_block == 1


def test_areas_of_windows_are_products():
    """Not polynomials of where windows start and end: nine windows see an element, with 3 heights and 3 widths."""

    def means(x):
        out = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        return torch.ops.aten.avg_pool2d_backward(out, x, [3, 3], [1, 1], [1, 1], False, False, None)

    sources = interpreted_agrees(means, R(2, 3, 9, 9), rtol=1e-5, atol=1e-5)
    assert not [line for source in sources for line in source.text.splitlines() if line.count("tl.m") > 3]
