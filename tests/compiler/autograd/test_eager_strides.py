"""What operators give on fake tensors lies in memory as what they give in eager."""

import itertools
import random

import pytest
import torch
from support.layouts import every_layout, in_order
from support.thorough import examples, one_row_in
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from regraft.compiler.autograd.eager_strides import RULES, corrected
from regraft.rewrites.compat import new_fake_mode

aten, prims = torch.ops.aten, torch.ops.prims
MOST = examples(6, 12)  # of the layouts of a call's operands in one shape

SHAPES = [((3, 4, 2), (4, 2)), ((2, 1, 3), (4, 1)), ((2, 3, 4, 5), (2, 3, 4, 5)), ((1, 3, 2), (1, 3, 2))]
WHOLE = [((3, 4, 2), (3, 4, 2)), ((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 1, 3), (2, 1, 3))]
IMAGES = [((2, 4, 2, 3),), ((1, 4, 2, 3),), ((2, 4, 1, 3),)]
VOLUMES = [((2, 3, 2, 4, 2),), ((1, 2, 3, 2, 2),)]
PADS = ("reflection", "replication")
# The operands, in each of their layouts, and what follows from the first.
A, B, INDICES, CLASSES, PARTS, SCALE, FIRST = "A", "B", "indices", "classes", "parts", "scale", "first"
NORM = (SCALE, SCALE, SCALE, SCALE)
CHANNELS = [((4, 3, 5),), ((1, 3, 4),), ((2, 3, 2, 4),), ((2, 3, 2, 4, 2),)]
PAIRS = [(*shape, *shape) for shape in CHANNELS]
GROUPED = (2, 3, 8, 1)  # batches, channels, pixels and groups of the third of them

BROADCAST = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "copysign.Tensor", "floor_divide", "heaviside", "logaddexp",
    "logaddexp2", "logical_and", "logical_or", "logical_xor", "xlogy.Tensor", "special_xlog1py", "lcm",
    "maximum", "eq.Tensor",  # torch has these right
)  # fmt: skip

