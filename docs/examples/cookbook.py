"""Ten rules, one for each thing that a rule can say. Each is checked, and must find the program under it."""

import torch
from torch.nn import functional as F

import regraft
from regraft import Candidate, Numerics, Reason, Sample, T, choose, optional

RULES = []


def rule(name, **given):
    """Declare a rule and remember it; `profitable` because nothing is to be measured here."""

    def declare(pattern):
        RULES.append(regraft.register_pattern(name, profitable=True, **given)(pattern))
        return RULES[-1]

    return declare


# 1. two calls are one
@rule("sum_of_product", replacement=torch.addcmul, samples=[Sample(x=T("... N"), y=T("... N"), z=T("... N"))])
def sum_of_product(x, y, z):
    """x + y * z  ->  addcmul(x, y, z)"""
    return x + y * z


# 2. a part that may be missing
@rule(
    "tanh_of_sum",
    replacement=lambda x, y, bias: torch.tanh(x + y if bias is None else x + y + bias),
    samples=[
        Sample(x=T("B N"), y=T("B N"), bias=T("N"), tags={"bias": "yes"}),
        Sample(x=T("B N"), y=T("B N"), tags={"bias": "no"}),
    ],
)
def tanh_of_sum(x, y, bias):
    """2 * sigmoid(2 * (x + y + bias)) - 1  ->  tanh(x + y + bias)"""
    total = optional("bias", x + y, lambda s: s + bias)
    return torch.sigmoid(total * 2.0) * 2.0 - 1.0


# 3. two spellings
@rule(
    "positive_part",
    replacement=lambda x: torch.relu(x),
    samples=[Sample(x=T("... N"), tags={"spelling": s}) for s in ("clamped", "half")],
    nan="safe",  # half of -inf + inf is NaN, where relu has 0
    numerics=Numerics(slack=4.0),
)
def positive_part(x):
    """clamp_min(x, 0), (x + abs(x)) / 2  ->  relu(x)"""
    return choose(
        "spelling",
        clamped=lambda: torch.clamp_min(x, 0.0),
        half=lambda: (x + torch.abs(x)) * 0.5,
    )


# 4. a number, and a guard on it
def positive(alpha):
    """Written out, a negative alpha is another function than F.elu takes it for."""
    if isinstance(alpha, (int, float)) and alpha > 0:
        return None
    return Reason("alpha-not-positive", f"alpha is {alpha}", expected="a number above 0", found=str(alpha))


@rule(
    "elu",
    replacement=lambda x, alpha: F.elu(x, alpha),
    numbers=["alpha"],
    guards=[positive],
    samples=[
        Sample(x=T("... N"), alpha=1.5),
        Sample(x=T("N"), alpha=-1.0, refused="alpha-not-positive"),
    ],
)
def elu(x, alpha):
    """where(x > 0, x, expm1(x) * alpha)  ->  elu(x, alpha)"""
    return torch.where(torch.gt(x, 0), x, torch.expm1(x) * alpha)


# 5. two outputs
@rule(
    "sine_and_cosine",
    replacement=lambda x, y: (torch.sin(z := x + y), torch.cos(z)),
    samples=[Sample(x=T("... N"), y=T("... N"))],
    numerics=Numerics(slack=4.0),
)
def sine_and_cosine(x, y):
    """sin x cos y + cos x sin y, cos x cos y - sin x sin y  ->  sin(x + y), cos(x + y)"""
    sine = torch.sin(x) * torch.cos(y) + torch.cos(x) * torch.sin(y)
    return sine, torch.cos(x) * torch.cos(y) - torch.sin(x) * torch.sin(y)


# 6. sizes that must be equal
@rule(
    "product_with_diagonal",
    replacement=lambda x, d: x * d,
    dims={"x": "... N", "d": "N"},
    samples=[Sample(x=T("B N"), d=T("N", values="moderate"))],
    nan="safe",  # a product with zeros beside the diagonal makes NaN of inf
)
def product_with_diagonal(x, d):
    """x @ diag(d)  ->  x * d"""
    return torch.matmul(x, torch.diag(d))


# 7. a value computed from the match
def width(match, policy):
    """The size of the last dim, symbolic where sizes are."""
    return match.operands["x"].meta["val"].shape[-1]


@rule(
    "mean_square",
    replacement=lambda x, *, width: torch.sum(x * x, -1) / width,
    derived={"width": width},
    dims={"x": "... N"},
    samples=[Sample(x=T("... N"))],
)
def mean_square(x):
    """mean(x ** 2, -1)  ->  sum(x * x, -1) / N"""
    return torch.mean(torch.pow(x, 2), -1)


# 8. an operator of one's own, with its backward
@torch.library.custom_op("cookbook::softsign", mutates_args=())
def softsign(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x.abs())


softsign.register_fake(lambda x: torch.empty_like(x))
softsign.register_autograd(
    lambda ctx, gradient: gradient / (1 + ctx.saved_tensors[0].abs()) ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@rule(
    "softsign",
    replacement=lambda x: torch.ops.cookbook.softsign(x),
    samples=[Sample(x=T("... N", values="moderate"))],  # the square in the backward overflows
)
def softsign_by_hand(x):
    """x / (1 + abs(x))  ->  an operator of one's own"""
    return x / (torch.abs(x) + 1.0)


# 9. other random numbers
@rule(
    "dropout_of_sum",
    replacement=lambda x, y: (x + y) * torch.bernoulli(torch.full_like(x + y, 0.75)) / 0.75,
    numerics=Numerics(random="distribution"),  # with option rng="eager" it does not fire
    samples=[Sample(x=T("S N"), y=T("S N"), sizes={"S": 8, "N": 8})],
)
def dropout_of_sum(x, y):
    """dropout(x + y, 0.25)  ->  (x + y) * bernoulli(0.75) / 0.75"""
    return F.dropout(x + y, 0.25, True)


# 10. only some sizes, only some candidates
def in_eights(x):
    """Blocks of eight, as a kernel would want them."""
    size = x.meta["val"].shape[-1]
    if not isinstance(size, int):  # `check` takes this code for an answer where sizes are symbolic
        return Reason("size-symbolic", f"the last size is {size}", (x,), "a known size", str(size))
    if size and size % 8 == 0:
        return None
    return Reason("size-not-in-eights", f"the last size is {size}", (x,), "a multiple of 8", str(size))


def few_rows(match, policy):
    """One candidate of two: None where it can be used."""
    few = match.operands["x"].meta["val"].numel() < 4096
    return None if few else Reason("kernel-unavailable", "too many rows", (match.operands["x"],))


@rule(
    "sum_of_exponents",
    replacement=[
        Candidate("blocks", lambda x: torch.exp(x).unflatten(-1, (-1, 8)).sum(-1).sum(-1), few_rows),
        Candidate("plain", lambda x: torch.exp(x).sum(-1)),
    ],
    dims={"x": "... N"},
    guards=[in_eights],
    samples=[
        Sample(x=T("... N"), sizes={"N": range(8, 129, 8)}),  # each of them must match
        Sample(x=T("B N"), refused="size-not-in-eights"),
    ],
)
def sum_of_exponents(x):
    """sum(exp(x), -1)  ->  in blocks of eight"""
    return torch.sum(torch.exp(x), -1)


if __name__ == "__main__":
    for declared in RULES:
        result = regraft.check(declared, examples=1)
        print(result.rule, result.summary)
        assert result.ok, result
