"""The cache as one file: to another folder, through torch's artifacts, and what is no bundle."""

from __future__ import annotations

import io
import shutil
import zipfile

import pytest
import torch

import regraft
from regraft.compiler.storage import seal
from regraft.compiler.storage.bundle import BundleError, exported, imported, packed


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path / "first"))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    torch.compiler.reset()
    return tmp_path


def compiled(x):
    torch.compiler.reset()
    with torch.no_grad(), regraft.coverage() as cov:
        out = torch.compile(lambda x: torch.softmax(x * 3, -1), backend="regraft")(x)
    torch.testing.assert_close(out, torch.softmax(x * 3, -1))
    return "capture" in cov.graphs[0].seconds


def elsewhere(monkeypatch, cache):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(cache / "second"))
    seal._kept.cache_clear()


def test_another_cache_takes_it_over(monkeypatch, cache):
    x = torch.randn(4, 9)
    assert compiled(x)
    data, count = exported()
    elsewhere(monkeypatch, cache)
    assert imported(data)[0] == count > 2
    assert not compiled(x)


def test_copying_files_is_no_import(monkeypatch, cache):
    """Another user's entries, which their key has sealed, are not believed."""
    x = torch.randn(4, 10)
    assert compiled(x)
    elsewhere(monkeypatch, cache)
    for kind in ("graphs", "code"):
        shutil.copytree(cache / "first" / kind, cache / "second" / kind)
    assert compiled(x)


def test_torch_saves_and_loads_it(monkeypatch, cache):
    x = torch.randn(4, 11)
    assert compiled(x)
    data, info = torch.compiler.save_cache_artifacts()
    assert info.regraft_artifacts
    elsewhere(monkeypatch, cache)
    assert torch.compiler.load_cache_artifacts(data).regraft_artifacts
    assert not compiled(x)


def changed(data, **files):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = {name: archive.read(name) for name in archive.namelist()} | files
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return buffer.getvalue()


NAME = f"graphs/ab/{'ab' * 32}.bin"


@pytest.mark.parametrize("spoil", [
    lambda data: b"", lambda data: data[:-9], lambda data: b"PK" * 100, lambda data: changed(data, **{NAME: b"other"}),
    lambda data: changed(data, **{"manifest.json": b"[]"}), lambda data: changed(data, **{"manifest.json": b"{"}),
    lambda data: packed({"../../evil.py": b"x"})[0], lambda data: packed({"graphs/ab/x.bin": b"x"})[0],
    lambda data: packed({"keys/ab/" + "ab" * 32 + ".bin": b"x"})[0],
], ids=range(9))  # fmt: skip
def test_what_is_no_bundle_is_refused_as_a_whole(cache, spoil):
    data = packed({NAME: b"content", f"decisions/ab/{'ab' * 32}.json": b"{}"})[0]
    with pytest.raises(BundleError):
        imported(spoil(data))
    assert not (cache / "first" / "graphs").exists() and not (cache / "evil.py").exists()
