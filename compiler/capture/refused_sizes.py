"""Calls that eager refuses for the sizes of its tensors, of which tracing makes a result all the same.

    pad(x, (0, 0, 2, -1)), x without rows       eager cuts before it adds
    x.median(0), x.max(), x without elements    there is none to give
    multinomial(p, 3), p of two columns         no three can be drawn without putting them back
    adaptive_avg_pool2d, grid_sample            of an image without pixels

A call whose result is read stays a call, and raises when the program runs. One that nobody reads, or whose sizes alone
are read, would be removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from ...rewrites.graph import arguments, op_name, val
from ...rewrites.symbolic import hint


def refused_sizes(node: fx.Node) -> str | None:
    """Why eager refuses a call for its sizes in the first call; None where it does not, or they are not known."""
    look = _LOOKS.get(op_name(node))
    if look is None:
        return None
    given = arguments(node)
    x = val(given.pop(next(iter(given))))
    sizes = [hint(n) for n in x.shape]
    return None if None in sizes else look(sizes, given)


def leaves_nothing(node: fx.Node) -> bool:
    """Whether a call resamples an image to none, or makes one of none."""
    if "upsample_" not in op_name(node):
        return False
    made, given = ([hint(n) for n in val(image).shape] for image in (node, node.args[0]))
    return None not in (*made, *given) and ((0 in made) != (0 in given) or 0 in given[1:])


def _cut(sizes: list[int], given: dict[str, Any]) -> str | None:
    widths = [hint(val(n)) for n in given["pad"]]
    if None in widths or given.get("mode", "constant") != "constant":
        return None
    cuts = [sum(min(w, 0) for w in widths[k : k + 2]) for k in range(0, len(widths), 2)]
    short = any(size + cut < 0 for size, cut in zip(reversed(sizes), cuts, strict=False))
    return "more is cut off than there is" if short else None


def _chosen(sizes: list[int], given: dict[str, Any]) -> str | None:
    """Of one of the elements along a dim, or of all."""
    if "other" in given:
        return None
    dim = given.get("dim")
    none = 0 in sizes if dim is None else bool(sizes) and sizes[dim] == 0
    return "there is no element to choose" if none else None


def _drawn(sizes: list[int], given: dict[str, Any]) -> str | None:
    number = hint(val(given["num_samples"]))
    few = sizes and number is not None and not given.get("replacement") and number > sizes[-1]
    return "more is drawn than there is" if few else None


def _pixels(sizes: list[int], _: dict[str, Any]) -> str | None:
    return "the image has no pixels" if 0 in sizes[-2:] else None


_Look = Callable[[list[int], dict[str, Any]], str | None]
_BY_CALL: dict[_Look, str] = {
    _cut: "pad constant_pad_nd",
    _chosen: "max min median nanmedian mode",
    _drawn: "multinomial",
    _pixels: "adaptive_avg_pool2d adaptive_avg_pool3d grid_sampler grid_sampler_2d grid_sampler_3d",
}
_LOOKS = {f"aten.{name}": look for look, names in _BY_CALL.items() for name in names.split()}
