"""Corpus runs: every target in a process of its own, failures told, what is there not run again."""

import textwrap

import pytest

from regraft.compiler.tools.cli.corpus import corpus_arguments
from regraft.compiler.tools.cli.options import ReportOptions
from regraft.compiler.tools.coverage.corpus import CORPORA, Run, run
from regraft.compiler.tools.coverage.coverage_snapshot import counts, drops, read, write
from regraft.compiler.tools.targets.target import Choices
from regraft.rewrites.report.document import ReportError

FACTORY = """
    import torch

    class Attention(torch.nn.Module):
        def forward(self, q):
            return torch.softmax(q @ q.transpose(-2, -1), -1) @ q

    def good():
        return Attention(), torch.randn(2, 4, 8)

    def bad():
        raise RuntimeError("no such luck")
"""
ARGUMENTS = ("--profit", "always", "--no-time", "--threads", "1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "models.py").write_text(textwrap.dedent(FACTORY))
    targets = tuple(f"{folder / 'models.py'}:{name}" for name in ("bad", "good"))
    corpus = Run(targets, ARGUMENTS, folder / "parts")
    told = []
    return corpus, run(corpus, lambda doing, done: told.append(done)), told


def test_what_works_is_reported_and_what_fails_is_named(finished):
    corpus, made, told = finished
    (entry,) = made.report.entries
    assert entry.outcome.right and counts(made.report)[entry.label] == {"sdpa": 1}
    assert list(made.failed) == [corpus.targets[0]] and "no such luck" in made.failed[corpus.targets[0]]
    assert told[-1] == 1.0


def test_a_target_that_is_there_is_not_run_again(finished):
    corpus, made, _ = finished
    again = run(Run(corpus.targets[1:], corpus.arguments, corpus.folder, timeout=0.0))
    assert counts(again.report) == counts(made.report) and not again.failed


@pytest.mark.parametrize("name", ["source_digest", "version"])
def test_other_code_is_another_run(finished, monkeypatch, name):
    """A rule that was changed is seen by a run that goes on, though the version is the same; so is another torch."""
    corpus, _, _ = finished
    monkeypatch.setattr(f"regraft.compiler.tools.coverage.corpus.{name}", lambda *_: "another")
    other = run(Run(corpus.targets[1:], corpus.arguments, corpus.folder, timeout=0.01))
    assert not other.report.entries and "not done" in other.failed[corpus.targets[1]]


def test_other_choices_are_another_run(finished):
    corpus, _, _ = finished
    other = run(Run(corpus.targets[1:], (*corpus.arguments, "--batch", "2"), corpus.folder, timeout=0.01))
    assert not other.report.entries and "not done" in other.failed[corpus.targets[1]]


def test_arguments_of_one_target():
    given = ReportOptions(
        dynamic=True, profit="always", config='{"nan": "safe"}', own=["a.py", "b.py:f"], verify="live"
    )
    arguments = corpus_arguments(Choices(mask=True), given)
    expected = '--layers 2 --mask --tiny --dynamic --profit always --config {"nan": "safe"} --rules a.py --rules b.py:f'
    expected += " --verify live --no-time --threads 1"
    assert " ".join(arguments) == expected


def test_the_corpus_is_known_to_transformers():
    from transformers import CONFIG_MAPPING

    assert not [t for t in CORPORA["hf"] if t.removeprefix("hf:") not in CONFIG_MAPPING]


OLD = {"a": {"sdpa": 2, "rms_norm": 1}, "b": {"sdpa": 3}, "gone": {"sdpa": 1}}


def test_drops_are_named():
    new = {"a": {"sdpa": 2}, "b": {"sdpa": 4}}
    assert drops(OLD, new) == ["a: rms_norm matched 1 time, now 0"]


def test_a_snapshot_is_read_as_it_was_written(tmp_path):
    write(tmp_path / "snapshot.json", OLD)
    assert read(tmp_path / "snapshot.json") == OLD
    assert len((tmp_path / "snapshot.json").read_text().splitlines()) == len(OLD) + 2


@pytest.mark.parametrize("text", ["{}", "[", '{"schema": "other"}'])
def test_what_is_no_snapshot_is_refused(tmp_path, text):
    (tmp_path / "snapshot.json").write_text(text)
    with pytest.raises(ReportError, match=r"snapshot\.json"):
        read(tmp_path / "snapshot.json")
