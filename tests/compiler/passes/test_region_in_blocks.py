"""Functions of each row of large logits by blocks of rows: eager's results and gradients, and no logits of all rows."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from torch.utils.checkpoint import checkpoint

import regraft
from regraft.compiler.passes.loss_in_blocks import loss_in_blocks
from regraft.compiler.passes.registry import refusals
from regraft.compiler.schedule import early_ends, fusion

from ...support.joint_pass import JointPass
from .test_loss_in_blocks import CLASSES, LOSSES, ROWS, WEIGHTS, WIDTH, Head, compared, flat, given, results, small  # noqa: F401

TEACHER = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(5))


def smoothed(**more):
    """The argument of `F.cross_entropy`."""
    return lambda z, t: F.cross_entropy(flat(z), t.view(-1), label_smoothing=0.1, **more)


def smoother(z, t):
    """What trainers of `transformers` compute."""
    logs = -F.log_softmax(z[:, :-1].contiguous(), -1)
    t = t[:, 1:].unsqueeze(-1)
    mask = t.eq(-100)
    nll, all_classes = logs.gather(-1, t.clamp(min=0)), logs.sum(-1, keepdim=True, dtype=torch.float32)
    nll, all_classes = nll.masked_fill(mask, 0.0), all_classes.masked_fill(mask, 0.0)
    count = mask.numel() - mask.long().sum()
    return 0.9 * nll.sum() / count + 0.1 * all_classes.sum() / (count * CLASSES)


def z_loss(z, t):
    z, t = z[:, :-1].float(), t[:, 1:].reshape(-1)
    counts = (t != -100).float()
    return F.cross_entropy(flat(z), t) + 1e-2 * (flat(z).logsumexp(-1).pow(2) * counts).sum() / counts.sum()


def logs_of(z, t):
    return F.log_softmax(z.float(), -1).gather(-1, t.clamp(min=0).unsqueeze(-1)).squeeze(-1)


def selected(z, t):
    t = t.clamp(min=0).unsqueeze(-1)
    return (z.gather(-1, t).squeeze(-1) - z.logsumexp(-1)).mean()


def clipped(z, t):
    """Ratios of probabilities to older ones, as in PPO and GRPO."""
    logs, counts = logs_of(z, t), (t != -100).float()
    ratio = (logs - logs.detach()).exp()
    advantage = torch.linspace(-1, 1, ROWS[0])[:, None]
    rows = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return (rows * counts).sum() / counts.sum()


def preferred(z, t):
    """Of pairs of sequences, as in DPO: the gradient of a row depends on all rows."""
    sums = (logs_of(z[:, :-1], t[:, 1:]) * (t[:, 1:] != -100)).sum(-1)
    return -F.logsigmoid(0.1 * (sums[0] - sums[1])) + sums[2]


def entropy(z, t):
    logs = F.log_softmax(z, -1)
    return F.nll_loss(flat(logs), t.view(-1)) + 0.1 * (logs.exp() * logs).sum(-1).mean()


def spread(z, t):
    """Entropy in another way."""
    return F.cross_entropy(flat(z), t.view(-1)) - 0.1 * (z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)).mean()


def teacher_of(z):
    hidden = (torch.arange(z.shape[:-1].numel() * WIDTH) * 5 % 11 - 5) / 4
    return hidden.to(z.dtype).view(*z.shape[:-1], WIDTH) @ TEACHER.to(z)


def distilled(z, t):
    return F.kl_div(F.log_softmax(z / 2, -1), F.softmax(teacher_of(z) / 2, -1), reduction="batchmean") * 4


def distilled_rows(z, t):
    logs = F.log_softmax(teacher_of(z)[:, :-1], -1)
    rows = F.kl_div(F.log_softmax(z[:, :-1].float(), -1), logs, reduction="none", log_target=True).sum(-1)
    return (rows * (t[:, 1:] != -100)).sum() / 7


def focal(z, t):
    rows = F.cross_entropy(flat(z), t.view(-1), reduction="none")
    return (rows * (1 - (-rows).exp()) ** 2).mean()


REDUCED = {
    "smoothed": smoothed(),
    "smoothed sums": smoothed(reduction="sum"),
    "smoothed, with weights": lambda z, t: smoothed(weight=WEIGHTS.to(z.dtype))(z, t),
    "smoothed rows": lambda z, t: (smoothed(reduction="none")(z, t) * torch.linspace(0, 1, t.numel())).sum() / 7,
    "smoother of trainers": smoother,
    "z-loss": z_loss,
    "z-loss of capped logits": lambda z, t: z_loss((z / 3).tanh() * 3, t),
    "selected": selected,
    "clipped ratios": clipped,
    "preferred": preferred,
    "with an entropy": entropy,
    "with an entropy in another way": spread,
    "distilled": distilled,
    "distilled rows": distilled_rows,
    "focal": focal,
    "powers of rows": lambda z, t: F.cross_entropy(flat(z), t.view(-1), reduction="none").square().mean(),
    "soft targets": lambda z, t: F.cross_entropy(flat(z), flat(teacher_of(z)).softmax(-1), label_smoothing=0.1),
    "less the largest": lambda z, t: F.cross_entropy(flat(z - z.amax(-1, keepdim=True)), t.view(-1)),
    "of unit length": lambda z, t: F.cross_entropy(flat(F.normalize(z, dim=-1) * 4), t.view(-1)),
    "scaled by row": lambda z, t: F.cross_entropy(flat(z * torch.arange(1.0, ROWS[1] + 1)[:, None]), t.view(-1)),
    "unlikely": lambda z, t: -(1 - z.softmax(-1).gather(-1, t.clamp(min=0)[..., None]) + 1e-5).log().mean(),
    "smoothed by ones": lambda z, t: F.cross_entropy(flat(z), flat(torch.ones_like(z) / CLASSES)),
    "distilled, of clamped logits": lambda z, t: (
        F.cross_entropy(flat(z.clamp(-1, 1)), t.view(-1), reduction="none").sum() / 7 + distilled(z.clamp(-1, 1), t)
    ),
    "shifted, with numbers for all": lambda z, t: z_loss(z, t) + 1e-2 * (z[:, :-1] ** 2).sum(-1).mean() * WEIGHTS[0],
    "with its hits": lambda z, t: F.cross_entropy(flat(z), t.view(-1)) + (z.argmax(-1) == t).float().mean(),
}  # fmt: skip
AGAIN = ("preferred",)


def makes_logits(graph):
    """Whether a graph computes logits of some rows."""
    products = [node for node in graph.graph.nodes if node.op == "call_function" and "mm" in node.name]
    return any(node.meta["val"].shape[0] != WIDTH and node.meta["val"].shape[1] == CLASSES for node in products)


@pytest.mark.parametrize("loss", REDUCED)
def test_results_and_gradients_are_eagers(loss):
    """And nothing of all rows and classes is made, nor are logits twice unless gradients depend on all rows."""
    model = Head(REDUCED[loss], bias=loss in ("smoothed", "z-loss"), turned=loss == "selected")
    found, ours, theirs = compared(model, *given())
    assert found.count == 1
    torch.testing.assert_close(ours, theirs)
    nodes = [node for graph in found.graphs.values() for node in graph.graph.nodes]
    values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    rows = {ROWS[0] * ROWS[1], ROWS[0] * (ROWS[1] - 1)}
    assert not [v for v in values if v.dim() > 1 and v.shape[-1] == CLASSES and v.shape[:-1].numel() in rows]
    assert makes_logits(found.graphs["backward"]) == (loss in AGAIN)


@one_row_in(2)
@pytest.mark.parametrize("loss", REDUCED)
def test_errors_under_autocast_are_no_larger_than_eagers(loss):
    model, (x, target) = Head(REDUCED[loss], bias=True), given()
    exact = results(model.double(), model, x.detach().double().requires_grad_(), target)
    model.float()
    found, ours, theirs = compared(model, x, target, autocast=True)
    assert found.count == 1

    def error(values):
        pairs = [(a.double(), b) for a, b in zip(values, exact, strict=True) if b.numel() != WIDTH]  # few: all chance
        return [float((a - b).norm() / b.norm()) for a, b in pairs]

    assert all(mine <= 1.3 * eagers + 1e-4 for mine, eagers in zip(error(ours), error(theirs), strict=True))


@takes_turns("loss")
@pytest.mark.parametrize("loss", ["smoothed", "smoother of trainers", "z-loss", "preferred"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_few_exponents_know_the_number_first(loss, dtype):
    """What a scaler multiplies the loss by keeps gradients in half precision from becoming 0."""
    model, (x, target) = Head(lambda z, t: REDUCED[loss](z, t) * 64), given(dtype)
    found, ours, theirs = compared(model.to(dtype), x, target)
    assert found.count == 1
    assert all((a - b).norm() <= 0.05 * b.norm() for a, b in zip(ours, theirs, strict=True))
    assert makes_logits(found.graphs["backward"]) == (dtype == torch.float16 or loss in AGAIN)


@pytest.mark.parametrize("loss", ["smoothed", "smoother of trainers", "smoothed, with weights"])
def test_without_targets_that_count(loss):
    model, (x, target) = Head(REDUCED[loss]), given()
    _, ours, theirs = compared(model, x, torch.full_like(target, -100))
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("loss", ["z-loss", "preferred"])
def test_rows_that_are_cut_off_may_be_infinite(loss):
    model, (x, target) = Head(REDUCED[loss]), given()
    model.body = torch.nn.Identity()
    x = x.detach()
    x[:, -1] = 3e38
    model.head.weight.data.abs_()
    _, ours, theirs = compared(model, x.requires_grad_(), target)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("loss", ["smoothed", "preferred"])
@pytest.mark.parametrize("frozen", ["rows", "weight"])
def test_gradients_that_nobody_asks_for_are_not_made(loss, frozen):
    model, (x, target) = Head(REDUCED[loss]), given()
    (model.body if frozen == "rows" else model.head).requires_grad_(False)
    x = x.detach()
    found = JointPass(loss_in_blocks)
    torch.compile(model, backend=found)(x, target).backward()
    mine = [p.grad.clone() for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    model(x, target).backward()
    torch.testing.assert_close(mine, [p.grad for p in model.parameters() if p.requires_grad])
    assert found.count == 1


def test_tied_weights():
    """The head's weight is that of the embedding, too."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = torch.nn.Embedding(CLASSES, WIDTH)

        def forward(self, x, target):
            return smoothed()(F.linear(self.words(target.clamp(min=0)) + x, self.words.weight), target)

    found, ours, theirs = compared(Tied(), *given())
    assert found.count == 1
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("loss", ["smoothed", "distilled rows"])
def test_without_gradients(loss):
    model, (x, target) = Head(REDUCED[loss]), given()
    found = JointPass(loss_in_blocks)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=found)(x, target), model(x, target))
    assert found.count == 1


