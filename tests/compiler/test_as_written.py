"""Programs that AOTAutograd refuses, takes for others, or takes though eager refuses them: they run as written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from support.versions import not_in_old_torch

import regraft

X = torch.linspace(-2, 3, 24).reshape(4, 6)


def windows(x):
    y = x + 0
    y.unfold(1, 3, 3).mul_(3)
    y.unfold(1, 3, 1).zero_()
    return y


def strided_of_a_view(x):
    y = (x * 2).t()
    y.as_strided((2, 2), (6, 1), 1).fill_(3)
    return y


def powers(x):
    return x ** (x.shape[0] % 3) + x.shape[0]


def enlarged(x):
    return F.interpolate(x[None, None], size=(3, 11), mode="bicubic", antialias=True, align_corners=True)


@takes_turns("dynamic")
@pytest.mark.parametrize("program", [windows, strided_of_a_view, powers, enlarged])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_autograd_ahead_of_time_refuses(program, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    for rows in (4, 3):
        x, y = (X[:rows].clone().requires_grad_() for _ in range(2))
        ours, theirs = compiled(x), program(y)
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
        ours.sum().backward(), theirs.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="oneDNN is not there")
@pytest.mark.parametrize("made", [False, True])
def test_memory_of_a_library(made):
    def program(x, y):
        x = x.to_mkldnn() if made else x
        return (x.relu() + x).to_dense() * y

    torch._dynamo.reset()
    given = X if made else X.to_mkldnn()
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft")(given, X)
    assert torch.equal(ours, program(given, X)) and [f.code for f in found.fallbacks] == ["opaque-memory"]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "program", [lambda x: x.add_(1), lambda x: x[1].zero_() + x, lambda x: (x.t().mul_(2), x * 3)[1]]
)
def test_writes_to_what_inference_mode_has_made(program, before):
    """Eager refuses them outside of inference mode, also where a program of the same text was compiled for others."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft")
    with torch.inference_mode():
        x = X.clone()
        assert torch.equal(compiled(X.clone()), program(x.clone()))
    if before:
        assert torch.equal(compiled(X.clone()), program(X.clone()))
    with regraft.coverage() as found, pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(x)
    assert {f.code for f in found.fallbacks} == {"written-of-inference"}


def expanded(x):
    x[:, :1].expand(4, 6).add_(1)
    return x


def expanded_value(x):
    y = x.sum(1, keepdim=True).expand(4, 6)
    y[1:].sub_(2)
    return y


def shifted(x):
    x[1:].copy_(x[:-1])
    return x * 2


def shifted_value(x):
    y = x.flatten() * 2
    y[1:].sub_(y[:-1])
    return y


def of_larger_elements(x):
    x.flatten()[8:12].copy_(x.flatten().view(torch.float64)[4:8])
    return x * 2


@takes_turns("dynamic")
@pytest.mark.parametrize("program", [expanded, expanded_value, shifted, shifted_value, of_larger_elements])
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_to_memory_that_overlaps(program, dynamic):
    """Eager refuses them; AOTAutograd makes them functional, and gives numbers."""
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="single memory location") as eager:
        program(X.clone())
    with regraft.coverage() as found, pytest.raises(RuntimeError) as ours:
        torch.compile(program, backend="regraft", dynamic=dynamic)(X.clone())
    assert str(ours.value) == str(eager.value)
    assert [f.code for f in found.fallbacks] == ["overlapping-write"] and not found.fallbacks[0].fault


OWN_MEMORY = {
    "first column": lambda x: x.sub_(x[:, :1]),
    "last column": lambda x: x.div_(x[:, -1:] + 0).sub_(x[:, -1:]),
    "of a value": lambda x: (y := x * 2).mul_(y[:, 2:3]),
    "two": lambda x: x.addcmul_(x[:, :1], x[:, 1:2]),
    "part": lambda x: x[:, 1:4].add_(x[:, ::2]),
    "rows": lambda x: x.index_copy_(0, torch.tensor([1, 2]), x[::2]),
    "turned": lambda x: x[:, :4].lerp_(x[:, :4].t(), 0.5),
}


