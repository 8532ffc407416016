"""Configuration templates on a machine that can't do all of them: accepted, right, and what is missing is told."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft
from regraft.compiler.options import Options, list_templates
from regraft.compiler.options.machine import not_applied

ON_CPU = {
    "triton": "not-on-cuda", "cutlass": "no-cutlass", "cudagraphs": "not-on-cuda", "max_autotune": "not-on-cuda",
    "tma": "not-on-cuda",
}  # fmt: skip


@one_row_in(2)
@takes_turns("training")
@pytest.mark.parametrize("template", list_templates())
@pytest.mark.parametrize("training", [False, True])
def test_every_template_is_accepted_on_a_cpu(template, training):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(3, 8)
    expected = model(x)
    torch.compiler.reset()
    with regraft.coverage() as cov, torch.set_grad_enabled(training):
        made = torch.compile(model, backend="regraft", options={"template": template, "strict": True})(x)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    codes = [f.code for g in cov.graphs for f in g.fallbacks if f.stage in ("configuration", "cudagraphs")]
    expected_code = "training" if training and template == "freezing" else ON_CPU.get(template)
    assert codes == ([expected_code] if expected_code else [])
    if template != "none":
        assert cov.graphs[0].details["configuration"]["template"] == template
        assert f"template {template}" in str(cov)


def codes(template, capability, devices=("cuda",)):
    return [r.code for r in not_applied(Options.parse(None, {"template": template}), devices, capability, False)]


def test_gpus_get_what_they_have():
    assert codes("tma", 90) == codes("triton", 80) == codes("aten", 80) == []
    assert codes("tma", 80) == ["no-tma"]


def test_freezing_is_refused_in_training_where_it_is_asked_for_itself():
    with pytest.raises(Exception, match="freezing"):
        torch.compile(torch.nn.Linear(4, 4), backend="regraft", options={"freezing": True})(torch.randn(2, 4))
