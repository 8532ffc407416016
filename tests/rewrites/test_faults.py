"""Faults of ours: three lines, a file, a count; raised where the compilation is strict."""

import logging
import re
from pathlib import Path

import pytest

from regraft.rewrites import faults as faults_module
from regraft.rewrites.coverage import Coverage
from regraft.rewrites.faults import Faults
from regraft.rewrites.record import GraphRecord
from regraft.rewrites.report.document import Report


class Signal(Exception):
    pass


class Slotted(Exception):
    """Shows what it is about, not its arguments."""

    def __str__(self):
        return f"about {self.args[0]}"


def fail(faults, error, undo=None):
    with faults.contained("pass sort_nodes", "nodes stay as they are", undo=undo):
        raise error


def test_a_fault_is_three_lines_a_file_and_a_count(tmp_path, caplog):
    record, undone = GraphRecord("graph 0/0"), []
    with caplog.at_level(logging.INFO, "regraft"):
        fail(Faults(record, folder=tmp_path), KeyError("planted"), undo=lambda: undone.append(1))
    (entry,) = caplog.records
    headline, outcome, place = entry.getMessage().splitlines()
    assert entry.levelno == logging.WARNING and not entry.exc_info and undone == [1]
    assert headline == "regraft: pass sort_nodes failed on graph 0/0 (inference): KeyError: 'planted'"
    assert outcome.strip() == "nodes stay as they are" and '{"strict": True}' in place
    path = Path(re.search(r"traceback: (\S+)", place)[1])
    assert path.parent == tmp_path and "Traceback" in path.read_text() and "in fail" in path.read_text()
    (fault,) = Coverage([record]).faults
    assert (fault.stage, fault.code, fault.traceback) == ("passes", "passes-failed", str(path))
    assert "KeyError: 'planted'" in fault.message and "nodes stay" in fault.message


def test_equal_faults_are_told_once_and_counted_each(tmp_path, caplog):
    record = GraphRecord("equal faults")
    with caplog.at_level(logging.WARNING, "regraft"):
        for _ in range(3):
            fail(Faults(record, folder=tmp_path), ValueError("again"))
    assert len(caplog.records) == 1 and len(record.fallbacks) == 3 and len(list(tmp_path.iterdir())) == 1


def test_strict_raises_and_signals_go_through(tmp_path):
    record, undone = GraphRecord("strict"), []
    for faults, error in [
        (Faults(record, strict=True, folder=tmp_path), KeyError("planted")),
        (Faults(record, folder=tmp_path, signals=(Signal,)), Signal()),
    ]:
        with pytest.raises(type(error)):
            fail(faults, error, undo=lambda: undone.append(1))
        with pytest.raises(type(error)):
            faults.tell("rule relu", "it does not fire", error, stage="rewrite")
    assert not record.fallbacks and not undone and not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError("why"), KeyError("why"), ValueError(), OSError(2, "why"), Slotted("why")])
def test_what_is_raised_says_once_what_failed(error):
    faults = Faults(GraphRecord("strict"), strict=True)
    for what in ("pass sort_nodes", "compiling the program"):
        with pytest.raises(type(error)) as raised:
            faults.tell(what, "nothing happens", error, stage="passes")
    told = f"{raised.value} {getattr(raised.value, '__notes__', '')}"
    assert told.count("failed") == 1 and "pass sort_nodes failed" in told


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no message")


@pytest.mark.parametrize("error", [Unreadable(), ValueError("a file's name: \udce9")])
def test_errors_that_cannot_be_written_down_as_they_are(tmp_path, error):
    record = GraphRecord("unwritable")
    fail(Faults(record, folder=tmp_path), error)
    assert type(error).__name__ in Path(record.fallbacks[0].traceback).read_text()


def test_a_folder_holds_the_latest_tracebacks(tmp_path, monkeypatch):
    monkeypatch.setattr(faults_module, "KEPT_FILES", 3)
    record = GraphRecord("many")
    for number in range(5):
        fail(Faults(record, folder=tmp_path), ValueError(f"number {number}"))
    kept = "".join(path.read_text() for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 3 and "number 4" in kept and record.fallbacks[-1].traceback


def test_where_the_folder_cannot_be_written_another_is_taken(tmp_path):
    (tmp_path / "file").write_text("no folder")
    record = GraphRecord("elsewhere")
    fail(Faults(record, folder=tmp_path / "file"), ValueError("elsewhere"))
    path = Path(record.fallbacks[0].traceback)
    assert path.exists() and path.parent.name == "regraft-faults"
    path.unlink()


def test_every_report_shows_faults(tmp_path):
    record = GraphRecord("shown")
    fail(Faults(record, folder=tmp_path), ValueError("shown in reports"))
    cov = Coverage([record])
    assert "a fault of regraft" in str(cov) and "shown in reports" in str(cov)
    page = cov.write(tmp_path / "report.html").read_text()
    assert "a fault of regraft" in page and record.fallbacks[0].traceback in page
    again = Report.from_json(cov.to_json()).entries[0].graphs[0]
    assert again.fallbacks == record.fallbacks and again.fallbacks[0].fault
