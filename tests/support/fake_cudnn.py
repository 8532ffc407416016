"""Networks on a GPU that is not there: graphs after autograd of fake CUDA tensors, laid out as cuDNN would."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.autograd.differentiate import differentiate
from regraft.compiler.capture.outputs import flat_outputs

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@contextlib.contextmanager
def cudnn() -> Iterator[None]:
    """Convolutions on fake CUDA tensors are cuDNN's: channels-last where the input or the weight is."""

    def layout(x: torch.Tensor, weight: torch.Tensor, _backend: Any) -> torch.memory_format:
        wanted = _FORMATS.get(weight.dim(), torch.contiguous_format)
        laid_out = (t.is_contiguous(memory_format=wanted) and not t.is_contiguous() for t in (x, weight))
        return wanted if any(laid_out) else torch.contiguous_format

    with (
        mock.patch.object(torch._C, "_select_conv_backend", lambda *_, **__: torch._C._ConvBackend.Cudnn),
        mock.patch.object(torch._C, "_conv_determine_backend_memory_format", layout),
        mock.patch.object(torch.backends.cudnn, "is_available", lambda: True),
    ):
        yield


def inference_graph(model: nn.Module, x: torch.Tensor) -> fx.GraphModule:
    """The graph of `model` after autograd, on fake CUDA tensors of the dtypes that the model's own have."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [name for name, value in state.items() if value.dim()]
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _inputs: Any, _kind: str) -> Any:
        graphs.append(graph)
        return lambda _: None

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        given = [_on_cuda(x), *(_on_cuda(state[name]) for name in names)]
        run = lambda x, *values: functional_call(model, dict(zip(names, values, strict=True)), (x,))  # noqa: E731
        captured = make_fx(run, pre_dispatch=True, _allow_non_fake_inputs=True)(*given)
    with tracing(TracingContext(mode)), torch.no_grad():
        differentiate(flat_outputs(captured)[0], given, keep)
    return graphs[0]


def _on_cuda(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