# Operator -> its arguments, and the shapes that they are tried in.
CALLS = {
    **dict.fromkeys(BROADCAST, ((A, B), SHAPES)),
    "div.Tensor_mode": ((A, B, {"rounding_mode": "floor"}), SHAPES),
    "native_layer_norm_backward": ((A, A, [3], PARTS, PARTS, SCALE, SCALE, [True] * 3), [((2, 4, 3),), ((1, 2, 3),)]),
    "native_batch_norm": ((A, *NORM, True, 0.1, 1e-5), CHANNELS),
    "_native_batch_norm_legit_functional": ((A, *NORM, True, 0.1, 1e-5), CHANNELS),
    "_native_batch_norm_legit": ((A, *NORM, True, 0.1, 1e-5), CHANNELS),
    "_native_batch_norm_legit.no_stats": ((A, *NORM[:2], True, 0.1, 1e-5), CHANNELS),
    "_native_batch_norm_legit_no_training": ((A, *NORM, 0.1, 1e-5), CHANNELS),
    "native_group_norm": ((A, SCALE, SCALE, *GROUPED, 1e-5), CHANNELS[2:3]),
    "native_group_norm_backward": ((A, B, PARTS, PARTS, SCALE, *GROUPED, [True] * 3), PAIRS[2:3]),
    "native_batch_norm_backward": ((A, B, SCALE, SCALE, SCALE, SCALE, SCALE, True, 1e-5, [True] * 3), PAIRS),
    "logical_not": ((A,), WHOLE),
    "neg": ((A,), WHOLE),
    "isin.Tensor_Tensor": ((A, B), WHOLE),
    "angle": ((A,), WHOLE),
    "mul.Scalar": ((A, 2.0), WHOLE),
    "pow.Scalar": ((2.0, A), WHOLE),
    "ldexp.Tensor": ((A, B), SHAPES),
    "hardswish_backward": ((A, B), WHOLE),
    "hardsigmoid_backward": ((A, B), WHOLE),
    "softplus_backward": ((A, B, 1, 20), WHOLE),
    "elu_backward": ((A, 1, 1, 1, False, B), WHOLE),
    "threshold_backward": ((A, B, 0), WHOLE),
    "leaky_relu_backward": ((A, B, 0.1, False), WHOLE),
    "log_sigmoid_backward": ((A, B, B), WHOLE),
    "huber_loss": ((A, B, 0), SHAPES),
    "mse_loss": ((A, B, 0), SHAPES),
    "smooth_l1_loss": ((A, B, 0), SHAPES),
    "soft_margin_loss": ((A, B, 0), WHOLE),
    "soft_margin_loss_backward": ((A, A, B, 0), WHOLE),
    "binary_cross_entropy_backward": ((A, A, B, None, 0), WHOLE),
    "_prelu_kernel": ((A, B), WHOLE),
    "_prelu_kernel_backward": ((A, B, B), WHOLE),
    "rrelu_with_noise": ((A, B), WHOLE),
    "rrelu": ((A, 0.1, 0.3, True), WHOLE),
    "one_hot": ((A, 3), WHOLE),
    "hardtanh_backward": ((A, B, -1.0, 1.0), WHOLE),
    "logit_backward": ((A, B), WHOLE),
    "native_dropout_backward": ((A, B, 2.0), WHOLE),
    "_log_softmax_backward_data": ((A, B, 1, torch.float32), WHOLE),
    "_softmax_backward_data": ((A, B, 1, torch.float32), WHOLE),
    "glu_backward": ((A, B, 1), [((2, 2, 3, 5), (2, 4, 3, 5)), ((1, 1, 4), (1, 2, 4))]),
    "huber_loss_backward": ((A, A, B, 0, 1.0), WHOLE),
    "mse_loss_backward": ((A, A, B, 0), WHOLE),
    "smooth_l1_loss_backward": ((A, A, B, 0, 1.0), WHOLE),
    "log_sigmoid_forward": ((A,), WHOLE),
    "normal.Tensor_Tensor": ((A, B), WHOLE),
    "poisson": ((A,), WHOLE),
    **{f"{name}.dims": ((A, dims), WHOLE) for name, dims in (("any", []), ("all", []))},
    "index_fill.int_Scalar": ((A, 0, FIRST, 2.0), WHOLE),
    "roll": ((A, [1, 3], [1, 0]), WHOLE),
    "channel_shuffle": ((A, 2), IMAGES),
    "im2col": ((A, [1, 1], [1, 1], [0, 0], [1, 1]), IMAGES[:2]),
    **{f"{kind}_pad2d": ((A, [1] * 4), [*IMAGES[:1], ((2, 3, 2, 2),)]) for kind in PADS},
    **{f"{kind}_pad3d": ((A, [1] * 6), VOLUMES) for kind in PADS},
    **{f"{kind}_pad2d_backward": ((A, B, [1] * 4), [((2, 3, 4, 6), (2, 3, 2, 4))]) for kind in PADS},
    **{f"{kind}_pad3d_backward": ((A, B, [1] * 6), [((2, 3, 4, 4, 4), (2, 3, 2, 2, 2))]) for kind in PADS},
    "max_unpool2d": ((A, INDICES, [4, 6]), IMAGES[:2]),
    "nll_loss2d_forward": ((A, CLASSES, None, 0, -100), IMAGES),
}  # fmt: skip

# With dims of one element, whose strides torch's metadata makes up.
THIN = [
    ((1, 6), (1, 1)), ((1, 6), (12, 1)), ((6, 1), (1, 6)), ((6, 1), (2, 9)), ((1, 1), (5, 7)), ((1, 3, 6), (0, 6, 1)),
    ((4, 1, 3), (3, 7, 1)), ((4, 1, 3), (1, 0, 4)), ((4, 3, 1), (1, 4, 2)), ((1, 2, 3, 4), (1, 1, 8, 2)),
    ((2, 1, 3, 4), (12, 1, 4, 1)), ((2, 3, 1, 1), (3, 1, 3, 3)), ((6, 3), (1, 6)), ((4, 1), (8, 1)),
]  # fmt: skip
ALONE = (
    "exp exp2 expm1 relu gelu silu abs sqrt rsqrt floor ceil trunc round sign sgn isnan isposinf isneginf signbit "
    "sigmoid tanh sin cos tan asin acos atan sinh cosh asinh acosh atanh log log2 log10 log1p erf erfc erfinv lgamma "
    "digamma frac leaky_relu elu softplus hardswish hardsigmoid mish hardshrink softshrink reciprocal logit sinc "
    "zeros_like ones_like empty_like rand_like randn_like hardtanh nan_to_num sort tril triu"
)
BOTH = (
    "gt.Tensor lt.Tensor ge.Tensor le.Tensor eq.Tensor ne.Tensor clamp_min.Tensor clamp_max.Tensor pow.Tensor_Tensor "
    "maximum minimum fmax fmin fmod.Tensor remainder.Tensor atan2 hypot rsub.Tensor nextafter"
)
NUMBERS = "gt.Scalar eq.Scalar clamp_min clamp_max pow.Tensor_Scalar fmod.Scalar remainder.Scalar rsub.Scalar"
THIN_CALLS = {
    **dict.fromkeys(ALONE.split(), (A,)), **dict.fromkeys(BOTH.split(), (A, A)),
    **dict.fromkeys(NUMBERS.split(), (A, 2.0)), "clamp": (A, 0.0, 1.0), "threshold": (A, 0.0, 1.0),
    "addcmul": (A, A, A), "addcdiv": (A, A, A), "lerp.Scalar": (A, A, 0.5), "full_like": (A, 2.0), "flip": (A, [0]),
    "randint_like": (A, 5), "_to_copy": (A, {"dtype": torch.float64}), "index_add": (A, 0, FIRST, PARTS),
    "index_put": (A, [torch.tensor([0])], PARTS), "masked_fill.Scalar": (A, B, 1.0), "renorm": (A, 2, 0, 1.0),
    "_log_softmax": (A, 0, False), "native_layer_norm": (A, [SCALE], None, None, 1e-5), "bitwise_not": (B,),
    **dict.fromkeys(("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"), (B, B)),
}  # fmt: skip

