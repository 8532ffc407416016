"""A cache that is full, read-only, damaged or another user's: models compile and run all the same."""

from __future__ import annotations

import errno
import os
import random
import signal
import textwrap
from pathlib import Path

import pytest
import torch
from support.fresh import run_fresh

import regraft
from regraft.compiler.storage import seal


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    seal._kept.cache_clear()
    return tmp_path


def program(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1) * 3


def runs(size):
    """Whether the program was compiled anew; its results are right and no fault is told either way."""
    torch.compiler.reset()
    torch.manual_seed(0)
    x, w = torch.randn(4, size), torch.randn(size, 8)
    with torch.no_grad(), regraft.coverage() as cov:
        out = torch.compile(program, backend="regraft")(x, w)
    torch.testing.assert_close(out, program(x, w), rtol=1e-4, atol=1e-5)
    assert not cov.faults and cov.graphs[0].code[0].kernels
    return "capture" in cov.graphs[0].seconds


def files(cache):
    return [path for path in cache.rglob("*") if path.is_file() and path.name != "swept"]


@pytest.mark.filterwarnings("ignore:regraft. decisions")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_place_that_cannot_be_written(cache, monkeypatch, number):
    for name in ("write_bytes", "write_text"):
        real = getattr(Path, name)

        def write(path, content, *args, real=real, **more):
            if cache in path.parents:
                with path.open("wb") as file:  # a part of it, as on a disk that fills
                    file.write(b"part")
                raise OSError(number, os.strerror(number), str(path))
            return real(path, content, *args, **more)

        monkeypatch.setattr(Path, name, write)
    assert runs(8 + number) and runs(8 + number)
    assert not [path for path in files(cache) if path.parent.parent.name in ("graphs", "code", "decisions")]


def test_damaged_bytes_are_made_anew(cache):
    assert runs(16) and not runs(16)
    draw = random.Random(0)
    for round_number in range(3):
        for path in files(cache):
            data = bytearray(path.read_bytes())
            place = draw.randrange(len(data))
            if round_number == 0:
                data[place] ^= 1 << draw.randrange(8)
            path.unlink()  # this process has loaded the library in it
            path.write_bytes((bytes(data), bytes(data[:place]), b"")[round_number])
        assert runs(16) and not runs(16)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_another_users_cache_is_not_read(cache):
    assert runs(17)
    for path in [cache, *cache.rglob("*")]:
        os.chown(path, 54321, 54321)
    before = {path: path.stat().st_mtime_ns for path in files(cache) if path.suffix in (".bin", ".so")}
    assert runs(17) and not runs(17)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_nothing_is_unpickled_that_was_not_sealed(cache, monkeypatch):
    """A pickle that would run code, put where an entry is looked for, with every seal but this user's."""
    assert runs(18)
    (entry,) = cache.glob("graphs/??/*.bin")
    ran = cache / "ran"
    evil = b"cos\nsystem\n(S'touch " + str(ran).encode() + b"'\ntR."
    for data in (evil, evil + bytes(seal.SIZE), seal.sealed("graphs/other", evil)):
        entry.write_bytes(data)
        assert runs(18) and not ran.exists()


_WRITER = textwrap.dedent("""
    import os, sys, torch, regraft
    from pathlib import Path
    if sys.argv[1] == "die":  # at the first file that is moved into place
        Path.replace = lambda *paths: os.kill(os.getpid(), 9)
    torch.manual_seed(0)
    x, w = torch.randn(4, 19), torch.randn(19, 8)
    program = lambda x, w: torch.nn.functional.gelu(x @ w).softmax(-1) * 3
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(program, backend="regraft")(x, w), program(x, w))
    print("right")
""")


def test_writers_at_once_one_of_them_killed(cache):
    script = cache.parent / "writer.py"
    script.write_text(_WRITER)
    done = run_fresh([[script, how] for how in ("die", "live")])
    assert [d.code for d in done] == [-signal.SIGKILL, 0]
    assert [d.output.strip() for d in done] == ["", "right"]
