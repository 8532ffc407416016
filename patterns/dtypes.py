"""Dtypes that rules of several families hand to their replacements."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..rewrites.binding import Binding
from ..rewrites.graph import dtype


def result_dtype(match: Binding, policy: Mapping[str, str]) -> torch.dtype:
    """The dtype of the value that is replaced."""
    return dtype(match.matched[0])
