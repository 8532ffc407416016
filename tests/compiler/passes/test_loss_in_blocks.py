"""Cross entropies of linear layers by blocks of rows: eager's loss and gradients, and nothing of all logits is kept."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import regraft
from regraft.compiler.passes import linear_cross_entropy
from regraft.compiler.passes import loss_in_blocks as module
from regraft.compiler.passes.loss_in_blocks import loss_in_blocks
from regraft.compiler.passes.registry import refusals
from regraft.compiler.schedule import fusion

from ...support.joint_pass import JointPass

ROWS, CLASSES, WIDTH = (3, 20), 50, 8


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "_LARGE", 1)
    monkeypatch.setattr(module, "_FEWEST", 16)
    monkeypatch.setattr(module, "_EVEN", 16)


class Head(torch.nn.Module):
    """A layer, a linear layer over classes, and a loss of its results."""

    def __init__(self, loss, *, bias=False, turned=False):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES, bias=bias)
        self.turned = torch.nn.Parameter(torch.randn(WIDTH, CLASSES)) if turned else None
        self.loss = loss

    def forward(self, x, target):
        hidden = self.body(x).tanh()
        return self.loss(self.head(hidden) if self.turned is None else hidden @ self.turned, target)


def flat(z):
    return z.reshape(-1, CLASSES)


def padded(target):
    return F.pad(target, (0, 1), value=-100)[..., 1:].contiguous()


def masked_mean(rows, target):
    """The mask is known only after the rows."""
    counts = (target != -100).to(rows.dtype)
    return (rows * counts).sum() / counts.sum().clamp(min=1)


def chosen_mean(rows, target):
    return torch.where(target.ne(-100), rows, 0.0).sum() / target.ne(-100).sum()


class Learned(torch.nn.Module):
    """A loss of logits with a learned bias, temperature and, after the shift, a factor for each class."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.linspace(-1, 1, CLASSES))
        self.temperature = torch.nn.Parameter(torch.tensor(0.3))
        self.factors = torch.nn.Parameter(torch.linspace(0.5, 1.5, CLASSES)[None, None])

    def forward(self, z, t):
        z = (z + self.bias) * self.temperature.exp()
        return F.cross_entropy(flat((z[:, :-1] * self.factors).float()), t[:, 1:].reshape(-1))


WEIGHTS = torch.rand(CLASSES) + 0.5
LOSSES = {
    "flat": lambda z, t: F.cross_entropy(flat(z), t.view(-1)),
    "cast up": lambda z, t: F.cross_entropy(flat(z.float()), t.view(-1)),
    "shifted logits": lambda z, t: F.cross_entropy(flat(z[:, :-1].contiguous()), t[:, 1:].reshape(-1)),
    "shifted targets": lambda z, t: F.cross_entropy(flat(z.float()), padded(t).view(-1), reduction="sum") / 7,
    "every second row": lambda z, t: 3 * F.cross_entropy(flat(z[:, 1::2]), t[:, 1::2].reshape(-1)),
    "weights, another index": lambda z, t: F.cross_entropy(
        flat(z), t.clamp(min=3).view(-1), WEIGHTS.to(z.dtype), ignore_index=3
    ),
    "rows averaged": lambda z, t: F.cross_entropy(flat(z), t.view(-1), reduction="none").mean(),
    "rows masked": lambda z, t: masked_mean(F.cross_entropy(flat(z.float()), t.view(-1), reduction="none"), t.view(-1)),
    "rows chosen, of shifted logits": lambda z, t: chosen_mean(
        F.cross_entropy(flat(z[:, :-1]), t[:, 1:].reshape(-1), reduction="none").view(3, -1), t[:, 1:]
    ),
    "rows weighted": lambda z, t: (
        (F.nll_loss(F.log_softmax(flat(z), -1), t.view(-1), reduction="none").view(3, -1) * torch.linspace(-1, 2, 20))
        .sum(-1)
        .mean()
        * 0.1
    ),
    "scaled": lambda z, t: F.cross_entropy(flat(z * 0.25).float(), t.view(-1)),
    "divided, soft caps, cast, shifted": lambda z, t: F.cross_entropy(
        flat((torch.tanh(z / 8.0 / 3.0) * 3.0).float()[:, :-1]), t[:, 1:].reshape(-1)
    ),
    "soft caps of the rows that count, averaged by hand": lambda z, t: chosen_mean(
        F.cross_entropy(flat(z[:, :-1].div(3).tanh().mul(3)), t[:, 1:].reshape(-1), reduction="none").view(3, -1),
        t[:, 1:],
    ),
    "clamped": lambda z, t: F.cross_entropy(flat(z.clamp(-0.5, 0.5)), t.view(-1)),
    "two ways": lambda z, t: F.cross_entropy(flat(z * z.sigmoid() - 0.1 * z.relu() + z.abs() ** 3), t.view(-1)),
    "scaled by column": lambda z, t: F.cross_entropy(
        flat(z * WEIGHTS.to(z.dtype) + WEIGHTS.to(z.dtype)[None, None]), t.view(-1)
    ),
    "in parts": lambda z, t: F.nll_loss(F.log_softmax(flat(z), -1), t.view(-1)),
}


