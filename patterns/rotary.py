"""Rotary position embedding: pairs (a, b) of elements, each rotated by an angle.

    x * cos + cat([-b, a]) * sin                     ->   cat([a * cos1 - b * sin1, b * cos2 + a * sin2])
    cat([a * cos - b * sin, b * cos + a * sin])      ->   the same, with fewer passes over memory; also stack
    view_as_real(view_as_complex(pairs) * turns)     ->   stack([a * re - b * im, b * re + a * im], -1)

where a and b are the halves of x, or its elements at even and odd positions. The replacement does not build [-b, a],
which saves memory traffic if the operators are calls, and scratch memory in generated code. No kernels are generated
for complex numbers, which therefore separate the kernels around them; real numbers are part of these kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..rewrites.binding import Binding
from ..rewrites.effects import wants_gradient
from ..rewrites.graph import describe, dtype, op_name, shape, val
from ..rewrites.pattern import ANYTHING, Call, Term, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import ROUNDING, Candidate, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import same_shape
from .dtypes import result_dtype
from .rotary_overlooked import overlooked_rotations

FORM = "form"  # the tag that names the spelling
_BY_PRODUCTS = ("products", "pairs of products")  # joined by cat, by stack
_END = torch.iinfo(torch.int64).max  # the end of the slice in x[..., n:]


def real(x: Any) -> Reason | None:
    """x is a real tensor of a floating type."""
    if dtype(x).is_floating_point:
        return None
    return Reason("dtype-not-floating", f"pairs of {describe(x)} are turned", (x,), "float", describe(x))


def parts_are_real(a: Any, c: Any) -> Reason | None:
    """What is turned is real."""
    return real(a) or real(c)


def turns_are_complex(turns: Any) -> Reason | None:
    """The factors of pairs are complex, with their precision."""
    if dtype(turns) in (torch.complex64, torch.complex128):
        return None
    return Reason("turns-not-complex", f"pairs are scaled by {describe(turns)}", (turns,), "complex", describe(turns))


def halves_are_equal(x: Any, half: Any) -> Reason | None:
    """The two slices of x are its halves."""
    size = shape(x)[-1]
    if not isinstance(size, int):
        return _symbolic(x)
    if isinstance(half, int) and 0 < 2 * half == size:
        return None
    message = f"{describe(x)} is cut at {half}"
    return Reason("halves-differ", message, (x,), f"a cut at half of {size}", str(half))


def _symbolic(x: Any) -> Reason:
    size = shape(x)[-1]
    return Reason("kernel-unavailable", f"pairs along a dim of symbolic size {size}", (x,), "a number", str(size))


def pairs_are_whole(match: Binding) -> Reason | None:
    """Adjacent pairs are merged to the shape of x, and their number is known."""
    if dict(match.tags)[FORM] in _BY_PRODUCTS:
        return None
    x = match.operands["x"]
    if dict(match.tags)[FORM] == "neighbours" and not isinstance(shape(x)[-1], int):
        return _symbolic(x)  # half of a symbolic size is rounded: twice that may differ from the size
    merged = next((n for n in match.matched if op_name(n) == "aten.reshape"), x)
    if same_shape(shape(merged), shape(x)):
        return None
    message = f"pairs are regrouped as {describe(merged)}"
    return Reason("pairs-regrouped", message, (merged,), describe(x), describe(merged))


def form(match: Binding, policy: Mapping[str, str]) -> str:
    """The spelling that was matched."""
    return dict(match.tags)[FORM]


def pays(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Complex numbers have a device with generated kernels, where six calls are one; adjacent pairs have no gradients.

    The gradient of every other element needs a call of its own, which costs more than the rule saves.
    """
    spelling = form(match, policy)
    if spelling in _BY_PRODUCTS:
        return None
    x = match.operands["x"]
    if spelling == "complex" and val(x).device.type != "cpu":
        found = str(val(x).device)
        return Reason("device-unsupported", "a complex product is one call here, a real one six", (x,), "cpu", found)
    if spelling == "neighbours" and wants_gradient(x):
        message = "gradients of pairs side by side are spread out one by one"
        return Reason("gradient-costs-more", message, (x,), "no gradient", describe(x))
    return None


