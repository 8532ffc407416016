"""Resampling is differentiated as one operator: values and gradients are eager's, and nothing is scattered."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import THOROUGH, one_row_in, takes_turns, thorough

import regraft

MODES = {
    "nearest": 2,
    "nearest-exact": 2,
    "bilinear": 2,
    "bicubic": 2,
    "linear": 1,
    "trilinear": 3,
}
SIZES = [{"scale_factor": 2}, {"scale_factor": 1.5}, {"scale_factor": 0.5}, {"size": 9}, {"size": 1}]
ALIKE = ("nearest-exact", "linear", "trilinear")  # they differ from another mode by a shift, or by the number of dims


def image(dims, dtype=torch.float32):
    x = torch.randn(2, 3, *[7, 5, 6][:dims], generator=torch.Generator().manual_seed(0))
    return x.to(dtype).requires_grad_()


def hold(functions, x, rtol=1e-4, atol=1e-4):
    """Functions of images, in one program."""
    images = [x.detach().clone().requires_grad_() for _ in functions]

    def program(*images):
        return [function(image) for function, image in zip(functions, images, strict=True)]

    torch.compiler.reset()
    compiled = torch.compile(program, backend="regraft")
    got, want = compiled(*images), program(*images)
    weights = [torch.randn_like(result) for result in want]  # laid out as tracing takes gradients to be
    gradients = torch.autograd.grad(got, images, weights)
    expected = torch.autograd.grad(want, images, weights)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)
    torch.testing.assert_close(gradients, expected, rtol=rtol, atol=atol)
    assert [g.stride() for g in gradients] == [g.stride() for g in expected]


def sizes_of(mode):
    return SIZES if mode not in ALIKE or THOROUGH else SIZES[1::2]


@one_row_in(2)
@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode):
    hold([lambda x, to=to: F.interpolate(x * 2, mode=mode, **to).sin() for to in sizes_of(mode)], image(MODES[mode]))


@one_row_in(2)
@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic", "trilinear"])
def test_gradients_with_corners_aligned(mode):
    def resized(x, to):
        return F.interpolate(x * 2, mode=mode, align_corners=True, **to)

    hold([lambda x, to=to: resized(x, to) for to in sizes_of(mode)], image(MODES[mode]))


def test_images_of_known_size_in_batches_of_symbolic_size():
    """Torch has no metadata of symbolic batches for the derivatives of some of these operators."""
    torch.compiler.reset()
    modes = [(mode, dims) for mode in ("nearest", "nearest-exact") for dims in (1, 2, 3)] + list(MODES.items())[2:]

    def program(images):
        return [F.interpolate(x * 2, scale_factor=2, mode=mode) for (mode, _), x in zip(modes, images, strict=True)]

    compiled = torch.compile(program, backend="regraft")
    with regraft.coverage() as found:
        for count in (2, 5):
            seen = []
            for call in (compiled, program):
                images = [image(dims).detach().repeat(count, *[1] * (dims + 1)) for _, dims in modes]
                for x in images:
                    torch._dynamo.mark_dynamic(x.requires_grad_(), 0)
                results = call(images)
                sum((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum() for y in results).backward()
                seen.append([[y.detach() for y in results], [x.grad for x in images]])
            torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4)
    assert not found.faults and len(found.graphs) == 1


@pytest.mark.parametrize("training", [thorough(False), True])
def test_images_without_elements(training):
    """Torch's metadata raises for some of these operators."""
    given = {mode: image(dims)[:0].detach().requires_grad_(training) for mode, dims in MODES.items()}

    def program(given):
        return [F.interpolate(x, scale_factor=2, mode=mode) for mode, x in given.items()]

    torch.compiler.reset()
    with regraft.coverage() as found:
        got = torch.compile(program, backend="regraft", dynamic=False)(given)
    torch.testing.assert_close(got, program(given))
    assert not found.faults
    if training:
        gradients = torch.autograd.grad([result.sum() for result in got], list(given.values()))
        assert [g.shape for g in gradients] == [x.shape for x in given.values()]


@one_row_in(2)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(mode, dtype):
    near = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    hold([lambda x: F.interpolate(x * 2, scale_factor=2, mode=mode)], image(2, dtype), **near)


