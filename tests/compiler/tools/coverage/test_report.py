import pytest
import torch
from support.records import graph

from regraft.compiler.tools.coverage.report import Examination, examine
from regraft.compiler.tools.targets.target import Choices, ModelWithInputs, TargetError
from regraft.rewrites.coverage import publish


def honest(gm, inputs, **_):
    publish(graph(1))
    return gm.forward


def off_by(factor: float):
    def backend(gm, inputs, **_):
        return lambda *args: tuple(x * factor for x in gm.forward(*args))

    return backend


def target(*, train: bool = False, model=None) -> ModelWithInputs:
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))
    return ModelWithInputs("small", model.train(train), (torch.randn(4, 8),), {}, Choices(train=train))


@pytest.mark.parametrize("train", [False, True])
def test_an_honest_backend_is_right(train):
    entry = examine(target(train=train), Examination(backend=honest, options={"profit": "always"}, dynamic=True))
    outcome = entry.outcome
    assert outcome.right and outcome.error == 0.0
    assert outcome.gradient_error == (0.0 if train else None)
    assert outcome.speed > 0 and outcome.rounds >= 3 and outcome.compile_seconds > 0
    assert len(entry.graphs) == 1
    assert entry.choices == ({"train": ""} if train else {}) | {"profit": "always", "dynamic": ""}


@pytest.mark.parametrize("train", [False, True])
def test_a_wrong_backend_is_found_out(train):
    outcome = examine(target(train=train), Examination(backend=off_by(1.01), timed=False)).outcome
    assert not outcome.right and outcome.error == pytest.approx(0.01, rel=1e-3)
    assert outcome.eager_seconds is None and outcome.speed is None
    assert not train or outcome.gradient_error > 0.01


class Nans(torch.nn.Module):
    def forward(self, x):
        return {"a": [x / 0], "b": (x.long(), 0 * x / 0)}


def test_equal_nans_and_infinities_agree():
    assert examine(target(model=Nans()), Examination(backend=honest, timed=False)).outcome.right


def test_new_nans_do_not_agree():
    def poison(gm, inputs, **_):
        return lambda *args: tuple(x / 0 * 0 for x in gm.forward(*args))

    assert not examine(target(), Examination(backend=poison, timed=False)).outcome.right


def test_gradients_are_left_clean():
    small = target(train=True)
    examine(small, Examination(backend=honest, timed=False))
    assert all(p.grad is None for p in small.model.parameters())


def test_nothing_to_train():
    with pytest.raises(TargetError, match="requires a gradient"):
        examine(target(train=True, model=torch.nn.Identity()), Examination(backend=honest))


def test_progress_is_told():
    told = []
    examine(target(), Examination(backend=honest), lambda doing, done: told.append((doing, done)))
    assert [doing for doing, _ in told[:2]] == ["small: running eager", "small: compiling"]
    assert "timing" in told[2][0] and [done for _, done in told] == sorted(done for _, done in told)


def test_training_with_dropout_is_compared_under_eagers_draws():
    outcome = examine(target(train=True), Examination(timed=False)).outcome
    assert outcome.right, (outcome.error, outcome.gradient_error)


def test_options_without_a_flag_are_told_as_the_configuration_they_came_in():
    options = {"profit": "always", "overrides": {"kernels.products": "library"}, "template": "aten"}
    entry = examine(target(), Examination(backend=honest, options=options, timed=False))
    config = """'{"overrides": {"kernels.products": "library"}, "template": "aten"}'"""
    assert entry.label == f"small --config {config} --profit always", "can be typed again"
