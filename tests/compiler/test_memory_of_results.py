"""Results lie in memory of their input, or of each other, where eager's do: a write to one is seen in the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns

import regraft

aten = torch.ops.aten
# Of images: functions that may give a view, the input itself, or new memory.
FUNCTIONS = {
    "reshape": lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3]),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "to dtype": lambda x: x.to(x.dtype),
    "to memory": lambda x: x.to(memory_format=torch.channels_last),
    "expand_as": lambda x: x.expand_as(x),
    "broadcast": lambda x: torch.broadcast_tensors(x, torch.ones(()))[0],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "squeeze": lambda x: x.squeeze(),
    "real": lambda x: x.real,
    "conjugate": lambda x: x.conj().resolve_conj(),
    "positive": lambda x: +x,
    "detach": lambda x: x.detach(),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 1),
    "all channels shuffled": lambda x: F.channel_shuffle(x, 4),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 1),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, False),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, False),
    "no padding": lambda x: F.pad(x, (0, 0)),
    "rot90": lambda x: torch.rot90(x, 0, (2, 3)),
    "tile": lambda x: x.tile(()),
    "sum_to_size": lambda x: x.sum_to_size(x.shape),
    "cat": lambda x: torch.cat([x]),
    "einsum": lambda x: torch.einsum("abcd->acbd", x),
    "matrix_power": lambda x: x[..., :2, :2].matrix_power(1),
    "diff": lambda x: torch.diff(x, n=0),
}  # fmt: skip
SEVERAL = ("chunk", "unbind")  # eager refuses writes to these where gradients flow
LAYOUTS = {
    "rows": lambda: torch.randn(2, 4, 2, 3),
    "one image": lambda: torch.randn(1, 4, 2, 3),
    "one pixel": lambda: torch.randn(2, 4, 1, 1),
    "channels last": lambda: torch.randn(2, 4, 2, 3).to(memory_format=torch.channels_last),
    "turned": lambda: torch.randn(3, 2, 4, 2).permute(3, 2, 1, 0),
    "nothing": lambda: torch.randn(0, 4, 2, 3),
}


def functions_of(x):
    return [function for name, function in FUNCTIONS.items() if not (x.requires_grad and name in SEVERAL)]


def given(x):
    return [function(x) for function in functions_of(x)]


def results_written(x):
    made = []
    for function in functions_of(x):
        y = x * 1
        made += [function(y).mul_(3), y]
    return made


def inputs_written(x):
    made = []
    for function in functions_of(x):
        y = x * 1
        result = function(y)
        made += [y.mul_(3), result, result + 1]
    return made


def parts_written(x):
    """Of values that others read, and are not returned themselves."""
    made = []
    for function in functions_of(x):
        y = x * 1
        torch.atleast_1d(function(y))[..., :1].zero_()
        made.append(y + 1)
    return made


def memory(x, results):
    """Which of the tensors that are earlier in the list each one shares memory with, and where it lies there."""
    first = {x.untyped_storage()._cdata: -1}
    shared = [first.setdefault(r.untyped_storage()._cdata, k) for k, r in enumerate(results)]
    places = [_place(r) if k != s else None for k, (s, r) in enumerate(zip(shared, results, strict=True))]
    return list(zip(shared, places, strict=True))


def _place(x):
    return x.storage_offset(), [(n, stride) for n, stride in zip(x.shape, x.stride(), strict=True) if n > 1]


@one_row_in(5)
@takes_turns("dynamic", "grad")
@pytest.mark.parametrize("program", [given, results_written, inputs_written, parts_written])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_results_share_memory_as_in_eager(program, layout, dynamic, grad):
    torch._dynamo.reset()
    x = LAYOUTS[layout]().requires_grad_(grad)
    theirs = program(x)
    with regraft.coverage() as report:
        ours = torch.compile(program, backend="regraft", dynamic=dynamic)(x)
    assert not report.faults
    found, wanted = memory(x, ours), memory(x, theirs)
    names = [name for name in FUNCTIONS if not (grad and name in SEVERAL)]
    names = [name for name in names for _ in range(len(theirs) // len(names))]
    different = [(name, *pair) for name, *pair in zip(names, found, wanted, strict=True) if pair[0] != pair[1]]
    assert not different
    assert [name for name, a, b in zip(names, ours, theirs, strict=True) if not torch.equal(a, b)] == []


UNSAFE = {
    "chunk": lambda x: x.unsafe_chunk(2, 1),
    "split": lambda x: x.unsafe_split(1, 1),
    "sizes": lambda x: x.unsafe_split_with_sizes([1, 3], 1),
}


@takes_turns("grad")
@pytest.mark.parametrize("parts", UNSAFE)
@pytest.mark.parametrize("grad", [False, True])
def test_parts_that_are_no_views(parts, grad):
    """What is written to them is seen in the tensor, but its gradient does not know of it."""

    def program(x):
        y = x * 2
        UNSAFE[parts](y)[1].mul_(3)
        return y, y * x

    torch._dynamo.reset()
    x, z = (torch.arange(8.0).reshape(2, 4).requires_grad_(grad) for _ in range(2))
    theirs, ours = program(x), torch.compile(program, backend="regraft")(z)
    assert all(map(torch.equal, ours, theirs))
    if grad:
        theirs[1].sum().backward(), ours[1].sum().backward()
        assert torch.equal(z.grad, x.grad)
