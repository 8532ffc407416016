"""Options: strict parsing and stable keys."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

import pytest

from regraft.compiler.options import OptionError, Options, list_options


def test_defaults():
    opts = Options.parse(None, None)
    assert opts == Options()
    assert (opts.mode, opts.profit, opts.verify, opts.rules) == ("default", "measured", "off", None)
    assert (opts.nan, opts.rng) == ("eager", "statistical")
    with pytest.raises(FrozenInstanceError):
        opts.mode = "max-autotune"


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_mode_comes_in_either_argument(mode):
    assert Options.parse(mode, None).mode == mode
    assert Options.parse(None, {"mode": mode}).mode == mode
    assert Options.parse(mode, {"mode": mode}).mode == mode


def test_two_modes_contradict():
    with pytest.raises(OptionError, match="contradicts"):
        Options.parse("default", {"mode": "max-autotune"})


@pytest.mark.parametrize(("given", "words"), [
    ({"proft": "always"}, ["unknown option 'proft'", "did you mean 'profit'?", "valid options: mode, profit"]),
    ({"freeze": True}, ["unknown option 'freeze'", "did you mean 'freezing'?", "rules, nan, rng, freezing"]),
    ({"freezing": 1}, ["'freezing'", "True or False"]),
    ({"profit": "alway"}, ["'alway'", "did you mean 'always'?", "measured, always, never"]),
    ({"profit": True}, ["True", "measured, always, never"]),
    ({"verify": "lives"}, ["did you mean 'live'?"]),
    ({"verify": None}, ["None", "off, structure, live"]),
    ({"mode": "max-autotun"}, ["unknown mode 'max-autotun'", "max-autotune-no-cudagraphs"]),
    ({"mode": None}, ["unknown mode None"]),
])  # fmt: skip
def test_what_is_unknown_is_refused_with_the_valid_ones(given, words):
    with pytest.raises(OptionError) as error:
        Options.parse(None, given)
    assert isinstance(error.value, ValueError)
    for word in words:
        assert word in str(error.value)


def test_unknown_mode_argument():
    with pytest.raises(OptionError, match=r"did you mean 'reduce-overhead'\?"):
        Options.parse("reduce_overhead", None)


def test_options_must_be_a_mapping():
    with pytest.raises(OptionError, match="not list"):
        Options.parse(None, ["verify"])


@pytest.mark.parametrize(("given", "parsed"), [(True, "structure"), (False, "off"), ("live", "live")])
def test_verify_takes_bools(given, parsed):
    assert Options.parse(None, {"verify": given}).verify == parsed


@pytest.mark.parametrize(("given", "parsed"), [
    (None, None), ((), ()), (["sdpa", "linear"], ("sdpa", "linear")), ("sdpa", ("sdpa",)),
])  # fmt: skip
def test_rules_are_kept_as_given(given, parsed):
    assert Options.parse(None, {"rules": given}).rules == parsed


def test_direct_construction_is_checked_too():
    with pytest.raises(OptionError, match="profit"):
        Options(profit="sometimes")
    with pytest.raises(OptionError, match="tuple"):
        Options(rules=["sdpa"])
    for limit in (0, True, 1.5):
        with pytest.raises(OptionError, match="positive integer"):
            Options(cudagraph_limit=limit)
    for share in (-0.1, 1.5, True, "half"):
        with pytest.raises(OptionError, match="memory_budget") as raised:
            Options(memory_budget=share)
        (listed,) = list_options()["memory_budget"].values
        assert listed in str(raised.value)


@dataclass
class FakeRule:
    name: str
    digest: str


def test_key_tells_options_and_rule_contents_apart():
    assert Options().key() == Options.parse("default", {"verify": False}).key()
    assert Options().key() != Options(nan="safe").key()
    assert Options().key() != Options(rules=()).key()
    assert Options(rules=("a", "b")).key() != Options(rules=("b", "a")).key()
    assert Options(rules=(FakeRule("a", "1"),)).key() != Options(rules=(FakeRule("a", "2"),)).key()
    assert "0x" not in Options(rules=(object(),)).key()