@takes_turns("dynamic")
@pytest.mark.parametrize("program", OWN_MEMORY)
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_that_read_their_own_memory(program, dynamic):
    """Eager reads what it has written before; AOTAutograd reads all before it writes."""
    torch._dynamo.reset()
    mine, theirs = X.clone(), X.clone()
    with regraft.coverage() as found:
        ours = torch.compile(OWN_MEMORY[program], backend="regraft", dynamic=dynamic)(mine)
    assert torch.equal(ours, OWN_MEMORY[program](theirs)) and torch.equal(mine, theirs)
    assert [f.code for f in found.fallbacks] == ["overlapping-write"]


@one_row_in(2)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "nearest-exact"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_images_of_which_nothing_is_left(mode, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: F.interpolate(x, scale_factor=0.1, mode=mode), backend="regraft", dynamic=dynamic
    )
    with regraft.coverage() as found, pytest.raises(RuntimeError, match="greater than 0"):
        compiled(X[None, None])
    assert [f.code for f in found.fallbacks] == ["resampled-to-nothing"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x * 2)[:, ::2].copy_(x[:, 1::2]),
        lambda x: (x * 2).t().add_(x.t()),
        lambda x: x.clone().mul_(x[:1]),
        lambda x: x[:, 1:].sub_(x[:, :1]),
        lambda x: x[:, ::2].mul_(x[:, 1::2]),
        lambda x: x[:, 1:3].add_(x[:, 4:]),
        lambda x: x[:, :4].mul_(x[:, :4]),
        lambda x: x[:, 1:].div_(x[2:, :1].sum()),
    ],
)
def test_writes_to_memory_that_does_not_overlap(program):
    torch._dynamo.reset()
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft")(X.clone())
    assert torch.equal(ours, program(X.clone())) and not found.fallbacks


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.long().mul_(2.5) + 1,
        lambda x: (x > 0).mul_(2).sum(),
        lambda x: (x > 0).mul_(x.shape[0]).sum(),
        lambda x: x.long().mul_(x) * 2,
        lambda x: x.long().addcmul_(x, x) * 2,
        lambda x: x.long().addcdiv_(x, x + 9) * 2,
        lambda x: x.long().ldexp_(torch.tensor(2)) * 2,
    ],
)
def test_results_that_a_tensor_cannot_hold(write, dynamic):
    x = torch.randn(4, 6)
    with pytest.raises(RuntimeError, match="can't be cast"):
        write(x)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"can't be cast|when making fake tensor call"):
        torch.compile(write, backend="regraft", dynamic=dynamic)(x)


@one_row_in(2)
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.mul_(2), lambda x: x.mul_(x.long()), lambda x: x.long().mul_(x.shape[0]) + 1,
        lambda x: (x > 0).mul_(x > 1), lambda x: x.bfloat16().mul_(x), lambda x: x.mul_(torch.tensor(2.0).double()),
        lambda x: x.addcmul_(x.long(), x.long(), value=2), lambda x: x.ldexp_(torch.tensor(2)),
    ],
)  # fmt: skip
def test_results_that_a_tensor_can_hold(write):
    torch._dynamo.reset()
    x = torch.randn(4, 6)
    with regraft.coverage() as found:
        ours = torch.compile(write, backend="regraft", dynamic=True)(x.clone())
    torch.testing.assert_close(ours, write(x.clone()))
    assert not found.fallbacks


def test_indices_that_one_hot_refuses():
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="LongTensor"):
        torch.compile(lambda i: F.one_hot(i, 4) + 1, backend="regraft")(torch.ones(3, dtype=torch.int32))


