"""Models whose linear layers are quantized to bytes as PT2E writes them, on a CPU, beside the same ones in OpenVINO.

python benchmarks/quantized_models.py --models bert,vit --backends float32,inductor,regraft,openvino --layers 4

Activations have one scale and zero point for each layer, weights one scale for each column. OpenVINO is given the same
numbers as `fake_quantize`, which it turns into its own products of bytes (`pip install openvino`). Times are the least
of a process's own time over all rounds, backend after backend; `float32` is the model before it was quantized, by
regraft, and errors are those against it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.ao.quantization.fx._decomposed
import transformers as tf
import typer
from rich.console import Console
from rich.table import Table

LARGEST = 4.0  # of activations, on both sides
_STEP, _ZERO = 2 * LARGEST / 255, 128
bytes_of = torch.ops.quantized_decomposed


class Quantized(torch.nn.Module):
    """A linear layer on bytes; `fake`: on float32 numbers that bytes could hold."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().amax(1).clamp_min(1e-8) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("zero", torch.zeros_like(scale, dtype=torch.int64))
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.bias, self.fake = layer.bias, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result."""
        if self.fake:
            weight, zero = self.weight.float() * self.scale[:, None], self.zero.int()
            weight = torch.fake_quantize_per_channel_affine(weight, self.scale, zero, 0, -127, 127)
            x = torch.fake_quantize_per_tensor_affine(x, _STEP, _ZERO, 0, 255)
            return torch.nn.functional.linear(x, weight, self.bias)
        how = (_STEP, _ZERO, 0, 255, torch.uint8)
        x = bytes_of.dequantize_per_tensor(bytes_of.quantize_per_tensor(x, *how), *how)
        weight = bytes_of.dequantize_per_channel(self.weight, self.scale, self.zero, 0, -127, 127, torch.int8)
        return torch.nn.functional.linear(x, weight, self.bias)


class Hidden(torch.nn.Module):
    """A model as a function from its input to its last hidden state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The hidden state."""
        return self.model(x, use_cache=False).last_hidden_state if _decodes(self.model) else self.model(x)[0]


def _decodes(model: torch.nn.Module) -> bool:
    return isinstance(model, tf.LlamaModel)


def quantized(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model whose linear layers are quantized."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, torch.nn.Linear):
                setattr(parent, name, Quantized(layer))
    return model


def made(name: str, layers: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model with random weights, and an input."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 30000, (2, 128))
    if name == "bert":
        return tf.BertModel(tf.BertConfig(num_hidden_layers=layers), add_pooling_layer=False), tokens
    if name == "vit":
        return tf.ViTModel(tf.ViTConfig(num_hidden_layers=layers), add_pooling_layer=False), torch.randn(1, 3, 224, 224)
    if name == "llama":
        sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4}
        return tf.LlamaModel(tf.LlamaConfig(num_hidden_layers=layers, vocab_size=32000, **sizes)), tokens
    raise typer.BadParameter(f"no model {name!r}: there are bert, vit, llama")


def started(backend: str, model: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """A call of a model by a backend."""
    if backend == "openvino":
        return _by_openvino(model, x)
    small = model if backend == "float32" else quantized(model)
    if backend == "eager":
        return lambda: small(x)
    name, _, frozen = ("regraft" if backend == "float32" else backend).partition("+")
    compiled = torch.compile(small, backend=name, options={"freezing": True} if frozen else None)
    return lambda: compiled(x)


def _by_openvino(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    import openvino as ov

    small = quantized(model)
    for layer in small.modules():
        if isinstance(layer, Quantized):
            layer.fake = True
    how = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.compile_model(ov.convert_model(small, example_input=x), "CPU", how).create_infer_request()
    return lambda: torch.as_tensor(request.infer([x.numpy()])[0])


def main(
    models: Annotated[str, typer.Option(help="of bert, vit, llama")] = "bert",
    backends: Annotated[str, typer.Option(help="also eager, regraft+frozen")] = "float32,inductor,regraft,openvino",
    layers: int = 2,
    threads: int = 1,
    rounds: int = 15,
) -> None:
    """Print the time of a call for each model and backend."""
    torch.set_num_threads(threads)
    table = Table("model", *(f"{name}: ms (error)" for name in backends.split(",")))
    for name in models.split(","):
        model, x = made(name, layers)
        model = Hidden(model.eval())
        with torch.no_grad():
            exact = model(x)
            calls = {backend: started(backend, model, x) for backend in backends.split(",")}
            errors = {key: float((call() - exact).norm() / exact.norm()) for key, call in calls.items()}
            least = dict.fromkeys(calls, float("inf"))
            for _ in range(rounds):
                for backend, call in calls.items():
                    before = time.process_time()
                    call()
                    least[backend] = min(least[backend], time.process_time() - before)
        table.add_row(name, *(f"{1e3 * least[key]:.1f} ({errors[key]:.1e})" for key in calls))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