@one_row_in(2)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_channels_last(mode):
    x = image(2).detach().to(memory_format=torch.channels_last).requires_grad_()
    hold([lambda x: F.interpolate(x * 2, scale_factor=2, mode=mode)], x)


@one_row_in(2)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_dynamic_sizes(mode):
    def function(x):
        return F.interpolate(x * 2, scale_factor=2, mode=mode).sin()

    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True)
    for sizes in [(2, 3, 7, 5), (4, 3, 7, 5), (3, 2, 6, 9)]:
        x = torch.randn(sizes, requires_grad=True)
        (got,) = torch.autograd.grad(compiled(x).sum(), x)
        (want,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@one_row_in(2)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_symbolic_rows_of_known_images(mode):
    def function(x):
        return F.interpolate(x * 2, scale_factor=2, mode=mode).sin()

    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", options={"strict": True})
    for rows in (2, 3, 5):
        x = torch.randn(rows, 3, 7, 5, requires_grad=True)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        (got,) = torch.autograd.grad(compiled(x).sum(), x)
        (want,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@one_row_in(2)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_scattered(mode, monkeypatch):
    from regraft.compiler.autograd import differentiate

    graphs, aot = [], differentiate.autograd.aot_compile

    def kept(*args, backward, **more):
        def compile_backward(graph, inputs):
            graphs.append({node.target for node in graph.graph.nodes})
            return backward(graph, inputs)

        return aot(*args, backward=compile_backward, **more)

    monkeypatch.setattr(differentiate.autograd, "aot_compile", kept)
    hold([lambda x: F.interpolate(x * 2, scale_factor=2, mode=mode)], image(MODES[mode]))
    (targets,) = graphs
    names = {str(target) for target in targets}
    assert any("upsample" in name and "backward" in name for name in names), names
    assert not any("index_put" in name for name in names), names


@takes_turns("antialias")
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes(mode, antialias):
    """They are weighted in whole numbers, whether sizes are known or not."""

    def function(x):
        return F.interpolate(x, scale_factor=1.5, mode=mode, antialias=antialias), F.interpolate(x, (5, 4), mode=mode)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True)
    for sizes in [(2, 3, 7, 5), (4, 3, 6, 9)]:
        x = torch.randint(0, 256, sizes, dtype=torch.uint8)
        for got, want in zip(compiled(x), function(x), strict=True):
            assert torch.equal(got, want)


@one_row_in(2)
@takes_turns("to", "align_corners")
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    "to", [{"scale_factor": 1.3}, {"scale_factor": 1.9, "recompute_scale_factor": True}, {"size": 7}]
)
@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear", "bicubic"])
def test_infinite_pixels_of_symbolic_sizes(mode, to, align_corners):
    """Eager multiplies the pixels around by weights that may be 0, also where a dim keeps its size."""
    dims = MODES[mode]

    def function(x):
        return F.interpolate(x, mode=mode, align_corners=align_corners, **to)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True, options={"strict": True})
    for sizes in [(7, 3, 6), (5, 4, 9), (3, 3, 3)]:  # of 3 pixels a factor of 1.3 leaves 3
        x = torch.randn(2, 3, *sizes[:dims])
        x.view(-1)[::11], x.view(-1)[5::13] = float("inf"), float("-inf")
        torch.testing.assert_close(compiled(x), function(x), equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode, antialias", [("bilinear", False), ("bilinear", True), ("bicubic", True)])
@takes_turns("memory_format")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_symbolic_sizes(memory_format, mode, antialias):
    def function(x):
        factor = 0.7 if antialias else 1.3
        return F.interpolate(x * 2, scale_factor=factor, mode=mode, antialias=antialias) * 2

    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True, options={"strict": True})
    for sizes in [(2, 3, 7, 5), (3, 4, 3, 6)]:
        x = torch.randn(sizes).to(memory_format=memory_format).requires_grad_()
        weights = torch.randn_like(function(x))
        (got,) = torch.autograd.grad((compiled(x) * weights).sum(), x)
        (want,) = torch.autograd.grad((function(x) * weights).sum(), x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == want.stride()
