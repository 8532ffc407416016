"""Models of many kinds with random weights, for benchmarks of training: from `transformers`, and written by hand.

Each builder takes a size (``tiny`` for CPUs, ``small``, ``base``) and gives a model and its inputs, on the CPU. A model
is called by keywords and gives a tensor, or what has ``loss`` or ``logits``; floating inputs are cast by who runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor]]
SIZES = ("tiny", "small", "base")
MODELS: dict[str, Callable[[str], Built]] = {}


def model(build: Callable[[str], Built]) -> Callable[[str], Built]:
    """Enter a builder under its name."""
    MODELS[build.__name__] = build
    return build


def built(name: str, size: str) -> Built:
    """One of `MODELS`, ``hf:TYPE`` or ``hf:TYPE@LENGTH`` (a base model of `transformers`), or ``timm:NAME``."""
    kind, _, rest = name.partition(":")
    if kind == "hf":
        type_, _, length = rest.partition("@")
        return family(type_, size, int(length or 0))
    if kind == "timm":
        import timm

        model = timm.create_model(rest)
        return Named(model), {"x": images(size, 32, model.default_cfg["input_size"][-1])}
    return MODELS[name](size)


class Named(nn.Module):
    """A model of one input, called by keyword."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the model gives."""
        return self.model(x)


def family(kind: str, size: str, length: int = 0) -> Built:
    """The base model of a type of `transformers`: 8 rows of 512 tokens (or `length`) or 8 images, 4 layers a stack."""
    from regraft.compiler.tools.targets.hugging_face import build
    from regraft.compiler.tools.targets.target import Choices

    rows, length = of(size, 2, 8, 8), length or of(size, 16, 512, 512)
    choices = Choices(layers=of(size, 1, 4, None), tiny=size == "tiny", batch=rows, seq=length)
    model, _, inputs = build(kind, choices)
    return model, inputs


def of(size: str, *values: Any) -> Any:
    """What a size stands for."""
    return values[SIZES.index(size)]


def shape(size: str) -> dict[str, int]:
    """Width, layers, heads of a Transformer."""
    return {"width": of(size, 32, 768, 768), "layers": of(size, 2, 4, 12), "heads": of(size, 2, 12, 12)}


def config(kind: str, **settings: Any) -> Any:
    """A configuration of `transformers`, attention as its authors spelled it."""
    import transformers

    return getattr(transformers, kind)(attn_implementation="eager", **settings)


def made(kind: str, settings: Any) -> nn.Module:
    """A model of `transformers`."""
    import transformers

    return getattr(transformers, kind)(settings)


def tokens(size: str, vocabulary: int, rows: int = 8) -> torch.Tensor:
    """Rows of tokens: 512 of them, 16 for tiny models."""
    return torch.randint(5, vocabulary - 1, (of(size, 2, rows, rows), of(size, 16, 512, 512)))


