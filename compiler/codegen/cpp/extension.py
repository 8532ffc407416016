"""Extension modules of Python that are compiled once for a machine, and loaded from the cache."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sysconfig
from pathlib import Path
from typing import Any


def python_headers() -> Path | None:
    """The folder of Python's C headers; None if they are not installed."""
    folder = Path(sysconfig.get_paths()["include"])
    return folder if (folder / "Python.h").exists() else None


def for_this_python(text: str) -> str:
    """C or C++ that is compiled again for another version of Python."""
    return f"// {sysconfig.get_config_var('EXT_SUFFIX')}\n{text}"


def load_extension(name: str, source: Path) -> Any:
    """The module whose library lies beside its source."""
    path = str(source.with_suffix(".so"))
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, path
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