@pytest.mark.parametrize("kind", ["rnn_relu", "rnn_tanh", "gru"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_between_recurrent_layers(kind, dropout):
    """torch's spelling of them for tracing drops nothing."""
    layer = (torch.nn.GRU if kind == "gru" else torch.nn.RNN)(4, 3, 2)
    weights = [w.detach() for w in layer.parameters()]

    def program(x):
        return getattr(torch._VF, kind)(x, torch.zeros(2, 5, 3), weights, True, 2, dropout, True, False, False)[0] * 2

    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 60).reshape(3, 5, 4)
    torch.manual_seed(0)
    theirs = program(x)
    torch.manual_seed(0)
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft", options={"rng": "eager"})(x)
    torch.testing.assert_close(ours, theirs)
    assert [f.code for f in found.fallbacks] == (["dropout-between-layers"] if dropout else [])


@one_row_in(2)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_ranges_of_channels_that_training_for_quantization_observes(per_channel, dynamic):
    """The first call gives the state its size; those after it move the averages in it, and are compiled."""

    def program(x, low, high, scale, zero, on):
        made = torch.fused_moving_avg_obs_fake_quant(
            x, on, on, low, high, scale, zero, 0.01, -128, 127, 0, per_channel, True
        )
        return made * 2

    def state():
        low, high = (torch.empty(0), torch.empty(0)) if per_channel else (torch.tensor(99.0), torch.tensor(-99.0))
        return low, high, torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.long)

    torch._dynamo.reset()
    ours, theirs = state(), state()
    with regraft.coverage() as found:
        compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
        for factor in (1, 3, 2):
            torch.testing.assert_close(compiled(X * factor, *ours), program(X * factor, *theirs))
            torch.testing.assert_close(ours, theirs)
    assert [f.code for f in found.fallbacks] == (["state-without-size"] if per_channel else [])


def _row(x):
    y = x.expand(3, 4)
    y[0].fill_(1)
    return y[1] * 1, x * 1


def _part(x):
    y = x.clone().expand(3, 4)
    y[1, :2] = 5
    return y * 1


def _turned(x):
    x.expand(3, 4).t()[1].zero_()
    return x * 1


def _whole(x):
    x.expand(3, 4).fill_(1)
    return x * 1


def _of_a_value(x):
    y = x * 1
    y.expand(3, 4).zero_()
    return y


def _added(x):
    y = x.expand(3, 4)[0]
    y.add_(1)
    return x * 1


def _copied(x):
    x.expand(3, 4).select(0, 2).copy_(torch.arange(4).to(x.dtype))
    return x * 1


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [_row, _part, _turned, _whole, _of_a_value, _added, _copied])
def test_writes_to_views_of_repeated_elements(program, dynamic):
    """AOTAutograd adds what has changed in each of the places that are one; of bools it raises an error."""
    given = [
        torch.full((1, 4), 1e8), torch.tensor([[float("inf"), float("nan"), 1e30, -1e-30]]),
        torch.full((1, 4), 1e3, dtype=torch.bfloat16), torch.full((1, 4), 100, dtype=torch.int8),
        torch.ones(1, 4, dtype=torch.bool),
    ]  # fmt: skip
    for x in given[: 4 if program is _added else 5]:
        torch._dynamo.reset()
        mine, theirs = x.clone(), x.clone()
        with regraft.coverage() as found:
            ours = torch.compile(program, backend="regraft", dynamic=dynamic)(mine)
        torch.testing.assert_close((ours, mine), (program(theirs), theirs), rtol=0, atol=0, equal_nan=True)
        assert [f.code for f in found.fallbacks] == ["overlapping-write"]


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("window", "step", "covers"), [(2, 2, False), (1, 2, False), (3, 3, False), (5, 5, True)])
def test_writes_to_windows_that_do_not_cover_a_tensor(window, step, covers, dynamic):
    """AOTAutograd clears the elements beside the windows."""

    def program(x):
        x.unfold(0, window, step).add_(1)
        x.t().unfold(-1, window, step)[0].mul_(2)
        return x * 1

    torch._dynamo.reset()
    mine, theirs = (torch.arange(50.0).reshape(5, 10) for _ in range(2))
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft", dynamic=dynamic)(mine)
    assert torch.equal(ours, program(theirs)) and torch.equal(mine, theirs)
    if not dynamic:
        assert [f.code for f in found.fallbacks] == ([] if covers else ["overlapping-write"])


