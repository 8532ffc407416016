import pytest
from support.records import attention, declined_linear, graph

from regraft.rewrites.diff import compare
from regraft.rewrites.record import Fallback
from regraft.rewrites.report.document import Report
from regraft.rewrites.report.entry import Entry, Outcome


def report(*graphs, name="hf:bert", outcome=None) -> Report:
    return Report([Entry(name, list(graphs), outcome=outcome)], {})


def test_equal_reports():
    diff = compare(report(graph()), report(graph()))
    assert diff.exit_code == 0 and str(diff) == "no difference"


def test_a_rule_that_matches_less():
    diff = compare(report(graph(12)), report(graph(11)))
    assert diff.exit_code == 1
    assert str(diff) == "worse   hf:bert: legal matches of sdpa: 12 -> 11"


def test_a_rule_that_matches_no_more():
    (change,) = compare(report(graph(2)), report(graph(0, near_misses=[]))).regressions
    assert (change.what, change.old, change.new) == ("legal matches of sdpa", 2, 0)


def test_declining_a_match_is_no_regression():
    def linear(*, applied: bool):
        match = declined_linear()
        return graph(0, applied=[match] if applied else [], declined=[] if applied else [match])

    assert compare(report(linear(applied=True)), report(linear(applied=False))).exit_code == 0


def test_more_matches_are_better():
    diff = compare(report(graph(1)), report(graph(2)))
    assert diff.exit_code == 0 and str(diff) == "better  hf:bert: legal matches of sdpa: 1 -> 2"


def test_a_new_fallback():
    new = graph(fallbacks=[*graph().fallbacks, Fallback("rewrite", "rule-loops", "...")])
    assert [c.what for c in compare(report(graph()), report(new)).regressions] == ["fallback rewrite/rule-loops"]
    assert compare(report(new), report(graph())).exit_code == 0


def test_a_target_that_is_gone():
    two = Report([*report(graph()).entries, *report(graph(), name="hf:vit").entries], {})
    assert [c.target for c in compare(two, report(graph())).regressions] == ["hf:vit"]
    assert compare(report(graph()), two).exit_code == 0


@pytest.mark.parametrize(("old", "new", "code"), [(0.0, 1.0, 1), (1.0, 0.0, 0), (0.0, 0.0, 0)])
def test_results_that_became_wrong(old, new, code):
    def with_error(error: float) -> Report:
        return report(graph(), outcome=Outcome(error=error, tolerance=0.5, compile_seconds=1.0))

    assert compare(with_error(old), with_error(new)).exit_code == code


def test_matches_are_summed_over_the_graphs_of_a_target():
    split = [graph(0, applied=[attention()]), graph(0, applied=[attention(), attention()], declined=[], fallbacks=[])]
    assert compare(report(graph(3)), report(*split)).exit_code == 0
