"""The package as users install it: what the wheel holds, and how torch.compile and the shell find it."""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import regraft

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "benchmarks")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in a wheel that is built from a copy, so that the checkout stays clean."""
    work = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, work / "source", ignore=LEFT_OUT)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(work),
        ".",
    ]
    subprocess.run(command, cwd=work / "source", check=True, capture_output=True)
    (built,) = work.glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_wheel_holds_the_package_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert tops == {"regraft", f"regraft-{regraft.__version__}.dist-info"}
    rooms = {name.split("/")[1] for name in wheel if name.startswith("regraft/")}
    files = {"__init__.py", "__main__.py", "_version.py", "py.typed"}
    assert rooms == {"compiler", "patterns", "rewrites"} | files


def test_wheel_holds_what_is_no_module(wheel):
    pages = [ROOT / "rewrites/report/page", ROOT / "compiler/tools/profile/page"]
    files = {"regraft/" + str(path.relative_to(ROOT)) for page in pages for path in page.iterdir()}
    assert len(files) > len(pages) and files <= wheel
    assert [name for name in wheel if name.endswith("LICENSE")]


def test_torch_finds_the_backend_without_import():
    """Programs of `test_threads.py` and `test_debugging.py` name it in a Python that has imported nothing."""
    (found,) = (e for e in entry_points(group="torch_dynamo_backends") if e.name == "regraft")
    assert found.load() is regraft.backend


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "regraft"], [str(Path(sys.executable).with_name("regraft"))]]
)
def test_commands(command):
    out = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True).stdout
    assert out.strip() == f"regraft {regraft.__version__}"
