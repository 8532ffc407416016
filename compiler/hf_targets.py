"""Targets `hf:TYPE`: any model type of `transformers` with random weights, and inputs to run it.

The model is built from its configuration alone, nothing is downloaded; attention is `attn_implementation="eager"`, that
is, as the model's authors spelled it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .targets import Choices, TargetError

SEQUENCE = 128
"""Tokens of a row, where neither the user nor the model says otherwise."""

SAMPLES = 16_000
"""Samples of a row of raw audio: one second."""

LAYER_COUNTS = {
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "layers", "depth", "num_encoder_layers",
    "encoder_layers", "decoder_layers", "num_decoder_layers", "encoder_num_hidden_layers", "decoder_num_hidden_layers",
}  # fmt: skip
"""How configurations call the number of layers of a stack; per-stage tuples are called `depths` or `depth`."""

Inputs = dict[str, torch.Tensor]


def build(model_type: str, choices: Choices) -> tuple[torch.nn.Module, tuple[()], Inputs]:
    """A model of `model_type` with inputs that it accepts.

    Raises:
        TargetError: no such type, a configuration that cannot be built, a model that does not fit into memory, inputs
            that this module does not know how to make, or a mask that the model does not take.
    """
    config = _config(model_type, choices)
    model = _model(model_type, config, choices)
    inputs = _working_inputs(model_type, model, choices)
    if choices.mask:
        inputs |= _masks(model_type, model, inputs)
    return model, (), inputs


def _transformers() -> Any:
    # Nothing is downloaded, so nothing needs the network; the user's own setting wins.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import transformers
    except ImportError as error:
        raise TargetError("hf: targets need transformers: pip install 'regraft[hf]'") from error
    return transformers


def _config(model_type: str, choices: Choices) -> Any:
    mapping = _transformers().CONFIG_MAPPING
    names = {name.replace("_", "-"): name for name in mapping.keys()}  # noqa: SIM118 (a lazy mapping: iteration differs)
    name = names.get(model_type.replace("_", "-").lower())
    if name is None:
        close = [names[n] for n in difflib.get_close_matches(model_type.replace("_", "-"), names, n=4)]
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise TargetError(f"transformers has no model type {model_type!r}{hint}")
    try:
        given = _fewer_layers(mapping[name](), choices.layers) if choices.layers is not None else {}
        config = mapping[name](**{**given, **choices.config})
    except Exception as error:
        raise TargetError(f"the configuration of hf:{model_type} failed: {type(error).__name__}: {error}") from error
    for part in _parts(config):
        if "use_cache" in vars(part):
            part.use_cache = False
    return config


def _fewer_layers(config: Any, layers: int) -> dict[str, Any]:
    """The settings that give each stack of `config` (and of its parts) at most `layers` layers."""
    settings: dict[str, Any] = {}
    counts = {v for k, v in vars(config).items() if k in LAYER_COUNTS and isinstance(v, int)}
    for name, value in vars(config).items():
        if name in LAYER_COUNTS and isinstance(value, int):
            settings[name] = layers
        elif name in ("depths", "depth") and isinstance(value, (list, tuple)):
            settings[name] = type(value)(min(layers, stage) for stage in value)
        elif "layer" in name and isinstance(value, (list, tuple)) and len(value) in counts:
            settings[name] = value[:layers]
        elif _is_config(value):
            settings[name] = type(value)(**_fewer_layers(value, layers))
    return settings


def _is_config(value: Any) -> bool:
    return isinstance(value, _transformers().PretrainedConfig)


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in list(vars(config).values()):
        if _is_config(value):
            yield from _parts(value)


def _model(model_type: str, config: Any, choices: Choices) -> torch.nn.Module:
    create = _constructor(config)
    _check_memory(model_type, _parameters(create) * choices.dtype.itemsize * (3 if choices.train else 1))
    torch.manual_seed(0)
    try:
        return create(choices.dtype)
    except Exception as error:
        raise TargetError(f"building hf:{model_type} failed: {type(error).__name__}: {error}") from error


def _constructor(config: Any) -> Callable[[torch.dtype], torch.nn.Module]:
    """The base model of the configuration: AutoModel's, or for parts of larger models the class of the same name."""
    transformers = _transformers()
    model = None
    if type(config) not in transformers.MODEL_MAPPING:
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
        model = getattr(module, type(config).__name__.removesuffix("Config") + "Model", None)
    if model is not None:
        return lambda dtype: model._from_config(config, attn_implementation="eager", dtype=dtype)
    return lambda dtype: transformers.AutoModel.from_config(config, attn_implementation="eager", dtype=dtype)


def _parameters(create: Callable[[torch.dtype], torch.nn.Module]) -> int:
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in create(torch.float32).parameters())
    except Exception:
        return 0  # some constructors compute with values, which meta tensors have not: build without the check


def _check_memory(model_type: str, needed: int) -> None:
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > 0.8 * available:
        gib = f"{needed / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are free"
        raise TargetError(
            f"hf:{model_type} with these sizes needs {gib}: choose smaller ones, e.g. --layers 2 --set hidden_size=512"
        )


