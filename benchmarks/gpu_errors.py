"""Outputs in bfloat16 and gradients under autocast on a GPU, against float64: eager's errors, and those of regraft.

    python benchmarks/gpu_errors.py bert gpt2 llama vit
    python benchmarks/gpu_errors.py --outputs                     (all models, outputs only)

No dropout; of gradients two rows or eight images, of outputs all that the models come with; the third step of
`mode="reduce-overhead"`. Errors are relative, of all outputs or all gradients as one vector. Exit status: how many
errors are more than 1.5 times eager's.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

os.environ["REGRAFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="regraft-benchmark-")

import torch
from gpu_models import MODELS

WORSE = 1.5
Tensors = list[torch.Tensor | None]


def without_dropout(model: torch.nn.Module) -> None:
    """Set every probability of dropout to 0, wherever a module keeps it."""
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def step(model: torch.nn.Module, loss_of: Callable[..., torch.Tensor], inputs: dict[str, Any]) -> Tensors:
    """The loss and all gradients, in float64."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(**inputs)
    loss.backward()
    return [loss.detach().double(), *(None if p.grad is None else p.grad.double().clone() for p in model.parameters())]


def error(found: Tensors, exact: Tensors) -> float:
    """Relative, of all as one vector."""
    pairs = [(a, b) for a, b in zip(found, exact, strict=True) if a is not None and b is not None]
    wrong = sum(float((a - b).square().sum()) for a, b in pairs)
    return (wrong / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5


def in_double(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Tensors:
    """The loss and all gradients of a copy in float64."""
    wide = copy.deepcopy(model).double()
    doubled = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    return step(wide, lambda **kwargs: wide(**kwargs).loss, doubled)


def model_of(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model on the GPU, always with the same weights, and its inputs."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    without_dropout(model)
    return model.cuda(), {key: x.cuda() for key, x in inputs.items()}


def output_errors(name: str) -> tuple[float, float]:
    """Errors of eager's outputs and of regraft's, weights and images rounded to bfloat16 in all."""
    model, given = model_of(name)
    model.to(torch.bfloat16).eval()
    given = {key: x.bfloat16() if x.is_floating_point() else x for key, x in given.items()}

    def forward(of: torch.nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return of(**inputs).logits

    wide = copy.deepcopy(model).double()
    exact = forward(wide, **{key: x.double() if x.is_floating_point() else x for key, x in given.items()})
    run = torch.compile(lambda **inputs: forward(model, **inputs), backend="regraft", mode="reduce-overhead")
    eager, ours = forward(model, **given), [run(**given) for _ in range(3)][-1]
    return error([eager.double()], [exact]), error([ours.double()], [exact])


def gradient_errors(name: str) -> tuple[float, float]:
    """Errors of eager's gradients and of regraft's."""
    model, inputs = model_of(name)
    rows = 8 if "pixel_values" in inputs else 2
    given = {key: x[:rows] for key, x in inputs.items()}
    model.train()
    exact = in_double(model, given)

    def forward(**kwargs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(**kwargs).loss

    eager = step(model, forward, given)
    run = torch.compile(forward, backend="regraft", mode="reduce-overhead")
    ours = [step(model, run, given) for _ in range(3)][-1]
    return error(eager[1:], exact[1:]), error(ours[1:], exact[1:])


def main() -> int:
    """Compare the models that were named, or all."""
    worse, names = 0, [name for name in sys.argv[1:] if not name.startswith("--")]
    of = (
        {"outputs": output_errors}
        if "--outputs" in sys.argv
        else {"outputs": output_errors, "gradients": gradient_errors}
    )
    for name in names or MODELS:
        for what, errors in of.items():
            eager, ours = errors(name)
            worse += ours > WORSE * eager
            print(f"{name}: {what} of eager {eager:.1e}, of regraft {ours:.1e}", flush=True)
    return worse


if __name__ == "__main__":
    sys.exit(main())
