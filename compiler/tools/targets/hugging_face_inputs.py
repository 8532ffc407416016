"""Inputs for models of `transformers`, found by trying.

What a model needs cannot be read off its signature, where nearly everything defaults to None. So its main input is
tried alone, then beside what models of some kind want with it: an image, boxes, regions, states of an encoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .target import Choices, TargetError

NO_MASK = "takes no padding mask"
"""How the error says so."""

SEQUENCE = 128
"""Tokens of a row, where neither the user nor the model says otherwise."""

SAMPLES = 16_000
"""Samples of a row of raw audio: one second."""

REGIONS = 36
"""Regions of an image that were detected before, for models that start from these."""

FRAMES = 4
"""Frames of a video, and images of a grid along one side, where the model does not say."""

GRID = 4
"""Patches along each side of an image that is given as rows of patches."""

Inputs = dict[str, torch.Tensor]


def working_inputs(model_type: str, model: torch.nn.Module, choices: Choices) -> Inputs:
    """The first of the candidate inputs that the model runs with.

    Raises:
        TargetError: none of them does; the message lists what was tried, and how it failed.
    """
    failures = []
    model.eval()
    for inputs in _candidates(model, choices):
        try:
            with torch.no_grad():
                model(**inputs)
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else ""
            failures.append(f"({', '.join(inputs)}) {type(error).__name__}: {first}")
        else:
            return inputs
    tried = "; ".join(failures) or f"main input {getattr(model, 'main_input_name', '?')!r} is of no known kind"
    raise TargetError(f"no inputs found for hf:{model_type}; write a factory instead (path.py:factory). Tried: {tried}")


def parts(config: Any) -> Iterator[Any]:
    """A configuration and all configurations within it."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


def _candidates(model: Any, choices: Choices) -> Iterator[Inputs]:
    """Main inputs of each form that is known, alone and with each group of companions that the model takes."""
    torch.manual_seed(0)
    accepted, asked = set(inspect.signature(model.forward).parameters), _Asked(model.config, choices)
    name = next((n for n in _main_names(model) if n in accepted and n in _MAIN_INPUTS), _first_known(model))
    for main in _MAIN_INPUTS.get(name, lambda asked: [])(asked):
        decoded = _answers(asked) if "decoder_input_ids" in accepted else [None]
        for answer in decoded:
            inputs = {name: _as(choices, main)} | ({} if answer is None else {"decoder_input_ids": answer})
            yield inputs
            for companions in _COMPANIONS:
                found = companions(replace(asked, main=main))
                if found and found.keys() <= accepted - inputs.keys():
                    yield inputs | {key: _as(choices, value) for key, value in found.items()}


def _main_names(model: Any) -> list[str]:
    """The names of a model's main input; some name several."""
    names = model.main_input_name
    return [names] if isinstance(names, str) else list(names)


def _first_known(model: Any) -> str:
    """The model's first parameter that can be made: some parts of models inherit a main input that they do not take."""
    return next((p for p in inspect.signature(model.forward).parameters if p in _MAIN_INPUTS), "")


def _as(choices: Choices, value: torch.Tensor) -> torch.Tensor:
    return value.to(choices.dtype) if value.is_floating_point() else value


@dataclass(frozen=True)
class _Asked:
    """A request for inputs: the configuration, the choices, and the main input."""

    config: Any
    choices: Choices
    main: torch.Tensor | None = None

    @property
    def batch(self) -> int:
        """Rows."""
        return self.choices.batch

    @property
    def positions(self) -> tuple[int, ...]:
        """(batch, positions) of the main input."""
        return (self.batch, self.length) if self.main is None else tuple(self.main.shape[:2])

    @property
    def length(self) -> int:
        """Tokens of a row."""
        longest = self.setting("max_position_embeddings", "n_positions", "max_target_positions", default=SEQUENCE)
        return self.choices.seq or min(SEQUENCE, longest if isinstance(longest, int) and longest > 0 else SEQUENCE)

    def setting(self, *names: str, default: Any = None) -> Any:
        """The first of the settings that the configuration or one of its parts has."""
        everywhere = ((part, name) for part in parts(self.config) for name in names)
        found = (getattr(part, name, None) for part, name in everywhere)
        return next((value for value in found if value is not None), default)


