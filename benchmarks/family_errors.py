"""Many types of models in 16 bits against float64: eager's errors, and those of regraft.

    python benchmarks/family_errors.py --jobs 15 --budget 400 --json rows.jsonl
    python benchmarks/family_errors.py --device cpu --types mpt,bloom --seq 512
    python benchmarks/family_errors.py --device simulated --seq 40

Types are those of `transformers`, with two layers a stack, small widths, long rows (a bias that grows with the distance
is rounded at a distance) and a padding mask. Outputs are in bfloat16, of weights rounded to it; gradients are taken
under autocast, without dropout; `--dtype float32` compares both in float32. Errors are relative, of all outputs or all
gradients as one vector. Every rewrite that is legal is applied, faster or not. Each type runs in a process of its own;
with CUDA_LAUNCH_BLOCKING=1 a row says which call failed on a GPU.
Exit status: 1 if an error is more than 1.5 times eager's.

A simulated GPU gets the graphs, templates and kernels of a Hopper GPU, and Triton's interpreter runs them on the CPU.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
import typer
from gpu_errors import WORSE, Tensors, error, without_dropout
from rich.console import Console
from rich.table import Table
from torch.utils._pytree import tree_leaves, tree_map

import regraft

Errors = tuple[float, float]
app = typer.Typer(add_completion=False, help=__doc__)
SECONDS = 240  # that one type may take
NOISE = {"bfloat16": 2e-3, "float32": 2e-5}  # errors below it say nothing
TYPES = """
albert audio-spectrogram-transformer bart beit bert big_bird biogpt bit blenderbot bloom camembert canine clip
clipseg cohere convbert convnext convnextv2 ctrl cvt data2vec-text data2vec-vision deberta deberta-v2
decision_transformer deit detr dinov2 distilbert donut-swin dpr electra ernie esm falcon falcon_mamba flaubert fnet
focalnet fsmt funnel gemma gemma2 gemma3_text git glm glpn gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese
gpt_oss granite granitemoe helium hiera ibert ijepa imagegpt informer jamba jetmoe layoutlm layoutlmv3 led levit
lfm2 lilt llama longformer longt5 luke m2m_100 mamba marian markuplm mbart megatron-bert minimax mistral mixtral
mobilebert mobilevit mobilevitv2 modernbert mpnet mpt mra mvp nemotron nystromformer olmo olmo2 olmoe opt
patchtsmixer patchtst pegasus perceiver persimmon phi phi3 phimoe plbart poolformer prophetnet pvt pvt_v2 qwen2
qwen2_moe qwen3 qwen3_moe recurrent_gemma regnet rembert resnet roberta roc_bert roformer segformer siglip smollm3
speech_to_text splinter squeezebert stablelm starcoder2 swiftformer swin swinv2 t5 timesformer umt5 videomae vilt
vit vit_mae vit_msn vitdet xglm xlm xlm-roberta xlnet xmod yolos yoso zamba
"""


def built(kind: str, seq: int, mask: bool) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model without dropout, always with the same weights, and its inputs."""
    from regraft.compiler.tools.targets.hugging_face import build
    from regraft.compiler.tools.targets.target import Choices, TargetError

    torch.manual_seed(0)
    choices = Choices(layers=2, tiny=True, batch=2, seq=seq, mask=mask)
    try:
        model, _, inputs = build(kind, choices)
    except TargetError:  # it takes no mask
        model, _, inputs = build(kind, replace(choices, mask=False))
    without_dropout(model)
    return model.eval(), inputs


