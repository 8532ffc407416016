"""Explanations: what is equal is told once, what came closest comes first."""

import pytest
import torch
import torch.nn.functional as F
from support.around_rules import agreement, programs, rules_named
from support.attentions import plain, qkv
from support.thorough import THOROUGH, one_row_in
from torch import nn

import regraft
from regraft import Sample, T, choose
from regraft.compiler.tools.explain.explain import explain_all
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


def test_operators_that_another_rule_replaced_are_not_called_missing():
    """A whole family is explained, and one of its rules has matched everything."""
    q, k, v = qkv()
    chosen = ("sdpa", "sdpa_with_weights")
    _, other = explain_all(chosen, plain, q, k, v)
    (miss,) = other.near_misses
    assert miss.code == "operators-replaced" and "sdpa replaced each matmul" in miss.message
    _, other = explain_all(chosen, torch.sin, q)
    assert other.near_misses[0].code == "operators-missing"


def test_alternatives_that_are_all_absent_are_told():
    def either(x, y):
        total = x + y
        return choose("way", relu=lambda: torch.relu(total), tanh=lambda: torch.exp(torch.tanh(total)))

    rule = declared(either, x=T("N"), y=T("N"), tags={"way": "relu"})
    found = regraft.explain(rule, lambda x: torch.tanh(x + x).log(), torch.randn(4))
    (miss,) = found.near_misses
    assert miss.code == "operators-missing" and "no exp or relu, without which" in miss.message
    assert "nothing in the model looks like it" not in str(found)


def test_what_later_stages_fall_back_to_hides_nothing_from_rules():
    found = regraft.explain("silu", nn.SiLU(), torch.randn(4), options={"mode": "reduce-overhead"})
    assert not found.fallbacks and "not seen" not in str(found)


def test_equal_near_misses_are_told_once():
    def twice(q, k, v):
        return torch.softmax(q @ k.mT, -2) @ v + torch.softmax(q @ k.mT, -2) @ v

    q, k, v = qkv()
    text = str(regraft.explain("sdpa", twice, q, k, v))
    assert "sdpa: 0 matched" in text and "near miss x 2" in text and "test_explain.py" in text


OVER = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


@one_row_in(2)
@pytest.mark.parametrize("name", OVER)
@pytest.mark.parametrize(("wanted", "found", "rank"), [(-1, -2, 2), (-1, 0, 3), (-2, -1, 2), (1, -1, 3), (0, 1, 3)])
def test_another_dim_is_the_closest_alternative(name, wanted, found, rank):
    """Normal form puts the dim last, between permutations, which nobody wrote."""
    sample = T(" ".join("BSN"[:rank]))
    rule = declared(lambda x: OVER[name](x, wanted) * 2.0, x=sample)
    told = regraft.explain(rule, lambda x: OVER[name](x, found) * 2.0, torch.randn(2, 3, 4)[(0,) * (3 - rank)])
    assert not told.matches and len(told.near_misses) == 1 and told.near_misses[0].is_telling
    (miss,) = told.near_misses
    last = {d % rank - rank for d in (wanted, found)}
    assert miss.code == "pattern-differs" and miss.depth >= 2, str(told)
    assert all(f"{name} over dim {d}" in miss.message for d in last), miss.message


def test_attention_over_queries_is_told_as_such():
    q, k, v = qkv()
    found = regraft.explain("sdpa", lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v, q, k, v)
    (miss,) = found.near_misses
    assert miss.expected == "softmax over dim -1" and miss.found.startswith("softmax over dim -2")


def test_a_view_between_is_named():
    rule = declared(lambda x: torch.exp(torch.tanh(x)), x=T("B N"))
    (miss,) = regraft.explain(rule, lambda x: torch.exp(torch.tanh(x).reshape(3, 2)), torch.randn(2, 3)).near_misses
    assert miss.found == "reshape of tanh: float32[2, 3]" and miss.expected == "tanh"
    rule = declared(lambda x: torch.exp(torch.tanh(x).flatten()), x=T("B N"))
    (miss,) = regraft.explain(rule, lambda x: torch.exp(torch.tanh(x)), torch.randn(2, 3)).near_misses
    assert (miss.expected, miss.found) == ("reshape of tanh", "tanh: float32[2, 3]")


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


