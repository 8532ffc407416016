"""The pass of all templates, apart from what is tested with each of them."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from regraft.compiler.templates.common.template_pass import unmeasured
from regraft.compiler.templates.gpu_passes import TEMPLATES


def test_without_time_left_the_original_runs_unless_it_is_excluded() -> None:
    kernels = {"best": None, "other": None}
    assert unmeasured(kernels, "").chosen is None
    late = unmeasured(kernels, "too large")
    assert late.chosen == "best" and late.evidence.note.startswith("too large; ")


def test_templates_have_names_of_their_own() -> None:
    for names in zip(*((one.rule, one.family, one.name) for one in TEMPLATES), strict=True):
        assert len(set(names)) == len(TEMPLATES)
