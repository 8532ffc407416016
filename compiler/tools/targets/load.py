"""Models to try the compiler on: `load("hf:bert", layers=2, mask=True)`.

A target is `hf:TYPE` (any model type of `transformers`, random weights, attention as its authors spelled it),
`path.py:factory` or `module:factory`; a factory returns (model, inputs), inputs being a dict, a tuple or a tensor, and
may take any of the choices (layers, mask, batch, seq) as keyword arguments.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import torch

from .target import Choices, ModelWithInputs, TargetError


def load(target: str, choices: Choices | None = None, **given: Any) -> ModelWithInputs:
    """Build a target on its device, seeded, in training or evaluation mode.

    Args:
        target: ``"hf:bert"``, ``"path.py:factory"`` or ``"package.module:factory"``.
        choices: what to build.
        **given: the fields of `choices`, where that is not given.

    Raises:
        TargetError: it does not exist or cannot be built, with suggestions where there are any.
    """
    choices = choices or Choices(**given)
    kind, colon, rest = target.rpartition(":")
    if not colon or not rest:
        hint = f"; did you mean hf:{target}?" if target.isidentifier() and _is_model_type(target) else ""
        if target.endswith(".py"):
            hint = f"; name the function in it that returns (model, inputs): {target}:FUNCTION"
        raise TargetError(f"{target!r} is no target: expected hf:TYPE, path.py:factory or module:factory{hint}")
    require_device(choices.device)
    torch.manual_seed(0)
    if kind == "hf":
        from .hugging_face import build

        model, args, kwargs = build(rest, choices)
    else:
        model, args, kwargs = _from_factory(target, _factory(kind, rest), choices)
    return _placed(ModelWithInputs(target, model, args, kwargs, choices))


def load_decoder(target: str, choices: Choices, tokens: int) -> ModelWithInputs:
    """Build a model that predicts the next token; inputs of factories are not used.

    Args:
        target: as for `load`.
        choices: what to build.
        tokens: the most tokens that it reads at once.

    Raises:
        TargetError: as for `load`, or the model does not predict tokens.
    """
    if not target.startswith("hf:"):
        return load(target, choices)
    from .hugging_face import build_decoder

    require_device(choices.device)
    return _placed(ModelWithInputs(target, build_decoder(target.removeprefix("hf:"), choices, tokens), choices=choices))


def require_device(name: str) -> None:
    """Raise an error if this machine does not have the device.

    Raises:
        TargetError: there is no such device, or the name is not the name of a device.
    """
    try:
        torch.empty(1, device=name)
    except Exception as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise TargetError(f"there is no device {name!r} here: {told}") from error


def require_running(target: ModelWithInputs) -> None:
    """Raise an error if a target does not run in eager mode, before it is compiled.

    Raises:
        TargetError: it raises an error; the message contains the error and the line of the user's code.
    """
    try:
        with torch.random.fork_rng(), torch.no_grad():
            target.model(*target.args, **target.kwargs)
    except Exception as error:
        told = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise TargetError(f"{target.name} raises in eager mode: {told}{_place(error)}") from error


def _place(error: Exception) -> str:
    """The innermost line of the traceback outside of torch."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    last = frames[-1] if len(frames) > 1 else None  # the first is the one here
    return "" if last is None else f" (at {last.filename}:{last.lineno}: {last.line})"


def _is_model_type(name: str) -> bool:
    if importlib.util.find_spec("transformers") is None:
        return False
    from .hugging_face import is_model_type

    return is_model_type(name)


def _placed(target: ModelWithInputs) -> ModelWithInputs:
    choices = target.choices

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(choices.device, choices.dtype if value.is_floating_point() else None)

    model = target.model
    if isinstance(model, torch.nn.Module):
        model = model.to(choices.device, choices.dtype).train(choices.train)
    args = tuple(place(value) for value in target.args)
    return ModelWithInputs(
        target.name, model, args, {name: place(value) for name, value in target.kwargs.items()}, choices
    )


def module_at(place: str) -> Any:
    """The module with a path or a name.

    Raises:
        TargetError: it does not exist, or importing it failed.
    """
    return _from_file(Path(place)) if place.endswith(".py") else _from_module(place)


def _factory(place: str, name: str) -> Callable[..., Any]:
    module = module_at(place)
    factory = getattr(module, name, None)
    if callable(factory):
        return factory
    own = {k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__}
    known = sorted(k for k in own if not k.startswith("_"))
    raise TargetError(f"{place} has no factory {name!r}; {_nearest(name, known, 'it defines')}")


def _nearest(name: str, known: Sequence[str], which: str) -> str:
    """A hint: names similar to the unknown one, or all names."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {', '.join(close)}?" if close else f"{which} {', '.join(known) or 'none'}"


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise TargetError(f"there is no file {path}")
    loader = SourceFileLoader(path.stem, str(path))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look a class's module up there
    _executed(lambda: loader.exec_module(module), str(path))
    return module


def _from_module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: modules of the working directory
    return _executed(lambda: importlib.import_module(name), name)


def _executed(run: Callable[[], Any], what: str) -> Any:
    try:
        return run()
    except Exception as error:
        place = "".join(f" at line {line}" for line in _lines_in(what, error)[:1])
        raise TargetError(f"importing {what} failed{place}: {type(error).__name__}: {error}") from error


def _lines_in(path: str, error: BaseException) -> list[int | None]:
    """The lines of a file that an error passed, the outermost first."""
    return [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path]


def _from_factory(
    target: str, factory: Callable[..., Any], choices: Choices
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    parameters = inspect.signature(factory).parameters
    offered = {name: getattr(choices, name) for name in ("layers", "mask", "batch", "seq")}
    refused = [name for name in offered if name in choices.changed() and name not in parameters]
    refused += ["tiny"] * choices.tiny + ["set"] * bool(choices.config)
    if refused:
        told = f"{target} takes no {', '.join(f'--{name}' for name in refused)}"
        raise TargetError(f"{told}: {_taken(parameters, refused)}")
    taken = {
        k: v for k, v in offered.items() if k in parameters and (k in choices.changed() or _required(parameters[k]))
    }
    try:
        made = factory(**taken)
    except Exception as error:
        raise TargetError(f"{target} failed: {type(error).__name__}: {error}") from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise TargetError(f"{target} returned {type(made).__name__}: expected (model, inputs)")
    return made[0], *_inputs(made[1])


def _taken(parameters: Mapping[str, inspect.Parameter], refused: Sequence[str]) -> str:
    """Why a factory does not take some of the choices."""
    if {"tiny", "set"} & set(refused):
        return "that is for models of transformers, hf:TYPE"
    return f"its factory has the parameters {', '.join(parameters)}" if parameters else "its factory has no parameters"


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _inputs(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(made, Mapping):
        return (), dict(made)
    return (tuple(made) if isinstance(made, (tuple, list)) else (made,)), {}
