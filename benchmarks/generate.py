"""Decoding with a static cache, a token a step: backends in turns on one model, and the least time that there is.

    python benchmarks/generate.py --models llama-1b --batch 1,4,16 --attention sdpa,eager --dtype bfloat16
    python benchmarks/generate.py --models llama-1b --profile                   kernels by time, and why not
    python benchmarks/generate.py --device cpu --models llama-200m,gpt2 --dtype float32,bfloat16 --threads 1
    python benchmarks/generate.py --device cpu --backends regraft,openvino      needs `pip install openvino`
    python benchmarks/generate.py --models llama-1b --weights int8              linear layers dequantized in PyTorch
    python benchmarks/generate.py --models gemma2,phi3,gpt_neox                 any decoder of `transformers`, by type

Models have random weights; a prompt fills the cache by eager, then every backend decodes the same tokens from a cache
of its own. `roof` is the time to read all weights that a step needs and the used part of the cache once, at the speed
of a large copy (GPU) or of a sum (CPU). Times are medians of turns on a GPU, and the least of a token on a CPU: a
thread's own time if only one is used, which other work on the machine disturbs less. Errors are of logits, relative to
the same weights in float32, in the 2-norm.
"""

from __future__ import annotations

import copy
import gc
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("REGRAFT_CACHE_DIR", tempfile.mkdtemp(prefix="regraft-benchmark-"))

import torch
import transformers as tf
import typer
from rich.console import Console
from rich.table import Table

import regraft
from regraft.compiler.tools.generation.decoding import cache_bytes, forward, place_of, rewind, weight_bytes

MODES = {"inductor": "reduce-overhead", "inductor-max": "max-autotune", "regraft": "reduce-overhead"}
WIDE = 240


def llama(*sizes: int, config: Any = tf.LlamaConfig) -> Any:
    """The configuration of a decoder: hidden size, layers, heads, heads of keys, inner size, vocabulary."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    fixed = {"max_position_embeddings": 16384, "tie_word_embeddings": False}
    given = dict(zip((*names, "vocab_size"), sizes, strict=True))
    return lambda **how: config(**given, **fixed, **how)


def gpt2(hidden: int, layers: int, heads: int, vocabulary: int = 50257) -> Any:
    """The configuration of a GPT-2."""
    return lambda **how: tf.GPT2Config(
        n_embd=hidden, n_layer=layers, n_head=heads, vocab_size=vocabulary, n_positions=16384, **how
    )


MODELS: dict[str, Any] = {
    "llama-1b": llama(2048, 16, 32, 8, 8192, 128256),
    "qwen2-1.5b": llama(1536, 28, 12, 2, 8960, 151936, config=tf.Qwen2Config),
    "gpt2-xl": gpt2(1600, 48, 25),
    "llama-200m": llama(1024, 12, 16, 4, 2816, 32000),
    "gpt2": gpt2(768, 12, 12),
    "mixtral": llama(1024, 12, 16, 4, 2816, 32000, config=tf.MixtralConfig),  # 8 experts of which a token takes 2
    "mixtral-tiny": llama(128, 2, 4, 2, 256, 1000, config=tf.MixtralConfig),
    "llama-tiny": llama(256, 2, 8, 2, 512, 1000),
    "gpt2-tiny": gpt2(128, 2, 4, 1000),
}
DECODER = {  # of a model that is named by its type: what most configurations call these sizes
    "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 8192, "vocab_size": 32000, "pad_token_id": None,
}  # fmt: skip


@dataclass
class Setting:
    """What is decoded, and where."""

    name: str
    attention: str
    dtype: torch.dtype
    batch: int
    prompt: int
    cache: int
    tokens: int
    device: torch.device
    bits: int = 0  # of weights; 0: as the dtype has them
    experts: str = "batched_mm"  # how `generate` decodes on GPUs

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        dtype += f" with weights of {self.bits} bits" if self.bits else ""
        return f"{self.name}, {self.attention}, {dtype}, batch {self.batch}, {self.prompt} of {self.cache} filled"


@dataclass
class Run:
    """One backend: a step by token, and what was seen of it."""

    name: str
    model: Any
    cache: Any
    cold: float = 0.0
    error: float = 0.0
    times: list[float] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


def model_of(setting: Setting) -> Any:
    """The model with random weights, on the device."""
    torch.manual_seed(0)
    how = {"attn_implementation": setting.attention}
    named = MODELS.get(setting.name)
    config = named(**how) if named else tf.AutoConfig.for_model(setting.name, **DECODER, **how)
    with setting.device:
        model = tf.AutoModelForCausalLM.from_config(config)
    model = model.to(setting.dtype).eval()
    if is_of_experts(config):
        model.set_experts_implementation(setting.experts)
    if setting.bits:
        for parent in list(model.modules()):
            for name, layer in parent.named_children():
                if isinstance(layer, (torch.nn.Linear, tf.pytorch_utils.Conv1D)):
                    setattr(parent, name, FewBits(layer, setting.bits))
    return model


def is_of_experts(config: Any) -> bool:
    """Whether layers choose among experts."""
    return any(getattr(config, key, None) for key in ("num_local_experts", "num_experts"))


class FewBits(torch.nn.Module):
    """A linear layer with weights of 8 bits, or of 4, two in a byte; a scale for each column."""

    def __init__(self, layer: torch.nn.Module, bits: int) -> None:
        super().__init__()
        weight = layer.weight.detach() if isinstance(layer, torch.nn.Linear) else layer.weight.detach().t()
        most = 2 ** (bits - 1) - 1
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-6) / most
        whole = (weight / scale).round()
        if bits == 4:
            halves = (whole + 8).to(torch.uint8)
            whole = halves[:, ::2] | halves[:, 1::2] << 4
        self.bits, self.bias = bits, layer.bias
        self.register_buffer("weight", whole.contiguous() if bits == 4 else whole.to(torch.int8).contiguous())
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the dequantized weight."""
        weight = self.weight
        if self.bits == 4:
            weight = torch.stack([weight & 0xF, weight >> 4], -1).view(weight.shape[0], -1).to(x.dtype) - 8
        return torch.nn.functional.linear(x, weight.to(x.dtype) * self.scale, self.bias)