@one_row_in(2)
@pytest.mark.parametrize("mode", ["nearest", "linear", "nearest-exact"])
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_images_of_nothing(mode, dynamic):
    """A kernel would read memory that is not there."""

    def program(x):
        return F.interpolate(x.reshape(1, 1, -1), size=4, mode=mode) * 2

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    for n in (33, 3):
        torch.testing.assert_close(compiled(torch.ones(n, 2)), program(torch.ones(n, 2)))
    with pytest.raises(RuntimeError, match="greater than 0"):
        compiled(torch.ones(0, 2))


@takes_turns("mode")
@pytest.mark.parametrize("mode", ["nearest", "linear", "nearest-exact"])
@pytest.mark.parametrize(("sizes", "taken"), [((2, 0, 4), False), ((0, 2, 4), True)])
def test_images_without_channels(sizes, taken, mode):
    """Eager takes batches of no images, and refuses images of no channels."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.interpolate(x, size=3, mode=mode) * 2, backend="regraft")
    if taken:
        assert compiled(torch.ones(sizes)).shape == (0, 2, 3)
        return
    with pytest.raises(RuntimeError, match="Non-empty"):
        compiled(torch.ones(sizes))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("number", [-1e9, -6e4, float("-inf"), 7e4])
def test_numbers_that_are_chosen_on_gpus(device, number):
    """Eager fills a tensor of the dtype with them there, which it refuses; on CPUs they are rounded."""
    from regraft.compiler.capture.eager_refuses import eager_may_refuse

    with torch._subclasses.FakeTensorMode():
        x = torch.empty(4, 4, device=device, dtype=torch.float16)
        graph = torch.fx.Graph()
        nodes = [graph.placeholder(name) for name in ("mask", "x")]
        nodes[0].meta["val"], nodes[1].meta["val"] = x > 0, x
        for target, args in (("ScalarOther", (*nodes, number)), ("ScalarSelf", (nodes[0], number, nodes[1]))):
            made = graph.call_function(getattr(torch.ops.aten.where, target), args)
            made.meta["val"] = x
            found = eager_may_refuse(graph)
            assert (found is not None) == (device == "cuda" and 65504 < abs(number) < 1e10)
            graph.erase_node(made)


@not_in_old_torch("has other metadata of `unique_consecutive`")
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
def test_distinct_parts_along_a_dim(function, dim):
    """Eager's lie along the dim; metadata of `unique_consecutive` has as many dims more as a negative dim counts."""
    x = torch.tensor([[1, 1, 2], [1, 1, 2], [3, 1, 1]], dtype=torch.int32)[:, None]
    run = lambda x: function(x, return_inverse=True, dim=dim)  # noqa: E731
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(run, backend="regraft", options={"strict": True})
        for given in (x, x[1:]):
            for ours, eager in zip(compiled(given), run(given), strict=True):
                assert torch.equal(ours, eager)
                assert ours.stride() == eager.stride()


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("function", [torch.nansum, torch.nanmean])
def test_sums_over_no_dims(function, keepdim):
    """Eager's are of everything, metadata says that they are as large as what they are of."""
    torch._dynamo.reset()
    made = torch.compile(lambda x: function(x, dim=(), keepdim=keepdim), backend="regraft")(X)
    torch.testing.assert_close(made, function(X, dim=(), keepdim=keepdim))


NOT_DETERMINISTIC = {
    "put": lambda x: x.clone().put_(torch.tensor([0, 1, 1]), x[0, :3]),
    "unpool": lambda x: F.max_unpool1d(x[None, :, :3], torch.tensor([[[0, 2, 4]] * 4]), 2),
}


@pytest.mark.parametrize("name", NOT_DETERMINISTIC)
def test_what_eager_refuses_where_algorithms_are_to_be_deterministic(name):
    torch.compiler.reset()
    program = NOT_DETERMINISTIC[name]
    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    for _ in range(2):
        assert torch.equal(compiled(X), program(X))
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(RuntimeError, match="deterministic implementation"):
                compiled(X)
        finally:
            torch.use_deterministic_algorithms(False)
