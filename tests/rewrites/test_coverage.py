import json
import threading
from collections import Counter

import pytest
from support.records import graph

import regraft
from regraft.rewrites.coverage import Coverage, publish
from regraft.rewrites.record import GraphRecord
from regraft.rewrites.report.document import ReportError


def covered(*graphs: GraphRecord) -> Coverage:
    with regraft.coverage() as cov:
        for record in graphs:
            publish(record)
    return cov


def test_collects_what_is_published_while_open():
    publish(graph())
    cov = covered(graph(2), graph(3))
    publish(graph())
    assert [len(record.applied) for record in cov.graphs] == [2, 3]


def test_counts_by_rule_and_by_family():
    cov = covered(graph(2), graph(3))
    assert cov.matches == Counter({"sdpa": 5})
    assert cov.matches["linear"] == 0
    assert cov.count("sdpa") == cov.count("attention") == 5
    assert cov.count("linear") == 0, "declined matches stand apart"
    assert [match.rule for match in cov.declined] == ["linear", "linear"]
    assert len(cov.near_misses) == len(cov.fallbacks) == 2


def test_blocks_nest():
    with regraft.coverage() as outer:
        publish(graph())
        with regraft.coverage() as inner:
            publish(graph())
        publish(graph())
    assert (len(outer.graphs), len(inner.graphs)) == (3, 1)


def test_works_by_hand_and_without_exit():
    block = regraft.coverage()
    report = block.__enter__()
    try:
        assert report.count("attention") == 0
        publish(graph(4))
        assert report.count("attention") == 4
    finally:
        block.__exit__(None, None, None)


def test_may_be_opened_again_but_not_twice_at_once():
    cov = covered(graph())
    with cov, pytest.raises(RuntimeError, match="open already"):
        cov.__enter__()
    with cov:
        publish(graph())
    assert len(cov.graphs) == 2


def test_closes_on_errors():
    cov = regraft.coverage()
    with pytest.raises(KeyError), cov:
        raise KeyError
    publish(graph())
    assert not cov.graphs


def test_other_threads_are_seen():
    with regraft.coverage() as cov:
        threads = [threading.Thread(target=lambda: [publish(graph(1)) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert cov.count("attention") == 200


def test_sees_what_is_added_to_a_record_later():
    record = GraphRecord("lazy")
    cov = covered(record)
    record.applied += graph(1).applied
    assert cov.count("attention") == 1


def test_summary():
    first, second = covered(graph(2), graph(1)).summary()
    assert (first.rule, first.family, first.applied, first.declined) == ("sdpa", "attention", 3, 0)
    assert first.near_misses == {"inner-value-escapes": 2}
    assert first.gain == pytest.approx(2.0)
    assert first.seconds == pytest.approx(0.04)
    assert first.error == pytest.approx(3e-7)
    assert (second.rule, second.applied, second.declined, second.legal, second.gain) == ("linear", 0, 2, 2, None)


def test_json_round_trip():
    cov = covered(graph(2), graph(1, errors={"sdpa": [float("inf"), float("nan")]}))
    data = json.loads(json.dumps(cov.to_json(), allow_nan=False))
    back = Coverage.from_json(data)
    assert back.graphs[0] == cov.graphs[0]
    assert repr(back.graphs) == repr(cov.graphs), "also what is not equal to itself"
    assert back.to_json() == cov.to_json()


def test_environment_is_that_of_the_run_not_of_the_reader():
    data = covered(graph()).to_json()
    assert set(data["environment"]) == {"regraft", "torch", "python", "device", "cpu", "threads"}
    data["environment"]["cpu"] = "another"
    assert Coverage.from_json(data).to_json()["environment"]["cpu"] == "another"


@pytest.mark.parametrize("damage", [{"schema": "x"}, {"version": 99}, {"targets": [{}]}, {"targets": 3}])
def test_no_report(damage):
    with pytest.raises(ReportError):
        Coverage.from_json(regraft.coverage().to_json() | damage)


def test_write_by_suffix(tmp_path):
    cov = covered(graph())
    page = cov.write(tmp_path / "coverage.html").read_text()
    assert page.lstrip().startswith("<!doctype html>")
    assert Coverage.from_json(json.loads(cov.write(tmp_path / "coverage.json").read_text())).graphs == cov.graphs
    with pytest.raises(ReportError, match=r"\.json or \.html"):
        cov.write(tmp_path / "coverage.txt")


def test_as_text():
    text = str(covered(graph(2)))
    assert "sdpa" in text and "2.00x" in text and "3.0e-07" in text
    assert "1 inner-value-escapes" in text and "no other user" in text and "models/bert.py:128" in text
    assert "original 1 ms, onednn 1.1 ms (cache)" in text
    assert "data-dependent" in text
    assert "\x1b" not in text, "no colours"
    assert "No graph" in str(regraft.coverage())
    assert "no rule matched" in str(covered(GraphRecord("empty")))
    assert repr(covered(graph(2))) == "<regraft.Coverage: 1 graph, 2 matches applied>"


def test_a_misspelt_name_is_counted_with_a_warning(recwarn):
    """A name that is nearly that of a rule; a pass, another family, and an empty block have none."""
    assert regraft.default_rules()  # declared
    cov = Coverage()
    assert cov.count("sdap") == 0 and not recwarn
    cov.graphs.append(GraphRecord("one"))
    for name in ("sdpa", "attention", "attention-template", "channels_last", "my_rule"):
        assert cov.count(name) == 0 and not recwarn, name
    with pytest.warns(UserWarning, match="no rule and no family is named 'atention'; did you mean 'attention'"):
        assert cov.count("atention") == 0
