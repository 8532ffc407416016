"""The precision of float32: part of keys, and of what Dynamo looks at before it runs compiled code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from regraft.compiler.options import Options
from regraft.compiler.runtime.graph_cache.key import graph_key
from regraft.rewrites.compat.memory import (
    allows_tf32,
    convolutions_allow_tf32,
    copy_all,
    float32_settings,
    guard_float32_precision,
)  # fmt: skip


@pytest.fixture
def settings() -> Iterator[None]:
    convolutions, products = torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    yield
    torch.backends.cudnn.conv.fp32_precision = convolutions
    torch.backends.cuda.matmul.fp32_precision = products


def test_every_setting_counts(settings: None) -> None:
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    known = {(float32_settings(), graph_key(module, [torch.ones(3)], Options()))}
    for kind in (torch.backends.cudnn.conv, torch.backends.cuda.matmul):
        for precision in ("tf32", "ieee"):
            kind.fp32_precision = precision
            known.add((float32_settings(), graph_key(module, [torch.ones(3)], Options())))
        assert not (convolutions_allow_tf32() if kind is torch.backends.cudnn.conv else allows_tf32())
    assert len(known) == len({key for _, key in known}) >= 3  # the first may be one of the others


def test_compiled_code_is_for_one_setting(settings: None) -> None:
    compiled = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        guard_float32_precision()
        compiled.append(convolutions_allow_tf32())
        return module.forward

    run = torch.compile(lambda x: x + 1, backend=backend)
    for precision in ("tf32", "ieee", "tf32", "ieee"):
        torch.backends.cudnn.conv.fp32_precision = precision
        run(torch.ones(3))
    assert compiled == [True, False]


@pytest.mark.parametrize("sizes", [[3], [1 << 18], [5, 1 << 18, 7], [1 << 18] * 6, [0, 4], []], ids=str)
def test_everything_is_copied(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    copy = torch._foreach_copy_

    def many(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        together.append(len(targets))
        copy(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", many)
    sources = [torch.arange(size, dtype=torch.float32) for size in sizes]
    targets = [torch.empty_like(source) for source in sources]
    copy_all(targets, sources)
    assert all(torch.equal(a, b) for a, b in zip(targets, sources, strict=True))
    large = sum(size == 1 << 18 for size in sizes)
    alone = len(sizes) if len(sizes) == 1 else large if large <= 4 else 0
    assert sum(together) == len(sizes) - alone
