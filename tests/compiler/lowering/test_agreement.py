"""Calls whose arguments do not agree as eager wants it stay calls, which raise its error; others are generated."""

import math
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from support.lowering import agree, trace
from support.thorough import THOROUGH, one_row_in, takes_turns
from support.versions import OLD_TORCH

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.agreement import disagreement, hold_sizes
from regraft.compiler.lowering.refused import refused

aten = torch.ops.aten
X = torch.arange(20.0).reshape(5, 4)
ROWS = torch.tensor([0, 2, 1])
THREE = torch.ones(3, 4)
DTYPES = (torch.bool, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
MIXED = {
    "put": lambda x, y, i: x.put(i, y[:, 0]), "index_add": lambda x, y, i: x.index_add(0, i, y),
    "index_copy": lambda x, y, i: x.index_copy(0, i, y), "index_put": lambda x, y, i: x.index_put((i,), y),
    "index_reduce": lambda x, y, i: x.index_reduce(0, i, y, "amax"), "prelu": lambda x, y, i: F.prelu(x, y[0]),
    "entropy": lambda x, y, i: F.binary_cross_entropy(x[:3] * 0, y), "nll": lambda x, y, i: F.nll_loss(x[:3], i, y[0]),
    "softmax": lambda x, y, i: aten._softmax_backward_data(x[:3], y, 1, y.dtype),
    "log_softmax": lambda x, y, i: aten._log_softmax_backward_data(x[:3], y, 1, y.dtype),
    "huber": lambda x, y, i: aten.huber_loss_backward(x[:3], y, y, 1, 1.0),
    "mse": lambda x, y, i: aten.mse_loss_backward(x[:3], y, y, 1),
    "smooth": lambda x, y, i: aten.smooth_l1_loss_backward(x[:3], y, y, 1, 1.0),
    "norm": lambda x, y, i: F.layer_norm(x, (4,), y[0], y[0]), "groups": lambda x, y, i: F.group_norm(x, 2, y[0], y[0]),
    "batch": lambda x, y, i: F.batch_norm(x, None, None, y[0], y[0], True),
    "running": lambda x, y, i: F.batch_norm(x, y[0].clone(), y[1].clone(), y[2], y[2], True),
    "truth": lambda x, y, i: (x - y[:1]) - True,
}  # fmt: skip
INDICES = {
    "select": lambda x, i, y: x.index_select(0, i), "add": lambda x, i, y: x.index_add(0, i, y),
    "copy": lambda x, i, y: x.index_copy(0, i, y), "fill": lambda x, i, y: x.index_fill(0, i, 1.0),
    "put": lambda x, i, y: x.put(i, y[:, 0]),
    "table": lambda x, i, y: aten.embedding_dense_backward(y, i, 5, -1, False),
    "reduce": lambda x, i, y: x.index_reduce(0, i, y, "prod"), "nll": lambda x, i, y: F.nll_loss(x[:3], i),
}  # fmt: skip
SIZES = {
    "put": lambda x, i, y: x.index_put((i,), y), "put row": lambda x, i, y: x.index_put((i,), y[0]),
    "mask": lambda x, i, y: x.index_put((x[:, 0] > 3,), y[:1]), "add": lambda x, i, y: x.index_add(0, i, y),
    "copy": lambda x, i, y: x.index_copy(0, i, y), "reduce": lambda x, i, y: x.index_reduce(0, i, y, "prod"),
    "slice": lambda x, i, y: torch.slice_scatter(x, y, 0, 1, 4), "row": lambda x, i, y: x.select_scatter(y[0], 0, 4),
    "row outside": lambda x, i, y: x.select_scatter(y[0], 0, 5 - (y.shape[1] == 4)),
    "diagonal": lambda x, i, y: x.diagonal_scatter(y[0], -1), "margin": lambda x, i, y: F.soft_margin_loss(x[:3], y),
    "logits": lambda x, i, y: F.binary_cross_entropy_with_logits(x[:3], x[:3], y),
}  # fmt: skip
FILLS = {
    "fill": lambda x, v, i: x.fill_(v), "full": lambda x, v, i: torch.full((3,), v, dtype=x.dtype),
    "masked": lambda x, v, i: x.masked_fill(x == 0, v), "index": lambda x, v, i: x.index_fill(0, i, v),
    "scatter": lambda x, v, i: x.scatter(0, i, v), "pad": lambda x, v, i: F.pad(x, (1, 1), value=v),
    "clamp": lambda x, v, i: x.clamp(max=v), "threshold": lambda x, v, i: F.threshold(x, v, 1),
    "replaced": lambda x, v, i: F.threshold(x, 1, v), "added": lambda x, v, i: torch.add(x, x, alpha=v),
    "subtracted": lambda x, v, i: torch.sub(x, x, alpha=v), "from": lambda x, v, i: torch.rsub(x, x, alpha=v),
    "within": lambda x, v, i: F.hardtanh(x, v, v), "steps": lambda x, v, i: torch.linspace(0, v, 3, dtype=x.dtype),
    "rows": lambda x, v, i: x.index_add(0, i, x[i], alpha=v), "product": lambda x, v, i: x.addcmul(x, x, value=v),
}  # fmt: skip
FACTORS = {
    "leaky_relu": F.leaky_relu, "elu": F.elu, "celu": F.celu, "softplus": F.softplus,
    "threshold": lambda x, v: F.softplus(x, 1, v), "quotient": lambda x, v: x.addcdiv(x, x, value=v),
    "lerp": lambda x, v: x.lerp(x + 1, v), "hardshrink": F.hardshrink, "logit": torch.logit,
}  # fmt: skip


MAPS, IMAGE = torch.ones(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.int64)
# Each with tensors whose sizes fit; of the last, one is changed.
SIZED = {
    "labels": (lambda x, i: aten.nll_loss2d_forward(x, i, None, 1, -100), MAPS, IMAGE),
    "groups": (lambda x, w: F.group_norm(x, 3, w), MAPS, torch.ones(3)),
    "shifts of groups": (lambda x, w: F.group_norm(x, 3, None, w), MAPS, torch.ones(3)),
    "softmax": (lambda x, y: aten._softmax_backward_data(x, y, 1, y.dtype), X, X + 1),
    "pooled": (
        lambda x, i: aten.adaptive_max_pool2d_backward(x[..., :4, :5] * 1, x, i), torch.ones(2, 3, 8, 9), MAPS.long()),
    "slice": (lambda x, g: aten.slice_backward(g, list(x.shape), 0, 1, 4, 1), X, THREE),
    "row": (lambda x, g: aten.select_backward(g, list(x.shape), 0, 1), X, X[0].clone()),
    "diagonal": (lambda x, g: aten.diagonal_backward(g, list(x.shape), 0, 0, 1), X, X[0].clone()),
    "windows": (lambda x, g: aten.unfold_backward(g, list(x.shape), 1, 2, 2), X, torch.ones(5, 2, 2)),
    "shifts": (lambda x, w: aten.native_layer_norm_backward(
        x, x, [4], x[:, :1], x[:, :1], w, w, [True, True, True])[2], X, torch.ones(4)),
}  # fmt: skip


def resized(x):
    """Versions of a tensor with other sizes, none of which is beside it in memory."""
    yield x[None].clone()
    yield x.flatten()[0].clone()
    for dim in range(x.dim()):
        yield torch.cat([x, x.narrow(dim, 0, 1)], dim)
        yield x.narrow(dim, 0, 1).clone()
        yield x.narrow(dim, 1, x.shape[dim] - 1).clone()


def refuses(function, *given):
    """Whether eager does."""
    try:
        function(*(x.clone() if isinstance(x, torch.Tensor) else x for x in given))
    except (RuntimeError, IndexError, NotImplementedError):
        return True
    return False


def stays(function, *given, **how):
    """Whether it is a call, or tracing raises by itself."""
    try:
        module = trace(function, *given, **how)
    except (RuntimeError, IndexError, ValueError, OverflowError):
        return True
    return bool(lower(module).kept)


@one_row_in(3)
@pytest.mark.parametrize(("row", "name"), enumerate(MIXED), ids=MIXED)
def test_mixtures_of_dtypes(row, name):
    """In short runs every other pair, each dtype with three others on either side."""
    for (i, a), (j, b) in product(enumerate(DTYPES), repeat=2):
        if not THOROUGH and (row + i + j) % 2:
            continue
        given = torch.ones(5, 4).to(a), torch.ones(3, 4).to(b), ROWS
        assert stays(MIXED[name], *given) or not refuses(MIXED[name], *given), (name, a, b)


@pytest.mark.parametrize("name", INDICES)
def test_dtypes_of_indices(name):
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32):
        given = X, ROWS.to(dtype), THREE
        assert stays(INDICES[name], *given) or not refuses(INDICES[name], *given), (name, dtype)
    assert not stays(INDICES[name], X, ROWS, THREE)


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_what_is_written(name, dynamic):
    """A kernel would read or write beside the tensors."""
    fits = []
    for n, m in product((1, 2, 3, 4, 9), (1, 2, 3, 4, 9) if THOROUGH else (1, 2, 4, 9)):
        given = X, ROWS, torch.ones(n, m)
        if not refuses(SIZES[name], *given):
            fits.append(stays(SIZES[name], *given))
        else:
            assert stays(SIZES[name], *given, dynamic=dynamic), (name, n, m)
    assert not all(fits)