def _working_inputs(model_type: str, model: torch.nn.Module, choices: Choices) -> Inputs:
    """The first of the candidate inputs that the model runs with.

    What a model needs cannot be read off its signature (nearly everything defaults to None), so it is tried.
    """
    failures = []
    model.eval()
    for inputs in _candidates(model, choices):
        try:
            with torch.no_grad():
                model(**inputs)
        except Exception as error:
            failures.append(
                f"({', '.join(inputs)}) {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        else:
            return inputs
    tried = "; ".join(failures) or f"main input {getattr(model, 'main_input_name', '?')!r} is of no known kind"
    raise TargetError(f"no inputs found for hf:{model_type}; write a factory instead (path.py:factory). Tried: {tried}")


def _candidates(model: Any, choices: Choices) -> Iterator[Inputs]:
    torch.manual_seed(0)
    config, accepted = model.config, inspect.signature(model.forward).parameters
    for main in _MAIN_INPUTS.get(model.main_input_name, lambda config, choices: [])(config, choices):
        inputs = {model.main_input_name: main.to(choices.dtype) if main.is_floating_point() else main}
        if "decoder_input_ids" in accepted:
            inputs |= {"decoder_input_ids": _tokens(config, choices)}
        yield inputs
        if model.main_input_name == "input_ids" and "pixel_values" in accepted:
            yield from (inputs | {"pixel_values": image.to(choices.dtype)} for image in _images(config, choices))
        if "bbox" in accepted:
            yield inputs | {"bbox": torch.arange(4).expand(*main.shape, 4).contiguous()}


def _setting(config: Any, *names: str, default: Any = None) -> Any:
    """The first of the settings that `config` or one of its parts has."""
    found = (getattr(part, name) for part in _parts(config) for name in names if getattr(part, name, None) is not None)
    return next(found, default)


def _tokens(config: Any, choices: Choices) -> torch.Tensor:
    longest = _setting(config, "max_position_embeddings", "n_positions", "max_target_positions", default=SEQUENCE)
    length = choices.seq or min(SEQUENCE, longest if isinstance(longest, int) and longest > 0 else SEQUENCE)
    vocabulary = _setting(config, "vocab_size", "src_vocab_size", default=1000)
    return torch.randint(min(5, vocabulary // 2), vocabulary, (choices.batch, length))


def _texts(config: Any, choices: Choices) -> list[torch.Tensor]:
    return [_tokens(config, choices)]


def _images(config: Any, choices: Choices) -> list[torch.Tensor]:
    size = _setting(config, "image_size", default=224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = _setting(config, "num_channels", "in_channels", "in_chans", default=3)
    frames = _setting(config, "num_frames")
    image = torch.randn(choices.batch, channels, height, width)
    return [image] if frames is None else [torch.randn(choices.batch, frames, channels, height, width), image]


def _waves(config: Any, choices: Choices) -> list[torch.Tensor]:
    bins, frames = _setting(config, "num_mel_bins"), _setting(config, "max_length")
    spectrogram = [torch.randn(choices.batch, frames, bins)] if bins and frames else []
    return [*spectrogram, torch.randn(choices.batch, choices.seq or SAMPLES)]


def _features(config: Any, choices: Choices) -> list[torch.Tensor]:
    found = []
    bins, positions = _setting(config, "num_mel_bins"), _setting(config, "max_source_positions")
    if bins and positions:
        found.append(torch.randn(choices.batch, bins, 2 * positions))
    width = _setting(config, "feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins")
    return [*found, torch.randn(choices.batch, choices.seq or SEQUENCE, width)] if width else found


_MAIN_INPUTS: Mapping[str, Callable[[Any, Choices], list[torch.Tensor]]] = {
    "input_ids": _texts,
    "pixel_values": _images,
    "input_values": _waves,
    "input_features": _features,
}


def _masks(model_type: str, model: Any, inputs: Inputs) -> Inputs:
    """Padding masks for what `inputs` holds, as far as the model takes them."""
    accepted = inspect.signature(model.forward).parameters
    kinds = {"input_ids": "attention_mask", "input_values": "attention_mask", "input_features": "attention_mask"}
    kinds |= {"decoder_input_ids": "decoder_attention_mask", "pixel_values": "pixel_mask"}
    masks = {kinds[name]: _padding(name, value) for name, value in inputs.items() if kinds.get(name) in accepted}
    if not masks:
        raise TargetError(f"hf:{model_type} takes no padding mask: leave --mask out")
    return masks


def _padding(name: str, value: torch.Tensor) -> torch.Tensor:
    """Ones, with the last quarter of the last row zero: (batch, positions), for images (batch, height, width)."""
    shape = (
        (len(value), *value.shape[-2:])
        if name == "pixel_values"
        else (len(value), value.shape[-1 if value.ndim == 2 else 1])
    )
    mask = torch.ones(shape, dtype=torch.long)
    mask[-1, ..., shape[-1] - shape[-1] // 4 :] = 0
    return mask