def filled(model: Any, setting: Setting, prompt: torch.Tensor) -> Any:
    """A cache that holds the prompt."""
    cache = tf.StaticCache(config=model.config, max_cache_len=setting.cache)
    forward(model, prompt, cache, place_of(model, 0, prompt.shape[1], prompt.device))
    return cache


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """How long work takes, on the GPU's own clock where there is one."""
    if device.type == "cpu":
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        work()
        return clock() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def bandwidth(device: torch.device) -> float:
    """Bytes a second: read and written by a large copy on a GPU, read by all threads on a CPU."""
    x = torch.ones((1 << 27) if device.type == "cuda" else (1 << 25), device=device)
    if device.type == "cpu":
        pieces = x.chunk(16)
        return pieces[0].nbytes / min(seconds(piece.sum, device) for _ in range(15) for piece in pieces)
    y = torch.empty_like(x)
    return 2 * x.nbytes / statistics.median(seconds(lambda: y.copy_(x), device) for _ in range(9))


def started(name: str, setting: Setting, model: Any, prompt: torch.Tensor, tokens: list[torch.Tensor]) -> Run:
    """A backend that is compiled and warm, with the logits of all tokens."""
    torch.compiler.reset()
    cache, start = filled(model, setting, prompt), time.perf_counter()
    if name == "openvino":
        from openvino_decoder import OpenVinoDecoder

        made: Any = OpenVinoDecoder(model, cache, setting.cache, setting.prompt, tokens[0])
    else:
        made = (
            model if name == "eager" else torch.compile(model, backend=name.removesuffix("-max"), mode=MODES.get(name))
        )
    run = Run(name, made, cache)
    for number in range(3):  # compiled, recorded, replayed
        forget(run, setting)
        decoded = tokens[: 4 if number < 2 else None]
        run.logits = [step(run, setting, n, x).float().clone() for n, x in enumerate(decoded)]
        run.cold = run.cold or time.perf_counter() - start
    return run