DTYPES = {
    "native_dropout_backward": (torch.float32, torch.bool),
    "lcm": (torch.int64, torch.int64),
    "one_hot": (torch.int64,),
}


def operator(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def calls(name):
    """Arguments of a call, in all layouts."""
    arguments, shapes = CALLS[name]
    for shape in shapes:
        dtypes = DTYPES.get(name, (torch.float32, torch.float32))
        operands = [(torch.rand(sizes) * 3).to(dtype) for sizes, dtype in zip(shape, dtypes, strict=False)]
        every = list(itertools.product(*map(every_layout, operands)))
        for laid in random.Random(0).sample(every, min(MOST, len(every))):
            if name.startswith("native_group_norm") and not all(map(lies_as_images, laid)):
                continue  # the operator refuses it: `group_norm` makes its input contiguous
            given = dict(zip((A, B), laid, strict=False))
            first = laid[0]
            given[INDICES] = torch.zeros_like(first, dtype=torch.int64)
            given[SCALE], given[FIRST] = torch.ones(3), torch.tensor([0])
            given[PARTS] = torch.zeros_like(first[..., :1])
            given[CLASSES] = torch.zeros_like(first[:, 0], dtype=torch.int64)
            yield [given[a] if isinstance(a, str) else a for a in arguments]


def lies_as_images(x):
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def strides(target, args, mode):
    """Those of eager, of torch's fakes, and of ours, of every result."""
    kwargs = args.pop() if isinstance(args[-1], dict) else {}
    real = target(*args, **kwargs)
    fakes = tree_map(lambda a: mode.from_tensor(a) if isinstance(a, torch.Tensor) else a, args)
    with mode:
        told = target(*fakes, **kwargs)
    ours = corrected(target, fakes, kwargs, told)
    results = [x if isinstance(x, tuple) else (x,) for x in (real, told, ours)]
    return [[t.stride() for t in result] for result in results]


@one_row_in(2)
@pytest.mark.parametrize("name", CALLS)
def test_fakes_lie_as_in_eager(name):
    different, mode = [], new_fake_mode(None)
    for args in calls(name):
        real, _, ours = strides(operator(name), args, mode)
        if ours != real:
            different.append(([(tuple(a.shape), a.stride()) for a in args if isinstance(a, torch.Tensor)], ours, real))
    assert not different, different[:3]


TRANSFORMS = {
    "_fft_c2c": (aten._fft_c2c.default, True), "_fft_r2c": (aten._fft_r2c.default, True),
    "_fft_c2r": (aten._fft_c2r.default, None),
}  # fmt: skip
INDEXED = [  # sizes of a tensor, and of its indices; None for a dim that stays
    ((5, 4), [(2, 3)]), ((5, 4), [(2, 3), (2, 3)]), ((5, 4), [(2, 3), (3,)]), ((5, 4), [None, (2, 3)]),
    ((5, 4, 3), [None, (2, 3)]), ((5, 4, 3), [(2, 3), None, (2, 3)]), ((5, 4, 3), [(3,), None, (2, 1)]),
    ((5, 4, 3), [None, (2, 3), (3,)]), ((5, 1, 3), [(4,), (4,)]), ((1, 4, 3), [(1, 1), None, (2, 1)]),
    ((5, 4, 1, 3), [(3, 4, 1, 2), (3, 4, 1, 2)]), ((4, 1, 5, 3), [None, None, (4, 1, 3)]),
    ((4, 5, 2), [None, (1, 3, 1)]),
    ((5, 4, 3, 2), [None, (2, 4), (2, 4)]), ((5, 4, 3, 2), [(1,), None, (2, 4)]), ((5,), [(2, 3, 4)]),
]  # fmt: skip


@pytest.mark.parametrize("case", INDEXED, ids=str)
def test_elements_that_are_picked_lie_as_in_eager(case):
    sizes, indices = case
    mode, chosen = new_fake_mode(None), [n for n in indices if n is not None]
    operands = [torch.rand(sizes), *(torch.zeros(n, dtype=torch.int64) for n in chosen)]
    every = list(itertools.product(*map(every_layout, operands)))
    for x, *laid in random.Random(0).sample(every, min(10 * MOST, len(every))):
        given = iter(laid)
        picked = [None if n is None else next(given) for n in indices]
        real = aten.index.Tensor(x, picked)
        fakes = [mode.from_tensor(a) for a in (x, *laid)]
        with mode:
            fake = iter(fakes[1:])
            args = (fakes[0], [None if n is None else next(fake) for n in indices])
            told = aten.index.Tensor(*args)
        ours = corrected(aten.index.Tensor, args, {}, told)
        same = [a == b for a, b, n in zip(ours.stride(), real.stride(), real.shape, strict=True) if n > 1]
        assert all(same), (x.stride(), [index.stride() for index in laid], ours.stride(), real.stride())


@pytest.mark.parametrize("rank", [1, 2])
def test_one_element_that_is_picked_has_no_dims(rank):
    x, index = torch.rand((5,) * rank), torch.tensor(3)
    mode = new_fake_mode(None)
    fakes = mode.from_tensor(x), [mode.from_tensor(index)] * rank
    with mode:
        told = aten.index.Tensor(*fakes)
    assert corrected(aten.index.Tensor, fakes, {}, told).stride() == aten.index.Tensor(x, [index] * rank).stride() == ()


def test_elements_rolled_as_one_row_are_contiguous():
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    real, _, ours = strides(aten.roll.default, [x, [3]], new_fake_mode(None))
    assert ours == real


@pytest.mark.parametrize("name", ["abs", "angle", "sgn", "isfinite"])
def test_functions_of_complex_numbers(name):
    x = torch.randn(2, 3, 4, dtype=torch.complex64).transpose(0, 2)
    real, _, ours = strides(getattr(aten, name).default, [x], new_fake_mode(None))
    assert ours == real


@pytest.mark.parametrize("dims", [[0], [1], [0, 1], [2, 0], [2, 1, 0]])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_fourier_transforms_lie_as_in_eager(name, dims):
    """The metadata that torch 2.11 has of several dims in this order raises; results of any strides are corrected."""
    target, rest = TRANSFORMS[name]
    x = torch.randn(3, 4, 5, dtype=torch.float32 if name == "_fft_r2c" else torch.complex64)
    for laid in [*every_layout(x), x[:1], x[:, :1], x[..., :1], x[..., :1].mT, x[:1].movedim(0, 2), x[:1, :, :1]]:
        rest = max(2 * laid.shape[dims[-1]] - 2, 1) if name == "_fft_c2r" else rest
        real = target(laid, dims, 0, rest)
        told = torch.empty_strided(real.shape, real.contiguous().stride(), dtype=real.dtype)
        mode = new_fake_mode(None)
        with mode:
            fakes = mode.from_tensor(laid), mode.from_tensor(told)
            ours = corrected(target, (fakes[0], dims, 0, rest), {}, fakes[1])
            of_prims = corrected(getattr(prims, name[1:]).default, fakes[:1], {"dim": dims}, fakes[1])
        assert ours.stride() == of_prims.stride() == real.stride(), (laid.stride(), dims)


def thin_calls(name):
    for sizes, laid in THIN:
        x = torch.rand(64).as_strided(sizes, laid)
        given = {A: x, B: x > 0.5, FIRST: torch.tensor([0]), PARTS: x[:1]}
        shape = [x.shape[-1]]
        yield [shape if a == [SCALE] else given[a] if isinstance(a, str) else a for a in THIN_CALLS[name]]


def test_dims_of_one_element_lie_as_in_eager():
    different, mode = [], new_fake_mode(None)
    for name in THIN_CALLS:
        for args in thin_calls(name):
            if name != "renorm" or args[0].shape[0] > 1:
                real, _, ours = strides(operator(name), args, mode)
                different += [(name, args[0].shape, args[0].stride(), ours, real)] if ours != real else []
    assert not different, different[:5]


def test_layouts_that_are_asked_for():
    mode = new_fake_mode(None)
    for x in (torch.rand(64).as_strided((1, 6), (1, 1)), torch.rand(2, 6).t()):
        args = [x, {"memory_format": torch.contiguous_format}]
        real, _, ours = strides(aten.zeros_like.default, args, mode)
        assert ours == real


@pytest.mark.parametrize("name", sorted({name.removeprefix("aten.").replace("prims.", "_") for name in RULES}))
def test_every_rule_is_tried(name):
    calls = (*CALLS, *THIN_CALLS)
    assert name in (*calls, *TRANSFORMS, "index.Tensor") or any(call.startswith(f"{name}.") for call in calls)


PROGRAMS = {
    "copysign": lambda x, y: torch.copysign(x.transpose(0, 2), y) + 1,
    "floor": lambda x, y: torch.div(x.transpose(1, 3), y, rounding_mode="floor"),
    "logical": lambda x, y: torch.logical_or(x.transpose(0, 2) > 0, y[0].mT.contiguous().mT > 0),
    "shuffled": lambda x, y: torch.nn.functional.channel_shuffle(x, 2) * 2,
    "glu": lambda x, y: torch.nn.functional.glu(x[:1], 1) + 1,
    "norm": lambda x, y: torch.nn.functional.batch_norm(x[0].transpose(1, 2), None, None, training=True),
    "angle": lambda x, y: torch.complex(x.transpose(1, 3), x.transpose(1, 3)).angle(),
    "powers of two": lambda x, y: torch.ldexp(torch.tensor(1.5), x.transpose(0, 3).round()) + 1,
    "one": lambda x, y: x[:1].transpose(0, 3) * 3.0,
    "one hot": lambda x, y: torch.nn.functional.one_hot((x.transpose(1, 3) > 0).long(), 3),
    "random slope": lambda x, y: torch.nn.functional.rrelu(x.transpose(0, 2)) * 2,
    "slope": lambda x, y: torch.rrelu(x.abs(), training=True),
    "thin constant": lambda x, y: torch.zeros_like(x[0, 0, :1].t()),
    "thin choice": lambda x, y: torch.where(x[0, 0, :1].t() > 0, x[0, 0, :1].t(), 0.0),
    "thin flip": lambda x, y: y[0, :1].t().flip(0),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_lie_as_in_eager(dynamic):
    def program(x, y):
        return [function(x, y) for function in PROGRAMS.values()]

    x = in_order(torch.randn(4, 4, 4, 4), (0, 2, 3, 1))
    y = torch.randn(4, 4, 4)
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options={"strict": True})
    with torch.no_grad():
        for name, ours, eager in zip(PROGRAMS, compiled(x, y), program(x, y), strict=True):
            torch.testing.assert_close(ours, eager)
            assert ours.stride() == eager.stride(), name


COPIES = {
    "select": lambda x: x.select_scatter(x.select(0, 0) + 1, 0, 1),
    "slice": lambda x: x.slice_scatter(x[:1] + 1, 0, 0, 1),
    "diagonal": lambda x: x.diagonal_scatter(x.diagonal() + 1),
    "index": lambda x: x.index_fill(0, torch.tensor([1]), 2.0),
    "where": lambda x: torch.where(x > 0, x, 1.0),
    "clone": lambda x: x.clone(),
    "roll": lambda x: x.roll(1, 0),
    "cumulative": lambda x: x.cumsum(0),
    "norm": lambda x: torch.linalg.vector_norm(x[..., :1], 2, -1) + x.norm(dim=(-2, -1), keepdim=True)[0],
}


@pytest.mark.parametrize("given", [torch.randn(20).as_strided((3, 3, 3), (2, 1, 3)), torch.randn(4, 3, 5).mT])
def test_filled_copies_lie_as_clones(given):
    torch._dynamo.reset()

    def function(x):
        index = torch.tensor([1])
        return x.index_fill(0, index, 2.0), x.index_fill(-1, index, x[0, 0, 0])

    for ours, eager in zip(torch.compile(function, backend="regraft")(given), function(given), strict=True):
        assert ours.equal(eager) and ours.stride() == eager.stride()


def written_once(x):
    """The sum that undoes `expand` sees every element once."""
    x.expand(2, *x.shape)[0].add_(1)
    return x * 1


@one_row_in(2)
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 2)])
def test_what_is_made_of_elements_that_share_places_has_places_of_its_own(dims):
    torch._dynamo.reset()
    x = torch.randn([1 if d in dims else 3 for d in range(3)]).expand(3, 3, 3)
    compiled = torch.compile(lambda x: [f(x) for f in COPIES.values()], backend="regraft")
    for name, ours, eager in zip(COPIES, compiled(x), [f(x) for f in COPIES.values()], strict=True):
        torch.testing.assert_close(ours, eager, msg=name)
        assert ours.stride() == eager.stride(), name
    given, again = torch.arange(4.0), torch.arange(4.0)
    torch.testing.assert_close(torch.compile(written_once, backend="regraft")(given), written_once(again))
    torch.testing.assert_close(given, again)


