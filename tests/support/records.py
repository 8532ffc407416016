"""Records of graphs as a compiler might have made them, for tests of reports."""

from regraft.rewrites.reason import Site
from regraft.rewrites.record import Evidence, Fallback, GraphRecord, Match, NearMiss

SOFTMAX = Site("pkg/models/bert.py", 128, "attend", "scores = torch.matmul(q, k.mT) * scale")
DENSE = Site("pkg/models/bert.py", 320, "forward", "x = self.dense(x)")


def attention(layer: int = 0, original: float = 2e-3, flash: float = 1e-3) -> Match:
    evidence = Evidence({"original": original, "flash": flash}, "measured")
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


def graph(layers: int = 2, **changes) -> GraphRecord:
    """`layers` attentions applied, one linear declined, one near miss and one fallback."""
    facts = {
        "applied": [attention(layer) for layer in range(layers)],
        "declined": [declined_linear()],
        "near_misses": [escape()],
        "fallbacks": [Fallback("capture", "data-dependent", "nonzero has a size that depends on data", DENSE)],
        "seconds": {"capture": 0.5, "generate": 0.25},
        "errors": {"sdpa": [1e-7, 3e-7]},
        "details": {"rule_seconds": {"sdpa": 0.02}, "source:inference": "def call(x):\n    return x\n"},
    }
    return GraphRecord("graph_0", **(facts | changes))
