"""Whether trainings lie on eager's loss curve, on a CPU: tiny models, the same seeds, masks drawn as eager draws them.

    python benchmarks/training_curves.py --steps 50 --models bert,lora

Each model is trained twice from the same weights on the same batches by AdamW, eager and compiled with ``rng="eager"``.
Printed: first and last loss, the largest relative difference along the curve, recompilations after the first step.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import training_models as zoo
import typer
from torch import nn
from torch.utils.checkpoint import checkpoint

import regraft

Built = tuple[nn.Module, dict[str, torch.Tensor]]
MODELS: dict[str, Callable[[], Built]] = {
    name: lambda build=build: build("tiny")  # type: ignore[misc]
    for name, build in zoo.MODELS.items()
}


def model(build: Callable[[], Built]) -> Callable[[], Built]:
    """Enter a builder under its name."""
    MODELS[build.__name__] = build
    return build


def language(kind: str, settings: Any, rows: int = 2) -> Built:
    """A model of `transformers`, and tokens that are their own labels."""
    ids = torch.randint(5, 98, (rows, 16))
    return zoo.made(kind, settings), {"input_ids": ids, "labels": ids}


BERT = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip


@model
def bert() -> Built:
    """Masked language model, a mask over padding on the left."""
    built, inputs = language("BertForMaskedLM", zoo.config("BertConfig", **BERT))
    inputs["attention_mask"] = (torch.arange(16) >= torch.tensor([[0], [5]])).long()
    return built, inputs


@model
def gpt2() -> Built:
    """Causal."""
    settings = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99, "n_positions": 32, "use_cache": False}
    return language("GPT2LMHeadModel", zoo.config("GPT2Config", **settings))


@model
def t5() -> Built:
    """Encoder and decoder, buckets of relative positions."""
    import transformers

    settings = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 99}
    return language(
        "T5ForConditionalGeneration", transformers.T5Config(**settings, use_cache=False, decoder_start_token_id=0)
    )


@model
def vit() -> Built:
    """Patches."""
    settings = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 16,
        "patch_size": 4, "num_labels": 10, "hidden_dropout_prob": 0.1,
    }  # fmt: skip
    inputs = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.arange(4)}
    return zoo.made("ViTForImageClassification", zoo.config("ViTConfig", **settings)), inputs


@model
def resnet() -> Built:
    """Batch norm, whose running statistics are compared, too."""
    import transformers

    settings = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10
    )
    inputs = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.arange(4)}
    return zoo.made("ResNetForImageClassification", settings), inputs


@model
def llama() -> Built:
    """Grouped queries, rotary positions."""
    settings = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "vocab_size": 99, "use_cache": False,
    }  # fmt: skip
    return language("LlamaForCausalLM", zoo.config("LlamaConfig", **settings))


class Straight(torch.autograd.Function):
    """Rounds forward, passes gradients through, clipped."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bound: float) -> torch.Tensor:
        """Rounded values."""
        ctx.save_for_backward(x)
        ctx.bound = bound
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Gradients where `x` is within the bound."""
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < ctx.bound), None


class Regression(nn.Module):
    """A body, and a squared error."""

    def __init__(self, body: Callable[..., torch.Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.parts, self.body = nn.ModuleList(modules), body

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return F.mse_loss(self.body(self.parts, x), labels)


def regression(body: Callable[..., torch.Tensor], *modules: nn.Module) -> Built:
    """Rows of 16 numbers to 4."""
    return Regression(body, *modules), {"x": torch.randn(32, 16), "labels": torch.randn(32, 4)}


@model
def function() -> Built:
    """A derivative of the user's."""
    return regression(lambda m, x: m[1](Straight.apply(m[0](x).tanh(), 0.9)), nn.Linear(16, 32), nn.Linear(32, 4))


def block() -> nn.Module:
    """A perceptron with dropout."""
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16))


@model
def checkpointing() -> Built:
    """Blocks that are recomputed, with dropout."""

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        for part in m[:-1]:
            x = x + checkpoint(part, x, use_reentrant=False)
        return m[-1](x)

    return regression(body, block(), block(), block(), nn.Linear(16, 4))


