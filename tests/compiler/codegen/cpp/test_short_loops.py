"""Short loops over interleaved elements are unrolled: colors of pixels, in every dtype, count and direction."""

import pytest
import torch
from support.kernels import avx512_text, compiled_agrees, numbers, one_unit
from support.thorough import one_row_in, takes_turns

from regraft.compiler.codegen.cpp.target import host_target

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
avx512 = pytest.mark.skipif(host_target().name != "avx512", reason="how lanes are chosen depends on the instructions")


def to_last(x):
    return (x + x).permute(0, 2, 3, 1).contiguous()


def from_last(x):
    return (x + x).permute(0, 3, 1, 2).contiguous()


def normalized(x, mean):
    """Colors of bytes, less their mean, to channels first."""
    return (x / 255 - mean).permute(0, 3, 1, 2).contiguous()


@one_row_in(2)
@takes_turns("channels")
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", [to_last, from_last])
@one_unit()
def test_both_ways(function, dtype, channels):
    for height, width in ((5, 7), (1, 3), (16, 19)):
        sizes = (2, channels, height, width) if function is to_last else (2, height, width, channels)
        compiled_agrees(function, numbers(*sizes, dtype=dtype), rtol=0, atol=0)


@one_unit()
def test_other_programs():
    x, y = torch.randn(2, 3, 9, 21), torch.randn(2, 9, 21, 3)
    compiled_agrees(lambda x, y: (x.permute(0, 2, 3, 1) + y).contiguous(), x, y)
    compiled_agrees(lambda x, y: ((x + y.permute(0, 3, 1, 2)).contiguous(), x.sin().permute(0, 2, 3, 1) * y), x, y)
    compiled_agrees(normalized, numbers(2, 9, 21, 3, dtype=torch.uint8), torch.rand(3))
    compiled_agrees(lambda x: x[:, :, 1:8, 2:19].permute(0, 2, 3, 1).contiguous().exp(), x)
    compiled_agrees(lambda x: torch.nn.functional.pad(x, (1, 2)).permute(0, 2, 3, 1).contiguous(), x)
    compiled_agrees(lambda x, i: x[:, i].permute(0, 2, 3, 1).contiguous(), x, torch.tensor([2, 0, 1]))
    compiled_agrees(lambda x: x.flip(1).permute(0, 2, 3, 1).contiguous(), x)
    compiled_agrees(lambda x: x.permute(0, 2, 3, 1).contiguous().cumsum(-1), x)


@one_row_in(2)
@avx512
@pytest.mark.parametrize("channels", [2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_which_loops_are_unrolled(channels, dtype):
    """More elements are woven than are taken apart."""
    made, yes = avx512_text(to_last, numbers(2, channels, 20, 20, dtype=dtype)), channels <= 8
    assert ("weave(" in made) == yes and ("load_tile" not in made or not yes)
    back, yes = avx512_text(from_last, numbers(2, 20, 20, channels, dtype=dtype)), channels <= 4
    assert ("column<" in back) == yes and ("load_tile" not in back or not yes)


def test_few_pixels_are_left_as_they_are():
    assert "weave(" not in avx512_text(to_last, numbers(8, 3, 3, 3))