@pytest.mark.parametrize("dynamic", [False, True])
def test_places_that_a_tensor_does_not_have(dynamic):
    """Too many indices, and masks of other sizes than the dims that they stand for."""
    x, place = torch.ones(3, 4), torch.tensor([0])
    masks = [torch.ones(sizes, dtype=torch.bool) for sizes in ((), 1, 2, 3, 4, (3, 4), (4, 3), (3, 1), (3, 4, 1))]
    indices = [(place,) * n for n in (1, 2, 3)] + [(mask,) for mask in masks] + [(place, mask) for mask in masks]
    fits = []
    for given in indices:
        function = lambda x, v, *given: aten.index_put(x, given, v)  # noqa: E731
        if refuses(function, x, x[0, 0], *given):
            assert stays(function, x, x[0, 0], *given, dynamic=dynamic), [index.shape for index in given]
        else:
            fits.append(stays(function, x, x[0, 0], *given, dynamic=dynamic))
    assert fits.count(False) >= 3
    assert stays(lambda x, v, i: aten.index_put(x, (i,), v), x[0, 0], x[0, 0], masks[0], dynamic=dynamic)


@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_metadata_does_not_compare(name):
    function, x, last = SIZED[name]
    assert not stays(function, x, last)
    refused = [other for other in resized(last) if name == "pooled" or refuses(function, x, other)]
    assert refused, "eager reads beside its indices where a pool's differ"
    for other in refused:
        assert stays(function, x, other), (name, other.shape)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])  # tracing divides others by zero
