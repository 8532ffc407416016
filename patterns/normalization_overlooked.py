"""Values divided by their own deviation in ways that are no norm of the rules: what differs.

    x / (sqrt(mean(x ** 2)) + eps)          "eps is added outside of the root"
    F.normalize(x, dim=-1) * sqrt(D)        "the root is bounded from below, and no eps is added under it"

Such norms differ near zero, and are not replaced. Lengths are only told of beside a factor sqrt(D): most vectors are
made as long as 1 for other reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import fx

from ..rewrites.graph import arguments, describe, is_number, is_tensor, op_name, rank, shape
from ..rewrites.reason import Reason
from ..rewrites.symbolic import hint
from .overlooked import differs, reached

_LENGTHS = ("aten.linalg_vector_norm", "aten.norm", "aten.linalg_norm")
_DEVIATIONS = ("aten.std", "aten.std_mean")
_VARIANCES = ("aten.var", "aten.var_mean", *_DEVIATIONS)
_REDUCTIONS = frozenset(("aten.mean", "aten.sum", *_VARIANCES, *_LENGTHS))
_BOUNDS = ("aten.clamp_min", "aten.clamp", "aten.maximum")
_ROOTS = ("aten.sqrt", "aten.rsqrt")
_OF_ROWS = frozenset(
    ("aten.add", "aten.mul", "aten.div", "aten.reciprocal", "aten.pow", "aten.expand", "aten.reshape", "aten.to",
     "aten.exp", "aten.log", "aten.hypot", "getitem", *_BOUNDS, *_ROOTS)
)  # fmt: skip
_VIEWS = ("aten.reshape", "aten.permute")
_OF_ELEMENTS = ("aten.pow", "aten.mul", "aten.div", "aten.abs", "aten.sub", "aten.to", *_VIEWS)
_LAYERS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", "aten.linear")


def overlooked_norms(graph: fx.Graph) -> Iterator[tuple[fx.Node, Reason]]:
    """Each product or quotient of a value and a deviation of its own rows, and what differs from a norm."""
    for node in graph.nodes:
        if op_name(node) not in ("aten.mul", "aten.div") or not is_tensor(node):
            continue
        x, divisor = node.args[:2]
        pairs = ((x, divisor), (divisor, x)) if op_name(node) == "aten.mul" else ((x, divisor),)
        for value, scale in pairs:
            path = _path(scale) if is_tensor(value) else None
            if path is None or not _is_of_rows(path[-1]) or not _sources(value) & _sources(path[-1].args[0]):
                continue
            reason = _reason(node, value, path)
            if reason is not None:
                yield node, reason
                break


def overlooked_fixed_norms(graph: fx.Graph) -> Iterator[tuple[fx.Node, Reason]]:
    """Each centered result of a layer that is divided by the root of something, and what differs from a batch norm."""
    for node in graph.nodes:
        if op_name(node) not in ("aten.mul", "aten.div") or not is_tensor(node):
            continue
        for centered, scale in (node.args[:2], node.args[1::-1]):
            if op_name(centered) != "aten.sub" or op_name(centered.args[0]) not in _LAYERS or not is_tensor(scale):
                continue
            *path, variance = reached(scale, _first_tensor)
            roots = [i for i, n in enumerate(path) if op_name(n) in _ROOTS or _is_root(n)]
            if roots and op_name(variance) not in _REDUCTIONS | _OF_ROWS:
                told = _of_eps([op_name(n) for n in path], roots[-1])
                message = ", and ".join(told) or "its statistics are not known to have one number for each channel"
                yield node, differs("norm-differs", message, "rsqrt(variance + eps)", path[0])


def _path(scale: Any) -> list[fx.Node] | None:
    """The calls from a factor or divisor down to the statistics that it is computed from, which come last."""
    path = list(reached(scale, _first_tensor))
    return path if path and op_name(path[-1]) in _REDUCTIONS else None


def _first_tensor(node: fx.Node) -> list[fx.Node]:
    """The tensor that numbers of rows are computed from."""
    operands = [a for a in node.args if op_name(a) in _VARIANCES or (is_tensor(a) and rank(a) > 0)]
    return operands[:1] if op_name(node) in _OF_ROWS else []


def _is_of_rows(statistics: fx.Node) -> bool:
    """Whether statistics are over some dims, not of a whole tensor."""
    x = statistics.args[0]
    return is_tensor(x) and bool(_dims(statistics)) and 0 < len(_dims(statistics)) < max(rank(x), 2)


def _dims(statistics: fx.Node) -> list[int]:
    dims = arguments(statistics).get("dim")
    dims = [dims] if isinstance(dims, int) else dims or []
    return sorted(d % max(rank(statistics.args[0]), 1) for d in dims)


def _sources(value: Any) -> set[fx.Node]:
    """The values that a value is computed from, element by element, with itself."""
    return set(reached(value, _of_elements))


def _of_elements(node: fx.Node) -> list[Any]:
    views = op_name(node) in _VIEWS
    operands = node.args[:2] if op_name(node) in _OF_ELEMENTS else ()
    return [a for a in operands if is_tensor(a) and (views or rank(a) == rank(node))]


def _reason(node: fx.Node, value: fx.Node, path: list[fx.Node]) -> Reason | None:
    statistics, names = path[-1], [op_name(n) for n in path[:-1]]
    roots = [i for i, n in enumerate(path[:-1]) if names[i] in _ROOTS or _is_root(n)]
    if op_name(statistics) in _LENGTHS or op_name(statistics) in _DEVIATIONS:
        roots.append(len(path) - 1)
    if not roots or arguments(statistics).get("ord", arguments(statistics).get("p", 2)) not in (2, None):
        return None
    squares = ("aten.mean", *_VARIANCES)
    if op_name(statistics) not in squares and not _meets_size(node, value, path):
        return None
    told = _differences(statistics, names, roots[-1])
    if op_name(statistics.args[0]) == "aten.reshape" and rank(statistics.args[0]) != rank(value):
        told.append("the statistics are of another view of the value")
    message = ", and ".join(told) or f"no rule knows how the deviation of {describe(value)} is computed"
    return differs("norm-differs", message, "rsqrt(mean(x ** 2) + eps)", path[0], statistics)


def _is_root(node: fx.Node) -> bool:
    return op_name(node) == "aten.pow" and node.args[1] in (0.5, -0.5)


def _differences(statistics: fx.Node, names: list[str], root: int) -> list[str]:
    """What a deviation has that a norm has not, in words; `root` is the place of the first root that is taken."""
    told = _of_eps(names, root)
    values = arguments(statistics)
    if op_name(statistics) in _VARIANCES and values.get("correction") != 0 and values.get("unbiased") is not False:
        told.append("the variance is unbiased")
    dims = _dims(statistics)
    if dims != list(range(dims[0], dims[-1] + 1)):
        told.append(f"the statistics are over dims {', '.join(map(str, dims))}, which do not lie side by side")
    return told


def _of_eps(names: list[str], root: int) -> list[str]:
    if any(name in _BOUNDS for name in names):
        return ["a bound from below takes the place of the eps that a norm adds under the root"]
    if "aten.add" in names[:root]:
        return ["eps is added outside of the root"]
    if "aten.add" not in names and "aten.hypot" not in names:
        return ["no eps is added under the root, so that a deviation of zero gives NaN"]
    return []


def _meets_size(node: fx.Node, value: fx.Node, path: list[fx.Node]) -> bool:
    """Whether a factor around a length is the root of the number of elements, or may be one, being symbolic."""
    statistics = path[-1]
    sizes = [shape(statistics.args[0])[d] for d in _dims(statistics)]
    factors = [a for n in (value, *path[:-1], node, *node.users) if op_name(n) == "aten.mul" for a in n.args]
    numbers = [f for f in factors if is_number(f)]
    if not all(isinstance(s, int) for s in sizes) and any(isinstance(f, fx.Node) for f in numbers):
        return True
    count = math.prod(hint(s) or 0 for s in sizes)
    known = [float(f) for f in numbers if isinstance(f, (int, float))]
    return any(math.isclose(f * f, c, rel_tol=1e-3) for f in known for c in (count, 1 / count) if count > 1)
