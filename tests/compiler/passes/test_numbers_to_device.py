"""Numbers that change from call to call: calls on a GPU read them as tensors, where one CUDA graph then serves all."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from regraft.compiler import pipeline
from regraft.compiler.options.fields import TritonOptions
from regraft.compiler.passes.host_scalars import copy_host_scalars
from regraft.compiler.passes.numbers_to_device import numbers_to_device
from regraft.compiler.runtime.cudagraphs.host import split_host
from regraft.compiler.runtime.cudagraphs.rules import skip_reason

from ...support.lowering import symbolic_number
from ...support.simulated_gpu import SimulatedGpu

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def traced(function, n, dtype=torch.float32, shape=(4, 6)):
    """The graph of `function(x, n)` with x on a GPU and a number that may be any."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        number = symbolic_number(mode.shape_env, n, "n")
        return make_fx(in_a_list(function))(torch.empty(shape, dtype=dtype, device=CUDA), number)


def in_a_list(function):
    """Results as AOTAutograd gives them."""

    def call(*given):
        made = function(*given)
        return list(made) if isinstance(made, tuple) else [made]

    return call


def called(module, *given):
    """Run with every device the CPU."""
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", CPU)
    module.recompile()
    return module(*given)


def window(x, n):
    """Which of the keys in a cache a query sees, as caches of windows count them."""
    places = aten.add.Tensor(aten.arange.start_step(0, 6, 1, device=CUDA), torch.sym_max(n - 4, 0))
    seen = aten.le.Tensor(places, aten.add.Tensor(aten.arange.start_step(0, 1, 1, device=CUDA), n))
    return aten.where.self(seen, x, aten.full.default([], -math.inf, device=CUDA)), n + 1


def checked(n, most):
    """What guards say of a place: torch knows then how long a slice is."""
    torch._check(n >= 0)
    torch._check(n <= most)
    return n


def written_in_a_row(x, n):
    row = aten.select.int(aten.sin.default(x), 1, 0)
    return aten.select_scatter.default(x, row, 1, checked(n, 5))


def written_in_rows(x, n):
    rows = aten.slice.Tensor(aten.sin.default(x), 1, 1, 3)
    return aten.slice_scatter.default(x, rows, 1, checked(n, 4), n + 2)


SPELLINGS = {
    "add": lambda x, n: aten.add.Tensor(x, n),
    "sub with alpha": lambda x, n: aten.sub.Tensor(x, n, alpha=3),
    "mul of a sum": lambda x, n: aten.mul.Tensor(x, 2 * n + 1),
    "div": lambda x, n: aten.div.Tensor(x, n),
    "floor": lambda x, n: aten.div.Tensor_mode(x, n, rounding_mode="floor"),
    "remainder": lambda x, n: aten.remainder.Scalar(x, n),
    "a remainder of the number": lambda x, n: aten.add.Tensor(x, n % 5),
    "rsub": lambda x, n: aten.rsub.Scalar(x, n),
    "eq": lambda x, n: aten.eq.Scalar(aten.floor.default(x), n),
    "lt": lambda x, n: aten.lt.Scalar(x, n),
    "masked": lambda x, n: aten.masked_fill.Scalar(x, aten.lt.Scalar(x, 0), n),
    "where": lambda x, n: aten.where.ScalarOther(aten.lt.Scalar(x, 0), x, n),
    "clamp": lambda x, n: aten.clamp.default(x, None, n),
    "clamp both": lambda x, n: aten.clamp.default(x, n - 1, n + 1),
    "full": lambda x, n: aten.mul.Tensor(x, aten.full.default([6], n, dtype=torch.float32, device=CUDA)),
    "full, no dims": lambda x, n: aten.mul.Tensor(x, aten.full.default([], n, dtype=torch.int64, device=CUDA)),
    "arange": lambda x, n: aten.mul.Tensor(x, aten.arange.start(n, n + 6, device=CUDA)),
    "arange by steps": lambda x, n: aten.mul.Tensor(x, aten.arange.start_step(n, n - 12, -2, device=CUDA)),
    "root": lambda x, n: aten.mul.Tensor(x, torch.sym_float(n) / 7),
    "window": window,
    "select": lambda x, n: aten.sin.default(aten.select.int(x, 1, checked(n, 5))),
    "select of a view": lambda x, n: aten.mul.Tensor(aten.select.int(aten.t.default(x), -2, checked(n, 5)), 2),
    "slice": lambda x, n: aten.sin.default(aten.slice.Tensor(x, 1, checked(n, 4), n + 2)),
    "a view of a slice": lambda x, n: aten.mul.Tensor(
        aten.select.int(aten.t.default(aten.slice.Tensor(x, 1, checked(n, 4), n + 2)), 0, 1), n
    ),
    "written in a row": written_in_a_row,
    "written in rows": written_in_rows,
}


