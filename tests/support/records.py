"""Records of graphs as a compiler might have made them, for tests of reports."""

from regraft.rewrites.reason import Site
from regraft.rewrites.record import (
    Evidence,
    Fallback,
    GraphRecord,
    Match,
    NearMiss,
    Region,
    Snapshot,
    SnapshotNode,
)

SOFTMAX = Site("pkg/models/bert.py", 128, "attend", "scores = torch.matmul(q, k.mT) * scale")
DENSE = Site("pkg/models/bert.py", 320, "forward", "x = self.dense(x)")


def attention(layer: int = 0, original: float = 2e-3, flash: float = 1e-3) -> Match:
    evidence = Evidence({"original": original, "flash": flash}, "measured", errors={"flash": 2e-7})
    return Match(
        "sdpa",
        "attention",
        "forward",
        "flash",
        ("scale", "mask:bias"),
        ("softmax",),
        SOFTMAX,
        f"layer.{layer}",
        evidence,
    )


def declined_linear() -> Match:
    evidence = Evidence({"original": 1e-3, "onednn": 1.1e-3}, "cache", "saves 0% and not 3%")
    return Match("linear", "linear", "lowered", site=DENSE, evidence=evidence)


def escape(layer: int = 0) -> NearMiss:
    return NearMiss(
        "sdpa", "attention", "inner-value-escapes", "softmax is used elsewhere", "no other user", "output[1] <b>", 6, 7,
        SOFTMAX, SOFTMAX, f"layer.{layer}",
    )  # fmt: skip


def snapshots(layers: int = 2) -> list[Snapshot]:
    """A program of `layers` attentions before and after `attention` was applied to each; an input and a weight."""
    return [_snapshot(layers, ("matmul", "softmax", "matmul"), ""), _snapshot(layers, ("sdpa",), "sdpa")]


def _snapshot(layers: int, ops: tuple[str, ...], rule: str) -> Snapshot:
    nodes = [SnapshotNode("x", "placeholder", (), "f32[1, 128]"), SnapshotNode("w", "placeholder", (), "f32[8, 8]")]
    regions = []
    for layer in range(layers):
        first = len(nodes)
        for op in ("linear", *ops, "add", "relu"):
            reads = (len(nodes) - 1 if len(nodes) > 2 else 0, *([1] if op == "linear" else []))
            kind = "f32[1, 128]" if op != "softmax" else "f32[1, <128>]"
            name = f"{op}_{len(nodes)}"
            nodes.append(SnapshotNode(name, f"aten.{op}", reads, kind, 0, 0, rule if op in ops else ""))
        regions.append(Region("applied", layer, tuple(range(first + 1, first + 1 + len(ops)))))
    nodes.append(SnapshotNode("output", "output", (len(nodes) - 1,)))
    stage = "rewrite-forward" if rule else "capture"
    return Snapshot("program", stage, tuple(nodes), (SOFTMAX,), ("L['self'].layer.0",), () if rule else tuple(regions))


def graph(layers: int = 2, **changes) -> GraphRecord:
    """`layers` attentions applied, one linear declined, one near miss and one fallback."""
    facts = {
        "applied": [attention(layer) for layer in range(layers)],
        "declined": [declined_linear()],
        "near_misses": [escape()],
        "fallbacks": [Fallback("capture", "data-dependent", "nonzero has a size that depends on data", DENSE)],
        "seconds": {"capture": 0.5, "generate": 0.25},
        "errors": {"sdpa": [1e-7, 3e-7]},
        "snapshots": snapshots(layers),
        "details": {"rule_seconds": {"sdpa": 0.02}, "source:inference": "def call(x):\n    return x\n"},
    }
    return GraphRecord("graph_0", **(facts | changes))
