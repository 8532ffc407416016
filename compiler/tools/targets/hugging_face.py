"""Targets `hf:TYPE`: any model type of `transformers` with random weights, and inputs to run it.

Models are built from their configurations, and nothing is downloaded. Attention is `attn_implementation="eager"`, as
written by the authors of the model.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from .hugging_face_inputs import Inputs, masks, parts, working_inputs
from .hugging_face_tiny import left_open, tiny_rotations, tiny_settings
from .target import Choices, TargetError, said_by

LAYER_COUNTS = {
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "layers", "depth", "num_encoder_layers",
    "encoder_layers", "decoder_layers", "num_decoder_layers", "encoder_num_hidden_layers", "decoder_num_hidden_layers",
    "l_layers", "r_layers", "x_layers", "num_self_attends_per_block",
}  # fmt: skip
"""How configurations call the number of layers of a stack; tuples by stage: `depths`, `depth`, `block_sizes`."""


def build(model_type: str, choices: Choices) -> tuple[torch.nn.Module, tuple[()], Inputs]:
    """A model of `model_type` with inputs that it accepts.

    Raises:
        TargetError: there is no such type, the configuration or the model cannot be built, the model does not fit into
            memory, no inputs for it are known, or it takes no mask.
    """
    try:
        model, inputs = _running(model_type, choices)
    except TargetError:
        if not choices.tiny:
            raise
        model, inputs = _running(
            model_type, replace(choices, tiny=False)
        )  # its parts do not fit together when they are made smaller
    if choices.mask:
        inputs |= masks(model_type, model, inputs)
    return model, (), inputs


def build_decoder(model_type: str, choices: Choices, tokens: int) -> torch.nn.Module:
    """A model of `model_type` that predicts the next token, with positions for `tokens` tokens if possible.

    Raises:
        TargetError: as for `build`, or the type has no such model.
    """
    config = _config(model_type, choices)
    known = _transformers().MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known:
        raise TargetError(f"hf:{model_type} has no model that predicts the next token")
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and 0 < most < tokens:
        config.max_position_embeddings = tokens
    return _model(model_type, choices, _created(known[type(config)], config))


def _running(model_type: str, choices: Choices) -> tuple[torch.nn.Module, Inputs]:
    model = _model(model_type, choices, _constructor(_config(model_type, choices)))
    return model, working_inputs(model_type, model, choices)


def _transformers() -> Any:
    # Nothing is downloaded, so that no network is needed; a setting of the user has priority.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import transformers
    except ImportError as error:
        raise TargetError("hf: targets need transformers: pip install 'regraft[hf]'") from error
    return transformers


def is_model_type(name: str) -> bool:
    """Whether `transformers` has this model type; `-` and `_` are equal."""
    return _spelled(name) in _model_types()


def _model_types() -> dict[str, str]:
    """Model types as `transformers` spells them, by their names with `-`."""
    mapping = _transformers().CONFIG_MAPPING
    return {_spelled(name): name for name in mapping.keys()}  # noqa: SIM118 (a lazy mapping: iteration differs)


def _spelled(name: str) -> str:
    return name.replace("_", "-").lower()


def _config(model_type: str, choices: Choices) -> Any:
    mapping, names = _transformers().CONFIG_MAPPING, _model_types()
    name = names.get(_spelled(model_type))
    if name is None:
        close = [names[n] for n in difflib.get_close_matches(_spelled(model_type), names, n=4)]
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise TargetError(f"transformers has no model type {model_type!r}{hint}")
    _require_settings(model_type, mapping[name], choices.config)
    try:
        config = mapping[name](**{**_smaller(mapping[name](), choices), **choices.config})
    except Exception as error:
        raise TargetError(f"hf:{model_type} cannot be configured{_given(choices)}: {said_by(error)}") from error
    for part in parts(config):
        if "use_cache" in vars(part):
            part.use_cache = False
    return config


def _require_settings(model_type: str, config: Any, given: Mapping[str, Any]) -> None:
    """Raise an error if a configuration does not have a setting: it would accept and ignore any name."""
    plain = vars(config())
    known = {*plain, *dir(config), *inspect.signature(config).parameters, *config.attribute_map}
    for name, value in given.items():
        if name not in known and vars(config(**{name: value})) == {
            **plain,
            name: value,
        }:  # older names are translated to new ones
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            raise TargetError(f"hf:{model_type} has no setting {name!r}{hint}")


def _smaller(config: Any, choices: Choices) -> dict[str, Any]:
    """The settings that reduce the layers and sizes of `config` and of the configurations in it, as chosen."""
    settings = _own_backbones(config)
    settings |= tiny_settings(vars(config)) | tiny_rotations(config) if choices.tiny else {}
    settings |= left_open(vars(config) | settings)
    if choices.layers is not None:
        settings |= _fewer_layers(config, choices.layers)
    within = {name: part for name, part in vars(config).items() if _is_config(part) and name not in settings}
    smaller = {name: given for name, part in within.items() if (given := _smaller(part, choices))}
    return settings | {name: type(within[name])(**given) for name, given in smaller.items()}


def _own_backbones(config: Any) -> dict[str, Any]:
    """If `timm` is missing: a ResNet of `transformers` for each backbone of `config` that needs it."""
    if importlib.util.find_spec("timm") is not None:
        return {}
    transformers = _transformers()
    timm = {k: v for k, v in vars(config).items() if isinstance(v, transformers.TimmBackboneConfig)}
    return {name: transformers.ResNetConfig(out_indices=list(value.out_indices)) for name, value in timm.items()}


def _fewer_layers(config: Any, layers: int) -> dict[str, Any]:
    """The settings that give each stack of `config` at most `layers` layers."""
    settings: dict[str, Any] = {}
    counts = {v for k, v in vars(config).items() if k in LAYER_COUNTS and isinstance(v, int)}
    for name, value in vars(config).items():
        if name in LAYER_COUNTS and isinstance(value, int):
            settings[name] = layers
        elif name in ("depths", "depth", "block_sizes") and isinstance(value, (list, tuple)):
            settings[name] = type(value)(min(layers, stage) for stage in value)
        elif "layer" in name and isinstance(value, (list, tuple)) and len(value) in counts:
            settings[name] = value[:layers]
    return settings


def _is_config(value: Any) -> bool:
    return isinstance(value, _transformers().PretrainedConfig)


def _model(model_type: str, choices: Choices, create: Callable[[torch.dtype], torch.nn.Module]) -> torch.nn.Module:
    _check_memory(model_type, _parameters(create) * choices.dtype.itemsize * (3 if choices.train else 1))
    torch.manual_seed(0)
    try:
        return create(choices.dtype)
    except Exception as error:
        raise TargetError(f"hf:{model_type} cannot be built{_given(choices)}: {said_by(error)}") from error


def _given(choices: Choices) -> str:
    """The user's settings, which are the likely cause of what fails with them."""
    settings = ", ".join(f"{name}={value}" for name, value in choices.config.items())
    return f" with {settings}" if settings else ""


