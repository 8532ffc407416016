"""Groups of options that several commands take: a dataclass whose fields are the options.

    @dataclass(frozen=True)
    class Where(Group):
        device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu"

    @grouped
    def command(target: ..., where: Where) -> None: ...        # regraft command TARGET --device cpu

Typer reads the signature of a command. `grouped` gives it a signature in which a group is replaced by its options.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any


class CommandOptions:
    """The base of dataclasses whose fields are options."""

    def arguments(self) -> list[str]:
        """The words of a command line that give these options; options that have their default are left out."""
        words: list[str] = []
        for option in _options(type(self)):
            value = getattr(self, option.name)
            if value == option.default:
                continue
            name = _spelling(option)
            if value is True:
                words.append(name)
            else:
                words += [word for one in (value if isinstance(value, list) else [value]) for word in (name, str(one))]
        return words


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of classes below `CommandOptions` are options: one for each of the group's fields."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, type[CommandOptions]] = {}
    expanded: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and issubclass(hint, CommandOptions):
            groups[parameter.name] = hint
            expanded += _options(hint)
        else:
            expanded.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}  # type: ignore[arg-type]
        command(**given, **made)

    run.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return run


def _spelling(option: inspect.Parameter) -> str:
    """How the option is given: by the first name that typer was told, or else as the field is called."""
    (told,) = option.annotation.__metadata__
    names = [name for name in (told.default, *(told.param_decls or ())) if isinstance(name, str)]  # as typer keeps them
    return names[0] if names else f"--{option.name.replace('_', '-')}"


def _options(group: type[CommandOptions]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(group)  # type: ignore[arg-type]
    ]