MAPS = ("scaled", "divided, soft caps, cast, shifted")
ROUNDED = {
    "rounded": lambda z, t: F.cross_entropy(flat(z if z.dtype == torch.float64 else z.bfloat16()) / 0.7, t.view(-1)),
    "learned": Learned(),
}


def given(dtype=torch.float32):
    torch.manual_seed(1)
    target = torch.randint(0, CLASSES, ROWS)
    target[0, :5] = -100
    return torch.randn(*ROWS, WIDTH, dtype=dtype, requires_grad=True), target


def results(model, function, x, target, autocast=False):
    model.zero_grad()
    x.grad = None
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = function(x, target)
    (2 * loss).backward()
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def compared(model, x, target, autocast=False):
    found = JointPass(loss_in_blocks)
    theirs = results(model, model, x, target, autocast)
    ours = results(model, torch.compile(model, backend=found, fullgraph=True), x, target, autocast)
    return found, ours, theirs


@one_row_in(2)
@takes_turns("dtype")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_gradients_are_eagers(loss, dtype):
    if dtype == torch.float64 and loss in ("cast up", "shifted targets", "rows masked", *MAPS):
        pytest.skip("rounds")
    model = Head(LOSSES[loss], bias=loss in ("flat", "shifted logits"), turned=loss == "in parts").to(dtype)
    found, ours, theirs = compared(model, *given(dtype))
    assert found.count == 1
    torch.testing.assert_close(ours, theirs)


def test_parameters_of_maps_of_the_logits_have_gradients():
    model = Head(Learned())
    found, ours, theirs = compared(model, *given())
    assert found.count == 1
    torch.testing.assert_close(ours, theirs)


@one_row_in(2)
@pytest.mark.parametrize("loss", ["flat", "cast up", "shifted logits", "rows masked", *MAPS, "rounded", "learned"])
def test_sums_of_16_bits_are_kept_wide(loss):
    """Errors against float64 no larger than eager's, but for chance."""
    model, (x, target) = Head((LOSSES | ROUNDED)[loss], bias=True), given()
    exact = results(model.double(), model, x.detach().double().requires_grad_(), target)
    model.float()
    found, ours, theirs = compared(model, x, target, autocast=True)
    assert found.count == 1

    def error(values):
        pairs = [(a.double(), b) for a, b in zip(values, exact, strict=True) if b.numel() != WIDTH]  # few: all chance
        return [float((a - b).norm() / b.norm()) for a, b in pairs]

    assert all(mine <= 1.3 * eagers + 1e-4 for mine, eagers in zip(error(ours), error(theirs), strict=True))


@pytest.mark.parametrize("loss", ["flat", "rows masked", "two ways", *MAPS])
def test_nothing_of_all_rows_and_classes_is_kept_or_made(loss):
    found, *_ = compared(Head(LOSSES[loss]), *given())
    rows = ROWS[0] * ROWS[1]
    sizes = [tuple(n.meta["val"].shape) for g in found.graphs.values() for n in g.graph.nodes if "val" in n.meta
             and isinstance(n.meta["val"], torch.Tensor)]  # fmt: skip
    assert (16, CLASSES) in sizes
    assert not [size for size in sizes if CLASSES in size and rows in size]


def test_without_targets_that_count_gradients_are_zero():
    model, (x, target) = Head(LOSSES["flat"]), given()
    _, ours, theirs = compared(model, x, torch.full_like(target, -100))
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert ours[0].isnan()
    assert not ours[1].any()


@pytest.mark.parametrize("frozen", ["rows", "weight"])
def test_gradients_that_nobody_asks_for_are_not_made(frozen):
    model, (x, target) = Head(LOSSES["flat"]), given()
    (model.body if frozen == "rows" else model.head).requires_grad_(False)
    if frozen == "rows":
        x.requires_grad_(False)
    found = JointPass(loss_in_blocks)
    torch.compile(model, backend=found)(x, target).backward()
    mine = [p.grad.clone() for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    model(x, target).backward()
    torch.testing.assert_close(mine, [p.grad for p in model.parameters() if p.requires_grad])
    assert found.count == 1


@pytest.mark.parametrize("loss", ["shifted targets", "rows chosen, of shifted logits"])
def test_without_gradients(loss):
    model, (x, target) = Head(LOSSES[loss]), given()
    found = JointPass(loss_in_blocks)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=found)(x, target), model(x, target))
    assert found.count == 1