def _constructor(config: Any) -> Callable[[torch.dtype], torch.nn.Module]:
    """The base model of the configuration: that of AutoModel, or for parts of larger models that of their module."""
    return _created(_model_class(config), config)


def _created(model: Any, config: Any) -> Callable[[torch.dtype], torch.nn.Module]:
    """What makes `model`, which may take only a part of `config`: a model of text of one of sound and text."""
    taken = getattr(model, "config_class", None) or type(config)
    own = next((part for part in parts(config) if isinstance(part, taken)), config)
    return lambda dtype: model._from_config(own, attn_implementation="eager", dtype=dtype)


def _model_class(config: Any) -> Any:
    mapping = _transformers().MODEL_MAPPING
    if type(config) in mapping:
        known = mapping[type(config)]  # several if a family has base models with and without a decoder
        return known[0] if isinstance(known, (list, tuple)) else known
    module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    named = getattr(module, type(config).__name__.removesuffix("Config") + "Model", None)
    return named or _made_for(config, module)


def _made_for(config: Any, module: Any) -> Any:
    """The first model of `module` with this configuration that has a `forward`.

    Raises:
        TargetError: there is none.
    """
    base = _transformers().PreTrainedModel
    for model in vars(module).values():
        if not isinstance(model, type) or not issubclass(model, base) or "forward" not in vars(model):
            continue
        if getattr(model, "config_class", None) is type(config):
            return model
    raise TargetError(f"no model of its own takes a {type(config).__name__}")


def _parameters(create: Callable[[torch.dtype], torch.nn.Module]) -> int:
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in create(torch.float32).parameters())
    except Exception:
        return 0  # some constructors need values, which meta tensors do not have: build without the check


def _check_memory(model_type: str, needed: int) -> None:
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > 0.8 * available:
        gib = f"{needed / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are free"
        raise TargetError(
            f"hf:{model_type} with these sizes needs {gib}: choose smaller ones, e.g. --layers 2 --set hidden_size=512"
        )