def in_parts(  # noqa: PLR0913 - the operands of all spellings
    x: torch.Tensor, cos: Any, sin: Any, half: Any, turns: Any, a: Any, b: Any, c: Any, s: Any, *,
    form: str, result: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Each element of the pairs, by two products."""
    if form in _BY_PRODUCTS:
        a, b, c, s = (t if t.dtype == result else t.to(result) for t in (a, b, c, s))
        turned = torch.addcmul(a * c, b, s, value=-1), torch.addcmul(b * c, a, s)
        return torch.cat(turned, -1) if form == "products" else torch.stack(turned, -1)
    if form == "complex":
        return _as_real(x, turns)
    wide, sin = (t if t.dtype == result else t.to(result) for t in (x, sin))
    parts = _halves if form == "halves" else _neighbours
    (a, b), (first, second), (sin_a, sin_b) = parts(wide), parts(x * cos), parts(sin)
    turned = torch.addcmul(first, b, sin_a, value=-1), torch.addcmul(second, a, sin_b)
    return torch.cat(turned, -1) if form == "halves" else torch.stack(turned, -1).flatten(-2)


def _as_real(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """The product of complex numbers in real arithmetic."""
    a, b = x.unbind(-1)
    re, im = torch.view_as_real(turns.resolve_conj()).unbind(-1)
    return torch.stack((a * re - b * im, b * re + a * im), -1)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.chunk(2, -1)


def _neighbours(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[..., ::2], x[..., 1::2]


def _cut(x: Any, start: Any, end: Any, step: int = 1) -> Any:
    more = (step,) if step != 1 else ()
    return torch.ops.aten.slice.Tensor(x, -1, start, end, *more)


def _merged(pairs: Any) -> Any:
    """Adjacent pairs; in a pattern, a reshape to any shape."""
    return Call("aten.reshape", (pairs, ANYTHING)) if isinstance(pairs, Term) else pairs.flatten(-2)


_TABLES: dict[str, Any] = {"cos": T("S 8"), "sin": T("S 8")}
_HALVES: dict[str, Any] = {"x": T("B H S 8"), "half": 4, "tags": {FORM: "halves"}} | _TABLES
_NEIGHBOURS: dict[str, Any] = {"x": T("B H S 8"), "tags": {FORM: "neighbours"}} | _TABLES
_TURNS = T("S D", dtype=torch.complex64)
_COMPLEX: dict[str, Any] = {"x": T("B S D 2", dtype=torch.float32), "turns": _TURNS, "tags": {FORM: "complex"}}
_ELSEWHERE: dict[str, Any] = {
    "x": T("B S D 2", dtype=torch.float32, device="meta"),
    "turns": T("S D", dtype=torch.complex64, device="meta"),
    "refused": "device-unsupported",
}
_PRODUCTS: dict[str, Any] = {"a": T("B H S 4"), "b": T("B H S 4"), "c": T("S 4"), "s": T("S 4")}
_WRONG: dict[str, Any] = {"x": T("B S 8", dtype=torch.complex64), "refused": "dtype-not-floating"}


@register_pattern(
    "rotary",
    family="rotary",
    replacement=[Candidate("parts", in_parts, pays)],
    samples=[
        Sample(**_HALVES),
        Sample(**_NEIGHBOURS),
        Sample(**_COMPLEX),
        *(Sample(**_PRODUCTS, tags={FORM: name}) for name in _BY_PRODUCTS),
        Sample(**_HALVES | _WRONG),
        Sample(
            **_PRODUCTS | {"a": T("B H S 4", dtype=torch.complex64), "refused": "dtype-not-floating"},
            tags={FORM: "products"},
        ),
        Sample(**_HALVES | {"half": 5, "x": T("B S 8"), "refused": "halves-differ"}),
        *(Sample(**_HALVES | {name: T("S 1"), "refused": "dims-differ"}) for name in ("cos", "sin")),
        Sample(**_NEIGHBOURS | {"cos": T("S 1"), "sin": T("S 1"), "refused": "dims-differ"}),
        Sample(**_COMPLEX | {"turns": T("S D"), "refused": "turns-not-complex"}),
        Sample(**_COMPLEX | _ELSEWHERE),
    ],
    guards=(real, parts_are_real, turns_are_complex, halves_are_equal, pairs_are_whole),
    dims={"x": "... D", "cos": "... D", "sin": "... D"},
    numbers=("half",),
    derived={"form": form, "result": result_dtype},
    numerics=ROUNDING,
    overlooked=overlooked_rotations,
    profitable=True,  # a quarter less traffic if operators are calls; no scratch memory in generated code
)
def rotary(  # noqa: PLR0913 - the operands of all spellings
    x: Any, cos: Any, sin: Any, half: Any, turns: Any, a: Any, b: Any, c: Any, s: Any
) -> Any:
    """x * cos + rotated(x) * sin, or a product of complex numbers, computed without a rotated x."""
    aten = torch.ops.aten

    def halves() -> Any:
        return torch.cat([_cut(x, half, _END) * -1.0, _cut(x, 0, half)], -1) * sin + x * cos

    def neighbours() -> Any:
        return _merged(torch.stack([_cut(x, 1, _END, 2) * -1.0, _cut(x, 0, _END, 2)], -1)) * sin + x * cos

    def products() -> list[Any]:
        return [a * c - b * s, b * c + a * s]

    return choose(
        FORM,
        halves=halves,
        neighbours=neighbours,
        products=lambda: torch.cat(products(), -1),
        **{"pairs of products": lambda: torch.stack(products(), -1)},
        complex=lambda: aten.view_as_real.default(aten.view_as_complex.default(x) * turns),
    )