def test_outputs_that_a_match_has_taken_are_no_near_misses():
    """The second output of a match was tried as the first one."""

    def firsts(x):
        values, places = torch.sort(x, dim=-1, descending=True)
        return values[:, :3], places[:, :3]

    rule = declared(firsts, replacement=lambda x: tuple(torch.topk(x, 3, -1)), x=T("B N"))
    found = regraft.explain(rule, firsts, torch.randn(2, 8))
    assert len(found.matches) == 1 and not found.near_misses and "replaced it" not in str(found)


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


def test_near_misses_are_counted_as_in_reports():
    """The closest place of a rule that nearly matches nowhere is shown, and is no near miss."""
    q, k, v = qkv()

    def tanh_for_softmax(q, k, v):
        return torch.tanh(q @ k.mT) @ v

    def wrong_dim(q, k, v):
        return torch.softmax(q @ k.mT * 0.5, 1) @ v

    for program in (tanh_for_softmax, wrong_dim):
        torch.compiler.reset()
        with regraft.coverage() as cov:
            torch.compile(program, backend="regraft")(q, k, v)
        counted = sum(miss.rule == "sdpa" for miss in cov.near_misses)
        text = str(regraft.explain("sdpa", program, q, k, v))
        assert f"sdpa: 0 matched, {counted} near miss" in text
        assert text.count("  near miss ") == counted and ("  closest " in text) == (counted == 0)
    assert "  nowhere   (top level)  (0 of" in str(regraft.explain("sdpa", torch.sin, q))


def test_everything_can_be_listed():
    def miss(number, depth=3, share=0.25):
        message = f"message {number}"
        return NearMiss("rule", "user", "pattern-differs", message, "exp", "sin", depth, 18, share=share)

    near, others = [miss(k) for k in range(9)], [miss(k, 1) for k in range(10, 13)]
    found = Explanation("rule", near_misses=near, others=others, graphs=1)
    told = str(found)
    assert told.startswith("rule: 0 matched, 9 near misses in 1 graph") and told.count("near miss (top level)") == 6
    assert "3 further kinds of near miss" in told and "3 places" in told and "--all" in told
    whole = found.text(everything=True)
    assert whole.count("near miss (top level)") == 9 and whole.count("place     (top level)") == 3
    assert miss(0, 2).is_telling and not miss(0, 2, 0.2).is_telling and not miss(0, 1).is_telling


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


def test_explanations_neither_end_nor_use_up_compilations():
    """Dynamo compiles a code object only a few times."""

    class Gated(nn.Module):
        def forward(self, x):
            return x * torch.sigmoid(x)

    class Method(nn.Module):
        def gated(self, x):
            return x * torch.sigmoid(x)

    def function(x):
        return x * torch.sigmoid(x)

    torch.compiler.reset()
    x = torch.randn(3)
    for model in (Gated(), function, nn.Sequential(Gated()), Method().gated):
        for _ in range(torch._dynamo.config.recompile_limit + 1):
            found = regraft.explain("silu", model, x)
            assert (len(found.matches), found.graphs) == (1, 1)
        with regraft.coverage() as cov:
            torch.compile(model, backend="regraft", options={"profit": "always"})(x)
        assert cov.matches["silu"] == 1


def test_swapped_arguments_are_named():
    with pytest.raises(TypeError, match="takes the rule first"):
        regraft.explain(plain, "sdpa", *qkv())


def test_explain_and_compile_agree_on_programs_around_rules():
    """One for each rule (in short runs, of two in four), explained alone or all at once.

    `benchmarks/explanations.py` takes 200 of each.
    """
    for number, rule in enumerate(regraft.default_rules()):
        if number % 4 in (1, 2) and not THOROUGH:
            continue
        (program,) = programs(rule, 0, 1)
        found = agreement(program, all_rules=number % 2 == 0)
        assert found.verdict in ("matched", "near miss"), (rule.name, program.change, found)


def test_a_name_of_a_rule_and_of_its_family_is_the_rule():
    assert [rule.name for rule in rules_named(["linear"])] == ["linear"]
    assert {rule.family for rule in rules_named(["attention", "gelu"])} == {"attention", "activation"}
    assert len(rules_named([])) == len(regraft.default_rules())


def test_a_family_with_the_name_of_a_rule_has_no_other():
    """So that the name means the same wherever rules and families are named."""
    rules = regraft.default_rules()
    named = {rule.name for rule in rules}
    assert not [rule.name for rule in rules if rule.family in named and rule.name != rule.family]


