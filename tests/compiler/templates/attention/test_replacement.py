"""One attention is one in reports, whoever decides on it: a rule, a template, or both."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in

import regraft
from regraft.rewrites.reason import Site
from regraft.rewrites.record import Evidence, GraphRecord, Match
from regraft.rewrites.report.overview import attentions
from regraft.rewrites.report.summary import rule_rows
from regraft.rewrites.report.text import matched_line


def written_out(q, k, v):
    return (q @ k.mT / 4).softmax(-1) @ v


def line(number):
    return Site("model.py", number, "forward", "")


class Layer(torch.nn.Module):
    def __init__(self, written_out):
        super().__init__()
        self.project, self.written_out = torch.nn.Linear(32, 96), written_out

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        attend = written_out if self.written_out else F.scaled_dot_product_attention
        return x + attend(q, k, v).transpose(1, 2).flatten(2)


@one_row_in(2)
@pytest.mark.parametrize("spelled_out", [False, True])
@pytest.mark.parametrize("profit", ["always", "never", "measured"])
def test_each_attention_counts_once(spelled_out, profit):
    torch.compiler.reset()
    model = torch.nn.Sequential(*(Layer(spelled_out) for _ in range(3))).eval()
    with regraft.coverage() as cov, torch.no_grad():
        torch.compile(model, backend="regraft", options={"profit": profit})(torch.randn(2, 24, 32))
    share = attentions(cov.graphs)
    assert share.found == 3 and share.replaced == cov.count("attention")
    assert share.replaced == {"always": 3, "never": 0}.get(profit, share.replaced)
    rows = {row.rule: row.applied + row.declined for row in cov.summary() if row.family == "attention"}
    assert max(rows.values()) == 3 == sum(rows.values())


def declined(number, times):
    return Match("sdpa", "attention", "forward", site=line(number), evidence=Evidence(times, "measured"))


def test_a_template_settles_what_a_rule_declined():
    record = GraphRecord("test")
    record.declined += [declined(7, {"original": 2.0, "flash": 3.0}), declined(7, {"original": 2.0, "flash": 3.0})]
    template = Match("attention-template", "attention", "lowered", "generated", site=line(8))
    evidence = Evidence({"original": 1.9, "generated": 1.0}, "measured")
    settled = replace(template, evidence=evidence)
    record.settle(settled, True, {line(7), line(8)}, ("attention",))
    assert record.applied[0].evidence.times == {"original": 1.9, "flash": 3.0, "generated": 1.0}
    assert record.applied[0].evidence.note == "flash: timed by sdpa before, where original took 2e+03 ms"
    assert [match.settled_by for match in record.declined] == ["attention-template", ""]
    assert len(record.open_declined) == 1
    record.settle(settled, False, {line(9)}, ("attention",))
    assert [match.rule for match in record.open_declined] == ["sdpa", "attention-template"]  # of another line
    record.settle(settled, False, {line(7)}, ("attention",))
    assert len(record.open_declined) == 2 and "generated" in record.open_declined[0].evidence.times


class Block(torch.nn.Module):
    """Projections, an attention, a projection: what stands before and after an attention in every model."""

    def __init__(self, width=32):
        super().__init__()
        self.projections = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        *projections, out = self.projections
        q, k, v = (torch.relu(p(x)).unflatten(-1, (2, 16)).transpose(1, 2) for p in projections)
        return out(written_out(q, k, v).transpose(1, 2).flatten(2))


def test_rules_still_see_what_an_attention_kernel_reads():
    torch.compiler.reset()
    options = {"profit": "always", "nan": "safe", "rules": ("linear",)}
    with regraft.coverage() as cov, torch.no_grad():
        torch.compile(Block().eval(), backend="regraft", options=options)(torch.randn(2, 24, 32))
    applied = [match.rule for graph in cov.graphs for match in graph.applied]
    assert applied.count("attention-template") == 1 and applied.count("linear") == 4


def test_what_a_rule_put_in_and_a_template_replaced_is_told():
    record = GraphRecord("test")
    record.applied += [replace(declined(n, {"original": 2.0, "math": 1.0}), candidate="math") for n in (7, 7, 9)]
    template = Match("attention-template", "attention-kernel", "lowered", "generated", site=line(7))
    record.settle(template, True, {line(7), line(8)}, ("attention",))
    assert [match.settled_by for match in record.applied] == ["attention-template", "", "", ""]
    record.settle(template, False, {line(9)}, ("attention",))
    assert [match.settled_by for match in record.applied[1:]] == ["", "", ""]
    sdpa = next(row for row in rule_rows([record]) if row.rule == "sdpa")
    assert sdpa.applied == 3 and sdpa.candidates == {"math, then attention-template": 1, "math": 2}
    assert "attention 3 (then attention-template), attention-kernel 1 applied" in matched_line([record])