def placed(inputs: dict[str, Any], device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Inputs on a device, floating ones in `dtype`."""

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, dtype if x.is_floating_point() else None)

    return tree_map(one, inputs)


def floats(result: Any) -> list[torch.Tensor]:
    """All floating tensors of a result."""
    leaves = tree_leaves(dict(result) if hasattr(result, "keys") else result)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


class EagerError(Exception):
    """Eager does not run a type in this dtype."""


def by_eager(run: Callable[..., Tensors], *given: Any) -> Tensors:
    """What eager gives."""
    try:
        return run(*given)
    except Exception as failed:
        raise EagerError(f"eager: {failed}") from failed


def backend_of(device: str) -> Callable[[], Any]:
    """What makes the backend of a device."""
    if device != "simulated":
        return lambda: functools.partial(regraft.backend, options={"profit": "always"})
    import pytest
    from support.simulated_gpu import SimulatedGpu

    patches = pytest.MonkeyPatch()
    return lambda: SimulatedGpu(patches, Path(tempfile.mkdtemp()))


def outputs(
    model: torch.nn.Module, inputs: dict[str, Any], device: str, dtype: torch.dtype, backend: Any, dynamic: Any
) -> Errors:
    """Errors of outputs in `dtype`: eager's and regraft's."""
    low = copy.deepcopy(model).to(device, dtype)
    wide = copy.deepcopy(low).double()

    def run(of: Callable[..., Any], wanted: torch.dtype) -> Tensors:
        given = placed(placed(inputs, device, dtype), device, wanted)
        with torch.no_grad():
            return [x.double() for x in floats(of(**given))]

    exact, eager = by_eager(run, wide, torch.float64), by_eager(run, low, dtype)
    compiled = torch.compile(low, backend=backend(), dynamic=dynamic)
    return error(eager, exact), error(run(compiled, dtype), exact)


def gradients(
    model: torch.nn.Module, inputs: dict[str, Any], device: str, dtype: torch.dtype, backend: Any, dynamic: Any
) -> Errors:
    """Errors of gradients, under autocast to `dtype` if that is no float32: eager's and regraft's."""
    single = copy.deepcopy(model).to(device)
    wide = copy.deepcopy(single).double()

    low = dtype != torch.float32

    def run(module: torch.nn.Module, of: Callable[..., Any], wanted: torch.dtype, enabled: bool) -> Tensors:
        module.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            result = next(x for x in floats(of(**placed(inputs, device, wanted))) if x.requires_grad)
        result.to(torch.float64).square().mean().backward()
        return [None if p.grad is None else p.grad.double().clone() for p in module.parameters()]

    exact = by_eager(run, wide, wide, torch.float64, False)
    plain = copy.deepcopy(single)  # a model may keep what it computed
    eager = by_eager(run, plain, plain, torch.float32, low)
    compiled = torch.compile(single, backend=backend(), dynamic=dynamic)
    return error(eager, exact), error(run(single, compiled, torch.float32, low), exact)


@app.command()
def one(
    kind: str, device: str = "cuda", seq: int = 384, dtype: str = "bfloat16", mask: bool = True, dynamic: bool = False
) -> None:
    """Print the errors of one type as JSON: what `main` starts."""
    row: dict[str, Any] = {"type": kind}
    try:
        model, inputs = built(kind, seq, mask)
    except Exception as failed:
        row["not built"] = f"{failed}"[:100]
        print(json.dumps(row))
        return
    backend, place = backend_of(device), "cuda" if device == "cuda" else "cpu"
    for what in (outputs, gradients):
        torch.compiler.reset()
        try:
            row[what.__name__] = what(model, inputs, place, getattr(torch, dtype), backend, dynamic or None)
        except EagerError as failed:
            row[what.__name__] = str(failed)[:100]
        except Exception as failed:
            row[what.__name__] = f"{type(failed).__name__}: {failed}"[:200]
            row["raised in"] = [f"{x.name}: {x.line}" for x in traceback.extract_tb(failed.__traceback__)][-3:]
    print(json.dumps(row), flush=True)


def started(kind: str, device: str, seq: int, flags: list[str], end: float) -> dict[str, Any]:
    """The row of one type, from a process of its own."""
    if time.time() > end:
        return {"type": kind, "left out": True}
    command = [sys.executable, __file__, "one", kind, "--device", device, "--seq", str(seq), *flags]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"REGRAFT_CACHE_DIR": folder}
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=SECONDS, env=environment
            )
        except subprocess.TimeoutExpired:
            return {"type": kind, "outputs": f"more than {SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    row = json.loads(lines[-1]) if lines else {"type": kind, "outputs": f"exit {done.returncode}: {done.stderr[-200:]}"}
    left_out = [line for line in done.stderr.splitlines() if line.startswith("regraft: ")]
    return row | ({"left out of it": left_out} if left_out else {})


def is_wrong(pair: Any, noise: float) -> bool:
    """Whether an error is too large, or there is none."""
    if not isinstance(pair, list):
        return not pair.startswith("eager:")
    eager, ours = pair
    return not ours <= max(WORSE * eager, noise) and eager == eager


@app.command()
def main(  # noqa: PLR0913 - the command's options
    types: Annotated[str, typer.Option(help="Types of `transformers`, by commas.")] = ",".join(TYPES.split()),
    device: Annotated[str, typer.Option(help="cuda, cpu or simulated.")] = "cuda",
    seq: Annotated[int, typer.Option(help="Tokens of a row.")] = 384,
    dtype: Annotated[str, typer.Option(help="bfloat16, with autocast in training, or float32.")] = "bfloat16",
    mask: Annotated[bool, typer.Option(help="Give a padding mask.")] = True,
    dynamic: Annotated[bool, typer.Option(help="All sizes of inputs are symbolic.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes at a time.")] = 1,
    budget: Annotated[float, typer.Option(help="Seconds after which no further types are begun.")] = 1e9,
    to: Annotated[str, typer.Option("--json", help="A file to which each type adds a line.")] = "",
) -> None:
    """Compare all types, and print those that are worse than eager."""
    end = time.time() + budget
    flags = ["--dtype", dtype, "--mask" if mask else "--no-mask", "--dynamic" if dynamic else "--no-dynamic"]
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(started, kind, device, seq, flags, end) for kind in types.split(",")]
        for done in as_completed(begun):
            rows.append(row := done.result())
            if to:
                with Path(to).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    compared = [(row["type"], what, row[what]) for row in rows for what in ("outputs", "gradients") if what in row]
    table = Table("type", "what", "eager's error, regraft's")
    wrong = [(kind, what, pair) for kind, what, pair in compared if is_wrong(pair, NOISE[dtype])]
    for kind, what, pair in wrong:
        table.add_row(kind, what, pair if isinstance(pair, str) else f"{pair[0]:.1e}, {pair[1]:.1e}")
    console = Console(width=160)
    console.print(table)
    for row in rows:
        for line in row.get("left out of it", ()):
            console.print(f"{row['type']}: {line}")
    console.print(
        f"{len(compared)} compared, {len(wrong)} worse; not built: {[r['type'] for r in rows if 'not built' in r]}"
    )
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("one", "main"):
        sys.argv.insert(1, "main")
    app()
