"""Ten ways to write attention, in normal form: `golden/texts.txt`."""

from support.attentions import SPELLINGS
from support.golden import with_pinned_torch
from support.normal import normalized, text, traced

NAMES = [
    "plain", "scale on key", "einsum", "exp and sum by hand", "additive mask after scale", "masked_fill (S, T)",
    "where (S, T)", "3-D bmm", "baddbmm with mask", "GQA repeat_interleave",
]  # fmt: skip


@with_pinned_torch
def test_normal_forms(golden):
    forms = {}
    for name in NAMES:
        function, inputs = SPELLINGS[name]
        forms[name] = text(normalized(traced(function, *inputs)).graph)
    golden.check(forms)