def test_a_target_out_of_range_is_refused():
    model, (x, target) = Head(LOSSES["flat"]), given()
    target[1, 1] = CLASSES
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        torch.compile(model, backend=JointPass(loss_in_blocks))(x, target)


@one_row_in(2)
@pytest.mark.parametrize(("reason", "loss"), [
    ("other readers", lambda z, t: (F.cross_entropy(flat(z), t.view(-1)), z)),
    ("sizes other than known", lambda z, t: F.cross_entropy(z[..., 1:].reshape(-1, CLASSES - 1), t.view(-1) - 1)),
    ("aten.cumsum gives the logits", lambda z, t: F.cross_entropy(flat(z.cumsum(-1)), t.view(-1))),
    ("other readers", lambda z, t: F.cross_entropy(flat(z - z.mean()), t.view(-1))),
    ("aten.flip gives the logits", lambda z, t: F.cross_entropy(flat(z + z.flip(0)), t.view(-1))),
    ("2 products", lambda z, t: F.cross_entropy(flat(z) + flat(z)[:, :8] @ torch.ones(8, CLASSES), t.view(-1))),
    ("computed again", lambda z, t: checkpoint(lambda z: LOSSES["flat"](z * 1, t), z, use_reentrant=False)),
])  # fmt: skip
def test_what_stays_as_it_is(reason, loss):
    model, (x, target) = Head(loss), given()
    target = target.clamp(min=1)
    first = lambda out: out[0] if isinstance(out, tuple) else out  # noqa: E731
    found = JointPass(loss_in_blocks)
    compiled = torch.compile(model, backend=found)
    with refusals() as told:
        ours = results(model, lambda *args: first(compiled(*args)), x, target)
    theirs = results(model, lambda *args: first(model(*args)), x, target)
    assert found.count == 0
    assert [reason in one.message for one in told] == [True], told
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_few_bytes_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(module, "_LARGE", 1 << 20)
    assert compared(Head(LOSSES["flat"]), *given())[0].count == 0


@pytest.mark.parametrize(("view", "turned"), [
    (lambda m: m.t(), True), (lambda m: m.transpose(0, -1), True), (lambda m: m.permute(1, 0), True),
    (lambda m: m.permute(0, 1), False), (lambda m: m.transpose(1, -1), False), (lambda m: m.t().detach().t(), False),
])  # fmt: skip
def test_which_views_turn_a_matrix(view, turned):
    graph = make_fx(view, tracing_mode="fake")(torch.randn(4, 4)).graph
    (matrix,) = graph.find_nodes(op="placeholder")
    assert linear_cross_entropy._turned(graph.output_node().args[0]) == (matrix, turned)


def test_many_rows_are_few_blocks(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 2)
    found, ours, theirs = compared(Head(LOSSES["flat"]), *given())
    torch.testing.assert_close(ours, theirs)
    assert len(found.graphs["forward"].graph.find_nodes(op="call_function", target=module.ROWS)) == 2


@pytest.mark.parametrize(("autocast", "added"), [(False, "addmm_.default("), (True, "add_product_.default(")])
def test_generated_code_frees_a_block_before_the_next(monkeypatch, autocast, added):
    """Compiled whole: the sums are written in place, and logits die within their block."""
    monkeypatch.setattr(fusion, "_HELD", 256)
    model, (x, target) = Head(LOSSES["shifted targets"]), given()
    torch.compiler.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(model, backend="regraft", options={"debug": True, "rules": ()})
        ours = results(model, compiled, x, target, autocast)
    tolerance = {"rtol": 5e-2, "atol": 5e-3} if autocast else {}
    torch.testing.assert_close(ours, results(model, model, x, target, autocast), **tolerance)
    (record,) = cov.graphs
    forward = record.details["source:forward"]
    assert forward.count(added) == 3
    lines = forward.splitlines()
    blocks = [number for number, line in enumerate(lines) if re.match(r"    k\d+_", line) and "primals_5" in line]
    assert len(blocks) == 4
    for here, following in itertools.pairwise(blocks):
        logits = re.search(r"\((\w+),", lines[here])[1]
        last = max(number for number, line in enumerate(lines) if re.search(rf"\b{logits}\b", line))
        assert here <= last < following
