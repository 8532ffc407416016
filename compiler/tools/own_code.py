"""Programs with code objects of their own.

Dynamo keeps what it compiled by code object, counts it, and leaves a code object alone after a few versions. What a
tool compiles counts for a copy: it does not end after some calls, and leaves the user's compilations their versions.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from ...rewrites.compat import is_called_plainly
from .profile.running import of_its_own


def with_own_code(model: Callable[..., Any]) -> Callable[..., Any]:
    """`model` with a copy of its code; names of inputs and modules in graphs are those of the original.

    A module with hooks, or with a `__call__` of its own, stays as it is: Dynamo compiles it in parts.
    """
    if isinstance(model, torch.nn.Module):
        forward = type(model).forward
        if not is_called_plainly(model):
            return model
        if _is_users(forward):
            return types.MethodType(_copied(forward), model)
    elif isinstance(model, types.MethodType) and _is_users(model.__func__):
        return types.MethodType(_copied(model.__func__), model.__self__)
    elif _is_users(model):
        return _copied(model)
    return of_its_own(model)


def _is_users(function: Any) -> bool:
    """A Python function that Dynamo compiles by itself: it does not compile torch's own."""
    return isinstance(function, types.FunctionType) and not function.__module__.startswith("torch.")


def _copied(function: Any) -> types.FunctionType:
    code = function.__code__.replace()
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made
