"""Logarithms of the probabilities of given classes: spellings, what is none, errors, and what follows from them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.rewriting import assert_agrees, compiled, rewritten, trained

from regraft.compiler.passes import loss_in_blocks

ROWS, CLASSES = 12, 7
INFINITY = math.inf


def shifted(z, t):
    peak = z.amax(-1, keepdim=True)
    return peak[:, 0] + (z - peak).exp().sum(-1).log() - z.gather(1, t[:, None]).squeeze(1)


def smoothed(z, t):
    logs = z.log_softmax(-1)
    return -0.9 * logs.gather(-1, t[:, None]).squeeze(-1) - 0.1 * logs.mean(-1)


FOUND = {
    "gathered": lambda z, t: -F.log_softmax(z, -1).gather(-1, t.unsqueeze(-1)).squeeze(-1).mean(),
    "in another type": lambda z, t: torch.gather(z.log_softmax(1, dtype=torch.float64), 1, t[:, None]).sum(),
    "along a dim": lambda z, t: torch.take_along_dim(z.log_softmax(-1), t[:, None], -1),
    "at places": lambda z, t: -F.log_softmax(z, 1)[torch.arange(z.shape[0]), t],
    "at places from the end": lambda z, t: z.log_softmax(1)[torch.arange(len(z)), t - CLASSES],
    "minus all": lambda z, t: (z.gather(1, t[:, None]) - z.logsumexp(-1, keepdim=True)).squeeze(1),
    "all minus one": lambda z, t: (torch.logsumexp(z, 1) - z[torch.arange(z.size(0)), t]).mean(),
    "by hand": shifted,
    "of logarithms": lambda z, t: -(z - z.logsumexp(-1, keepdim=True)).gather(1, t[:, None]).squeeze(1).mean(),
    "of logarithms by hand": lambda z, t: (
        (y := z - z.amax(1, keepdim=True)) - y.exp().sum(1, keepdim=True).log()
    ).gather(1, t[:, None]),
    "by a distribution": lambda z, t: torch.distributions.Categorical(logits=z, validate_args=False).log_prob(t),
    "masked": lambda z, t: (
        torch.where(t > 2, -z.log_softmax(-1).gather(1, t[:, None])[:, 0], 0.0).sum() / (t > 2).sum()
    ),
    "smoothed": smoothed,
    "with an entropy": lambda z, t: (
        F.log_softmax(z, -1).gather(1, t[:, None]), (z.softmax(-1) * z.log_softmax(-1)).sum(-1)
    ),
    "of tokens": lambda z, t: z.view(3, 4, -1).log_softmax(-1).gather(-1, t.view(3, 4, 1)).sum(1),
}  # fmt: skip
REFUSED = {
    "several of a row": lambda z, t: z.log_softmax(-1).gather(-1, torch.stack([t, t], 1)),
    "of some rows": lambda z, t: z.log_softmax(-1).gather(-1, t[:3, None]),
    "along the rows": lambda z, t: z.log_softmax(-1).gather(0, t[None, :CLASSES]),
    "over other dims": lambda z, t: z.view(3, 4, -1).log_softmax(1).gather(-1, t.view(3, 4, 1)),
    "minus another": lambda z, t: z.gather(1, t[:, None]) - (z * 2).logsumexp(-1, keepdim=True),
    "minus one for all": lambda z, t: z.gather(1, t[:, None]) - z.logsumexp(1),
    "in another order": lambda z, t: z.log_softmax(1)[torch.arange(len(z)).flip(0), t],
}

OVERLOOKED = {
    "logarithms of weights": ("logarithm-of-rounded", lambda z, t: -z.softmax(1).log().gather(1, t[:, None])),
    "logarithms of picked weights": (
        "logarithm-of-rounded", lambda z, t: -(z.softmax(-1)[torch.arange(len(z)), t] + 1e-8).log().mean()
    ),
    "one-hot rows": ("one-hot-classes", lambda z, t: -(F.one_hot(t, CLASSES).to(z) * z.log_softmax(1)).sum(1)),
    "one-hot rows by einsum": (
        "one-hot-classes", lambda z, t: torch.einsum("nc,nc->n", -z.log_softmax(1), F.one_hot(t, CLASSES).to(z))
    ),
    "compared classes": (
        "compared-classes",
        lambda z, t: torch.where(torch.arange(CLASSES) == t[:, None], z.log_softmax(1), 0.0).sum(1),
    ),
}  # fmt: skip
NOTHING_TOLD = {
    "an entropy": lambda z, t: -(z.softmax(1) * (z.softmax(1) + 1e-8).log()).sum(1),
    "soft targets": lambda z, t: -(z.roll(1, 0).softmax(1) * z.log_softmax(1)).sum(1),
    "another logarithm": lambda z, t: z.sigmoid().log().gather(1, t[:, None]),
    "two choices": lambda z, t: torch.where(t[:, None] > 2, z.log_softmax(1), 0.0).sum(1),
}


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(ROWS, CLASSES, generator=generator).to(dtype) * 4]
    return trained([*given, torch.randint(0, CLASSES, (ROWS,), generator=generator)], 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FOUND)
def test_found(name, dynamic):
    given = inputs()
    made = rewritten(FOUND[name], given, dynamic=dynamic)
    assert made.count("loss") == 1
    assert_agrees(FOUND[name], made.run, given)


@pytest.mark.parametrize("name", REFUSED)
def test_left_alone(name):
    made = rewritten(REFUSED[name], inputs())
    assert made.count("loss") == 0


@pytest.mark.parametrize("name", OVERLOOKED)
def test_other_choices_are_told(name):
    code, loss = OVERLOOKED[name]
    made = rewritten(loss, inputs())
    assert made.count("loss") == 0
    assert [miss.code for miss in made.record.near_misses if miss.family == "loss"] == [code]


@pytest.mark.parametrize("name", NOTHING_TOLD)
def test_nothing_is_told_of_other_sums(name):
    assert not [miss for miss in rewritten(NOTHING_TOLD[name], inputs()).record.near_misses if miss.family == "loss"]


def test_half_precision():
    given = inputs(torch.bfloat16)
    for name in ("gathered", "all minus one", "smoothed"):
        made = rewritten(FOUND[name], given)
        assert made.count("loss") == 1
        assert_agrees(FOUND[name], made.run, given)


@pytest.mark.parametrize("nan", ["eager", "safe"])
@pytest.mark.parametrize(
    "name",
    [
        "gathered",
        "at places",
        "minus all",
        "all minus one",
        "by hand",
        "of logarithms",
        "of logarithms by hand",
        "masked",
    ],
)
def test_infinite_rows(name, nan):
    """NaN, infinities and gradients of each class are eager's: logsumexp and log_softmax differ in such rows."""
    rows = [[0, 1, INFINITY, 2], [INFINITY, -INFINITY, 0, 1], [-INFINITY] * 4, [INFINITY] * 4, [0, -INFINITY, 1, 2]]
    rows += [[math.nan, 0, 1, 2]]
    z = torch.tensor(rows).repeat_interleave(4, 0).requires_grad_()
    t = torch.arange(4).repeat(len(rows))
    made = rewritten(FOUND[name], [z, t], nan=nan)
    assert made.count("loss") == 1
    ours, eager = (f(z, t) for f in (made.run, FOUND[name]))
    pairs = [(ours, eager), *zip(*(torch.autograd.grad(x.sum(), z) for x in (ours, eager)), strict=True)]
    for a, b in pairs if nan == "eager" else ():
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("wrong", [-100, -1, CLASSES])
def test_what_is_no_class_is_refused(wrong):
    z, target = inputs()
    target[3] = wrong
    run, _ = compiled(FOUND["gathered"])
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        run(z, target)


def test_a_large_loss_is_computed_in_blocks(monkeypatch):
    for name, value in (("_LARGE", 1), ("_FEWEST", 4), ("_EVEN", 4)):
        monkeypatch.setattr(loss_in_blocks, name, value)
    layer, (_, target) = torch.nn.Linear(5, CLASSES), inputs()
    x = torch.randn(ROWS, 5)

    def loss(x, target):
        return FOUND["masked"](layer(x), target)

    run, cov = compiled(loss)
    with cov:
        ours = torch.autograd.grad(run(x, target), [*layer.parameters()])
    assert cov.graphs[0].changes("loss_in_blocks")
    torch.testing.assert_close(ours, torch.autograd.grad(loss(x, target), [*layer.parameters()]))