@pytest.mark.parametrize("write", [lambda v: v[0].add_(1), lambda v: v[1].mul_(3), lambda v: v.select(0, -1).fill_(2)])
def test_elements_of_data_dependent_number_that_share_places_are_written_once(write):
    def program(x):
        chosen = x[x > 0]
        write(chosen.expand(2, *chosen.shape))
        return chosen

    torch._dynamo.reset()
    x = torch.linspace(-2, 2, 9)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="regraft", fullgraph=True)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("strides", [(32, 8, 1), (32, 0, 1), (0, 8, 1)])
def test_no_metadata_makes_elements_of_new_memory_share_places(strides, device):
    """Of a Fourier transform over two dims in descending order on a GPU torch 2.11 told the first of these."""
    with FakeTensorMode():
        x = torch.empty(3, 4, 16, dtype=torch.complex64, device=device)
        told = torch.empty_strided((3, 4, 16), strides, dtype=torch.complex64, device=device)
        found = corrected(torch.ops.aten._fft_c2c.default, (x, [2, 1], 0, True), {}, told)
    assert found.stride() == (64, 16, 1)


def test_gradients_lie_as_in_eager():
    """Of what is differentiated in the graph: at its border AOTAutograd lays gradients out as the results."""

    def program(x, y):
        loss = torch.nn.functional.mse_loss(x, y) + torch.nn.functional.hardswish(x).sum()
        return torch.nn.functional.prelu(torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"), y[0, :, 0, 0]), loss

    def gradients(function):
        x = in_order(torch.randn(2, 4, 3, 5), (0, 2, 3, 1)).requires_grad_()
        y = torch.rand(2, 4, 3, 5)
        image, loss = function(x, y)
        seeds = [torch.ones_like(image), torch.ones_like(loss)]
        return image, torch.autograd.grad([image, loss], [x], seeds)[0]

    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    for ours, eager in zip(gradients(compiled), gradients(program), strict=True):
        assert ours.stride() == eager.stride()


WRITES = {
    "masked_fill": lambda x, mask: (x * 2).masked_fill_(mask, 0),
    "scatter": lambda x, mask: (x * 2).scatter_(0, torch.zeros(1, 5, dtype=torch.int64), 3.0),
    "cumsum": lambda x, mask: (x * 2).cumsum_(0) + 1,
    "tril": lambda x, mask: (x * 2).tril_(),
    "addmm": lambda x, mask: (x * 2).addmm_(torch.ones(4, 3), torch.ones(3, 5)).view_as(x),
    "index_add": lambda x, mask: (x * 2).index_add_(0, torch.tensor([1]), torch.ones(1, 5)),
    "masked_scatter": lambda x, mask: (x * 2).masked_scatter_(mask, torch.ones(20)),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_written_in_place_stays_as_it_lies(dynamic):
    """Out of place, these calls give other strides."""

    def program(x, mask):
        return [function(x, mask) for function in WRITES.values()]

    def run(function):
        x = torch.linspace(-1, 1, 20).reshape(5, 4).t().detach().requires_grad_()
        results = function(x, torch.arange(20).reshape(4, 5) % 3 == 0)
        return results, torch.autograd.grad(sum(r.square().sum() for r in results), x)[0]

    (ours, gradient), (eager, expected) = run(torch.compile(program, backend="regraft", dynamic=dynamic)), run(program)
    torch.testing.assert_close(gradient, expected)
    for name, mine, theirs in zip(WRITES, ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride(), name
