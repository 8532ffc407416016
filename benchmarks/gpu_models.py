"""Whole models on a GPU: each backend alone, in turns by model, with empty caches.

    python benchmarks/gpu_models.py --models bert,gpt2 --kinds infer,train --backends inductor,regraft

Inference runs in bfloat16, training (forward and backward) under autocast. Attention is what the models' authors
spelled out. For each: median ms of 20 steps by events, seconds of the first call, peak memory, and for inference the
relative error against eager. Ends with geometric means over the first backend.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Annotated, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers as tf
import typer

Inputs = dict[str, torch.Tensor]


def texts(model: type, config: Any, batch: int) -> tuple[torch.nn.Module, Inputs]:
    """A language model, and rows of 512 tokens that are their own labels."""
    ids = torch.randint(5, config.vocab_size - 1, (batch, 512))
    return model(config), {"input_ids": ids, "labels": ids}


def images(model: type, config: Any) -> tuple[torch.nn.Module, Inputs]:
    """A classifier, and 64 images of 224 x 224."""
    return model(config), {"pixel_values": torch.randn(64, 3, 224, 224), "labels": torch.randint(0, 2, (64,))}


def eager(config: type, **settings: Any) -> Any:
    """A configuration whose attention is written out."""
    return config(attn_implementation="eager", **settings)


LLAMA = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 32000, "use_cache": False,
}  # fmt: skip
T5 = {"d_model": 512, "num_layers": 6, "use_cache": False, "decoder_start_token_id": 0}
MODELS: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "bert": lambda: texts(tf.BertForMaskedLM, eager(tf.BertConfig), 16),
    "gpt2": lambda: texts(tf.GPT2LMHeadModel, eager(tf.GPT2Config, use_cache=False), 8),
    "t5": lambda: texts(tf.T5ForConditionalGeneration, tf.T5Config(**T5), 8),
    "vit": lambda: images(tf.ViTForImageClassification, eager(tf.ViTConfig)),
    "llama": lambda: texts(tf.LlamaForCausalLM, eager(tf.LlamaConfig, **LLAMA), 8),
    "resnet": lambda: images(tf.ResNetForImageClassification, tf.ResNetConfig()),
}
KEEPS_LABELS = ("t5",)  # without them it does not run


def milliseconds(step: Callable[[], Any]) -> float:
    """The median of 20 steps, after 5."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        step()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def prepared(name: str, train: bool) -> tuple[Callable[..., torch.Tensor], torch.nn.Module, Inputs]:
    """A function of a model's inputs that gives its logits, or in training its loss; the model, and inputs."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.cuda().train(train)
    given = {key: x.cuda() for key, x in inputs.items() if train or key != "labels" or name in KEEPS_LABELS}
    if not train:
        model.bfloat16()
        given = {key: x.bfloat16() if x.is_floating_point() else x for key, x in given.items()}

    def forward(**kwargs: torch.Tensor) -> torch.Tensor:
        if not train:
            with torch.no_grad():
                return model(**kwargs).logits
        with torch.autocast("cuda", torch.bfloat16):
            return model(**kwargs).loss

    return forward, model, given


def measured(name: str, train: bool, backend: str, mode: str) -> dict[str, float]:
    """Times, peak memory and error of one backend."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "REGRAFT_CACHE_DIR"):
        os.environ[variable] = tempfile.mkdtemp()
    forward, model, inputs = prepared(name, train)
    run = forward if backend == "eager" else torch.compile(forward, backend=backend, mode=mode)

    def step() -> torch.Tensor:
        if not train:
            return run(**inputs)
        model.zero_grad(set_to_none=True)
        loss = run(**inputs)
        loss.backward()
        return loss.detach()

    start = time.perf_counter()
    first = step().clone()
    torch.cuda.synchronize()
    row = {"cold s": time.perf_counter() - start, "ms": milliseconds(step)}
    row["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    if not train:
        expected = forward(**inputs).float()
        row["error"] = float((first.float() - expected).norm() / expected.norm())
    return row


def main(
    models: Annotated[str, typer.Option(help="Names, by commas.")] = ",".join(MODELS),
    kinds: Annotated[str, typer.Option(help="infer, train")] = "infer,train",
    backends: Annotated[str, typer.Option(help="Of torch.compile, or eager.")] = "inductor,regraft",
    mode: Annotated[str, typer.Option(help="As for torch.compile.")] = "reduce-overhead",
) -> None:
    """Time models."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for name in models.split(","):
        for kind in kinds.split(","):
            base = None
            for backend in backends.split(","):
                row = measured(name, kind == "train", backend, mode)
                base = base or row["ms"]
                speeds.setdefault((kind, backend), []).append(base / row["ms"])
                print(name, kind, backend, *(f"{key} {value:.3g}" for key, value in row.items()), flush=True)
    for (kind, backend), ratios in speeds.items():
        print(f"{kind} {backend}: {math.exp(statistics.fmean(map(math.log, ratios))):.2f}x over {len(ratios)} models")


if __name__ == "__main__":
    typer.run(main)
