"""The few environment variables, read here and nowhere else.

REGRAFT_CACHE_DIR      where measured decisions, compiled kernels and compiled graphs are kept
                       (default: $XDG_CACHE_HOME/regraft or ~/.cache/regraft)
REGRAFT_CACHE_LIMIT    MiB that it may hold (default: 8192); what was used longest ago goes first
REGRAFT_DISABLE_CACHE  1 keeps them for this process only
REGRAFT_DEBUG          a folder where every stage of every compilation is written as text, with an index page
CXX                    the C++ compiler (default: g++, clang++ or c++, the first that is there)
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_LIMIT = 8 << 30
_FALSE = ("", "0", "false", "no", "off")


def cache_dir() -> Path | None:
    """The folder of the cache on disk, or None where the environment turns it off."""
    if os.environ.get("REGRAFT_DISABLE_CACHE", "").strip().lower() not in _FALSE:
        return None
    given = os.environ.get("REGRAFT_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "regraft"


def cache_limit() -> int:
    """How many bytes may be kept on disk; what is no number counts as the default."""
    given = os.environ.get("REGRAFT_CACHE_LIMIT", "").strip()
    return int(float(given) * (1 << 20)) if re.fullmatch(r"\d+(\.\d*)?", given) else _LIMIT


def debug_dir() -> Path | None:
    """The folder that compilations write every stage to as text, or None."""
    given = os.environ.get("REGRAFT_DEBUG", "").strip()
    return Path(given).expanduser() if given.lower() not in _FALSE else None


def compiler_setting() -> str | None:
    """The C++ compiler that the environment names, if it does."""
    return os.environ.get("CXX", "").strip() or None