def test_inputs_that_are_given_as_one_tuple():
    with pytest.raises(Exception) as raised:
        regraft.explain("sdpa", plain, qkv())
    assert "explain(rule, model, *inputs)" in "".join(raised.value.__notes__)


def test_every_change_makes_programs():
    """No change is one that never finds a place, and what a program does is told."""
    told = [program.change for rule in ("gelu", "sdpa") for program in programs(regraft.default_rules()[rule], 3, 60)]
    for words in ("in spelling", "behind", "returned", "left out", "twice", "swapped", "written behind", "of result 0",
                  " as ", "dims", "alone as"):  # fmt: skip
        assert any(words in change for change in told), words


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


def test_optional_parts_tell_nothing_of_a_near_miss():
    """What is optional around the root is no part of a match; the share of what is required does not move with it."""
    from regraft import optional

    def short(x, w):
        return torch.matmul(torch.softmax(torch.cos(x), -1), w)

    def long(x, w):
        y = optional("sin", torch.cos(x), torch.sin)
        y = optional("exp", optional("erf", y, torch.erf), torch.exp)
        return torch.matmul(optional("dropout", torch.softmax(y, -1), lambda p: F.dropout(p, 0.1, True)), w)

    def told(pattern, program):
        tags = {"tags": {"sin": "no", "exp": "no", "erf": "no", "dropout": "no"}} if pattern is long else {}
        rule = declared(pattern, x=T("B N"), w=T("N M"), **tags)
        found = regraft.explain(rule, program, torch.randn(3, 4), torch.randn(4, 5))
        assert not found.matches
        return sum(miss.is_telling for miss in (*found.near_misses, *found.others))

    def dropped(x, w):
        return torch.matmul(F.dropout(torch.relu(torch.cos(x)), 0.1, True), w), torch.softmax(x, -1)

    def nearly(x, w):
        return torch.matmul(torch.softmax(torch.tan(x), -1), w), torch.cos(x)

    with torch.no_grad():
        assert told(short, nearly) == told(long, nearly) == 1
        assert told(long, dropped) == told(short, dropped) == 0


def test_a_rule_that_fails_is_told_of_that_rule_alone():
    def asks(x):
        raise KeyError("nothing")

    rules._declared.pop("fails", None)
    fails = regraft.register_pattern("fails", replacement=torch.sin, samples=[Sample(x=T("... N"))], guards=[asks])(
        lambda x: torch.sin(torch.sin(x))
    )
    other = declared(lambda x: torch.cos(torch.cos(x)), x=T("... N"))
    options = {"rules": (fails, other), "profit": "always"}
    told = {
        rule.name: str(regraft.explain(rule, lambda x: torch.sin(torch.sin(x)), torch.randn(3), options=options))
        for rule in (fails, other)
    }
    assert "failed    rule-failed: rule fails, guard asks(), failed: KeyError: 'nothing'" in told["fails"]
    assert "looks like it" not in told["fails"] and "see     /" in told["fails"]
    assert "rule fails" not in told[other.name]


def test_a_sink_as_a_gate_is_explained():
    """As Granite writes it: sigmoid(logsumexp(scores) - sink) scales the result."""

    def gated(q, k, v, sink):
        scores = q @ k.mT * 0.3
        gate = torch.sigmoid(torch.logsumexp(scores, -1, keepdim=True) - sink)
        return torch.softmax(scores, -1) @ v * gate

    q, k, v = qkv()
    with torch.no_grad():
        told = str(regraft.explain("sdpa", gated, q, k, v, torch.randn(())))
    assert "is also used by logsumexp" in told and "write a sink as one more column" in told
    assert "output_attentions" not in told


@pytest.mark.parametrize("eps", [1e-6, 1.0])
def test_a_number_beside_the_sum_of_shifted_exponents_is_explained(eps):
    def divided(q, k, v):
        scores = q @ k.mT * 0.3
        e = torch.exp(scores - scores.amax(-1, keepdim=True))
        return e / (e.sum(-1, keepdim=True) + eps) @ v

    torch._dynamo.reset()  # else a number that differs between calls is no constant
    with torch.no_grad():
        told = str(regraft.explain("sdpa", divided, *qkv()))
    assert "is also used by amax" in told and "or divide by the sum alone" in told