def test_images_without_elements(mode):
    assert stays(lambda x: F.interpolate(x, size=(0, 3), mode=mode), MAPS)
    assert not stays(lambda x: F.interpolate(x, size=(1, 3), mode=mode), MAPS)


@pytest.mark.parametrize("geometry", [(2, 1, -1, 1), (2, 1, 0, 0), (2, 0, 0, 1), (0, 1, 0, 1), (2, -1, 1, 1)])
def test_windows_without_extent(geometry):
    assert stays(lambda x: F.unfold(x, *geometry), MAPS) and refuses(lambda x: F.unfold(x, *geometry), MAPS)
    columns = torch.ones(2, 12, 12)
    assert stays(lambda x: F.fold(x, (4, 5), *geometry), columns)
    assert not stays(lambda x: F.fold(F.unfold(x, 2, 1, 1, 1), (4, 5), 2, 1, 1, 1), MAPS)


@pytest.mark.parametrize("weights", [(), (4,), (1, 4), (5, 4)])
def test_logits_that_targets_do_not_hold(weights):
    """The loss is written over a tensor like the targets."""
    shapes = ((5, 4), (1, 4), (5, 1), (4,), (2, 5, 4))
    for shape, other in product(shapes, repeat=2):
        x, y, w = torch.ones(shape), torch.ones(other), torch.ones(weights) if weights else None
        graph = torch.fx.Graph()
        nodes = [graph.placeholder(name) for name in "xyw"]
        for node, tensor in zip(nodes, (x, y, w), strict=True):
            node.meta["val"] = tensor
        given = (*nodes[:2], None, nodes[2] if weights else None, 0)
        call = graph.call_function(aten.binary_cross_entropy_with_logits.default, given)
        refused = refuses(lambda x, y, w=w: aten.binary_cross_entropy_with_logits(x, y, None, w, 0), x, y)
        assert (disagreement(call) is not None) == refused, (shape, other)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["native_layer_norm", "native_group_norm", "native_batch_norm"])
