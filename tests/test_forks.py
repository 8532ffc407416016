"""Tests that run by forked processes (`support.forks`): all run once, and whatever happens is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent
TESTS = """
import os, signal, time, warnings
import pytest

@pytest.fixture(scope="module")
def shared():
    yield os.getpid()

@pytest.mark.parametrize("row", range(24))
def test_row(row, shared, tmp_path):
    with open(os.environ["ROWS"], "a") as rows:
        rows.write(f"{row} {os.getpid()}\\n")
    assert shared == os.getpid()
    time.sleep(0.005)
    if row == 2:
        warnings.warn("told once")
    if row == 3:
        os.system("echo printed by a program")
        assert row == 4
    if row == 5:
        pytest.skip("not now")
    if row == 0:  # its process knows the next already: another one has to go on
        os.kill(os.getpid(), signal.SIGKILL)
    if row == 23:
        os._exit(3)

@pytest.mark.parametrize("row", range(24))
def test_wrong(row):
    with open(os.environ["ROWS"], "a") as rows:
        rows.write(f"{row} {os.getpid()}\\n")
    assert not row + 1
"""


@pytest.fixture
def run(tmp_path):
    def run(*options, threads="1"):
        (tmp_path / "test_rows.py").write_text(TESTS)
        without = [part for name in ("cacheprovider", "xdist", "hypothesispytest") for part in ("-p", f"no:{name}")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "support.forks", *without, *options, "test_rows.py"]
        told = {"PYTHONPATH": str(SUPPORT), "ROWS": str(tmp_path / "rows"), "OMP_NUM_THREADS": threads}
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **told}, capture_output=True, text=True)
        rows = (tmp_path / "rows").read_text().split("\n")[:-1] if (tmp_path / "rows").exists() else []
        return done, [tuple(map(int, row.split())) for row in rows]

    return run


def test_every_test_runs_once_and_what_ends_a_process_fails_one(run):
    done, rows = run("--forks", "3", "-k", "not test_wrong")
    assert done.returncode == 1, done.stdout + done.stderr
    assert sorted(row for row, _ in rows) == list(range(24))
    assert len({process for _, process in rows}) >= 4  # one came for that which was killed
    assert "3 failed, 20 passed, 1 skipped, 24 deselected, 1 warning" in done.stdout
    assert "printed by a program" in done.stdout
    assert "assert 3 == 4" in done.stdout
    assert "UserWarning: told once" in done.stdout
    assert "test_row[0] - the process was killed by signal 9" in done.stdout
    assert "test_row[23] - the process was ended with 3" in done.stdout


def test_too_many_failures_end_all(run):
    done, rows = run("--forks", "2", "-x", "-k", "test_wrong")
    assert done.returncode == 1
    assert "stopping after" in done.stdout
    assert len(rows) <= 6  # two that each process knows, and one that it is given as it reports


def test_threads_are_refused(run):
    done, rows = run("--forks", "2", threads="2")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "OMP_NUM_THREADS=1" in done.stderr
    assert not rows