def images(size: str, rows: int, side: int = 0) -> torch.Tensor:
    """Images of `side` squared; without one, of 224 x 224, or 32 x 32 for tiny models."""
    side = side or of(size, 32, 224, 224)
    return torch.randn(of(size, 2, rows // 2, rows), 3, side, side)


# --- Transformers --------------------------------------------------------------------------------


@model
def opt(size: str) -> Built:
    """A decoder whose layers are dropped at random: the graph breaks at each."""
    s = shape(size)
    settings = config(
        "OPTConfig", hidden_size=s["width"], word_embed_proj_dim=s["width"], ffn_dim=4 * s["width"],
        num_hidden_layers=s["layers"], num_attention_heads=s["heads"], vocab_size=of(size, 99, 50272, 50272),
        layerdrop=0.1, use_cache=False,
    )  # fmt: skip
    ids = tokens(size, settings.vocab_size)
    return made("OPTForCausalLM", settings), {"input_ids": ids, "labels": ids}


@model
def bart(size: str) -> Built:
    """An encoder and a decoder whose layers are dropped at random."""
    s = shape(size)
    layers = of(size, 1, 3, 6)
    settings = config(
        "BartConfig", d_model=s["width"], encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=s["heads"], decoder_attention_heads=s["heads"],
        encoder_ffn_dim=4 * s["width"], decoder_ffn_dim=4 * s["width"],
        vocab_size=of(size, 99, 50265, 50265), encoder_layerdrop=0.1, decoder_layerdrop=0.1, use_cache=False,
    )  # fmt: skip
    ids = tokens(size, settings.vocab_size)
    return made("BartForConditionalGeneration", settings), {"input_ids": ids, "labels": ids}


@model
def deberta(size: str) -> Built:
    """Attention by content and relative position: gathers along diagonals of the scores."""
    s = shape(size)
    settings = config(
        "DebertaV2Config", hidden_size=s["width"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        intermediate_size=4 * s["width"], vocab_size=of(size, 99, 30000, 30000), relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_buckets=of(size, 8, 256, 256), norm_rel_ebd="layer_norm",
        share_att_key=True, type_vocab_size=0, position_biased_input=False,
    )  # fmt: skip
    ids = tokens(size, settings.vocab_size)
    return made("DebertaV2ForMaskedLM", settings), {"input_ids": ids, "labels": ids}


@model
def electra(size: str) -> Built:
    """Embeddings narrower than the layers."""
    s = shape(size)
    settings = config(
        "ElectraConfig", embedding_size=of(size, 16, 128, 128), hidden_size=s["width"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], intermediate_size=4 * s["width"], vocab_size=of(size, 99, 30522, 30522),
    )  # fmt: skip
    ids = tokens(size, settings.vocab_size, 16)
    return made("ElectraForMaskedLM", settings), {"input_ids": ids, "labels": ids}


@model
def mixtral(size: str) -> Built:
    """A mixture of experts."""
    s = shape(size)
    settings = config(
        "MixtralConfig", hidden_size=s["width"], intermediate_size=2 * s["width"], num_hidden_layers=of(size, 1, 2, 6),
        num_attention_heads=s["heads"], num_key_value_heads=s["heads"] // 2, num_local_experts=of(size, 4, 8, 8),
        vocab_size=of(size, 99, 32000, 32000), use_cache=False,
    )  # fmt: skip
    ids = tokens(size, settings.vocab_size, 4)
    return made("MixtralForCausalLM", settings), {"input_ids": ids, "labels": ids}


@model
def swin(size: str) -> Built:
    """Windows of attention with a bias by relative position."""
    settings = config(
        "SwinConfig", image_size=of(size, 32, 224, 224), patch_size=of(size, 4, 4, 4), embed_dim=of(size, 16, 96, 96),
        depths=of(size, [2, 2], [2, 2, 2, 2], [2, 2, 6, 2]), num_heads=of(size, [2, 4], [3, 6, 12, 24], [3, 6, 12, 24]),
        window_size=of(size, 4, 7, 7), num_labels=10,
    )  # fmt: skip
    pixels = images(size, 64)
    inputs = {"pixel_values": pixels, "labels": torch.arange(len(pixels)) % 10}
    return made("SwinForImageClassification", settings), inputs


@model
def convnext(size: str) -> Built:
    """Depthwise 7 x 7 convolutions, layer norm over channels."""
    import transformers

    settings = transformers.ConvNextConfig(
        hidden_sizes=of(size, [8, 16], [96, 192, 384, 768], [96, 192, 384, 768]),
        depths=of(size, [1, 1], [2, 2, 2, 2], [3, 3, 9, 3]), num_stages=of(size, 2, 4, 4), num_labels=10,
    )  # fmt: skip
    pixels = images(size, 64)
    inputs = {"pixel_values": pixels, "labels": torch.arange(len(pixels)) % 10}
    return made("ConvNextForImageClassification", settings), inputs


# --- by hand -------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions with group norm, and the time of a diffusion step."""

    def __init__(self, given: int, width: int, time: int) -> None:
        super().__init__()
        groups = min(32, given // 2, width // 2)
        self.first, self.second = nn.GroupNorm(groups, given), nn.GroupNorm(groups, width)
        self.a, self.b = nn.Conv2d(given, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.skip = nn.Conv2d(given, width, 1) if given != width else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Maps of `width` channels."""
        h = self.a(F.silu(self.first(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.b(F.silu(self.second(h)))


class Attention(nn.Module):
    """Attention among all places of an image."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(min(32, width // 2), width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps like `x`."""
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, 3, self.heads, c // self.heads, h * w).unbind(1)
        scores = torch.softmax(q.transpose(-1, -2) @ k / (c // self.heads) ** 0.5, dim=-1)
        return x + self.out((v @ scores.transpose(-1, -2)).reshape(n, c, h, w))


class UNet(nn.Module):
    """A small diffusion network: down, attention at the coarsest, up by nearest neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        time = 4 * width
        self.width, self.time = width, nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.leave = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        widths = (width, 2 * width, 2 * width)
        self.down = nn.ModuleList(Residual(a, b, time) for a, b in zip((width, *widths), widths, strict=False))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = nn.ModuleList([Residual(2 * width, 2 * width, time), Residual(2 * width, 2 * width, time)])
        self.attention = Attention(2 * width, 4)
        self.up = nn.ModuleList([Residual(4 * width, 2 * width, time), Residual(4 * width, width, time)])
        self.up.append(Residual(2 * width, width, time))
        self.grow = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in (2 * width, width))
        self.norm = nn.GroupNorm(min(32, width // 2), width)

    def forward(self, noisy: torch.Tensor, steps: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """The noise in an image, or the loss."""
        half = self.width // 2
        angles = steps[:, None] * torch.exp(-9.2 / half * torch.arange(half, device=steps.device))
        t = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(noisy.dtype))
        x, kept = self.enter(noisy), []
        for k, block in enumerate(self.down):
            x = block(x, t)
            kept.append(x)
            x = self.shrink[k](x) if k < 2 else x
        x = self.middle[1](self.attention(self.middle[0](x, t)), t)
        for k, block in enumerate(self.up):
            x = block(torch.cat([x, kept.pop()], 1), t)
            x = self.grow[k](F.interpolate(x, scale_factor=2.0, mode="nearest")) if k < 2 else x
        x = self.leave(F.silu(self.norm(x)))
        return x if labels is None else F.mse_loss(x.float(), labels)


@model
def unet(size: str) -> Built:
    """Group norm, attention, upsampling."""
    n, side = of(size, 2, 8, 16), of(size, 8, 64, 64)
    x = torch.randn(n, 4, side, side)
    return UNet(of(size, 8, 128, 128)), {"noisy": x, "steps": torch.rand(n) * 100, "labels": torch.randn_like(x)}


class Squeezed(nn.Module):
    """An inverted bottleneck: depthwise convolution, and channels weighed by their means."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        inner, few = 6 * given, max(4, given // 4)
        self.adds = stride == 1 and given == width
        self.widen = nn.Sequential(nn.Conv2d(given, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU())
        mixing = nn.Conv2d(inner, inner, 5, stride, 2, groups=inner, bias=False)
        self.mix = nn.Sequential(mixing, nn.BatchNorm2d(inner), nn.SiLU())
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, few, 1), nn.SiLU(), nn.Conv2d(few, inner, 1), nn.Sigmoid()
        )
        self.narrow = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps of `width` channels."""
        h = self.mix(self.widen(x))
        h = self.narrow(h * self.weigh(h))
        return x + h if self.adds else h


class Classifier(nn.Module):
    """A body, and classes of its mean."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, or the loss."""
        logits = self.head(self.body(x))
        return logits if labels is None else F.cross_entropy(logits.float(), labels)


@model
def efficientnet(size: str) -> Built:
    """Depthwise convolutions, squeeze and excitation, batch norm."""
    plan = of(
        size,
        [(8, 8, 1), (8, 16, 2)],
        [(32, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 80, 2), (80, 80, 1), (80, 192, 2), (192, 192, 1)],
        [(32, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1), (80, 112, 1),
         (112, 112, 1), (112, 192, 2), (192, 192, 1), (192, 192, 1), (192, 320, 1)],
    )  # fmt: skip
    enter, last = plan[0][0], plan[-1][1]
    stem = [nn.Conv2d(3, enter, 3, 2, 1, bias=False), nn.BatchNorm2d(enter), nn.SiLU()]
    body = nn.Sequential(*stem, *(Squeezed(*step) for step in plan), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    pixels = images(size, 64)
    return Classifier(body, last), {"x": pixels, "labels": torch.arange(len(pixels)) % 10}


class Recurrent(nn.Module):
    """Tokens through an LSTM or a GRU."""

    def __init__(self, kind: type, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.body = kind(width, width, layers, batch_first=True)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, or the loss."""
        logits = self.head(self.body(self.embed(ids))[0])
        return logits if labels is None else F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def recurrent(kind: type, size: str) -> Built:
    """A recurrent language model."""
    words = of(size, 50, 8000, 8000)
    ids = torch.randint(0, words, (of(size, 2, 32, 64), of(size, 8, 64, 128)))
    return Recurrent(kind, words, of(size, 16, 512, 512), of(size, 1, 2, 2)), {"ids": ids, "labels": ids}


@model
def lstm(size: str) -> Built:
    """Recurrent."""
    return recurrent(nn.LSTM, size)


@model
def gru(size: str) -> Built:
    """Recurrent."""
    return recurrent(nn.GRU, size)


class Messages(nn.Module):
    """Message passing: what an edge says is added up at its end."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(16, width), nn.Linear(width, 10)
        self.say = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(
        self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits of nodes, or the loss."""
        h = self.enter(x)
        for say, norm in zip(self.say, self.norms, strict=True):
            said = F.relu(say(torch.cat([h[source], h[target]], -1)))
            h = norm(h + torch.zeros_like(h).index_add(0, target, said.to(h.dtype)))
        logits = self.head(h)
        return logits if labels is None else F.cross_entropy(logits.float(), labels)


@model
def gnn(size: str) -> Built:
    """Gathers and scattered sums by indices that nothing is known of."""
    nodes, edges = of(size, 30, 20000, 20000), of(size, 90, 200000, 200000)
    source, target = torch.randint(0, nodes, (2, edges))
    inputs = {"x": torch.randn(nodes, 16), "source": source, "target": target, "labels": torch.arange(nodes) % 10}
    return Messages(of(size, 16, 128, 128), of(size, 2, 3, 3)), inputs


class Recommender(nn.Module):
    """Bags of embeddings, their products with each other, and a perceptron."""

    def __init__(self, bags: int, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(bags))
        self.dense = nn.Sequential(nn.Linear(13, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        pairs = bags * (bags + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 8 * width), nn.ReLU(), nn.Linear(8 * width, 1))
        self.register_buffer("pairs", torch.tril_indices(bags + 1, bags + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores, or the loss."""
        x = self.dense(dense)
        features = torch.stack([x, *(bag(sparse[:, k]).to(x.dtype) for k, bag in enumerate(self.bags))], 1)
        products = (features @ features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        scores = self.top(torch.cat([x, products], 1)).squeeze(1)
        return scores if labels is None else F.binary_cross_entropy_with_logits(scores.float(), labels)


@model
def dlrm(size: str) -> Built:
    """A recommendation model."""
    n, bags, rows = of(size, 4, 4096, 4096), of(size, 3, 16, 16), of(size, 20, 100000, 100000)
    dense, sparse, labels = torch.randn(n, 13), torch.randint(0, rows, (n, bags, 8)), torch.rand(n).round()
    return Recommender(bags, rows, of(size, 8, 64, 64)), {"dense": dense, "sparse": sparse, "labels": labels}


class VAE(nn.Module):
    """Convolutions down, a draw, transposed convolutions up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Images, or the loss."""
        mean, log = self.down(x).chunk(2, 1)
        made = self.up(mean + torch.randn_like(mean) * (0.5 * log).exp() if self.training else mean)
        if labels is None:
            return made
        return F.mse_loss(made.float(), labels) + 0.5 * (mean.float() ** 2 + log.float().exp() - 1 - log.float()).mean()


@model
def vae(size: str) -> Built:
    """A variational autoencoder."""
    x = torch.rand(of(size, 2, 32, 64), 3, *[of(size, 16, 128, 128)] * 2)
    return VAE(of(size, 8, 128, 128)), {"x": x, "labels": x.clone()}


class Scan(nn.Module):
    """A gated scan over the sequence: a state that decays, by cumulative sums of logarithms in blocks."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.enter = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, or the loss."""
        h = self.embed(ids)
        for enter, norm in zip(self.enter, self.norms, strict=True):
            x, forget, gate = enter(norm(h)).chunk(3, -1)
            log = F.logsigmoid(forget.float() + 4).cumsum(1).clamp(min=-20)
            state = (x.float() * (-log).exp()).cumsum(1) * log.exp()
            h = h + (state * F.silu(gate.float())).to(h.dtype)
        logits = self.head(h)
        return logits if labels is None else F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


@model
def scan(size: str) -> Built:
    """A state-space scan."""
    ids = torch.randint(0, of(size, 50, 8000, 8000), (of(size, 2, 8, 16), of(size, 8, 512, 512)))
    return Scan(of(size, 16, 512, 512), of(size, 1, 3, 6), of(size, 50, 8000, 8000)), {"ids": ids, "labels": ids}
