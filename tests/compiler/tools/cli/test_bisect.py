import pytest
from support.cuda_in_use import skip_forks
from typer.testing import CliRunner

from regraft.compiler.tools.cli.main import app

SMALL = """
import torch

def make():
    return torch.tanh, torch.ones(2, 8)
"""


def test_a_model_that_is_right(tmp_path, monkeypatch):
    skip_forks()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(SMALL)
    done = CliRunner().invoke(app, ["bisect", "small.py:make"])
    assert done.exit_code == 0 and "nothing to search for" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["small.py:nothing"], "has no factory"), (["small.py:make", "--config", '{"without": "csee"}'], "'cse'")],
)
def test_usage_errors_are_one_line(tmp_path, monkeypatch, capfd, arguments, told):
    skip_forks()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(SMALL)
    done = CliRunner().invoke(app, ["bisect", *arguments])
    assert done.exit_code == 2 and told in done.output + capfd.readouterr().err
