"""The numbers of the page: shares, gains, errors and the budget of compile time."""

import math

import pytest
from support.records import graph

from regraft.rewrites.record import Evidence, GraphRecord, Match, NearMiss
from regraft.rewrites.report.budget import budget
from regraft.rewrites.report.entry import Entry, Outcome
from regraft.rewrites.report.gains import dtype, error_rows, gains, on_scale, unmeasured_errors
from regraft.rewrites.report.html import duration
from regraft.rewrites.report.overview import Share, attentions, headline, hues, matrix
from regraft.rewrites.report.steps import Steps


def outcome(eager: float | None = None, compiled: float | None = None, error: float = 1e-7) -> Outcome:
    return Outcome(error, 1e-4, 2.0, eager_seconds=eager, compiled_seconds=compiled, rounds=3)


def test_an_attention_counts_once():
    assert attentions([graph(3, near_misses=[])]) == Share(3, 3)
    assert attentions([graph(3), graph(0, near_misses=[])]) == Share(3, 4)  # one nearly matched
    other = [NearMiss("sdpa_other", "attention", "c", "m", "", "", 6, 7) for _ in range(3)]
    assert attentions([graph(3, near_misses=other)]) == Share(3, 3), "what one rule missed another one matched"
    far = [NearMiss("sdpa", "attention", "c", "m", "", "", 2, 7)]
    assert attentions([graph(0, near_misses=far)]) == Share(0, 0), "a softmax is not yet an attention"


def test_the_headline():
    entries = [
        Entry("a", [graph(2)], outcome=outcome(4e-3, 2e-3)),
        Entry("b", [graph(1)], outcome=outcome(3e-3, 4e-3)),
        Entry("c", [], outcome=outcome(error=math.nan)),
    ]
    line = headline(entries)
    assert (line.rewrites, line.declined, line.near_misses, line.fallbacks) == (3, 2, 2, 2)
    assert (line.right, line.compared, line.timed, line.compile_seconds) == (2, 3, 2, 6.0)
    assert line.speed == pytest.approx(1.375) and (line.slowest, line.fastest) == (0.75, 2.0)
    nothing = headline([])
    assert nothing.speed is None and nothing.compared == 0


def test_the_matrix():
    grid = matrix([Entry("a", [graph(2)]), Entry("b", [GraphRecord("g")])])
    assert [rule.rule for rule in grid.rules] == ["sdpa", "linear"]
    (first, second) = grid.rows
    assert [cell.applied for cell in first.cells] == [2, 0] and first.cells[1].declined == 1 and first.fallbacks == 1
    assert second.cells == (None, None)


def test_each_rule_has_its_colour():
    found = hues([Entry("a", [graph(2)])])
    assert list(found) == ["sdpa", "linear"] and len(set(found.values())) == 2


def test_gains_of_one_measurement_are_one():
    first, second, third = gains([graph(12), graph(0, declined=[Match("r", "f", "forward", "x")])])
    assert (first.match.rule, first.count, first.applied) == ("sdpa", 12, True)
    assert first.gain == pytest.approx(2.0) and first.saved == pytest.approx(12e-3)
    assert [(bar.name, bar.part, bar.chosen) for bar in first.bars] == [("original", 1.0, False), ("flash", 0.5, True)]
    assert (second.match.rule, second.applied, second.gain) == ("linear", False, 1.0)
    assert second.bars[0].chosen and third.bars == () and third.gain is None, "what was not measured comes last"


def test_errors_live_or_as_timed():
    (live,) = error_rows([graph(2)])
    assert (live.rule, live.smallest, live.largest, live.count, live.live) == ("sdpa", 1e-7, 3e-7, 2, True)
    (timed,) = error_rows([graph(2, errors={})])
    assert (timed.largest, timed.count, timed.live) == (2e-7, 2, False)
    silent = graph(0, applied=[Match("sdpa", "attention", "forward", "flash", evidence=Evidence())], errors={})
    assert error_rows([silent]) == [] and unmeasured_errors([silent]) == ["sdpa"]
    (broken,) = error_rows([graph(1, errors={"sdpa": [math.nan, 1e-7]})])
    assert broken.largest == math.inf


def test_the_scale_of_errors():
    assert on_scale(0.0) == on_scale(1e-30) == 0 and on_scale(10.0) == on_scale(math.nan) == on_scale(math.inf) == 100
    assert on_scale(1e-17) < on_scale(1e-8) < on_scale(1e-4) < 100


def test_the_dtype_that_a_target_computes_in():
    assert dtype(Entry("a", [graph(2)])) == "f32"
    assert dtype(Entry("a", [], {"dtype": "bfloat16"})) == "bf16"


def test_matching_is_what_rules_spend_without_replacing():
    record = graph(1, details={"rule_seconds": {"sdpa": 0.3, "linear": 0.1}, "replace_seconds": {"sdpa": 0.2}})
    spent = budget([record])
    assert spent.total == 0.75 and spent.matching == pytest.approx(0.2) and spent.share == pytest.approx(0.2 / 0.75)
    assert dict(spent.by_rule) == pytest.approx({"linear": 0.1, "sdpa": 0.1})
    assert [stage.name for stage in spent.stages] == ["capture", "generate"]


def test_a_recalled_graph_spent_nothing():
    spent = budget([graph(1, seconds={"recall": 0.1})])
    assert spent.recalled == 1 and spent.matching == 0 and spent.total == 0.1
    assert budget([]).share == 0


def test_steps_pair_snapshots_of_one_graph():
    (step,) = Steps(1).of([graph(2)])
    assert (step.title, step.graph, step.before, step.after) == ("Rules, before autograd", "", 0, 1)
    assert step.applied == (("sdpa", 2),) and step.declined == ()
    lone = graph(2)
    lone.snapshots = lone.snapshots[:1]
    made = Steps(1)
    first, second = made.of([lone, graph(2)])
    assert first.after is None and (second.before, second.after) == (1, 2) and second.graph == "graph 2"
    assert len(made.drawings) == 3


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.34, "12.3 s"), (123.4, "123 s"), (0.0123, "12.3 ms"), (2e-6, "2 µs"), (0.0, "0 µs")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
