"""Records as JSON and back. What JSON cannot say (infinity, NaN) is written as text, so that any reader can load it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ..reason import Site
from ..record import (
    Code,
    Evidence,
    Fallback,
    GraphRecord,
    KeptCall,
    Match,
    NearMiss,
    PassRun,
    Refusal,
    Region,
    Snapshot,
    SnapshotNode,
)


def encode(value: Any) -> Any:
    """Plain data for `json.dump`: dataclasses become objects, tuples lists, other things their text."""
    if isinstance(value, SnapshotNode):
        return _node_line(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def decode_graph(data: Mapping[str, Any]) -> GraphRecord:
    """The inverse of `encode` for one graph; `details` come back as plain data."""
    return GraphRecord(
        name=data["name"],
        kind=data["kind"],
        nodes=data["nodes"],
        applied=[_match(item) for item in data["applied"]],
        declined=[_match(item) for item in data["declined"]],
        near_misses=[_near_miss(item) for item in data["near_misses"]],
        fallbacks=[_fallback(item) for item in data["fallbacks"]],
        passes=[_pass_run(item) for item in data.get("passes", [])],
        code=[_code(item) for item in data.get("code", [])],
        seconds=dict(data["seconds"]),
        errors={rule: [float(error) for error in errors] for rule, errors in data["errors"].items()},
        snapshots=[_snapshot(item) for item in data.get("snapshots", [])],
        details=dict(data["details"]),
    )


def _node_line(node: SnapshotNode) -> str:
    """A node as one line of fields between tabs: there are thousands."""
    inputs = ",".join(map(str, node.inputs))
    return "\t".join([node.name, node.op, inputs, node.type, str(node.site), str(node.module), node.rule])


def _node(line: str) -> SnapshotNode:
    name, op, inputs, kind, site, module, rule = line.split("\t")
    reads = tuple(map(int, inputs.split(","))) if inputs else ()
    return SnapshotNode(name, op, reads, kind, int(site), int(module), rule)


def _snapshot(data: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        data["graph"],
        data["stage"],
        nodes=tuple(map(_node, data["nodes"])),
        sites=tuple(Site(**site) for site in data["sites"]),
        modules=tuple(data["modules"]),
        regions=tuple(Region(r["kind"], r["index"], tuple(r["nodes"])) for r in data["regions"]),
    )


def _match(data: Mapping[str, Any]) -> Match:
    evidence = None if data["evidence"] is None else _evidence(data["evidence"])
    changed = {"tags": tuple(data["tags"]), "nodes": tuple(data["nodes"])}
    return Match(**{**data, **changed, "site": _site(data["site"]), "evidence": evidence})


def _evidence(data: Mapping[str, Any]) -> Evidence:
    numbers = {key: {name: float(x) for name, x in data.get(key, {}).items()} for key in ("times", "errors")}
    return Evidence(**{**data, **numbers})


def _near_miss(data: Mapping[str, Any]) -> NearMiss:
    return NearMiss(**{**data, "site": _site(data["site"]), "root": _site(data["root"])})


def _pass_run(data: Mapping[str, Any]) -> PassRun:
    refusals = tuple(Refusal(**{**item, "site": _site(item["site"])}) for item in data.get("refusals", ()))
    return PassRun(**{**data, "refusals": refusals})


def _fallback(data: Mapping[str, Any]) -> Fallback:
    return Fallback(**{**data, "site": _site(data["site"])})


def _code(data: Mapping[str, Any]) -> Code:
    return Code(**{**data, "kept": tuple(KeptCall(**call) for call in data["kept"])})


def _site(data: Mapping[str, Any] | None) -> Site | None:
    return None if data is None else Site(**data)