@one_row_in(2)
@pytest.mark.parametrize(("reason", "loss"), [
    ("other readers", lambda z, t: (smoothed()(z, t), z)),
    ("other readers", lambda z, t: (smoothed()(z, t), z.softmax(-1))),
    ("other readers", lambda z, t: smoothed()(z, t) + z.sum(0).square().mean()),
    ("other readers", lambda z, t: smoothed()(z, t) + z.sort(-1)[0][..., 0].mean()),
    ("cut off", lambda z, t: smoother(z, t) + z.logsumexp(-1).mean()),
    ("what other rows", lambda z, t: logs_of(z - z.sum().detach(), t).mean() + z.logsumexp(-1).mean()),
    ("what other rows", lambda z, t: logs_of(z * z.logsumexp(-1).sum(), t).mean()),
    ("computed again", lambda z, t: checkpoint(lambda z: smoothed()(z * 1, t), z, use_reentrant=False)),
])  # fmt: skip
def test_what_stays_as_it_is(reason, loss):
    model, (x, target) = Head(loss), given()
    first = lambda out: out[0] if isinstance(out, tuple) else out  # noqa: E731
    found = JointPass(loss_in_blocks)
    compiled = torch.compile(model, backend=found)
    with refusals() as told:
        ours = results(model, lambda *args: first(compiled(*args)), x, target.clamp(min=1))
    theirs = results(model, lambda *args: first(model(*args)), x, target.clamp(min=1))
    assert found.count == 0
    assert [reason in one.message for one in told] == [True], told
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("loss", ["smoother of trainers", "preferred"])
def test_generated_code_frees_a_block_before_the_next(monkeypatch, loss, dynamic):
    """Compiled whole: no two blocks' logits are in memory together, neither in the forward nor in the backward."""
    for where, name in ((early_ends, "_MUCH"), (fusion, "_HELD")):
        monkeypatch.setattr(where, name, 256)
    monkeypatch.setattr(fusion, "_WORTH_HOLDING", 0)
    model, (x, target) = Head(REDUCED[loss]), given()
    torch.compiler.reset()
    with regraft.coverage() as cov:
        options = {"debug": True, "rules": (), "strict": True}
        compiled = torch.compile(model, backend="regraft", dynamic=dynamic, options=options)
        ours = results(model, compiled, x, target)
    torch.testing.assert_close(ours, results(model, model, x, target))
    for part in ("forward", "backward") if loss in AGAIN else ("forward",):
        lines = cov.graphs[0].details[f"source:{part}"].splitlines()
        made = [
            (k, found[1])
            for k, line in enumerate(lines)
            if (found := re.match(r"    (\w+) = aten.mm.default\(slice", line))
        ]
        assert len(made) == 4
        for (_, logits), (following, _) in itertools.pairwise(made):
            assert max(k for k, line in enumerate(lines) if re.search(rf"\b{logits}\b", line)) < following


