"""The cache of compiled graphs: the second compilation loads, gives the same, and distrusts what is damaged."""

from __future__ import annotations

import textwrap

import pytest
import torch
import torch.nn.functional as F
from support.caches import cache_in
from support.fresh import run_fresh

import regraft
from regraft.compiler import backend as backend_module
from regraft.compiler.runtime.graph_cache import store
from regraft.compiler.runtime.graph_cache.entry import CachedProgram


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    torch.compiler.reset()
    with cache_in(tmp_path):
        yield


def program(x, w):
    return F.layer_norm(x @ w, (8,)).softmax(-1), x.sum()


def compiled_twice(monkeypatch, function=program, *inputs):
    """Results of the second compilation, and whether it went through the stages again."""
    inputs = inputs or (torch.randn(4, 8), torch.randn(8, 8))
    with torch.no_grad():
        torch.compile(function, backend="regraft")(*inputs)
        torch.compiler.reset()
        stages = []
        real = backend_module.capture
        monkeypatch.setattr(backend_module, "capture", lambda *args: stages.append(1) or real(*args))
        with regraft.coverage() as cov:
            out = torch.compile(function, backend="regraft")(*inputs)
        torch.testing.assert_close(out, function(*inputs))
    return bool(stages), cov


def entries(tmp_path):
    return sorted((tmp_path / "graphs").glob("??/*.bin"))


def test_the_second_compilation_is_recalled(monkeypatch, tmp_path):
    again, cov = compiled_twice(monkeypatch)
    assert not again and len(entries(tmp_path)) == 1
    assert cov.graphs[0].code[0].kernels and "recall" in cov.graphs[0].seconds


def test_a_damaged_entry_is_discarded_and_made_anew(monkeypatch, tmp_path):
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad():
        torch.compile(program, backend="regraft")(x, w)
    (entry,) = entries(tmp_path)
    entry.write_bytes(entry.read_bytes()[:-7])
    torch.compiler.reset()
    again, _ = compiled_twice(monkeypatch, program, x, w)
    assert not again and len(entries(tmp_path)) == 1  # compiled anew by the first, recalled by the second


def test_an_entry_that_does_not_run_is_compiled_again(monkeypatch):
    monkeypatch.setattr(CachedProgram, "runner", None)
    again, cov = compiled_twice(monkeypatch)
    (fault,) = cov.faults
    assert again and len(cov.graphs) == 1 and cov.graphs[0].code[0].kernels and "pass recall failed" in fault.message


def test_what_does_not_unpickle_is_discarded(tmp_path):
    from regraft.compiler.runtime.graph_cache.entry import recall

    key = "ab" * 32
    assert store.write(key, b"not a pickle")
    assert recall(key) is None and not entries(tmp_path)


@pytest.mark.parametrize("train", [False, True])
def test_programs_with_large_results_are_recalled(tmp_path, train):
    """The object that allocates in large pages can be stored."""
    x = torch.randn(3, 1 << 20, requires_grad=train)
    for _ in range(2):
        torch.compiler.reset()
        with torch.set_grad_enabled(train), regraft.coverage() as cov:
            out = torch.compile(lambda x: (x.sin(), x.cumsum(-1)), backend="regraft")(x)
            if train:
                (out[0].sum() + out[1].mean()).backward()
    torch.testing.assert_close(out[0], x.sin())
    assert len(entries(tmp_path)) == 1 and all("capture" not in graph.seconds for graph in cov.graphs)


