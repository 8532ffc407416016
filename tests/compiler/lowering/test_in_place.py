"""Writes to parts of inputs: in place, whatever their spelling, and only where nobody reads what was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.lowering import compare, fresh, run, trace
from support.symbols import compiled
from support.thorough import one_row_in
from transformers import LlamaConfig
from transformers.cache_utils import StaticCache

from regraft.compiler.codegen import generate
from regraft.compiler.ir.program import Definition
from regraft.compiler.lowering import lower
from regraft.compiler.lowering.agreement import hold_sizes
from regraft.compiler.schedule import check_schedule, gpu, schedule
from regraft.compiler.schedule.target import CPU


def cache() -> torch.Tensor:
    return torch.arange(2.0 * 3 * 16 * 4).reshape(2, 3, 16, 4)


def rows(count: int) -> torch.Tensor:
    return -1 - torch.arange(2.0 * 3 * count * 4).reshape(2, 3, count, 4)


AT = torch.tensor([5, 9])
QUERY = torch.linspace(-1, 1, 24).reshape(2, 3, 1, 4)


def index_copy(x: Any, at: Any, k: Any) -> None:
    x.index_copy_(2, at, k)


def by_index(x: Any, at: Any, k: Any) -> None:
    x[:, :, at] = k


def by_a_number(x: Any, at: Any, k: Any) -> None:
    x[:, :, 7] = k[:, :, 0]


def by_a_slice(x: Any, at: Any, k: Any) -> None:
    x[:, :, 3:5] = k


def by_a_slice_of_a_layer(x: Any, at: Any, k: Any) -> None:
    x[1][:, 3:5] = k[0]


def by_narrow(x: Any, at: Any, k: Any) -> None:
    x.narrow(2, 3, 2).copy_(k)


def added_by_index(x: Any, at: Any, k: Any) -> None:
    x[:, :, at] += k


def added(x: Any, at: Any, k: Any) -> None:
    x.index_add_(2, at, k)


def scattered(x: Any, at: Any, k: Any) -> None:
    x.scatter_(2, at.reshape(1, 1, 2, 1).expand_as(k), k)


def twice(x: Any, at: Any, k: Any) -> None:
    x.index_copy_(2, at, k)
    x[:, :, 3:5] = k * 2


WRITES = [index_copy, by_index, by_a_number, by_a_slice, by_a_slice_of_a_layer, by_narrow, added_by_index,
          added, scattered, twice]  # fmt: skip


def read_by_a_call(write: Callable[..., None]) -> Callable[..., Any]:
    def step(x: Any, at: Any, k: Any, q: Any) -> Any:
        write(x, at, k)
        return torch.matmul(q, x.transpose(2, 3))

    return step


def read_by_kernels(write: Callable[..., None]) -> Callable[..., Any]:
    def step(x: Any, at: Any, k: Any, q: Any) -> Any:
        before = x.sum(-1)
        write(x, at, k)
        return before, x.sum(-1), (x * 2).amax()

    return step


def lowered(function: Callable[..., Any], *inputs: Any) -> Any:
    """The loop program; it agrees with eager, and so does its schedule, on a CPU and on a GPU."""
    module = trace(function, *inputs)
    made = lower(module, strict=True)
    ours, eagers = fresh(inputs), fresh(inputs)
    result, expected = run(module, made, ours), function(*eagers)
    compare(result, expected, rtol=1e-5, atol=1e-5)
    compare(ours, eagers, exact=True)
    for target in (CPU, gpu(132)):
        assert not check_schedule(made.program, schedule(made.program, target=target))
    return made


def copies(made: Any, size: int) -> list[str]:
    """Definitions that write as much as a whole cache."""
    items = [item for item in made.program.items if isinstance(item, Definition) and not item.reductions]
    return [item.name for item in items if torch.Size([v.extent for v in item.loops]).numel() >= size]


@one_row_in(2)
@pytest.mark.parametrize("step", [read_by_a_call, read_by_kernels])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_no_copy_of_the_cache(write: Callable[..., None], step: Callable[..., Any]) -> None:
    made = lowered(step(write), cache(), AT, rows(2), QUERY)
    assert [name for name in copies(made, cache().numel()) if not name.startswith("mul")] == []
    assert set(made.written.values()) == {"x_1"} or set(made.written.values()) == {"arg0_1"}
    assert not [b for b in made.program.buffers.values() if b.kind == "made" and b.sizes == tuple(cache().shape)][1:]


@pytest.mark.parametrize("step", [read_by_a_call, read_by_kernels])
def test_places_that_are_written_twice(step: Callable[..., Any]) -> None:
    """Each write adds to what was there before both."""
    lowered(step(added_by_index), cache(), torch.tensor([5, 5]), rows(1).expand(2, 3, 2, 4).clone(), QUERY)


def test_symbolic_sizes() -> None:
    def step(x: Any, at: Any, k: Any) -> Any:
        x.index_copy_(2, at, k)
        return x.sum(-1)

    module = trace(step, cache(), AT, rows(2), dynamic=True)
    hold_sizes(module)
    assert len(lower(module, strict=True).written) == 1


# -- what must stay ---------------------------------------------------------------------------------------------------


def old_read_after(x: Any, at: Any, k: Any) -> Any:
    new = x.index_copy(2, at, k)
    result = torch.matmul(new, k.transpose(2, 3)), torch.matmul(x, k.transpose(2, 3))
    x.copy_(new)
    return result


def old_read_by_the_write(x: Any, at: Any, k: Any) -> Any:
    new = x.index_copy(2, at, x[:, :, :2] + k)
    x.copy_(new)
    return new.sum()


def new_is_given(x: Any, at: Any, k: Any) -> Any:
    new = x.index_copy(2, at, k)
    x.copy_(new)
    return new


def a_view_of_the_new_is_given(x: Any, at: Any, k: Any) -> Any:
    new = x.index_copy(2, at, k)
    x.copy_(new)
    return new[:, 1:]


def branched(x: Any, at: Any, k: Any) -> Any:
    one, other = x.index_copy(2, at, k), x.index_copy(2, at - 1, k)
    x.copy_(one)
    return other.sum()


def shifted(x: Any, at: Any, k: Any) -> Any:
    x.copy_(torch.cat([x[:, :, 2:], k], 2))
    return x.sum()


def into_another(x: Any, at: Any, k: Any) -> Any:
    other = x.index_copy(2, at, k)
    k.copy_(other[:, :, :2])
    return other.sum()


@pytest.mark.parametrize(
    "function", [old_read_after, new_is_given, a_view_of_the_new_is_given, branched, shifted, into_another]
)
def test_copies_that_are_needed_stay(function: Callable[..., Any]) -> None:
    made = lowered(function, cache(), AT, rows(2))
    assert copies(made, cache().numel())
    if function is not branched:
        assert not made.written


def test_what_a_write_reads_itself_is_read_before() -> None:
    lowered(old_read_by_the_write, cache(), AT, rows(2))


def test_other_strides_stay_apart() -> None:
    x = cache().expand(2, 2, 3, 16, 4)[0].transpose(1, 2)[:, ::2]

    def step(x: Any, at: Any, k: Any) -> Any:
        x.index_copy_(1, at // 2, k)
        return torch.matmul(x, k.transpose(-1, -2)[:, :1])

    lowered(step, x.clone().transpose(1, 2).contiguous().transpose(1, 2), AT, rows(2).transpose(1, 2).contiguous())


# -- caches of transformers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 8])
def test_static_caches_of_transformers(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """What a cache's `update` becomes: one row written, none copied; a full window is moved up, once."""
    types = {"layer_types": ["sliding_attention"], "sliding_window": window} if window else {}
    config = LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, **types)
    static = StaticCache(config=config, max_cache_len=16)
    made = []

    def recorded(*args: Any, **options: Any) -> Any:
        made.append(lower(*args, **options))
        return made[-1]

    monkeypatch.setattr(generate, "lower", recorded)

    def update(k: Any, v: Any) -> Any:
        keys, values = static.update(k, v, 0)
        return torch.matmul(keys, first.transpose(2, 3)), torch.matmul(values, first.transpose(2, 3))

    first = torch.ones(1, 2, 3, 4)
    with torch.no_grad():
        static.update(first, first, 0)
        torch.compile(update, backend="regraft")(first[:, :, :1], first[:, :, :1])
    (program,) = made
    assert not copies(program, 2 * 8 * 4)
    assert len(set(program.written.values())) == 2, "keys and values"


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@one_row_in(2)
@pytest.mark.parametrize("write", [index_copy, by_index, by_a_slice, added_by_index])
def test_triton_writes_in_place(write: Callable[..., None]) -> None:
    """Interpreted: the graph that is assembled writes to the input that it is given, and calls read that."""
    pytest.importorskip("triton")
    step, inputs = read_by_a_call(write), [cache(), AT, rows(2), QUERY]
    program = compiled(step, inputs, "interpreter")
    ours, eagers = fresh(inputs), fresh(inputs)
    compare(program.run(*ours), step(*eagers), rtol=1e-5, atol=1e-5)
    compare(ours, eagers, exact=True)