def forget(run: Run, setting: Setting) -> None:
    """Let a backend's cache hold the prompt alone."""
    if run.name == "openvino":
        run.model.rewind()
    else:
        rewind(run.cache, setting.prompt)


def step(run: Run, setting: Setting, number: int, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of one token."""
    if run.name == "openvino":
        return run.model.step(number, tokens)
    torch.compiler.cudagraph_mark_step_begin()
    return forward(run.model, tokens, run.cache, place_of(run.model, setting.prompt + number, 1, setting.device))


def take_turns(runs: list[Run], setting: Setting, tokens: list[torch.Tensor], limit: float) -> None:
    """Time all backends by turns."""
    begin = time.perf_counter()
    for turn in range(15):
        if turn >= 3 and time.perf_counter() - begin > limit:
            return
        for run in runs:
            forget(run, setting)
            if setting.device.type == "cpu":
                run.times += [seconds(lambda: step(run, setting, n, x), setting.device) for n, x in enumerate(tokens)]  # noqa: B023
            else:
                whole = seconds(lambda: [step(run, setting, n, x) for n, x in enumerate(tokens)], setting.device)  # noqa: B023
                run.times.append(whole / len(tokens))


def profiled(run: Run, setting: Setting, tokens: list[torch.Tensor], console: Console, lines: int) -> None:
    """Print kernels of a step, by the time that all their launches take."""
    forget(run, setting)
    on_gpu, activity = setting.device.type == "cuda", torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
        for number, token in enumerate(tokens):
            step(run, setting, number, token)
        if on_gpu:
            torch.cuda.synchronize()
    total, count = Counter[str](), Counter[str]()
    for event in profile.events():
        total[event.name] += event.device_time if on_gpu else event.self_cpu_time_total
        count[event.name] += 1
    each = len(tokens)
    whole, launches = sum(total.values()) / each, sum(count.values()) / each
    idle = _idle([(x.time_range.start, x.time_range.end) for x in profile.events()]) / each
    idle_text = f", {idle:.0f} us without any" if on_gpu else ""
    console.print(f"[bold]{run.name}[/bold]: kernels of a step, {whole:.0f} us, {launches:.0f} launches{idle_text}")
    for name, took in total.most_common(lines):
        times = f"{took / each:9.1f} us  {count[name] / each:6.1f} x {took / count[name]:7.2f}"
        console.print(f"{times}  {name[:130]}", markup=False, highlight=False)


def _idle(spans: list[tuple[float, float]]) -> float:
    """Microseconds from the first begin to the last end in which nothing runs."""
    idle, end = 0.0, float("inf")
    for start, stop in sorted(spans):
        idle += max(0.0, start - end)
        end = stop if end == float("inf") else max(end, stop)
    return idle


def reasons(coverage: Any, console: Console) -> None:
    """Print what regraft took and declined, and why, alike ones together."""
    lines = Counter[str]()
    for word, matches in (("applied", coverage.applied), ("declined", coverage.declined)):
        for match in matches:
            known = match.evidence.times if match.evidence else {}
            times = ", ".join(f"{name} {took * 1e6:.1f}" for name, took in sorted(known.items(), key=lambda x: x[1]))
            note = match.evidence.note if match.evidence else ""
            lines[f"{word} {match.rule} {match.candidate} [{times}] {note}"] += 1
    for missed in coverage.near_misses:
        lines[f"missed {missed.rule}: {missed.code}: {missed.message}"] += 1
    for fallback in coverage.fallbacks:
        lines[f"fallback {fallback.stage}: {fallback.code}: {fallback.message}"] += 1
    for line, number in sorted(lines.items()):
        console.print(f"{number:4d} {line}"[:WIDE], markup=False, highlight=False)


def measured(setting: Setting, backends: list[str], limit: float, profile: int, console: Console, rate: float) -> None:
    """Decode by each backend, and print a table."""
    model = model_of(setting)
    torch.manual_seed(1)
    size = setting.batch, setting.prompt + setting.tokens
    ids = torch.randint(5, model.config.vocab_size, size, device=setting.device)
    prompt = ids[:, : setting.prompt]
    tokens = [ids[:, n : n + 1].clone() for n in range(setting.prompt, ids.shape[1])]
    exact = model if setting.dtype == torch.float32 else copy.deepcopy(model).float()
    expected = started("eager", setting, exact, prompt, tokens).logits
    del exact
    runs = []
    for name in backends:
        gc.collect()
        try:
            with regraft.coverage() as coverage:
                runs.append(started(name, setting, model, prompt, tokens))
        except Exception as error:
            console.print(f"{name}: {type(error).__name__}: {error}"[:WIDE], markup=False)
            continue
        pairs = list(zip(runs[-1].logits, expected, strict=True))
        runs[-1].error = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        if name == "regraft" and profile:
            reasons(coverage, console)
    take_turns(runs, setting, tokens, limit)
    weights, used = weight_bytes(model, setting.batch), cache_bytes(runs[0].cache, setting.prompt) if runs else 0
    roof = (weights + used) / rate
    table = Table("backend", "ms a token", "of roof", "first call s", "logits' error", title=str(setting))
    for run in runs:
        ms = (min if setting.device.type == "cpu" else statistics.median)(run.times) * 1e3
        table.add_row(run.name, f"{ms:.4f}", f"{ms / roof / 1e3:.2f}", f"{run.cold:.1f}", f"{run.error:.2e}")
    table.add_row("roof", f"{roof * 1e3:.4f}", "1.00")
    console.print(table)
    console.print(f"{weights / 1e9:.2f} GB of weights and {used / 1e9:.3f} GB of cache at {rate / 1e12:.3f} TB/s")
    for run in runs if profile else []:
        profiled(run, setting, tokens, console, profile if run.name != "eager" else 3)


def main(  # noqa: PLR0913
    models: Annotated[str, typer.Option(help=", ".join(MODELS) + ", or a type of transformers")] = "llama-1b",
    attention: Annotated[str, typer.Option(help="sdpa, eager (written out)")] = "sdpa,eager",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32")] = "bfloat16",
    weights: Annotated[str, typer.Option(help="as the dtype has them, int8, int4")] = "",
    experts: Annotated[str, typer.Option(help="batched_mm, as `generate` decodes on GPUs; grouped_mm")] = "batched_mm",
    batch: Annotated[str, typer.Option(help="Sequences, by commas.")] = "1",
    backends: Annotated[
        str, typer.Option(help="inductor-max: max-autotune; openvino: CPUs")
    ] = "eager,inductor,regraft",
    device: Annotated[str, typer.Option(help="cuda, cpu")] = "cuda",
    prompt: Annotated[int, typer.Option(help="Tokens in the cache.")] = 1024,
    cache: Annotated[int, typer.Option(help="Tokens that it can hold.")] = 2048,
    tokens: Annotated[int, typer.Option(help="Decoded in a turn.")] = 32,
    seconds_each: Annotated[float, typer.Option(help="For timing one table.")] = 10.0,
    threads: Annotated[int, typer.Option(help="Of a CPU; 0 as it is.")] = 0,
    profile: Annotated[int, typer.Option(help="Kernels to list, with what regraft decided; 0 for none.")] = 0,
) -> None:
    """Time decoding."""
    if threads:
        torch.set_num_threads(threads)
    where, console = torch.device(device), Console(width=WIDE)
    rate, bits = bandwidth(where), {"": 0, "int8": 8, "int4": 4}[weights]
    for name in models.split(","):
        for kind in dtype.split(","):
            for spelled in attention.split(","):
                for size in batch.split(","):
                    dtype_of = getattr(torch, kind)
                    setting = Setting(name, spelled, dtype_of, int(size), prompt, cache, tokens, where, bits, experts)
                    with torch.no_grad():
                        measured(setting, backends.split(","), seconds_each, profile, console, rate)


if __name__ == "__main__":
    typer.run(main)