@model
def lora() -> Built:
    """Frozen layers, adapters of low rank beside them."""
    frozen = [nn.Linear(16, 16).requires_grad_(False) for _ in range(2)]
    down, up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
    nn.init.zeros_(up.weight)

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(m[0](x) + m[3](m[2](x)))
        return m[4](F.gelu(m[1](x)))

    return regression(body, *frozen, down, up, nn.Linear(16, 4))


class Tied(nn.Module):
    """A language model whose table is its last layer, and the moving mean of that table as a second reader."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(40, 16), nn.GRU(16, 16, batch_first=True)
        self.register_buffer("mean", self.table.weight.detach().clone())

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        logits = self.mix(self.table(ids))[0] @ self.table.weight.t()
        teacher = (self.table(ids).detach() @ self.mean.t()).softmax(-1)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.1 * F.kl_div(
            logits.log_softmax(-1), teacher, reduction="batchmean"
        )
        with torch.no_grad():
            self.mean.mul_(0.9).add_(self.table.weight, alpha=0.1)
        return loss


@model
def tied() -> Built:
    """Weights used twice, and a moving mean of them."""
    ids = torch.randint(0, 40, (2, 8))
    return Tied(), {"ids": ids, "labels": ids.roll(1, 1)}


def batches(inputs: dict[str, torch.Tensor], steps: int) -> list[dict[str, torch.Tensor]]:
    """The rows of a batch in another order each step, where all have them."""
    rows = {x.shape[0] for x in inputs.values()}
    if len(rows) != 1:
        return [inputs] * steps
    orders = [torch.randperm(*rows) for _ in range(steps)]
    return [{key: x[order] for key, x in inputs.items()} for order in orders]


def curve(net: nn.Module, call: Callable[..., Any], given: list[dict[str, torch.Tensor]]) -> list[float]:
    """Losses of a training."""
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    torch.manual_seed(1)
    for batch in given:
        optimizer.zero_grad()
        result = call(**batch)
        loss = result if isinstance(result, torch.Tensor) else result.loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def compared(name: str, steps: int) -> tuple[list[float], list[float], float]:
    """Losses of both trainings, and the largest difference of buffers at the end."""
    torch.compiler.reset()
    torch.manual_seed(0)
    net, inputs = MODELS[name]()
    given = batches(inputs, steps)
    other = copy.deepcopy(net)
    wanted = curve(net.train(), net, given)
    call = torch.compile(other.train(), backend=regraft.backend, options={"rng": "eager"}, dynamic=False)
    found = curve(other, call, given)
    pairs = zip(net.buffers(), other.buffers(), strict=True)
    return (
        wanted,
        found,
        max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()), default=0.0),
    )


def main(
    models: Annotated[str, typer.Option(help="Names, by commas.")] = ",".join(MODELS),
    steps: Annotated[int, typer.Option(help="Of each training.")] = 20,
    tolerance: Annotated[float, typer.Option(help="Relative difference that counts as off the curve.")] = 1e-3,
) -> None:
    """Compare trainings with eager's."""
    off = []
    for name in models.split(","):
        start = time.perf_counter()
        try:
            wanted, found, buffers = compared(name, steps)
        except Exception as error:  # the others are compared all the same
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            off.append(name)
            continue
        worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(found, wanted, strict=True))
        bad = not worst <= tolerance or not buffers <= tolerance
        off += [name] if bad else []
        seconds = time.perf_counter() - start
        line = f"{name}: loss {wanted[0]:.4f} -> {wanted[-1]:.4f}, difference {worst:.1e}, buffers {buffers:.1e}"
        print(f"{line}, {seconds:.0f} s{'  OFF' if bad else ''}", flush=True)
    print("all lie on eager's curve" if not off else f"off: {', '.join(off)}")
    raise typer.Exit(bool(off))


if __name__ == "__main__":
    typer.run(main)