def _tokens(asked: _Asked) -> torch.Tensor:
    vocabulary = asked.setting("vocab_size", "src_vocab_size", default=1000)
    return torch.randint(min(5, vocabulary // 2), vocabulary, (asked.batch, asked.length))


def _texts(asked: _Asked) -> list[torch.Tensor]:
    """Tokens: (batch, positions), of sound also (batch * channels, positions)."""
    tokens, channels = _tokens(asked), asked.setting("num_codebooks")
    return [tokens] if channels is None else [tokens, tokens.repeat(channels, 1)]


def _answers(asked: _Asked) -> list[torch.Tensor]:
    """Tokens of a decoder: (batch, positions), of sound also (batch, positions, channels)."""
    tokens, channels = _tokens(asked), asked.setting("num_channels")
    return [tokens, tokens.unsqueeze(-1).repeat(1, 1, channels)] if isinstance(channels, int) else [tokens]


def _embeddings(asked: _Asked) -> list[torch.Tensor]:
    width = asked.setting("d_model", "hidden_size", "n_embd", "embed_dim")
    rows = [torch.randn(asked.batch, asked.length, width)] if isinstance(width, int) else []
    return [*rows, *_patches(asked)]


def _image_size(asked: _Asked) -> tuple[int, int, int]:
    size = asked.setting("image_size", "crop_size", default=224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return asked.setting("num_channels", "in_channels", "in_chans", default=3), height, width


def _images(asked: _Asked) -> list[torch.Tensor]:
    sizes, frames = _image_size(asked), asked.setting("num_frames")
    image, pair = torch.randn(asked.batch, *sizes), torch.randn(asked.batch, 2, *sizes)
    return [*([] if frames is None else [torch.randn(asked.batch, frames, *sizes)]), image, *_patches(asked), pair]


def _patches(asked: _Asked) -> list[torch.Tensor]:
    """The patches of all images, one after the other, each as a row or as a small image."""
    side, frames = asked.setting("patch_size"), asked.setting("temporal_patch_size", default=1)
    if not isinstance(side, int) or not isinstance(frames, int):
        return []
    patches, channels = asked.batch * GRID**2, _image_size(asked)[0]
    return [torch.randn(patches, channels * frames * side**2), torch.randn(patches, channels, side, side)]


def _videos(asked: _Asked) -> list[torch.Tensor]:
    frames = asked.setting("frames_per_clip", "num_frames", default=FRAMES)
    return [torch.randn(asked.batch, frames, *_image_size(asked))]


def _waves(asked: _Asked) -> list[torch.Tensor]:
    bins, frames = asked.setting("num_mel_bins"), asked.setting("max_length")
    spectrogram = [torch.randn(asked.batch, frames, bins)] if bins and frames else []
    waves = torch.randn(asked.batch, asked.choices.seq or SAMPLES)
    return [*spectrogram, waves, waves.unsqueeze(1)]


def _features(asked: _Asked) -> list[torch.Tensor]:
    found = []
    bins, positions = asked.setting("num_mel_bins"), asked.setting("max_source_positions")
    if bins and positions:
        found.append(torch.randn(asked.batch, bins, 2 * positions))
    width = asked.setting("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins", "input_dim")
    if isinstance(width, int):
        found.append(torch.randn(asked.batch, asked.choices.seq or SEQUENCE, width))
    side = asked.setting("spec_size")
    return [*found, torch.randn(asked.batch, 1, 4 * side, bins or side // 4)] if isinstance(side, int) else found


def _series(asked: _Asked) -> list[torch.Tensor]:
    """A time series: (batch, steps), with the lags that a model looks back to, or (batch, steps, channels)."""
    steps = asked.setting("context_length", default=SEQUENCE)
    lags, channels = asked.setting("lags_sequence"), asked.setting("num_input_channels", default=1)
    if lags:
        return [torch.randn(asked.batch, steps + max(lags))]
    return [torch.randn(asked.batch, steps, channels), torch.randn(asked.batch, min(steps, SEQUENCE))]


_MAIN_INPUTS: Mapping[str, Callable[[_Asked], list[torch.Tensor]]] = {
    "input_ids": _texts,
    "pixel_values": _images,
    "input_values": _waves,
    "input_features": _features,
    "pixel_values_videos": _videos,
    "past_values": _series,
    "inputs_embeds": _embeddings,
    "hidden_states": _embeddings,
    "query_embeds": _embeddings,
    "inputs": _embeddings,
}


def _image(asked: _Asked) -> Inputs:
    return {"pixel_values": torch.randn(asked.batch, *_image_size(asked))}


def _clip(asked: _Asked) -> Inputs:
    return {"pixel_values": _images(asked)[0]}


def _text(asked: _Asked) -> Inputs:
    return {"input_ids": _tokens(asked)}


def _sound(asked: _Asked) -> Inputs:
    return {"input_features": found[-1]} if (found := _features(asked)) else {}


def _boxes(asked: _Asked) -> Inputs:
    return {"bbox": torch.arange(4).expand(*asked.positions, 4).contiguous()}


def _page(asked: _Asked) -> Inputs:
    return _boxes(asked) | _image(asked)


def _regions(asked: _Asked) -> Inputs:
    features, place = asked.setting("visual_feat_dim"), asked.setting("visual_pos_dim")
    if features is None or place is None:
        return {}
    rows = asked.batch, REGIONS
    return {"visual_feats": torch.randn(*rows, features), "visual_pos": torch.rand(*rows, place)}


def _encoded(asked: _Asked) -> Inputs:
    width = asked.setting("encoder_hidden_size", "cross_attention_hidden_size", "hidden_size", "d_model")
    return {"encoder_hidden_states": torch.randn(asked.batch, asked.length, width)} if isinstance(width, int) else {}


def _steps(asked: _Asked) -> Inputs:
    """The inputs of forecasters beside past values: which were observed, and features of every step."""
    features, ahead = asked.setting("num_time_features"), asked.setting("prediction_length")
    if features is None or ahead is None:
        return {}
    later = asked.batch, ahead
    return {
        "past_time_features": torch.randn(*asked.positions, features),
        "past_observed_mask": torch.ones(asked.positions),
        "future_values": torch.randn(later),
        "future_time_features": torch.randn(*later, features),
    }


def _pace(asked: _Asked) -> Inputs:
    """The inputs of forecasters of any series: which past values are none, and how often there is one."""
    return {
        "past_values_padding": torch.zeros(asked.positions, dtype=torch.long),
        "freq": torch.zeros(asked.batch, 1, dtype=torch.long),
    }


def _task(asked: _Asked) -> Inputs:
    """The task for an image, as tokens that the model takes as numbers."""
    length = asked.setting("task_seq_len")
    return {} if length is None else {"task_inputs": torch.rand(asked.batch, length)}


def _grid(asked: _Asked) -> Inputs:
    """The grid of each image's patches: (frames, rows, columns)."""
    if asked.main is None or len(asked.main) != asked.batch * GRID**2:
        return {}
    return {"grid_thw": torch.tensor([[1, GRID, GRID]] * asked.batch)}


def _points(asked: _Asked) -> Inputs:
    return {"input_points": torch.rand(asked.batch, 1, 2, 2) * _image_size(asked)[-1]}


_COMPANIONS: tuple[Callable[[_Asked], Inputs], ...] = (
    _image, _clip, _text, _sound, _boxes, _page, _regions, _encoded, _steps, _points, _grid,
    _pace, _task,
)  # fmt: skip


def masks(model_type: str, model: Any, inputs: Inputs) -> Inputs:
    """Padding masks for what `inputs` holds, as far as the model takes them.

    Raises:
        TargetError: it takes none, or does not run with them.
    """
    accepted = inspect.signature(model.forward).parameters
    kinds = dict.fromkeys(("input_ids", "input_values", "input_features", "inputs_embeds"), "attention_mask")
    kinds |= {"decoder_input_ids": "decoder_attention_mask", "pixel_values": "pixel_mask"}
    kinds |= {"encoder_hidden_states": "encoder_attention_mask"}
    found = {kinds[name]: _padding(name, value) for name, value in inputs.items() if kinds.get(name) in accepted}
    if not found:
        raise TargetError(f"hf:{model_type} takes no padding mask: leave --mask out")
    try:
        with torch.no_grad():
            model(**inputs, **found)
    except Exception as error:
        tried = f"{', '.join(found)} failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise TargetError(f"hf:{model_type} takes no padding mask of its input's shape: {tried}") from error
    return found


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
