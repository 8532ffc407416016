"""The committed coverage snapshot, held against the code for models of different kinds; the whole is held by

regraft report --corpus hf --mask --snapshot docs/coverage/hf.json
"""

import json
from pathlib import Path

import pytest
from support.thorough import thorough

from regraft.compiler.tools.cli.corpus import corpus_arguments
from regraft.compiler.tools.cli.options import ReportOptions
from regraft.compiler.tools.coverage.coverage_snapshot import counts, drops, read
from regraft.compiler.tools.coverage.report import Examination, examine
from regraft.compiler.tools.targets.load import load
from regraft.compiler.tools.targets.target import Choices
from regraft.rewrites.report.document import Report

SNAPSHOT = Path(__file__).parents[4] / "docs" / "coverage" / "hf.json"
KINDS = ("bert", thorough("gpt2"), thorough("falcon"), "gpt_oss", thorough("deit"))


def choices(name):
    return Choices(layers=2, tiny=True, mask=name != "deit")


@pytest.mark.parametrize("name", KINDS)
def test_no_rule_matches_less_than_it_did(name):
    pytest.importorskip("transformers")
    entry = examine(load(f"hf:{name}", choices(name)), Examination({"profit": "always"}, timed=False))
    found = counts(Report([entry]))
    assert entry.outcome.right, entry.outcome.error
    (label,) = found
    known = read(SNAPSHOT)
    assert label in known, f"{label} is not in {SNAPSHOT.name}"
    assert not drops({label: known[label]}, found)


def test_the_snapshot_tells_of_attention_in_most_models():
    known = json.loads(SNAPSHOT.read_text())["targets"]
    assert len(known) >= 100
    assert sum(any("sdpa" in rule or "attention" in rule for rule in rules) for rules in known.values()) >= 97


def test_the_command_makes_these_labels():
    words = " ".join(corpus_arguments(choices("bert"), ReportOptions(profit="always")))
    assert words == "--layers 2 --mask --tiny --profit always --no-time --threads 1"
