import re

import pytest
import torch

from regraft.compiler.codegen.wrapper.emit import WrapperSource
from regraft.compiler.codegen.wrapper.profiled import profiled_text
from regraft.rewrites.reason import Site


def test_each_call_is_a_range_and_lines_keep_their_numbers():
    body = ["(x,) = args", "mm = aten.mm(x, x)", "if mm.stride() != (1,): mm = f(mm)", "k0(mm)"]
    text = "\n    ".join(["def call(args):", *body]) + "\n"
    site = Site("/a/model.py", 7, "forward", "x @ x")
    found = profiled_text(WrapperSource(text, {}, {3: site}, {3: "mm", 4: "mm", 5: "k0"})).splitlines()
    assert found[2] == "    with record_function('aten.mm [model.py:7]'): mm = aten.mm(x, x)"
    assert found[3] == text.splitlines()[3] and found[4] == "    with record_function('k0'): k0(mm)"


@pytest.mark.parametrize("train", [False, True])
def test_traces_show_kernels_with_their_lines(train):
    def f(x, w):
        h = x @ w
        return torch.softmax(h.tanh(), -1)

    torch.compiler.reset()
    x, w = (torch.randn(8, 8, requires_grad=train) for _ in range(2))
    compiled = torch.compile(f, backend="regraft")
    before = compiled(x, w)
    with torch.profiler.profile() as profile:
        again = compiled(x, w)
        if train:
            again.sum().backward()
    assert torch.equal(again, before)
    names = {event.key for event in profile.key_averages()}
    kernels = {name for name in names if re.fullmatch(r"k\d+_\w+ \[test_profiled\.py:\d+\]", name)}
    assert len(kernels) >= 1 + train, names
    assert any(re.search(r"(mm|linear).* \[test_profiled\.py:\d+\]", name) for name in names), names
    assert torch.equal(compiled(x, w), before)


@pytest.mark.parametrize("train", [False, True])
def test_traces_show_modules_where_no_line_of_the_user_runs_them(train):
    torch.compiler.reset()
    inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), inner)
    compiled, x = torch.compile(model, backend="regraft"), torch.randn(4, 8)
    with torch.set_grad_enabled(train), torch.profiler.profile() as profile:
        out = compiled(x)
        if train:
            out.square().sum().backward()
    names = {event.key for event in profile.key_averages()}
    kernels = {name for name in names if re.match(r"k\d+_", name)}
    assert len(kernels) >= 2 and all(re.search(r" \[module \d(\.\d)?\]$", name) for name in kernels), names
    assert any(name.endswith("[module 3.1]") for name in kernels), names