WRITES = {
    "in place": lambda x, w: x.add_(1) @ w,
    "a part": lambda x, w: (x[1:3].zero_(), x @ w)[1],
    "copy": lambda x, w: (x.copy_(x.sin() @ w), w.mul_(2), (x * w[:4]).sum())[2],
    "detached": lambda x, w: (x.detach().add_(1), x @ w)[1],
    "returned": lambda x, w: x.copy_(x.sin() @ w),
    "returned beside others": lambda x, w: (x.sin(), w.mul_(2), x @ w, x.zero_()),
    "returned twice": lambda x, w: (x.mul_(2), x.sin(), x.add_(1), w.zero_()),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", list(WRITES))
def test_what_writes_to_inputs_is_recalled(tmp_path, name, train):
    """Into their memory, as often as it is called, and autograd counts the writes. Results may be inputs."""
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    found = []
    for run in (WRITES[name], "compiled", "recalled"):
        torch.compiler.reset()
        mine, call = (x.clone(), w.clone()), run if callable(run) else torch.compile(WRITES[name], backend="regraft")
        with torch.set_grad_enabled(train), regraft.coverage() as cov:
            outs = [call(*mine) for _ in range(2)]
        results = outs[1] if isinstance(outs[1], tuple) else (outs[1],)
        found.append((mine, outs, [y._version > 0 for y in mine], [[y is x for x in mine] for y in results]))
    assert len(entries(tmp_path)) == 1 and all("capture" not in graph.seconds for graph in cov.graphs)
    for mine in found[1:]:
        torch.testing.assert_close(mine[:2], found[0][:2])
    assert found[2][2:] == found[1][2:] == found[0][2:]


def test_writes_to_shared_memory_are_compiled_again(tmp_path):
    """AOTAutograd makes one tensor of two that look at the same memory, and guards that they do."""
    whole = torch.randn(4, 8)
    for _ in range(2):
        torch.compiler.reset()
        mine, eagers = whole.clone(), whole.clone()
        with torch.no_grad():
            out = torch.compile(lambda x, y: x.add_(1) + y, backend="regraft")(mine[:2], mine[2:])
        torch.testing.assert_close(out, eagers[:2] + 1 + eagers[2:])
        torch.testing.assert_close(mine[:2], eagers[:2] + 1)
    assert not entries(tmp_path)


@pytest.mark.parametrize("function", [lambda x, w: (x.view(-1), x @ w)], ids=["views"])
def test_what_needs_autograds_wrapper_is_compiled_again(monkeypatch, tmp_path, function):
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad():
        for _ in range(2):
            torch.compiler.reset()
            mine = x.clone()
            torch.testing.assert_close(torch.compile(function, backend="regraft")(mine, w), function(x.clone(), w))
    assert not entries(tmp_path)


def test_another_process_recalls_it(tmp_path):
    script = textwrap.dedent("""
        import torch, regraft
        def program(x):
            return torch.softmax(x * 2, -1)
        torch.manual_seed(0)
        x = torch.randn(4, 8)
        with torch.no_grad(), regraft.coverage() as cov:
            out = torch.compile(program, backend="regraft")(x)
        torch.testing.assert_close(out, program(x))
        model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(6, 1))
        with regraft.coverage() as training:
            torch.compile(model, backend="regraft")(x).square().sum().backward()
        norms = [float(p.grad.norm()) for p in model.parameters()]
        print("capture" in cov.graphs[0].seconds, "capture" in training.graphs[0].seconds, norms, sep=";")
    """)
    file = tmp_path / "program.py"
    file.write_text(script)
    done = [run_fresh([[file]])[0] for _ in range(2)]
    assert [d.code for d in done] == [0, 0], done
    said = [d.output.split(";") for d in done]
    assert [words[:2] for words in said] == [["True"] * 2, ["False"] * 2] and said[0][2] == said[1][2]


def test_a_folder_that_cannot_be_written_costs_only_the_cache(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with torch.no_grad(), monkeypatch.context() as patch:  # which ends before the fixture does
        patch.setenv("REGRAFT_CACHE_DIR", str(blocked))
        x = torch.randn(3)
        torch.testing.assert_close(torch.compile(lambda x: x.exp(), backend="regraft")(x), x.exp())


class Own(torch.optim.Optimizer):
    """Breaks the graph while it walks its parameters, which Dynamo makes parts of the graph then, not inputs."""

    def step(self):
        for p in self.param_groups[0]["params"]:
            torch._dynamo.graph_break()
            p.data.add_(p.grad, alpha=-0.1)


def test_what_the_program_holds_by_itself_is_read_at_every_call():
    """AOTAutograd hands it over beside the arguments, and it may change: no graph is kept that has it for good."""

    def three_steps(compiled):
        held = [torch.ones(4, 3, requires_grad=True), torch.ones(3, requires_grad=True)]
        optimizer = Own(held, {})

        def step(x):
            for p in held:
                p.grad = p.detach() * 0.5 + x.sum()
            optimizer.step()
            return [p.detach().clone() for p in held]

        run = torch.compile(step, backend="regraft") if compiled else step
        with torch.no_grad():
            return [run(torch.full((2,), 0.1 * k)) for k in range(3)]

    wanted = three_steps(False)
    for _ in range(2):
        torch.compiler.reset()
        torch.testing.assert_close(three_steps(True), wanted)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, torch.tensor(0.1), amsgrad=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 0.1),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_steps_of_optimizers_are_recalled(name):
    """Dynamo has the graph hold what they write; its values are others in each process."""

    def trained(seed, compiled):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
        optimizer = OPTIMIZERS[name](model.parameters())
        step = torch.compile(optimizer.step, backend="regraft") if compiled else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(5, 3).double()).sin().sum().backward()
            step()
        state = [x for own in optimizer.state_dict()["state"].values() for x in own.values()]
        return list(model.parameters()), state, [p._version for p in model.parameters()]

    for seed in range(3):  # compiled, recalled, recalled
        torch.compiler.reset()
        with regraft.coverage() as cov:
            ours, theirs = trained(seed, True), trained(seed, False)
        assert cov.graphs and all(("capture" in graph.seconds) == (seed == 0) for graph in cov.graphs)
        torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-3, atol=1e-5)  # steps are counted in float32
        assert all(version > 0 for version in ours[2])


class Returning(torch.optim.Optimizer):
    """Its step writes to what Dynamo has the graph hold, and to inputs that it returns."""

    def step(self, x, y):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.add_(p.grad, alpha=-0.1)
            return y.mul_(2), x * self.param_groups[0]["params"][0], x.add_(1)


def test_positions_of_inputs_count_what_the_program_holds(monkeypatch):
    known, real = [], backend_module.recall
    monkeypatch.setattr(backend_module, "recall", lambda key: known.append(real(key)) or known[-1])
    found = []
    for how in ("eager", "compiled", "recalled"):
        torch.compiler.reset()
        x, y = torch.arange(4.0), torch.arange(4.0)
        held = [torch.nn.Parameter(torch.full((4,), n)) for n in (1.0, 2.0)]
        for p in held:
            p.grad = torch.ones(4)
        step = Returning(held, {}).step
        out = (step if how == "eager" else torch.compile(step, backend="regraft"))(x, y)
        assert out[0] is y and out[2] is x
        found.append((out, [p.detach() for p in held]))
    torch.testing.assert_close(found[1:], [found[0]] * 2)
    assert known[0] is None and known[1].held and known[1].returned
