"""Options that commands have in common: which target, and how it is built."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .groups import CommandOptions
from .own_rules import OwnRules, own_rules, with_rules
from .shared import UsageError, shown_progress

if TYPE_CHECKING:
    from ....rewrites.rule import Rule
    from ..targets.target import Choices, ModelWithInputs

TARGET = "hf:TYPE (any transformers model type), path.py:factory or module:factory"
Modes = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the CPU, for eager and compiled code alike.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Tolerance = Annotated[
    float | None, typer.Option(help="Relative error from which on a result is wrong. [default: by dtype]")
]
Config = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Options of the backend as JSON, or as base64 of it; see `regraft options`."),
]
Profits = Literal["measured", "always", "never"]
_PROFIT_HELP = "Apply legal matches where measured to pay, everywhere or nowhere."
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def _dtype(name: str) -> str:
    full = _DTYPES.get(name, name)
    if full not in _DTYPES.values():
        raise typer.BadParameter(f"{name!r} is none of {', '.join(_DTYPES.values())} (or {', '.join(_DTYPES)})")
    return full


@dataclass(frozen=True)
class ModelOptions(CommandOptions):
    """How a target is built."""

    layers: Annotated[int | None, typer.Option(min=1, help="Layers of each stack (default: the model's own).")] = None
    tiny: Annotated[bool, typer.Option("--tiny", help="Small widths, heads and vocabulary.")] = False
    mask: Annotated[bool, typer.Option("--mask", help="Give a padding mask.")] = False
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens of a row (default: 128, or what the model takes).")] = (
        None
    )
    dtype: Annotated[
        str,
        typer.Option(parser=_dtype, metavar="|".join(_DTYPES.values()), help="Parameters and inputs; bf16, ... too."),
    ] = "float32"
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the transformers configuration."),
    ] = None

    def choices(self, **others: Any) -> Choices:
        """The user's choices about the target; `others` are fields that this group does not have."""
        import torch

        from ..targets.target import Choices

        config = dict(_setting(text) for text in self.settings or ())
        same = {"layers": self.layers, "tiny": self.tiny, "mask": self.mask, "seq": self.seq}
        return Choices(**{**same, "dtype": getattr(torch, self.dtype), "config": config, **others})


@dataclass(frozen=True)
class TargetOptions(ModelOptions):
    """How a target is built and run."""

    train: Annotated[
        bool, typer.Option("--train", "--training", help="Training mode: forward and backward, dropout on.")
    ] = False
    batch: Annotated[int, typer.Option(min=1, help="Rows.")] = 1
    device: Device = "cpu"

    def choices(self, **others: Any) -> Choices:
        """The user's choices about the target; `others` replace them."""
        return super().choices(**{"train": self.train, "batch": self.batch, "device": self.device, **others})


@dataclass(frozen=True)
class BackendOptions(CommandOptions):
    """How regraft compiles."""

    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile for symbolic sizes.")] = False
    freezing: Annotated[bool, typer.Option("--freezing", help="Inference: weights as constants.")] = False
    profit: Annotated[Profits | None, typer.Option(help=_PROFIT_HELP)] = None
    config: Config = None
    own: OwnRules = None

    def compiled(self, own: Sequence[Rule] | None = None, **others: Any) -> dict[str, Any]:
        """The options of the backend: those of ``--config``, then those that have an option of their own.

        Args:
            own: the user's own rules; those of ``--rules`` if None.
            others: further options of the backend; None where one is not given.

        Raises:
            UsageError: ``--config`` is no JSON object, or ``--rules`` names no rules.
            OptionError: an unknown option or value.
        """
        given = {"freezing": self.freezing or None, "profit": self.profit, **others}
        chosen = {**configured(self.config), **{name: value for name, value in given.items() if value is not None}}
        return with_rules(chosen, own_rules(self.own) if own is None else own)


@dataclass(frozen=True)
class CompileOptions(BackendOptions):
    """How regraft compiles, and its mode."""

    mode: Annotated[Modes | None, typer.Option(help="As for torch.compile.")] = None

    def compiled(self, own: Sequence[Rule] | None = None, **others: Any) -> dict[str, Any]:
        """The options of the backend, its mode included."""
        return super().compiled(own, mode=self.mode, **others)


@dataclass(frozen=True)
class ReportOptions(CompileOptions):
    """How regraft compiles, and how it checks what it did."""

    verify: Annotated[
        Literal["off", "structure", "live"],
        typer.Option(help="Check each rewrite: the graph, or both sides on live inputs."),
    ] = "off"

    def compiled(self, own: Sequence[Rule] | None = None, **others: Any) -> dict[str, Any]:
        """The options of the backend, its checks included."""
        return super().compiled(own, verify=None if self.verify == "off" else self.verify, **others)


@dataclass(frozen=True)
class ExplainedOptions(CompileOptions):
    """How regraft compiles where whatever is legal is of interest."""

    profit: Annotated[Profits | None, typer.Option(help=f"{_PROFIT_HELP} [default: always]")] = None


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


def loaded_target(target: str, choices: Choices) -> ModelWithInputs:
    """Build a target that runs in eager mode, showing progress."""
    from ..targets.load import load, require_running

    with shown_progress() as progress:
        progress(f"building {target}", 0.0)
        loaded = load(target, choices)
        if not target.startswith("hf:"):  # whose inputs were found by running them
            require_running(loaded)
        return loaded


def set_threads(count: int | None) -> None:
    """Use so many threads; leave the number as it is if None."""
    import torch

    if count is not None:
        torch.set_num_threads(count)
