"""Options that commands have in common: which target, and how it is built."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .own_rules import with_rules
from .shared import UsageError, shown_progress

if TYPE_CHECKING:
    from ....rewrites.rule import Rule
    from ..targets.target import Choices, Target

Layers = Annotated[int | None, typer.Option(min=1, help="Layers of each stack (default: the model's own).")]
Tiny = Annotated[bool, typer.Option("--tiny", help="Small widths, heads and vocabulary.")]
Mask = Annotated[bool, typer.Option("--mask", help="Give a padding mask.")]
Train = Annotated[bool, typer.Option("--train", help="Training mode: forward and backward, dropout on.")]
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def _dtype(name: str) -> str:
    full = _DTYPES.get(name, name)
    if full not in _DTYPES.values():
        raise typer.BadParameter(f"{name!r} is none of {', '.join(_DTYPES.values())} (or {', '.join(_DTYPES)})")
    return full


DType = Annotated[
    str, typer.Option(parser=_dtype, metavar="|".join(_DTYPES.values()), help="Parameters and inputs; bf16, ... too.")
]
Batch = Annotated[int, typer.Option(min=1, help="Rows.")]
Seq = Annotated[int | None, typer.Option(min=1, help="Tokens of a row (default: 128, or what the model takes).")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the transformers configuration.")
]
Dynamic = Annotated[bool, typer.Option("--dynamic", help="Compile for symbolic sizes.")]
Modes = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Mode = Annotated[Modes | None, typer.Option(help="As for torch.compile.")]
Freezing = Annotated[bool, typer.Option("--freezing", help="Inference: weights as constants.")]
Profit = Annotated[
    Literal["measured", "always", "never"] | None,
    typer.Option(help="Apply legal matches where measured to pay, everywhere or nowhere."),
]
Tolerance = Annotated[
    float | None, typer.Option(help="Relative error from which on a result is wrong. [default: by dtype]")
]
Config = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Options of the backend as JSON, or as base64 of it; see `regraft options`."),
]
TARGET = "hf:TYPE (any transformers model type), path.py:factory or module:factory"


def chosen_target(
    layers: int | None,
    tiny: bool,
    mask: bool,
    train: bool,
    dtype: str,
    batch: int,
    seq: int | None,
    device: str,
    settings: list[str] | None,
) -> Choices:
    """The choices about the target that options make."""
    import torch

    from ..targets.target import Choices

    config = dict(_setting(text) for text in settings or ())
    return Choices(layers, tiny, mask, train, getattr(torch, dtype), batch, seq, device, config)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text!r}: expected KEY=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def configured(text: str | None) -> dict[str, Any]:
    """The options that ``--config`` gives, as JSON or as base64 of JSON, with all that is checked of them.

    Raises:
        UsageError: it is neither.
        OptionError: an unknown option or value.
    """
    if text is None:
        return {}
    from ...options import Options

    given = _json(text)
    if given is None:
        with contextlib.suppress(ValueError):  # of base64, and of the text in it
            padded = text.strip() + "=" * (-len(text.strip()) % 4)
            given = _json(base64.b64decode(padded, altchars=b"-_" if {"-", "_"} & set(padded) else None).decode())
    if not isinstance(given, dict):
        raise UsageError(f"--config {text!r}: expected a JSON object, or base64 of one{_told(text)}")
    Options.parse(None, given)
    return given


def compiled_with(
    config: str | None,
    mode: str | None = None,
    *,
    freezing: bool = False,
    profit: str | None = None,
    verify: str = "off",
    own: Sequence[Rule] = (),
) -> dict[str, Any]:
    """The options of the backend: those of ``--config``, then those that have an option of their own.

    Raises:
        UsageError: ``--config`` is no JSON object.
        OptionError: an unknown option or value.
    """
    given = {"mode": mode, "freezing": freezing or None, "profit": profit}
    given["verify"] = None if verify == "off" else verify
    return with_rules({**configured(config), **{k: v for k, v in given.items() if v is not None}}, own)


def _told(text: str) -> str:
    """What is wrong with a text that is meant as JSON, or how to say a template in it."""
    from ...options import list_templates

    if text in list_templates():
        return f"""; the template of that name is '{{"template": "{text}"}}'"""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f" ({error})" if text.lstrip().startswith("{") else ""
    return ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def loaded_target(target: str, choices: Choices) -> Target:
    """Build a target that runs in eager mode, showing progress."""
    from ..targets.load import load, require_running

    with shown_progress() as progress:
        progress(f"building {target}", 0.0)
        loaded = load(target, choices)
        if not target.startswith("hf:"):  # whose inputs were found by running them
            require_running(loaded)
        return loaded
