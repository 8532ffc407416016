"""Which value wins: overrides > what is given > template > mode > default."""

from __future__ import annotations

import itertools

import pytest

from regraft.compiler.options import OptionError, Options, list_modes, list_options, list_templates
from regraft.compiler.options.configurations import template_values
from regraft.compiler.options.resolve import flat


def values(mode=None, **options):
    return flat(Options.parse(mode, options))


def test_each_level_beats_those_below():
    asked = {"template": "max_autotune", "mode": "default", "freezing": True}
    assert values(**asked)["triton.cudagraphs"]  # the template beats the mode
    assert not values(**asked, overrides={"triton.cudagraphs": False})["triton.cudagraphs"]
    assert values(mode="max-autotune")["autotune.thorough"] and not values()["autotune.thorough"]
    assert values(template="freezing")["freezing"] and not values(template="freezing", freezing=False)["freezing"]
    assert not values(freezing=True, overrides={"freezing": False})["freezing"]
    assert values(template="aten", kernels={"products": "measured"})["kernels.products"] == "measured"


@pytest.mark.parametrize(("mode", "template"), itertools.product([None, *list_modes()], list_templates()))
def test_priority_holds_for_all_pairs(mode, template):
    """A model of the rule, in other words than the code's."""
    found, chosen = values(mode, template=template), mode or list_templates()[template].mode
    for name, option in list_options().items():
        levels = [{"mode": chosen, "template": template}, template_values(template), list_modes()[chosen].values]
        assert found[name] == next((level[name] for level in levels if name in level), option.default), name


def test_every_template_is_described_and_known():
    names = ("triton", "cpp_wrapper", "cutlass", "aten", "cudagraphs", "max_autotune", "freezing", "tma")
    assert tuple(list_templates()) == ("none", *names)
    assert all(one.doc for one in (*list_templates().values(), *list_modes().values()))
    keys = {Options.parse(None, {"template": name}).key() for name in list_templates()}
    assert len(keys) == len(list_templates())  # what a template changes is part of cache keys
    for name in names:
        assert template_values(name), f"{name} changes nothing"
    assert list_options()["template"].values == tuple(list_templates())
    assert list_options()["mode"].values == tuple(list_modes())


@pytest.mark.parametrize("spelling", [
    {"triton.cudagraphs": True, "kernels.products": "library"},
    {"triton": {"cudagraphs": True}, "kernels": {"products": "library"}},
    {"triton": {"cudagraphs": True}, "kernels.products": "library"},
])  # fmt: skip
def test_names_are_dotted_or_nested(spelling):
    for options in (spelling, {"overrides": spelling}):
        made = Options.parse(None, options)
        assert made.changed() == {"triton.cudagraphs": True, "kernels.products": "library"}


@pytest.mark.parametrize(("options", "words"), [
    ({"template": "max_autotunes"}, ["unknown template", "did you mean 'max_autotune'?", "cpp_wrapper, cutlass, aten"]),
    ({"template": None}, ["unknown template None", "valid: none, triton"]),
    ({"overrides": {"triton.cudagraph": True}}, ["'triton.cudagraph'", "did you mean 'triton.cudagraphs'?"]),
    ({"overrides": {"triton": {"deep": {"deeper": 1}}}}, ["unknown option 'triton.deep.deeper'", "triton.tma"]),
    ({"overrides": {"triton": True}}, ["'triton' is a group", "triton.cudagraphs_launches, triton.tma"]),
    ({"overrides": [1]}, ["'overrides' must be a dict"]),
    ({"overrides": {"template": "aten"}}, ["can't be overridden", "beside"]),
    ({"overrides": {3: 1}}, ["unknown option '3'"]),
    ({"kernels.products": "librari"}, ["'kernels.products'", "did you mean 'library'?"]),
    ({"kernels": {"products": "library"}, "kernels.products": "measured"}, ["given twice"]),
    ({"mode": "max-autotun", "template": "aten"}, ["unknown mode 'max-autotun'"]),
])  # fmt: skip
def test_what_is_wrong_is_named_with_what_would_be_right(options, words):
    with pytest.raises(OptionError) as error:
        Options.parse(None, options)
    for word in words:
        assert word in str(error.value)


def test_options_are_documented():
    for name, option in list_options().items():
        assert option.doc and option.values, name
        assert option.name == name
    assert list_options()["triton.tma"].values == ("measured", "always", "never")
    assert list_options()["freezing"].values == (False, True)