def test_wider_parameters_of_normalizations(name, device):
    """Of 16 bits, with parameters of 32: kernels for CPUs take them, of those for GPUs the ones of batches only."""
    graph = torch.fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    x.meta["val"] = torch.empty(2, 4, dtype=torch.bfloat16, device=device)
    w.meta["val"] = torch.empty(4, device=device)
    more = {"native_layer_norm": (1e-5,), "native_group_norm": (2, 4, 1, 2, 1e-5)}.get(name)
    more = more or (None, None, True, 0.1, 1e-5)
    sizes = ([4],) if name == "native_layer_norm" else ()
    call = graph.call_function(getattr(aten, name).default, (x, *sizes, w, w, *more))
    assert (disagreement(call) is None) == (device == "cpu" or name == "native_batch_norm")


@pytest.mark.parametrize("name", FILLS)
def test_numbers_that_a_dtype_does_not_hold(name):
    dtypes = (torch.uint8, torch.int32, torch.float16, torch.bfloat16)
    for dtype, value in product(dtypes, (300, -300, 2**40, 1e6, -1e9, float("nan"), float("inf"))):
        given = torch.zeros(3, dtype=dtype), ROWS
        function = lambda x, i, v=value: FILLS[name](x, v, i)  # noqa: E731
        assert stays(function, *given) or not refuses(function, *given), (name, dtype, value)
    assert not stays(lambda x, i: FILLS[name](x, 3, i), torch.zeros(3), ROWS)


@one_row_in(2)
@pytest.mark.parametrize("name", FACTORS)
def test_numbers_beyond_what_an_operator_computes_in(name):
    """Eager raises; most operators compute 16 bits in float32, which holds more."""
    for dtype, value in product((torch.float16, torch.bfloat16, torch.float32, torch.float64), (7e4, 1e39, math.inf)):
        x = torch.linspace(0.1, 0.9, 5, dtype=dtype)
        torch._dynamo.reset()
        compiled = torch.compile(FACTORS[name], backend="regraft", dynamic=False)
        assert refuses(compiled, x, value) == refuses(FACTORS[name], x, value), (dtype, value)
    assert not stays(lambda x: FACTORS[name](x, 0.25), torch.ones(3, dtype=torch.float16))


@one_row_in(2)
@pytest.mark.parametrize("name", FILLS)
def test_numbers_that_change_are_held_to_what_a_dtype_holds(name):
    integers = ((torch.uint8, 300),) if name != "steps" else ()  # steps of integers stay a call
    for dtype, other in ((torch.float16, 2**31 + 5), *integers):
        x = torch.zeros(3, dtype=dtype)
        module = trace(FILLS[name], x, 7, ROWS, numbers=True)
        fixed = name == "pad" or (name == "within" and dtype == torch.uint8)  # tracing takes it for a constant
        assert hold_sizes(module) != fixed and not lower(module).kept
        module = trace(FILLS[name], x, 7, ROWS, numbers=True)
        assert fixed or lower(module).kept, "it may be any number"
        torch._dynamo.reset()
        compiled = torch.compile(FILLS[name], backend="regraft", dynamic=True)
        for value in (3, 7, other):
            if refuses(FILLS[name], x, value, ROWS):
                with pytest.raises(RuntimeError, match="without overflow"):
                    compiled(x.clone(), value, ROWS)
            else:
                assert torch.equal(compiled(x.clone(), value, ROWS), FILLS[name](x.clone(), value, ROWS))


@pytest.mark.parametrize("function", [
    lambda x: x ** -1, lambda x: x - True, lambda x: True - x, lambda x: x.add(x, alpha=1.5),
    lambda x: torch.softmax(x, 0),
    lambda x: x.index_select(0, x[None] * 0), lambda x: torch.log_softmax(x.bool(), 0),
])  # fmt: skip
def test_kinds_of_numbers(function):
    assert refuses(function, ROWS)
    assert stays(function, ROWS)


def test_agreeing_calls_are_generated():
    half = X.bfloat16()
    for function, given in [
        (lambda x, w: F.layer_norm(x, (4,), w, w), (half, X[0])),
        (lambda x, w: F.layer_norm(x, (4,), w, w), (half, half[0])),
        (lambda x, s, i: x.index_add(0, i, s), (X, THREE, ROWS)),
        (lambda x, s, i: x.index_put((i,), s), (X, X[0], ROWS)),
        (lambda x, s: torch.slice_scatter(x, s, 0, 1, 4), (X, THREE)),
        (lambda x: x.masked_fill(x > 1, -1e4), (X.half(),)),
        (lambda x: x.long() ** 2 - 1, (X,)), (lambda x: x.half().masked_fill(x > 1, float("-inf")), (X,)),
    ]:  # fmt: skip
        assert not lower(trace(function, *given)).kept


