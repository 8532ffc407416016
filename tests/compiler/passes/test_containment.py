"""A fault of ours costs the pass in which it happens: the program runs right, and the report names the pass."""

import functools
import re
import types

import pytest
import torch
from support.thorough import THOROUGH

import regraft
from regraft.compiler import backend, pipeline, stages
from regraft.compiler.backend import Compilation
from regraft.compiler.passes.containment import Containment, PassFailedError
from regraft.rewrites.faults import Faults
from regraft.rewrites.record import Fallback, GraphRecord


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(6, 4)

    def forward(self, x):
        scores = self.conv(x).relu().flatten(0, 2)
        return (self.out(scores).softmax(-1) + torch.ones(4, device=x.device) * 2).sum(0)


# Passes of every kind fail in inference only, but for those that a forward and its backward are most likely to disagree
# on.
IN_TRAINING = (
    "constant_sdpa_masks", "fold_uniform", "pad_conv_channels", "align_rows", "rewrite-lowered", "kernels", "generate",
)  # fmt: skip
COMMON: list[str] = []  # the passes of inference
KINDS = {
    "inference": {},
    "frozen": {"freezing": True, "mode": "max-autotune-no-cudagraphs", "profit": "always"},
    "training": {"rng": "fast"},
}
# What sets a compilation up, reads what it is about, or says what the user asked for.
SETTING_UP = {
    "collected_once", "resolve_rules", "_resolve", "make_oracle", "faults_of", "cache_dir", "refuse_training",
    "default_rules", "declared", "compile_name", "calls_plainly", "places", "tell_strides", "keep_saved", "publish",
    "compile_lock", "is_watched", "dynamo_signal", "_requires_grad", "_as_it_is", "flat_outputs",
    "differentiate", "_begun_ahead", "as_calls", "plugin_rules", "backend", "restored",
    "allowed", "changes", "changing", "code_is_logged", "debug_dir", "left_out", "pass_facts", "refuse_unknown",
    "backends_around", "backends_throughout", "bodies", "captured_bodies", "is_renamed_tensor",
    "as_backward", "as_forward", "as_saved", "default_dtype", "is_fake", "requires_grad",
    "relying", "forms_of_gradients", "at_eagers_place", "sizes_unread", "ships_with_torch",
    "graph_break", "usual_calls", "no_leaves", "refusals", "_refused", "twice_differentiable",
    "versions_written", "writes_inputs", "differentiated",
}  # fmt: skip


@pytest.fixture(autouse=True)
def uncached(monkeypatch):
    monkeypatch.setattr(Compilation, "_key", lambda self: None)


def results(net, x, kind):
    """What a step gives: outputs and gradients."""
    torch._dynamo.reset()
    x = x.clone().requires_grad_(kind == "training")
    with torch.set_grad_enabled(kind == "training"):
        out = net(x)
        if kind != "training":
            return [out]
        net.zero_grad()
        parameters = [x, *net.parameters()]
        return [out, *torch.autograd.grad(out.square().sum(), parameters)]


def run(kind, **options):
    """The passes of a compilation are what a plain one does; the results are eager's. Gives the report."""
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    net = net.requires_grad_(kind == "training")
    with regraft.coverage() as cov:
        compiled = torch.compile(net, backend="regraft", options=KINDS[kind] | options)
        found = results(compiled, x, kind)
    for ours, theirs in zip(found, results(net, x, kind), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4)
    return cov


def spied(monkeypatch, kind):
    """The names of the passes that a compilation runs, and the functions of ours that it calls outside of them."""
    names, outside, inside = [], set(), []
    real = Containment.do

    def do(self, function, *args, name="", default=None, **kwargs):
        names.append(name or function.__name__)
        inside.append(function)
        try:
            return real(self, function, *args, name=name, default=default, **kwargs)
        finally:
            inside.pop()

    def watched(name, function):
        def call(*args, **kwargs):
            if not inside:
                outside.add(name)
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(Containment, "do", do)
        for module in (pipeline, stages, backend):
            for name, value in vars(module).items():
                if isinstance(value, types.FunctionType) and value.__module__.startswith("regraft."):
                    call = watched(name, value)
                    call.__name__ = name
                    patched.setattr(module, name, call)
        run(kind)
    return list(dict.fromkeys(names)), outside


@pytest.mark.parametrize("kind", KINDS)
def test_any_pass_may_fail(monkeypatch, kind):
    names, outside = spied(monkeypatch, kind)
    assert outside <= SETTING_UP, sorted(outside - SETTING_UP)
    if kind == "inference":
        COMMON[:] = names
    else:
        names = [name for name in names if name not in COMMON or (kind == "training" and name in IN_TRAINING)]
    real, planted = Containment.do, RuntimeError("planted")

    faulty = set()

    def do(self, function, *args, name="", default=None, **kwargs):
        def failing(*args, **kwargs):
            made = function(*args, **kwargs)
            if (name or function.__name__) in faulty:
                raise planted  # after it has changed the graph
            return made

        return real(self, failing, *args, name=name or function.__name__, default=default, **kwargs)

    def told():
        """The passes that the report names."""
        found = [f for f in run(kind).fallbacks if f.fault]
        assert {f.code for f in found} == {"passes-failed"}
        patterns = (re.search(r"pass (.*) failed: RuntimeError: planted", f.message) for f in found)
        return sorted(pattern[1] for pattern in patterns)

    monkeypatch.setattr(Containment, "do", do)
    alone = list(names) if THOROUGH else []
    runs = 0 if THOROUGH else -(-len(names) // 6)
    for start in range(runs):  # six at a time, far from one another
        faulty = {*names[start::runs]}
        found = told()
        assert {*found} <= faulty and len({*found}) == len(found)
        alone += sorted(faulty - {*found})  # it did not run, since another one is left out
    for name in alone:
        faulty = {name}
        assert told() == [name]
    for option in ({"strict": True}, {"verify": "structure"}):
        faulty = {names[-1]}
        with pytest.raises(Exception, match="planted"):
            run(kind, **option)


def test_work_starts_again_without_each_pass_that_fails():
    record = GraphRecord("test")
    contained = Containment(Faults(record))
    graph, undone = [], []

    def bad():
        graph.append("half of a change")
        raise ValueError("no")

    def worse():
        raise KeyError("neither")

    def work():
        contained.do(graph.append, "good", name="good")
        record.fallbacks.append(Fallback("a", "refusal", "told by every run"))
        return contained.do(bad, default=1), contained.do(worse, default=2)

    def undo():
        undone.append(list(graph))
        graph.clear()

    assert contained.run(work, undo) == (1, 2)
    assert graph == ["good"] and undone == [["good", "half of a change"], ["good"]]
    assert [f.code for f in record.fallbacks] == ["passes-failed", "passes-failed", "refusal"]
    assert contained.leaves_out("bad", "good") and not contained.leaves_out("good")


def test_errors_that_are_no_faults_go_through():
    contained = Containment(Faults(GraphRecord("test"), signals=(KeyError,)))

    def signal():
        raise KeyError

    with pytest.raises(KeyError):
        contained.attempt(signal)
    with pytest.raises(PassFailedError):
        Containment(Faults(GraphRecord("test"))).do(signal)


def test_a_pass_with_arguments_filled_in_is_known_by_its_name():
    record = GraphRecord("test")

    def failing(number):
        raise ValueError(number)

    Containment(Faults(record)).attempt(functools.partial(failing, 1))
    assert "pass failing" in record.fallbacks[0].message
