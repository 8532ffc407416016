"""Rows that a mask chooses and that all get the same values: no number of rows that only the data tells is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.rewriting import assert_agrees, compiled, trained
from support.thorough import one_row_in
from torch import Tensor, fx

from regraft.compiler.backend import Compilation
from regraft.compiler.options import Options


def written(x: Tensor, at: tuple[Tensor | slice, ...], values: Tensor) -> Tensor:
    y = x * 2
    y[at] = values.to(y.dtype)
    return y.sin()


SAME: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a row of features": lambda x, e, m: written(x, (m,), e),
    "one row": lambda x, e, m: written(x, (m,), e[None]),
    "a number": lambda x, e, m: written(x, (m,), e[0]),
    "one number for each row": lambda x, e, m: written(x, (m,), e[:1, None]),
    "a mask of features": lambda x, e, m: written(x, (slice(None), slice(None), m[0]), e[0]),
    "a mask of tokens": lambda x, e, m: written(x, (slice(None), m[0]), e),
    "rows of each sequence": lambda x, e, m: written(x, (slice(None), m[0]), torch.stack([e, -e, e * 2])[:, None]),
    "out of place": lambda x, e, m: (x * 2).index_put((m,), e).sin(),
    "a mask of all": lambda x, e, m: written(x, (x > 0.3,), e[0]),
    "a view": lambda x, e, m: (y := x * 2, y[1:].index_put_((m[1:],), e), y.sin())[-1],
}


def given() -> list[Tensor]:
    return [torch.randn(3, 5, 5), torch.randn(5), torch.rand(3, 5) > 0.4]


class Kept:
    """A backend that keeps its compilation."""

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.made = Compilation(module, inputs, Options(debug=True, strict=True))
        return self.made.run()

    def counts_rows(self, kind: str) -> bool:
        return "aten.index.Tensor" in self.made.record.details[f"graph:{kind}"]


@one_row_in(2)
@pytest.mark.parametrize("name", SAME)
def test_graphs_do_not_depend_on_data(name: str) -> None:
    backend, inputs = Kept(), trained(given(), 2)
    inputs[0].data[0, 0, 0] = float("inf")  # its sine's gradient is NaN, wherever it is not written over
    assert_agrees(SAME[name], torch.compile(SAME[name], backend=backend), inputs)
    assert not backend.counts_rows("forward") and not backend.counts_rows("backward")


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_that_are_written_to(dynamic: bool) -> None:
    def function(x: Tensor, e: Tensor, m: Tensor) -> Tensor:
        x[m] = e
        return x.sin()

    backend = Kept()
    run = torch.compile(function, backend=backend, dynamic=dynamic)
    assert_agrees(lambda x, *rest: function(x * 2, *rest), lambda x, *rest: run(x * 2, *rest), trained(given(), 2))
    assert not backend.counts_rows("backward")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, e, m: x.index_put((m,), x[m] * 2),
        lambda x, e, m: x.index_put((m,), torch.outer(e[: 2 + 0 * m.dim()], e)),
        lambda x, e, m: x.index_put((m,), e, accumulate=True),
        lambda x, e, m: x.index_put((m[:, :, None] & (x > 0),), e[1]),
    ],
    ids=["rows of their own", "one for each chosen row", "added", "a mask of all"],
)
def test_other_writes_agree(function: Callable[..., Tensor]) -> None:
    x, e, m = given()
    m = torch.arange(15).reshape(3, 5) < 2
    run, coverage = compiled(function)
    with coverage:
        assert_agrees(function, run, trained([x, e, m], 2))