PLACES = [*SPELLINGS][-6:]


def parts_of(module):
    copy_host_scalars(module)
    return split_host(module)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_graph_serves_all_numbers(spelling):
    function = SPELLINGS[spelling]
    module, plain = traced(function, 4), traced(function, 4)
    before = parts_of(traced(function, 4))
    assert before is None or 1 in before.device_inputs
    assert numbers_to_device(module) >= 1
    module.graph.lint()
    parts = parts_of(module)
    assert parts.device_inputs == (0,) or spelling == "window"
    assert not any(isinstance(n.meta.get("val"), torch.SymInt) for n in parts.device.graph.nodes)
    assert skip_reason(parts.device.graph, frozenset({0}), "statistical") is None
    for n in (3, 0, 4) if spelling in PLACES else (5, 9, -3, 2**40):
        x = torch.randn(4, 6) * 4
        found, wanted = called(module, x, n), called(plain, x, n)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_floats_keep_the_signs_of_zeros():
    def function(x, s):
        return aten.div.Tensor(x, s), aten.full.default([2], s, device=CUDA)

    module = traced(function, 0.5)
    assert numbers_to_device(module) == 2
    y, filled = called(module, torch.ones(4, 6), -0.0)
    assert y.eq(-torch.inf).all() and filled.signbit().all()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x, n: aten.mul.Tensor(x, n), torch.bfloat16),  # a tensor would be rounded first
        (lambda x, n: aten.add.Tensor(x, n), torch.int32),  # eager refuses numbers that are too large
        (lambda x, n: aten.add.Tensor(x, x, alpha=n), torch.float32),
        (lambda x, n: aten.slice.Tensor(x, 1, 0, n), torch.float32),
        (lambda x, n: aten.select.int(x, 1, checked(n, 5)), torch.float32),  # a view of the input is returned
        (lambda x, n: aten.sin.default(aten.select.int(x, 1, n - 9)), torch.float32),  # counted from the end
        (lambda x, n: aten.mul.Tensor(aten.slice.Tensor(x, 1, 0, n), n), torch.float32),  # a size changes, too
        (lambda x, n: (aten.mul.Tensor(x, n), aten.add.Tensor(x, x, alpha=n)), torch.float32),  # the number is needed
    ],
)
def test_numbers_that_stay(function, dtype):
    module = traced(function, 5, dtype)
    before = str(module.graph)
    assert numbers_to_device(module) == 0 and str(module.graph) == before


def test_numbers_beside_sizes():
    """A mask of so many keys as there are, moved by how many there were: the first is a size, the second a number."""

    def function(x, size, n):
        places = aten.arange.start_step(0, size, 1, device=CUDA)
        return aten.add.Tensor(x, aten.add.Tensor(places, n + size))

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        size, n = (symbolic_number(mode.shape_env, k, f"n{k}") for k in (6, 3))
        torch._check(size > 1)
        module = make_fx(in_a_list(function))(torch.empty(4, size, device=CUDA), size, n)
    assert numbers_to_device(module) == 1
    parts = parts_of(module)
    assert parts.device_inputs == (0, 1) and parts.host_inputs == (1, 2)
    x = torch.randn(4, 7)
    torch.testing.assert_close(called(module, x, 7, -2), [x + torch.arange(7) + 5])


def attended(q, k, keys, positions, at):
    """A step of a loop over text with a cache of fixed size and the place of the token as a Python int."""
    keys[:, :, at : at + 1] = k
    scores = (q + positions[at]) @ keys.transpose(-2, -1)
    seen = torch.arange(keys.shape[2]) <= at
    return torch.where(seen, scores, -torch.inf).softmax(-1) @ keys, at + 1


def test_steps_by_a_python_int(monkeypatch, tmp_path):
    """The whole pipeline of a GPU, kernels interpreted."""
    torch.compiler.reset()
    gpu = SimulatedGpu(monkeypatch, tmp_path, triton=TritonOptions(cudagraphs=True))
    passed = []
    (ours,) = (p for p in pipeline.LOWERED if p.name == "numbers_to_device")
    monkeypatch.setitem(ours.__dict__, "run", lambda graph, _: passed.append(numbers_to_device(graph)))
    run, positions = torch.compile(attended, backend=gpu), torch.randn(16, 8)
    caches, place = [torch.zeros(1, 2, 16, 8) for _ in range(2)], 3
    for _ in range(5):
        q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8)
        with torch.no_grad():
            found, following = run(q, k, caches[0], positions, place)
            wanted, place = attended(q, k, caches[1], positions, place)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(caches[0], caches[1])
        assert following == place
    assert passed == [0, 4]  # of one number as it is, and of any: written, picked twice, compared
