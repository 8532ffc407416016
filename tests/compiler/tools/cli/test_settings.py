"""Options on the command line: lists of them, and `--config`."""

import base64
import json

import pytest
from typer.testing import CliRunner

import regraft
from regraft.compiler.tools.cli.main import app
from regraft.compiler.tools.cli.options import configured
from regraft.compiler.tools.cli.shared import UsageError


def run(*args: str, code: int = 0):
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize(("command", "listed"), [
    ("options", regraft.list_options), ("modes", regraft.list_modes), ("templates", regraft.list_templates),
])  # fmt: skip
def test_lists(command, listed):
    data, text = json.loads(run(command, "--json")), run(command)
    assert list(data) == list(listed())
    assert all(one["doc"] == listed()[name].doc for name, one in data.items())
    assert all(name in text for name in data)


CONFIG = {"template": "aten", "overrides": {"kernels": {"products": "measured"}}, "nan": "safe"}


@pytest.mark.parametrize("encode", [
    str,
    lambda text: base64.b64encode(text.encode()).decode(),
    lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
])  # fmt: skip
def test_config_is_json_or_base64_of_it(encode):
    assert configured(encode(json.dumps(CONFIG))) == CONFIG
    assert configured(None) == {}


@pytest.mark.parametrize("text", ["{", "[1]", "3", "e30x", base64.b64encode(b"\xff\xfe").decode(), ""])
def test_what_is_no_config_is_refused(text):
    with pytest.raises(UsageError, match="expected a JSON object"):
        configured(text)


def test_unknown_names_are_usage_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text("import torch\n\ndef model():\n    return torch.nn.ReLU(), torch.ones(2)\n")
    out = run("report", "small.py:model", "--no-time", "--config", '{"template": "atn"}', code=2)
    assert "did you mean 'aten'?" in out
    out = run("report", "small.py:model", "--no-time", "--config", '{"template": "aten"}')
    assert "Options: template aten, kernels.attention library" in out
