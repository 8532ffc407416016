"""Code, hooks, variables and modes that change between calls, of which Dynamo by itself guards nothing."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn

import regraft
from regraft.rewrites.compat import guards


class Scaled(nn.Module):
    scale = 1.5

    def forward(self, x):
        return self.factor() * x * self.scale - self.shift()

    @classmethod
    def shift(cls, by=0.5):
        return by

    @staticmethod
    def factor():
        return 2.0


class Wider(Scaled):
    pass


class Options:
    divisor = 2

    def bias(self):
        return 1.0


def shifted(x, by=1.0):
    return x + by


OPTIONS = Options()
LAYERS = nn.Sequential(Wider(), nn.Linear(4, 4)).requires_grad_(False)


def replaced(owner, name, value):
    """`owner` has another attribute for a while."""

    @contextlib.contextmanager
    def context():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, value, raising=False)
            yield

    return context


@contextlib.contextmanager
def variable():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGRAFT_TEST_FACTOR", "3")
        yield


@contextlib.contextmanager
def dtype_of_autocast():
    known = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", known)


def called(module, *args, call=nn.Module.__call__):
    return call(module, *args) * 2


def reads_the_environment(x):
    import os

    return x * float(os.environ.get("REGRAFT_TEST_FACTOR", "1")) + ("REGRAFT_TEST_FACTOR" in os.environ)


CHANGES = {
    "method": (lambda x: LAYERS(x), replaced(Scaled, "forward", lambda module, x: x * 3)),
    "method of a derived class": (lambda x: LAYERS(x), replaced(Wider, "forward", lambda module, x: x * 3)),
    "static method": (lambda x: LAYERS(x), replaced(Scaled, "factor", staticmethod(lambda: 5.0))),
    "method of a layer of torch": (lambda x: LAYERS(x), replaced(nn.Linear, "forward", lambda module, x: x - 1)),
    "class method": (lambda x: LAYERS(x), replaced(Scaled, "shift", classmethod(lambda cls: 5.0))),
    "constant": (lambda x: LAYERS(x), replaced(Scaled, "scale", 3)),
    "constant of a derived class": (lambda x: LAYERS(x), replaced(Wider, "scale", -1.0)),
    "constant of another type": (lambda x: LAYERS(x) / Options.divisor, replaced(Options, "divisor", True)),
    "default": (lambda x: LAYERS(x), replaced(vars(Scaled)["shift"].__func__, "__defaults__", (4.0,))),
    "default of a function": (lambda x: shifted(x), replaced(shifted, "__defaults__", (4.0,))),
    "method of one object": (lambda x: LAYERS(x), replaced(LAYERS[0], "forward", lambda x: x - 1)),
    "call of all modules": (lambda x: LAYERS(x), replaced(nn.Module, "__call__", called)),
    "method of no module": (lambda x: x + OPTIONS.bias(), replaced(Options, "bias", lambda _: 7.0)),
    "method of tensors": (lambda x: x.sin() + 1, replaced(torch.Tensor, "sin", torch.Tensor.cos)),
    "variable of the environment": (reads_the_environment, variable),
    "dtype of autocast": (lambda x: x.to(torch.get_autocast_dtype("cpu")), dtype_of_autocast),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_for_a_while(name):
    torch.compiler.reset()
    (program, changed), x = CHANGES[name], torch.randn(2, 4)
    compiled = torch.compile(program, backend="regraft")
    with regraft.coverage() as found:
        for turn in range(5):
            with changed() if turn % 2 else contextlib.nullcontext():
                torch.testing.assert_close(compiled(x), program(x))
    assert len(found.graphs) <= 3 and not found.faults


def test_a_trace_of_another_thread_compiles_nothing_anew(monkeypatch):
    """While tracing, torch has a wrapper in place of what calls a module, for all threads."""
    wrappers = [nn.Module.__call__]

    class Asking(nn.Module):
        def forward(self, x):
            wrappers.append(nn.Module.__call__)
            return x

    torch.fx.symbolic_trace(Asking())
    torch.compiler.reset()
    compiled, x = torch.compile(lambda x: LAYERS(x), backend="regraft"), torch.randn(2, 4)
    with regraft.coverage() as found:
        expected = compiled(x)
        monkeypatch.setattr(nn.Module, "__call__", wrappers[-1])
        assert torch.equal(compiled(x), expected)
    assert wrappers[-1] is not wrappers[0] and len(found.graphs) == 1


def test_values_are_only_compared_where_one_is_elsewhere(monkeypatch):
    """In every other call, addresses are: it takes a quarter of the time, which each graph of a model takes."""
    compared, equal = [], guards._equal

    def counted(attributes):
        check = equal(attributes)
        return lambda given: compared.append(len(attributes)) or check(given)

    monkeypatch.setattr(guards, "_equal", counted)

    class Kind:
        scale = 1.5

        def method(self):
            return self

    attributes = [(Kind, "scale"), (Kind, "method"), (torch.Tensor, "sin"), (shifted, "__defaults__"), (Wider, "shift")]
    holds = guards._same(attributes)
    assert holds(None) and compared == [1]  # a method of a class is made anew each time
    holds, known = guards._same(attributes[:-1]), Kind.method
    assert holds(None) and compared == [1]
    Kind.scale = float("1.5")
    assert holds(None) and compared == [1, 4]
    Kind.method = lambda self: self
    assert not holds(None)
    Kind.method = known
    Kind.scale = 2.5
    assert not holds(None)
    Kind.scale = 1.5
    assert holds(None)
    del Kind.method
    assert not holds(None)


@pytest.mark.parametrize("of", ["class", "function"])
def test_what_is_gone_has_changed(of):
    """Another object may be at its address."""

    class Kind:
        def method(self):
            return self

    holds = guards._same([(Kind, "method")])
    place = weakref.ref(Kind) if of == "class" else weakref.ref(Kind.method)
    if of == "class":
        del Kind
    else:
        Kind.method = lambda self: self
    gc.collect()
    assert place() is None and not holds(None)
