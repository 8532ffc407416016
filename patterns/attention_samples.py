"""Samples of the attention rules for their property tests, and near misses by reason."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..rewrites.sample import Sample, T

_QKV = {"query": T("B H S D"), "key_t": T("B H D T"), "value": T("B H T E")}
_BIAS, _KEEP = T("B 1 S T", values="mask"), T("B 1 S T", values="bool")
# Kernels add masks: a key that only some queries see must be finite (`Attention.seen_keys`).
_SEEN_BY_SOME: dict[str, Any] = {"keep": _KEEP, "key_t": T("B H D T", values="finite")}
_SEEN_IN_ROWS: dict[str, Any] = _SEEN_BY_SOME | {"keep": T("S T", values="bool")}
_PADDING = T("B 1 1 T", values="bool")
_SINK = T("B H S 1")
# If all scores of a row are -inf and the fill is a number, hidden keys have all of the weight.
_LOWEST: dict[str, Any] = _SEEN_BY_SOME | {
    "query": T("B H S D", values="finite"), "fill": torch.finfo(torch.float32).min,
}  # fmt: skip
_CAPPED: dict[str, Any] = {"softcap": "yes", "cap": 2.0}
_PLAIN = {
    "cast": "no",
    "scale": "no",
    "softcap": "no",
    "mask": "none",
    "upcast": "no",
    "sink": "no",
    "softmax": "same",
    "downcast": "no",
    "dropout": "no",
    "recast": "no",
}


def _sample(refused: str = "", **given: Any) -> Sample:
    tags = {k: v for k, v in given.items() if k in _PLAIN}
    operands = {k: v for k, v in given.items() if k not in _PLAIN}
    number = {"scale_by": "scale", "sink_score": "sink"}
    operands = {number.get(k, k): v for k, v in operands.items()}
    return Sample(tags=_PLAIN | tags, refused=refused, **(_QKV | operands))


SAMPLES: tuple[Sample, ...] = (
    _sample(),
    _sample(scale="number", scale_by=0.3),
    _sample(scale="number", scale_by=T("", values="positive")),
    _sample(scale="rows", row_scale=T("H 1 1", values="positive")),
    _sample(scale="rows", row_scale=T("", dtype=torch.int64)),
    _sample(scale="number", scale_by=0.25, mask="bias", bias=_BIAS),
    _sample(mask="bias", bias=T("S T")),
    _sample(scale="number", scale_by=0.25, mask="where", **_SEEN_BY_SOME, fill=-math.inf),
    _sample(mask="where", keep=_PADDING, fill=-math.inf),
    _sample(mask="where", **_LOWEST),
    _sample(mask="where", keep=_KEEP, fill=T("")),
    _sample(mask="bias_where", keep=_KEEP, fill=T(""), bias=T("H S T"), scale="number", scale_by=0.3),
    _sample(mask="where_bias", **_SEEN_IN_ROWS, fill=-math.inf, bias=T("B 1 1 T", values="mask")),
    _sample(mask="bias_where", **_SEEN_BY_SOME, fill=-math.inf, bias=T("H S T")),
    _sample(query=T("B S D"), key_t=T("B D T"), value=T("B T E"), scale="number", scale_by=0.5),
    _sample(query=T("2 B H S D"), key_t=T("2 B H D T"), value=T("2 B H T E"), mask="bias", bias=T("B 1 S T")),
    _sample(key_t=T("B 1 D T"), value=T("B 1 T E")),
    _sample(scale="number", scale_by=0.25, dropout="yes", p=0.2),
    _sample(scale="number", scale_by=0.3, **_CAPPED),
    _sample(mask="bias", bias=_BIAS, **_CAPPED),
    _sample(mask="where", **_SEEN_BY_SOME, fill=-math.inf, **_CAPPED | {"softcap": "biased", "inner": T("H S T")}),
    _sample(sink="yes", sink_score=_SINK),
    _sample(scale="number", scale_by=0.3, mask="where", **_SEEN_BY_SOME, fill=-math.inf, sink="yes", sink_score=_SINK),
    _sample(scale="number", scale_by=0.3, softmax="safe"),
    _sample(mask="factor_bias", factor=T("S T", values="positive"), bias=_BIAS),
)


def _wanting_weights(which: str, **given: Any) -> Sample:
    sample = _sample(**given)
    return Sample(tags=sample.tags | {"weights": which}, refused=sample.refused, **sample.operands)


WEIGHTS_SAMPLES = (
    _wanting_weights("dropped"),
    _wanting_weights("whole", scale="number", scale_by=0.3),
    _wanting_weights("dropped", mask="bias", bias=_BIAS),
    _wanting_weights("dropped", mask="where", keep=_KEEP, fill=-math.inf),
    _wanting_weights("whole", mask="where", keep=_KEEP, fill=T("")),
    _wanting_weights("dropped", sink="yes", sink_score=_SINK, **_CAPPED),
    _wanting_weights("dropped", dropout="yes", p=0.2),
    _wanting_weights("whole", dropout="yes", p=0.2),
)

# -- near misses

_WHOLE = torch.int64
_WHOLE_QKV = {name: T(operand.dims, dtype=_WHOLE) for name, operand in _QKV.items()}

REFUSED = (
    _sample("dims-differ", query=T("D"), key_t=T("D T"), value=T("T E")),
    _sample("dims-differ", key_t=T("D"), value=T("S E")),
    _sample("dims-differ", value=T("T")),
    _sample("dtype-not-floating", **_WHOLE_QKV | {"value": T("B H T E")}, softmax="fp32"),
    _sample("mask-shape", query=T("B H 1 D"), mask="bias", bias=_BIAS),
    _sample("mask-shape", query=T("B H 1 D"), mask="where", keep=_KEEP, fill=-math.inf),
    _sample("mask-shape", query=T("B H 1 D"), scale="rows", row_scale=T("S 1", values="positive")),
    _sample("bias-not-floating", mask="bias", bias=T("S T", dtype=_WHOLE)),
    _sample("fill-not-a-mask", mask="where", keep=_KEEP, fill=-5.0),
    _sample("fill-not-a-mask", mask="where_bias", keep=_KEEP, fill=-1e5, bias=T("S T")),
    _sample("fill-not-a-mask", mask="where_bias", keep=_KEEP, fill=T(""), bias=T("S T")),
    _sample("scale-varies-along-keys", scale="rows", row_scale=T("H 1 T", values="positive")),
    _sample("rows-may-be-empty", mask="where", keep=_KEEP, fill=-math.inf, softmax="safe"),
    _sample("sink-not-a-column", sink="yes", sink_score=T("B H S 2"), value=T("B H 8 E")),
)
WEIGHTS_REFUSED = tuple(
    Sample(tags=sample.tags | {"weights": "dropped"}, refused=sample.refused, **sample.operands) for sample in REFUSED
)
