import json
import re
from dataclasses import replace

import pytest
from support.records import SOFTMAX, attention, escape, graph

from regraft.rewrites.record import Evidence, GraphRecord, Match
from regraft.rewrites.report.document import Report, ReportError
from regraft.rewrites.report.entry import Entry, Outcome
from regraft.rewrites.report.html import render
from regraft.rewrites.report.summary import (
    declined_groups,
    frozen_line,
    layout_line,
    miss_groups,
    rule_rows,
    stage_seconds,
)
from regraft.rewrites.report.text import SHOWN, evidence_line, place, plain, report_view
from regraft.rewrites.report.timing import BUSY, plus_minus, spread

ENVIRONMENT = {"torch": "2.13", "cpu": "some <cpu>"}
RIGHT = Outcome(error=2e-7, tolerance=1e-4, compile_seconds=3.0, eager_seconds=0.2, compiled_seconds=0.1, rounds=9,
                eager_spread=0.03, compiled_spread=0.002)  # fmt: skip
WRONG = Outcome(error=2e-7, tolerance=1e-4, compile_seconds=3.0, gradient_error=float("nan"))


def report(*outcomes: Outcome | None) -> Report:
    return Report(
        [Entry("hf:bert", [graph(2)], {"mask": "", "layers": "2"}, outcome) for outcome in outcomes], ENVIRONMENT
    )


def test_outcome():
    assert RIGHT.right and RIGHT.speed == pytest.approx(2.0)
    assert not WRONG.right and WRONG.speed is None
    assert not Outcome(error=float("nan"), tolerance=1.0, compile_seconds=0).right
    assert report(RIGHT, None).right and not report(RIGHT, WRONG).right


def test_label_reads_like_the_command_line():
    assert report(None).entries[0].label == "hf:bert --layers 2 --mask"
    assert Entry().label == "coverage"


def test_equal_layers_are_grouped():
    twelve = graph(0, near_misses=[escape(layer) for layer in range(12)])
    (group,) = miss_groups([twelve])
    assert group.count == 12 and group.first == escape(0)
    assert [g.count for g in declined_groups([graph(), graph()])] == [2]


def test_closest_near_misses_come_first():
    def near(depth: int, rule: str):
        return type(escape())(rule, "f", "c", "m", "", "", depth, 10, SOFTMAX)

    record = GraphRecord("g", near_misses=[near(2, "far"), near(9, "close"), near(5, "middle")])
    assert [group.first.rule for group in miss_groups([record])] == ["close", "middle", "far"]


def test_gain_is_the_median_of_what_was_measured():
    matches = [attention(original=speed * 1e-3, flash=1e-3) for speed in (1, 2, 30)]
    matches.append(Match("sdpa", "attention", "forward", "flash", evidence=Evidence(note="always")))
    (row, *_) = rule_rows([graph(0, applied=matches, declined=[])])
    assert row.gain == pytest.approx(2.0) and row.applied == 4


def test_stage_seconds_add_up_in_order():
    assert list(stage_seconds([graph(), graph()]).items()) == [("capture", 1.0), ("generate", 0.5)]


def test_text_answers_the_three_questions():
    text = plain(report_view(report(RIGHT, WRONG).entries, ENVIRONMENT))
    assert re.search(r"Did it match\? +attention 2 applied; linear 1 declined; 1 near miss; 1 fallback; 1 graph", text)
    assert re.search(r"Is it right\? +relative error 2.0e-07 against eager; within 1e-04", text)
    assert re.search(
        r"Was it worth it\? +eager 200 ms ± 3%, regraft 100 ms ± <1%: 2.00x \(medians of 9\); first call 3.0 s,",
        text,
    )
    assert "nan in the gradients; NOT within 1e-04" in text
    assert "capture 0.50 s, generate 0.25 s" in text
    assert "0.02 s for all rules, 2.7% of compile time" in text


def test_a_busy_machine_is_told():
    assert spread([1.0, 1.0, 1.1]) is None and spread([0.0] * 5) is None
    assert spread([0.9, 1.0, 1.0, 1.1]) == pytest.approx(0.025)
    assert (plus_minus(0.041), plus_minus(0.001), plus_minus(None)) == ("± 4%", "± <1%", "")
    busy = replace(RIGHT, compiled_spread=BUSY + 0.1)
    assert RIGHT.busy == "" and WRONG.busy == ""
    text = plain(report_view(report(busy).entries, ENVIRONMENT))
    assert "regraft 100 ms ± 35%" in text and "too busy to tell: calls of one program differ by ± 35%" in text
    assert "too busy to tell" in render(report(busy).entries, ENVIRONMENT)
    assert "too busy" not in render(report(RIGHT).entries, ENVIRONMENT)


def test_text_keeps_brackets():
    record = graph(0, near_misses=[escape()], declined=[])
    record.near_misses[0] = type(escape())("r", "f", "code", "[bold] is text", "", "x[0]", 1, 2)
    text = plain(report_view([Entry("t", [record])], {}))
    assert "[bold] is text" in text and "x[0]" in text


def test_long_tables_are_cut_and_say_so():
    misses = [type(escape())(f"rule{i}", "f", "c", "m", "", "", 1, 2) for i in range(SHOWN + 3)]
    text = plain(report_view([Entry("t", [GraphRecord("g", near_misses=misses)])], {}))
    assert "and 3 more" in text


def test_small_pieces():
    assert evidence_line(None) == ""
    assert evidence_line(Evidence(note="always")) == "always"
    assert place(None) == "" and place(SOFTMAX).startswith("models/bert.py:128\n")


def test_report_file_round_trip(tmp_path):
    made = report(RIGHT, WRONG, None)
    back = Report.read(made.write(tmp_path / "r.json"))
    assert repr(back) == repr(made)


def test_files_of_the_first_version_are_read(tmp_path):
    data = json.loads(json.dumps(report(RIGHT).to_json()))
    data["version"] = 1
    for record in data["targets"][0]["graphs"]:
        del record["snapshots"]
        for match in record["applied"]:
            del match["evidence"]["errors"]
    (graph_read,) = Report.from_json(data).entries[0].graphs
    assert graph_read.snapshots == [] and len(graph_read.applied) == 2 and graph_read.applied[0].evidence.errors == {}
    with pytest.raises(ReportError, match="version 3 is unknown; this regraft reads versions 1 and 2"):
        Report.from_json(data | {"version": 3})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "regraft-report"}', "\udcff"])
def test_unreadable_files(tmp_path, text):
    file = tmp_path / "r.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ReportError, match=r"r\.json"):
        Report.read(file)


def test_missing_file(tmp_path):
    with pytest.raises(ReportError, match="cannot read"):
        Report.read(tmp_path / "none.json")


def test_weights_and_layout():
    """What freezing and channels-last did is told in one line each, and nothing where nothing was done."""
    freezing = {
        "weights": 9,
        "packed_convolution": 3,
        "packed_linear": 0,
        "constants": 5,
        "bytes": 1 << 20,
    }
    moved = {"convolutions": 3, "chosen": True, "conversions": 1, "seconds": (2e-3, 1e-3)}
    records = [GraphRecord("g", details={"freezing": freezing, "channels_last": moved}), GraphRecord("h")]
    assert frozen_line(records) == ("9 weights: 3 convolutions packed, 5 constants of 1.0 MiB")
    assert layout_line(records).startswith("3 of 3 convolutions moved to channels-last") and "2.00 ms" in layout_line(
        records
    )
    page = render([Entry("m", records)], ENVIRONMENT)
    assert frozen_line(records) in page and "moved to channels-last" in page
    assert frozen_line([graph()]) == layout_line([graph()]) == ""