OF_ANY_LENGTH = {
    name: (LOSSES | REDUCED)[name]
    for name in ("flat", "shifted logits", "weights, another index", "rows masked",
                 "divided, soft caps, cast, shifted", "scaled by column",
                 "smoothed", "smoother of trainers", "z-loss", "selected", "with an entropy", "distilled rows",
                 "soft targets", "preferred", "focal", "of unit length", "smoothed by ones", "with its hits")
}  # fmt: skip


def made_of_all_rows(graph):
    """The tensors of all rows and classes that a graph makes, or of what is left of the rows after a slice."""
    values = [node.meta.get("val") for node in graph.graph.nodes]
    many = [v.shape for v in values if isinstance(v, torch.Tensor) and v.dim() > 1 and v.shape[-1] == CLASSES]
    return [sizes for sizes in many if any(isinstance(n, torch.SymInt) for n in sizes) and "//" not in str(sizes)]


@one_row_in(2)
@pytest.mark.parametrize("loss", OF_ANY_LENGTH)
def test_numbers_of_rows_that_change_between_calls(loss):
    """One graph for all but the shortest, of fewer than two rows for each block."""
    model, found = Head(OF_ANY_LENGTH[loss], bias=loss == "smoothed"), JointPass(loss_in_blocks)
    compiled = torch.compile(model, backend=found, dynamic=True, fullgraph=True)
    for batch, length in ((3, 20), (5, 37), (4, 9), (3, 200), (2, 5), (4, 2), (3, 1)):
        torch.manual_seed(length)
        x, target = torch.randn(batch, length, WIDTH, requires_grad=True), torch.randint(0, CLASSES, (batch, length))
        target[0, : length // 4] = -100
        if loss == "preferred" and batch < 3:
            continue
        ours, theirs = results(model, compiled, x, target), results(model, model, x, target)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        if length == 200:
            assert found.count == 1 or loss in ("soft targets", "smoothed by ones")  # torch 2.11 divides by a number
            assert not [sizes for graph in found.graphs.values() for sizes in made_of_all_rows(graph)]


def test_another_product_is_read_whole_beside_the_blocks():
    model, (x, target) = Head(lambda z, t: distilled_rows(z, t) + teacher_of(z).sort(-1)[0].mean()), given()
    found, ours, theirs = compared(model, x, target)
    assert found.count == 1
    torch.testing.assert_close(ours, theirs)
