"""`regraft cache`."""

import json

import pytest
from typer.testing import CliRunner

from regraft.compiler.autotune.decision_cache import DecisionCache
from regraft.compiler.tools.cli.main import app


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("REGRAFT_CACHE_LIMIT", "512")
    DecisionCache(tmp_path / "cache").put("ab" * 32, {"chosen": None})
    return tmp_path / "cache"


def run(*args: str, code: int = 0):
    result = CliRunner().invoke(app, ["cache", *args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_info(cache):
    facts = json.loads(run("info", "--json"))
    assert facts["folder"] == str(cache) and facts["limit_bytes"] == 512 << 20
    assert facts["kinds"]["decisions"]["files"] == 1 and facts["bytes"] == facts["kinds"]["decisions"]["bytes"] > 0
    assert str(cache) in run("info") and "of 512.0 MiB" in run("info")


def test_clear():
    assert "deleted: 0 files" in run("clear", "graphs") and "deleted: 1 file," in run("clear")
    assert "there are: decisions" in run("clear", "everything", code=2)


def test_export_and_import(cache, tmp_path, monkeypatch):
    file = tmp_path / "bundle.zip"
    assert "1 file," in run("export", str(file))
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path / "other"))
    assert run("import", str(file)) == "imported: 1 file\n"
    assert DecisionCache(tmp_path / "other").get("ab" * 32) == {"chosen": None}
    file.write_bytes(b"no bundle")
    assert "not a bundle" in run("import", str(file), code=2)
    assert "No such file" in run("import", str(tmp_path / "none"), code=2)
    assert "No such file" in run("export", str(tmp_path / "none" / "x"), code=2)
