"""Every operator of ATen with a Python number among its arguments, called with numbers that are symbolic.

    samples(torch.float32)   ->   aten.add.Tensor(x, y, alpha=k / 5), aten.softplus(x, k / 5, k / 6), ...

Schemas are enumerated; the other arguments follow from their names. What eager refuses is no sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

Kind = Literal["int", "float"]

# Quantized, sparse, nested and recurrent operators, kernels of one device or one library, and what takes no part in
# graphs; in-place operators have functional ones; those that only assert are tested elsewhere.
_APART = (
    "quant", "sparse", "nested", "padded", "rnn", "lstm", "gru", "cudnn", "miopen", "mps", "fbgemm", "attention",
    "_fused_sdp", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_fused_dropout", "_amp_", "_test_", "_functional",
    "Complex", "result_type", "_transformer", "_pad_packed", "_philox", "_masked_scale", "batch_norm_", "histogramdd",
    "_add_relu", "embedding_renorm", "polynomial", "greater", "less", "multiply", "subtract", "not_equal",
    "segment_reduce", "linalg_lstsq", "triton", "sspaddmm", "upsample",
)  # fmt: skip
# Draws from eager's generator are compared elsewhere.
_RANDOM = (
    "bernoulli", "cauchy", "dropout", "exponential", "geometric", "log_normal", "normal", "rrelu", "uniform",
    "random",
)  # fmt: skip
_MATRICES = {
    "mat1": (4, 3), "mat2": (3, 6), "mat": (6, 4), "vec": (4,), "vec1": (4,), "vec2": (6,), "batch1": (2, 4, 3),
    "batch2": (2, 3, 6), "spacing": (6,),
}  # fmt: skip
_SHAPES = {("index_add", "source"): (2, 6), ("addmv", "self"): (6,), ("cosine_embedding_loss", "target"): (4,)}
_OPTIONS: dict[str, Any] = {
    "pad": [1, 2], "size": [3, 2], "dim": 0, "steps": 5, "normalized_shape": [6], "N": 4, "C": 6, "HxW": 1, "group": 2,
    "training": True, "train": False, "cudnn_enabled": False, "momentum": 0.1, "is_result": False, "keepdim": False,
    "self_is_result": False, "reduce": "add", "reduction": 1, "unbiased": True, "use_gelu": False, "dtype": None,
    "mode": "constant", "num_groups": 2, "use_input_stats": True, "edge_order": 1, "groups": 2, "eps": 0.1,
    "compute_mode": None, "rounding_mode": "floor", "output_mask": [True, True, True],
}  # fmt: skip
_BY_OPERATOR: dict[str, dict[str, Any]] = {
    "_pad_enum": {"mode": 0}, "linalg_vector_norm": {"dim": [0]}, "linalg_norm": {"dim": [0]}, "norm": {"dim": [0]},
    "native_norm": {"dim": [0]}, "gradient": {"dim": [0]}, "new_full": {"size": [3, 2]}, "std": {"dim": [0]},
    "var": {"dim": [0]}, "std_mean": {"dim": [0]}, "var_mean": {"dim": [0]}, "linalg_matrix_norm": {"dim": [0, 1]},
}  # fmt: skip


@dataclass(frozen=True)
class ScalarCall:
    """One overload with its tensors; `numbers` says which arguments are numbers."""

    name: str
    target: Any
    arguments: tuple[tuple[str, bool, Any], ...]  # (name, by keyword, value), a `_Number` where it is symbolic

    def __call__(self, tensors: list[torch.Tensor], k: Any, kind: Kind) -> Any:
        """Call the operator: its numbers are expressions of `k`."""
        given = iter(tensors)
        args: list[Any] = []
        by_name: dict[str, Any] = {}
        for name, by_keyword, value in self.arguments:
            made = _made(value, given, k, kind)
            if by_keyword:
                by_name[name] = made
            else:
                args.append(made)
        return self.target(*args, **by_name)

    def tensors(self) -> list[torch.Tensor]:
        """Its tensors."""
        return [t for _, _, value in self.arguments for t in _tensors(value)]


@dataclass(frozen=True)
class _Number:
    place: int

    def __call__(self, k: Any, kind: Kind) -> Any:
        return k + self.place if kind == "int" else k * (self.place + 1) / 8


def _made(value: Any, given: Iterator[torch.Tensor], k: Any, kind: Kind) -> Any:
    if isinstance(value, _Number):
        return value(k, kind)
    if isinstance(value, list):
        return [_made(v, given, k, kind) for v in value]
    return next(given) if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> list[torch.Tensor]:
    return (
        [value]
        if isinstance(value, torch.Tensor)
        else [*filter(torch.is_tensor, value)]
        if isinstance(value, list)
        else []
    )


def samples(dtype: torch.dtype, kind: Kind) -> Iterator[ScalarCall]:
    """What eager takes for two values of the number."""
    for name, target in overloads():
        if "loss" in name and not dtype.is_floating_point:
            continue  # eager divides integers by zero
        call = ScalarCall(name, target, tuple(_arguments(target, dtype)))
        try:
            for k in (2, 3):
                call(call.tensors(), k, kind)
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
            continue
        yield call


def overloads() -> Iterator[tuple[str, Any]]:
    """The overloads with a number among their arguments that compile to something, by name."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        if not schema.name.startswith("aten::") or name.startswith("__") or any(map(_is_written, schema.arguments)):
            continue
        kinds = [str(a.type) for a in schema.arguments]
        if not any("number" in k or "float" in k for k in kinds) or any(part in name for part in (*_APART, *_RANDOM)):
            continue
        packet = getattr(torch.ops.aten, name, None)
        target = getattr(packet, schema.overload_name or "default", None)
        if target is not None and any("Tensor" in k for k in kinds):
            found[f"{name}.{schema.overload_name or 'default'}"] = target
    yield from sorted(found.items())


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _arguments(target: Any, dtype: torch.dtype) -> Iterator[tuple[str, bool, Any]]:
    operator = target._schema.name.removeprefix("aten::")
    generator = torch.Generator().manual_seed(7)
    numbers = 0
    for argument in target._schema.arguments:
        kind = str(argument.type)
        if "number" in kind or "float" in kind:
            number: Any = _Number(numbers)
            numbers += 1
            count = 2 if "List" in kind else 0
            yield argument.name, argument.kwarg_only, [number] * count if count else number
        elif "Tensor" in kind and "Optional" not in kind:
            tensor = _tensor(operator, argument.name, dtype, generator)
            yield argument.name, argument.kwarg_only, [tensor, tensor + 1] if "List" in kind else tensor
        elif argument.name in _BY_OPERATOR.get(operator, {}):
            yield argument.name, argument.kwarg_only, _BY_OPERATOR[operator][argument.name]
        elif argument.has_default_value():
            yield argument.name, argument.kwarg_only, argument.default_value
        else:
            yield argument.name, argument.kwarg_only, None if "Optional" in kind else _OPTIONS.get(argument.name)


def _tensor(operator: str, name: str, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if name in ("index", "indices"):
        return torch.tensor([[1, 0], [2, 3]]) if operator == "scatter" else torch.tensor([1, 3])
    if name in ("mask", "condition"):
        return torch.rand(4, 6, generator=generator) < 0.5
    if name == "target" and operator in ("cross_entropy_loss", "multi_margin_loss"):
        return torch.tensor([1, 0, 5, 2])
    if name in ("boundaries", "sorted_sequence"):
        return torch.arange(-3, 3).to(dtype)
    shape: tuple[int, ...] = _SHAPES.get((operator, name)) or _MATRICES.get(name, (4, 6))
    if operator in ("linspace", "logspace"):
        shape = ()
    made = torch.randn(shape, generator=generator)
    return made.to(dtype) if dtype.is_floating_point else (made * 3).to(dtype)
