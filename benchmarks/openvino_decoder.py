"""Decoding by OpenVINO on a CPU, for `generate.py`: its converter on an exported step, whose cache is its own state.

python benchmarks/generate.py --device cpu --backends regraft,openvino         needs `pip install openvino`
"""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import torch
import transformers as tf

from regraft.compiler.tools.generation.decoding import forward, place_of

PRECISION = {torch.float32: "f32", torch.bfloat16: "bf16"}


class Step(torch.nn.Module):
    """A step as a function: a token, how many are in the cache, keys and values  ->  logits, keys and values."""

    def __init__(self, model: Any, length: int) -> None:
        super().__init__()
        self.model, self.length = model, length

    def forward(self, token: torch.Tensor, count: torch.Tensor, *held: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits of the last token, and the cache after it."""
        cache = tf.StaticCache(config=self.model.config, max_cache_len=self.length)
        for number, layer in enumerate(cache.layers):
            keys, values = (x.clone() for x in held[2 * number : 2 * number + 2])
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = count.clone()
        counts_itself = place_of(self.model, 0, 1, token.device) is None
        logits = forward(self.model, token, cache, None if counts_itself else count.view(1))
        return logits, *tensors_of(cache)


def tensors_of(cache: Any) -> list[torch.Tensor]:
    """Keys and values of all layers."""
    return [x for layer in cache.layers for x in (layer.keys, layer.values)]


class OpenVinoDecoder:
    """A decoder that OpenVINO runs, and its state.

    Args:
        model: of `transformers`.
        cache: filled with a prompt of `filled` tokens; it is copied.
        length: the tokens that it can hold.
        filled: see `cache`.
        token: one, as a step is given it.
    """

    def __init__(self, model: Any, cache: Any, length: int, filled: int, token: torch.Tensor) -> None:
        import openvino as ov
        from openvino._offline_transformations import apply_make_stateful_transformation

        precision, held = PRECISION[next(model.parameters()).dtype], [x.detach().float() for x in tensors_of(cache)]
        self._held, self._filled = [x.numpy().copy() for x in held], filled
        # OpenVINO is given float32, as its users do, and computes in the precision that it is told.
        exact = Step(copy.deepcopy(model).float(), length)
        program = torch.export.export(exact, (token, torch.tensor(filled), *held), strict=False)
        made = ov.convert_model(program)
        states = {f"before{number}_": f"after{number}" for number in range(len(self._held))}
        for given, name in zip(made.inputs, ("token", "count", *states), strict=True):
            given.get_tensor().set_names({name})
        for result, name in zip(made.outputs[1:], states.values(), strict=True):
            result.get_tensor().set_names({name})
        apply_make_stateful_transformation(made, states)
        how = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": precision}
        self._request = ov.compile_model(made, "CPU", how).create_infer_request()
        self._tensor = ov.Tensor

    def rewind(self) -> None:
        """Let the state be that after the prompt."""
        self._request.reset_state()
        for state in self._request.query_state():
            (number,) = map(int, re.findall(r"^before(\d+)_", state.name))
            state.state = self._tensor(self._held[number])

    def step(self, number: int, token: torch.Tensor) -> torch.Tensor:
        """Logits of the token that comes so many after the prompt."""
        self._request.infer({"token": token.numpy(), "count": np.array(self._filled + number)})
        return torch.from_numpy(self._request.get_output_tensor(0).data)
