"""Wrappers with a clock: what is timed, and that nothing else changes."""

import torch

from regraft.compiler.codegen.wrapper.wrapper import generate, load
from regraft.compiler.options import Options
from regraft.compiler.tools.profile.profiler import _plain
from regraft.compiler.tools.profile.record import Recorder, with_clock
from regraft.rewrites.tracing import record


class Log:
    """A clock that only notes."""

    def __init__(self):
        self.events = []

    def start(self, name):
        self.events.append(name)

    def stop(self):
        self.events.append("stop")

    def collect(self):
        return {}


def program(x, w):
    return torch.relu(x @ w).view(-1), x.sum()


INPUTS = (torch.randn(4, 8), torch.randn(8, 4))


def compiled():
    module = record(program, INPUTS, "decomposed")
    return module, generate(module, name="graph")


def test_calls_of_the_wrapper_are_known_by_line():
    module, wrapper = compiled()
    lines = wrapper.source.splitlines()
    called = {node.name for node in module.graph.nodes if node.op == "call_function"}
    assert set(wrapper.parts.calls.values()) == called
    assert all(
        "aten." in lines[number - 1] or "torch.as_strided" in lines[number - 1] for number in wrapper.parts.calls
    )


def test_only_the_calls_named_are_timed():
    _, wrapper = compiled()
    log = Log()
    timed = load(with_clock(wrapper.parts, {"mm", "sum_1"}, log), "graph")
    with torch.no_grad():
        found = timed(list(INPUTS))
        expected = program(*INPUTS)
    assert log.events in (["mm", "stop", "sum_1", "stop"], ["sum_1", "stop", "mm", "stop"])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_recorder_times_only_when_told():
    module, wrapper = compiled()
    recorder = Recorder()
    call = recorder("graph 0/0", "inference", module, wrapper)
    (graph,) = recorder.graphs
    assert call._boxed_call and not graph.cuda and "view" not in graph.nodes
    with torch.no_grad():
        call(list(INPUTS))
        assert not graph.samples
        recorder.timing = True
        call(list(INPUTS))
    (sample,) = graph.samples
    assert sample.keys() == graph.nodes.keys() and all(seconds >= 0 for seconds in sample.values())


def test_whole_calls_are_compiled_with_the_users_options():
    options = Options.parse("reduce-overhead", {"profit": "never", "rules": ("default",)})
    run = torch.compile(program, backend=_plain(options))
    with torch.no_grad():
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(run(*INPUTS), program(*INPUTS), strict=True))
