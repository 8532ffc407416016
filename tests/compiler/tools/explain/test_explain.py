"""Explanations: what is equal is told once, what came closest comes first."""

import random

import pytest
import torch
import torch.nn.functional as F
from support.around_rules import agreement, programs
from support.attentions import plain, qkv
from torch import nn

import regraft
from regraft import Sample, T
from regraft.compiler.tools.explain.explanation import Explanation
from regraft.rewrites import rule as rules
from regraft.rewrites.record import NearMiss


class Layers(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = torch.softmax(y @ y.transpose(-2, -1), -1) @ y
        return x


def test_equal_matches_are_told_once():
    text = str(regraft.explain("sdpa", Layers(3), torch.randn(2, 4, 5, 8)))
    assert text.startswith("sdpa: 3 matched, 0 near misses in 1 graph\n  looks for softmax(query @ key_t")
    assert text.count("matched   x 3") == 1 and text.count("test_explain.py") == 1


def test_equal_near_misses_are_told_once():
    def twice(q, k, v):
        return torch.softmax(q @ k.mT, -2) @ v + torch.softmax(q @ k.mT, -2) @ v

    q, k, v = qkv()
    text = str(regraft.explain("sdpa", twice, q, k, v))
    assert "sdpa: 0 matched" in text and "near miss x 2" in text and "test_explain.py" in text


def test_nothing_alike():
    text = str(regraft.explain("gelu_tanh", plain, *qkv()))
    assert "gelu_tanh: 0 matched" in text and "operators-missing" in text


def declared(pattern, name="explained", replacement=None, **operands):
    rules._declared.pop(name, None)
    sample = Sample(**operands)
    return regraft.register_pattern(name, replacement=replacement or pattern, samples=[sample])(pattern)


def test_an_argument_more_is_a_near_miss():
    torch._dynamo.reset()  # the sizes that other tests have had are not known
    rule = declared(lambda x, w: F.silu(F.linear(x, w)), x=T("B D"), w=T("N D"))
    with torch.no_grad():
        found = regraft.explain(rule, nn.Sequential(nn.Linear(8, 6), nn.SiLU()), torch.randn(2, 8))
    (miss,) = found.near_misses
    assert (miss.depth, miss.size, miss.expected) == (2, 3, "linear with bias=None")
    assert "root      silu: float32[2, 6]" in str(found)


def test_one_output_of_two_is_a_near_miss():
    rule = declared(lambda x: (torch.sin(x) * 2, torch.cos(x) * 2), x=T("B N"))
    found = regraft.explain(rule, lambda x: (torch.sin(x) * 2, x.cos()), torch.randn(2, 8))
    (miss,) = found.near_misses
    assert miss.code == "output-missing" and "mul(cos(x), 2)" in miss.expected


def test_rules_run_together():
    """A rule whose input another one makes is found, and what another one took is told."""
    first = declared(lambda x: torch.sin(x) * 2, "first", lambda x: torch.tanh(torch.exp(x)), x=T("B N"))
    second = declared(lambda x: torch.tanh(torch.exp(x)), "second", lambda x: torch.erf(x), x=T("B N"))
    inner = declared(lambda x: torch.relu(torch.cos(x)) * 2, "inner", x=T("B N"))
    with torch.no_grad():
        both = {"rules": (first, second), "profit": "always"}
        assert len(regraft.explain(second, lambda x: torch.sin(x) * 2, torch.randn(2, 3), options=both).matches) == 1
        taken = regraft.explain(inner, lambda x: torch.sin(x) * 2, torch.randn(2, 3), options={"rules": (first, inner)})
    assert not taken.matches and "replaced it" not in str(taken)  # nothing of it matched: that is no near miss


def test_advice_is_the_rules_own():
    def function(x):
        y = torch.relu(x)
        return torch.sin(y), y

    rule = declared(lambda x: torch.sin(torch.relu(x)), x=T("B N"))
    assert "escapes" in str(regraft.explain(rule, function, torch.randn(2, 3)))
    assert "output_attentions" not in str(regraft.explain(rule, function, torch.randn(2, 3)))


def test_everything_can_be_listed():
    def miss(number, depth=3):
        return NearMiss("rule", "user", "pattern-differs", f"message {number}", "exp", "sin", depth, 18)

    near, others = [miss(k) for k in range(9)], [miss(k, 1) for k in range(10, 13)]
    found = Explanation("rule", near_misses=near, others=others, graphs=1)
    told = str(found)
    assert told.startswith("rule: 0 matched, 9 near misses in 1 graph") and told.count("near miss (top level)") == 6
    assert "3 further kinds of near miss" in told and "3 places" in told and "--all" in told
    assert found.text(everything=True).count("near miss (top level)") == 12
    assert not miss(0, 2).is_telling and miss(0, 3).is_telling  # 2 of 18 is chance


def test_a_match_is_told_at_its_root():
    def function(q, k, v):
        scores = q @ k.transpose(-2, -1)
        weights = torch.softmax(scores * 0.5, -1)
        out = weights @ v
        out = out.transpose(1, 2)
        return out.reshape(out.shape[0], out.shape[1], -1)

    found = regraft.explain("sdpa", function, *qkv())
    assert "out = weights @ v" in str(found.matches[0].site) and "root    matmul: float32" in str(found)
    (text,) = [text for name, text in found.normal.items() if name.endswith("forward")]
    assert "softmax(" in text and "test_explain.py" in text


def test_swapped_arguments_are_named():
    with pytest.raises(TypeError, match="takes the rule first"):
        regraft.explain(plain, "sdpa", *qkv())


def test_explain_and_compile_agree_on_programs_around_rules():
    """A sample; `benchmarks/explanations.py` takes 200."""
    for program in programs(random.Random(0), 5):
        assert agreement(program) is None


def test_a_rule_that_another_one_forestalls_is_told_so():
    @regraft.register_pattern(
        "forestalled_silu", replacement=lambda x: F.silu(x), samples=[Sample(x=T("... N"))], profitable=True
    )
    def forestalled(x):
        return x * torch.sigmoid(x)

    options = {"rules": ("default", forestalled), "profit": "always"}
    found = regraft.explain(forestalled, lambda x: x * torch.sigmoid(x) + 1.0, torch.randn(3, 4), options=options)
    (miss,) = found.near_misses
    assert not found.matches and (miss.code, miss.taken_by, miss.depth) == ("taken", "silu", 2)
    assert "rule silu replaced these operators before its turn" in str(found) and "option `without`" in str(found)
    options["rules"] = (forestalled, "default")
    assert len(regraft.explain("forestalled_silu", torch.nn.SiLU(), torch.randn(3), options=options).matches) == 0
    assert len(regraft.explain(forestalled, lambda x: x * x.sigmoid(), torch.randn(3), options=options).matches) == 1