SYMBOLS = {
    "rows": lambda x, i, y: x.index_add(0, i, y), "copied rows": lambda x, i, y: x.index_copy(0, i, y),
    "reduced rows": lambda x, i, y: x.index_reduce(0, i, y, "amax"), "put": lambda x, i, y: x.index_put((i,), y),
    "slice": lambda x, i, y: x.slice_scatter(y, 0, 1, 4), "row": lambda x, i, y: x.select_scatter(y[0], 0, 1),
    "ints": lambda x, i, y: x.slice_scatter(y, 0, 1, i.shape[0] + 1),
    "steps": lambda x, i, y: x.slice_scatter(y, 0, 0, None, 2),
    "diagonal": lambda x, i, y: x[:3].diagonal_scatter(y[:, 0]),
    "table": lambda x, i, y: aten.embedding_dense_backward(y, i, 5, -1, False),
    "logits": lambda x, i, y: F.binary_cross_entropy_with_logits(x[:3], x[:3], y),
    "margin": lambda x, i, y: F.soft_margin_loss(x[:3], y),
}  # fmt: skip
WITHOUT_CHECKS = ("slice", "steps", "row", "table")  # where tracing compares nothing


@pytest.mark.parametrize("name", SYMBOLS)
def test_symbols_that_are_equal_once_are_held_to_it_by_a_guard(name):
    function = SYMBOLS[name]
    module = trace(function, X, ROWS, THREE, dynamic=True)
    environment = next(n.meta["val"] for n in module.graph.nodes).fake_mode.shape_env
    before = list(environment.guards)
    assert not hold_sizes(module) or environment.guards != before
    assert not lower(module).kept

    module = trace(function, X, ROWS, THREE, dynamic=True)
    next(n.meta["val"] for n in module.graph.nodes).fake_mode.shape_env.freeze()
    assert hold_sizes(module) == 0, "a backward that is compiled later: no guard is checked"
    checked = (*WITHOUT_CHECKS, "diagonal") if not OLD_TORCH else WITHOUT_CHECKS
    assert name not in checked or lower(module).kept, "equal by chance"


@one_row_in(2)
@pytest.mark.parametrize("name", SYMBOLS)
def test_other_sizes_raise_eagers_error_later(name):
    function = SYMBOLS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True)
    torch.testing.assert_close(compiled(X, ROWS, THREE), function(X, ROWS, THREE))
    for other in (torch.ones(2, 4), torch.ones(3, 5), torch.ones(4, 4)):
        if refuses(function, X, ROWS, other):
            with pytest.raises(RuntimeError):
                compiled(X, ROWS, other)


@pytest.mark.parametrize("values", [(2, 4), (4, 4), (3, 5)])
def test_rows_that_do_not_fit_raise_eagers_error(values):
    def program(x, i, v):
        y = x * 1
        y[i] = v
        return y

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft")
    torch.testing.assert_close(compiled(X, ROWS, THREE), program(X, ROWS, THREE))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        compiled(X, ROWS, torch.ones(values))


@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_that_rows_share(dynamic):
    """As `istft` adds up its window: one row of windows for all rows of the result."""

    def program(x, windows):
        return aten.unfold_backward(windows, [x.shape[0], 24], 1, 8, 4) + x

    agree(program, torch.randn(3, 24), torch.randn(1, 5, 8), dynamic=dynamic)


@pytest.mark.parametrize("place", ["target", "weight", "pos_weight"])
def test_a_result_like_one_operand_has_to_hold_what_all_make(place):
    """As calls, which tracing would spell out."""
    logits = aten.binary_cross_entropy_with_logits.default
    for a, b in product(DTYPES, repeat=2):
        given = {"self": torch.ones(3).to(a), "target": torch.ones(3).to(a), place: torch.ones(3).to(b)}
        graph, nodes = torch.fx.Graph(), {}
        for name, value in given.items():
            nodes[name] = graph.placeholder(name)
            nodes[name].meta["val"] = value
        call = graph.call_function(
            logits, tuple(nodes.get(name) for name in ("self", "target", "weight", "pos_weight"))
        )
        call.args = (*call.args, 0)
        eager = partial(lambda names, *x: logits(**dict(zip(names, x, strict=True)), reduction=0), tuple(given))
        assert bool(refused(call)) or not refuses(eager, *given.values()), (a, b)
        assert not (a == b == torch.float32 and refused(call))
