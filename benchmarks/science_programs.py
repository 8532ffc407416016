"""Programs of physics, statistics and losses: what `operators.py --table fields` runs after `field_programs.py`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from field_programs import D, P
from odd_programs import M
from operator_programs import I, Program, R


def heat(x):
    """A step of heat in three dims."""
    c = x[1:-1, 1:-1, 1:-1]
    rows = x[2:, 1:-1, 1:-1] + x[:-2, 1:-1, 1:-1] + x[1:-1, 2:, 1:-1] + x[1:-1, :-2, 1:-1]
    return c + 0.1 * (rows + x[1:-1, 1:-1, 2:] + x[1:-1, 1:-1, :-2] - 6 * c)


def wave(u, v):
    """A step of a wave on a torus."""
    around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1)
    v = v + 0.2 * (around - 4 * u)
    return u + v, v


def jacobi(x, b):
    """Eight steps of Jacobi's method."""
    for _ in range(8):
        p = F.pad(x, (1, 1, 1, 1))
        x = 0.25 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] + b)
    return x


def gravity(x, m):
    """Forces of all pairs of bodies."""
    d = x[None] - x[:, None]
    return (d * (m[None] / (d.square().sum(-1) + 1e-3) ** 1.5)[..., None]).sum(1)


def lennard_jones(x):
    """The energy of particles in a periodic box."""
    d = x[:, None] - x
    d = d - d.round()
    r = d.square().sum(-1) + torch.eye(x.shape[0])
    s = (0.01 / r) ** 3
    return torch.where(r < 0.25, 4 * (s * s - s), 0.0).sum((0, 1)) / 2


def advection(q, u, v):
    """Upwind differences."""
    left, right = q - q.roll(1, 1), q.roll(-1, 1) - q
    down, up = q - q.roll(1, 0), q.roll(-1, 0) - q
    return q - 0.1 * (torch.where(u > 0, u * left, u * right) + torch.where(v > 0, v * down, v * up))


def gray_scott(u, v, k):
    """Reaction and diffusion, by a circular convolution."""
    lu, lv = F.conv2d(F.pad(torch.stack([u, v])[:, None], (1, 1, 1, 1), mode="circular"), k)[:, 0]
    r = u * v * v
    return u + 0.16 * lu - r + 0.035 * (1 - u), v + 0.08 * lv + r - 0.1 * v


def poisson(x):
    """Poisson's equation by Fourier transforms."""
    k = torch.fft.fftfreq(x.shape[0]) * 2 * math.pi
    square = k[:, None] ** 2 + k[None, : x.shape[1] // 2 + 1] ** 2
    return torch.fft.irfft2(torch.fft.rfft2(x) / torch.where(square == 0, 1.0, -square), s=x.shape)


def boltzmann(f, w, c):
    """Collision and streaming of a lattice of nine directions."""
    rho = f.sum(0)
    u = torch.einsum("qd,qxy->dxy", c, f) / rho
    cu = torch.einsum("qd,dxy->qxy", c, u)
    rest = w[:, None, None] * rho * (1 + 3 * cu + 4.5 * cu * cu - 1.5 * u.square().sum(0))
    f = f - 0.6 * (f - rest)
    shifts = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    return torch.stack([f[i].roll(s, (0, 1)) for i, s in enumerate(shifts)])


def springs(x, v, at, to, length):
    """A step of cloth."""
    d = x[to] - x[at]
    n = d.norm(dim=-1, keepdim=True)
    force = 10 * (n - length[:, None]) * d / n.clamp(min=1e-6)
    v = 0.99 * v + 0.01 * torch.zeros_like(x).index_add(0, at, force).index_add(0, to, -force)
    return x + 0.01 * v, v


def ising(s, r):
    """Half a sweep of spins."""
    around = s.roll(1, 0) + s.roll(-1, 0) + s.roll(1, 1) + s.roll(-1, 1)
    black = (torch.arange(s.shape[0])[:, None] + torch.arange(s.shape[1])) % 2 == 0
    return torch.where(black & (r < (-0.8 * (s * around).float()).exp()), -s, s)


def covariances(x):
    """Correlations of features."""
    y = x - x.mean(1, keepdim=True)
    c = y.transpose(1, 2) @ y / (x.shape[1] - 1)
    d = c.diagonal(dim1=1, dim2=2).rsqrt()
    return c * d[:, None] * d[:, :, None]


def weighted_quantile(x, w):
    """Medians by weight."""
    y, at = x.sort(-1)
    c = w.gather(-1, at).cumsum(-1)
    return y.gather(-1, torch.searchsorted(c, 0.5 * c[:, -1:]))[:, 0]


def mixture(x, mean, scale, logit):
    """Log likelihoods of a mixture of Gaussians."""
    z = (x[:, None] - mean) / scale.exp()
    return (logit.log_softmax(0) - 0.5 * (z * z).sum(-1) - scale.sum(-1)).logsumexp(-1)


def density(x, at):
    """A kernel density at many places."""
    return (-0.5 * ((at[:, None] - x) / 0.2).square()).exp().mean(1) / (0.2 * math.sqrt(2 * math.pi))


def beta_binomial(k, n, a, b):
    """Log likelihoods of counts."""
    beta = lambda x, y: x.lgamma() + y.lgamma() - (x + y).lgamma()  # noqa: E731
    return (beta(k + a, n - k + b) - beta(a, b)).mean(1)


def spearman(x, y):
    """Correlation of ranks."""
    a, b = (t.argsort(-1).argsort(-1).float() for t in (x, y))
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def mahalanobis(x, a):
    """Distances by a covariance."""
    l = torch.linalg.cholesky(a @ a.t() + torch.eye(a.shape[0]))  # noqa: E741
    return torch.linalg.solve_triangular(l, x.t(), upper=False).square().sum(0)


def distance_correlation(x, y):
    """Correlation of distances."""

    def centred(t):
        d = torch.cdist(t, t)
        return d - d.mean(0) - d.mean(1, keepdim=True) + d.mean()

    a, b = centred(x), centred(y)
    return (a * b).mean() / ((a * a).mean() * (b * b).mean()).sqrt()


def sinkhorn(c):
    """Ten steps of optimal transport."""
    u, v = torch.zeros(c.shape[0]), torch.zeros(c.shape[1])
    for _ in range(5):
        u = -(v - c / 0.1).logsumexp(1)
        v = -(u[:, None] - c / 0.1).logsumexp(0)
    return (u[:, None] + v - c / 0.1).exp()


def moments(x):
    """Skewness and excess of kurtosis."""
    y = x - x.mean(1, keepdim=True)
    var = y.square().mean(1)
    return (y**3).mean(1) / var**1.5, (y**4).mean(1) / var**2 - 3


def cox(x, t, e):
    """The partial likelihood of survival."""
    at = t.argsort(descending=True)
    x, e = x[at], e[at]
    return -((x - x.logcumsumexp(0)) * e).sum() / e.sum()


def queue(q, k, n):
    """Contrast with a key beside a queue of others."""
    q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ n.t()], 1) / 0.07
    return F.cross_entropy(logits, torch.zeros(q.shape[0], dtype=torch.int64))


def alignments(x, label):
    """Twelve steps of the sums over alignments of CTC."""
    a = torch.full((x.shape[0], label.shape[1]), -1e4)
    for t in range(12):
        shifted = F.pad(a[:, :-1], (1, 0), value=-1e4 if t else 0.0)
        a = torch.logaddexp(a, shifted) + x[:, t].gather(1, label)
    return a[:, -1].mean()


def lovasz(x, y):
    """The Lovasz hinge of masks."""
    e = 1 - x * (2 * y - 1)
    e, at = e.sort(1, descending=True)
    t = y.gather(1, at)
    inner, union = t.sum(1, keepdim=True) - t.cumsum(1), t.sum(1, keepdim=True) + (1 - t).cumsum(1)
    j = 1 - inner / union
    return (F.relu(e) * torch.cat([j[:, :1], j[:, 1:] - j[:, :-1]], 1)).sum(1).mean()


def arc_face(x, w, y):
    """Margins of angles to classes."""
    c = F.normalize(x, dim=1) @ F.normalize(w, dim=1).t()
    s = (1 - c * c).clamp(min=1e-6).sqrt()
    hit = F.one_hot(y, w.shape[0]).bool()
    return F.cross_entropy(torch.where(hit, c * math.cos(0.5) - s * math.sin(0.5), c) * 30, y)


def vicreg(x, y):
    """Invariance, variance and covariance of two views."""
    total = F.mse_loss(x, y) * 25
    for z in (x, y):
        z = z - z.mean(0)
        c = z.t() @ z / (z.shape[0] - 1)
        total = total + F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() * 25
        total = total + (c.square().sum() - c.diagonal().square().sum()) / z.shape[1]
    return total


def hardest(x, y):
    """Triplets of the farthest alike and the nearest unlike."""
    d = (x[:, None] - x).square().sum(-1).clamp(min=1e-12).sqrt()
    same = y[:, None] == y
    return F.relu(torch.where(same, d, 0.0).amax(1) - torch.where(same, 1e4, d).amin(1) + 0.3).mean()


def edges(x, y, k):
    """A smooth error of images and of their edges."""
    g = F.conv2d((x - y).flatten(0, 1)[:, None], k, padding=1)
    return ((x - y).square() + 1e-6).sqrt().mean() + (g.square() + 1e-6).sqrt().mean()


def lambda_rank(s, r):
    """Pairwise losses of ranking, by gains."""
    gain = (2**r - 1)[:, :, None] - (2**r - 1)[:, None]
    return (F.softplus(-(s[:, :, None] - s[:, None])) * gain.clamp(min=0)).mean()


def permuted_snr(x, y):
    """Noise of separated sources, in their best order."""
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    dot = (x[:, :, None] * y[:, None]).sum(-1, keepdim=True)
    t = dot * y[:, None] / (y.square().sum(-1)[:, None, :, None] + 1e-8)
    snr = 10 * (t.square().sum(-1) / ((x[:, :, None] - t).square().sum(-1) + 1e-8)).log10()
    return -torch.stack([snr[:, 0, 0] + snr[:, 1, 1], snr[:, 0, 1] + snr[:, 1, 0]]).amax(0).mean() / 2


PROGRAMS: dict[str, dict[str, Program]] = {
    "physics": {
        "heat in 3 dims": (heat, lambda: [R(65, 66, 67)]),
        "heat in 3 dims, double": (heat, lambda: [D(65, 66, 67)]),
        "wave on a torus": (wave, lambda: [R(257, 301), R(257, 301)]),
        "Jacobi": (jacobi, lambda: [R(129, 131), R(129, 131)]),
        "gravity": (gravity, lambda: [R(257, 3), P(257, 1)[:, 0]]),
        "Lennard-Jones": (lennard_jones, lambda: [P(257, 3)]),
        "upwind": (advection, lambda: [R(257, 301), R(257, 301), R(257, 301)]),
        "Gray-Scott": (gray_scott, lambda: [P(257, 301), P(257, 301), R(1, 1, 3, 3)]),
        "Poisson": (poisson, lambda: [R(128, 192)]),
        "lattice Boltzmann": (
            boltzmann,
            lambda: [P(9, 97, 131) + 1, P(9), torch.randint(-1, 2, (9, 2)).float()],
        ),
        "springs": (springs, lambda: [R(1000, 3), R(1000, 3), I(1000, 5001), I(1000, 5001), P(5001)]),
        "Ising": (ising, lambda: [(I(2, 257, 301) * 2 - 1).to(torch.int8), P(257, 301)]),
        "divergence and curl": (
            lambda u, v: (
                (u[1:, 1:] - u[1:, :-1]) + (v[1:, 1:] - v[:-1, 1:]),
                v.diff(dim=1)[1:] - u.diff(dim=0)[:, 1:],
            ),
            lambda: [R(257, 301), R(257, 301)],
        ),
    },
    "statistics": {
        "correlations": (covariances, lambda: [R(7, 129, 37)]),
        "medians by weight": (weighted_quantile, lambda: [R(129, 257), P(129, 257)]),
        "mixture of Gaussians": (mixture, lambda: [R(1000, 7), R(13, 7), R(13, 7), R(13)]),
        "kernel density": (density, lambda: [R(1000), R(513)]),
        "beta-binomial": (
            beta_binomial,
            lambda: [I(9, 37, 129).float(), torch.full((129,), 10.0), P(129) + 1, P(129) + 1],
        ),
        "Spearman": (spearman, lambda: [R(37, 257), R(37, 257)]),
        "Mahalanobis": (mahalanobis, lambda: [R(1000, 37), R(37, 37)]),
        "correlation of distances": (distance_correlation, lambda: [R(257, 7), R(257, 3)]),
        "Sinkhorn": (sinkhorn, lambda: [P(129, 97)]),
        "skewness and kurtosis": (moments, lambda: [R(37, 1000)]),
        "skewness and kurtosis, double": (moments, lambda: [D(37, 1000)]),
        "skewness of short rows": (moments, lambda: [R(2001, 37)]),
        "bootstrap": (
            lambda x, i: x[i].mean(1).quantile(torch.tensor([0.05, 0.5, 0.95])),
            lambda: [R(200), I(200, 301, 200)],
        ),
    },
    "goals": {
        "Cox": (cox, lambda: [R(1000), P(1000), P(1000).round()]),
        "contrast with a queue": (queue, lambda: [R(33, 129), R(33, 129), R(1000, 129)]),
        "alignments": (alignments, lambda: [R(37, 12, 29), I(29, 37, 9)]),
        "Lovasz": (lovasz, lambda: [R(3, 4001), P(3, 4001).round()]),
        "margins of angles": (arc_face, lambda: [R(37, 129), R(1000, 129), I(1000, 37)]),
        "VICReg": (vicreg, lambda: [R(129, 257), R(129, 257)]),
        "hardest triplets": (hardest, lambda: [R(129, 37), I(17, 129)]),
        "edges of images": (edges, lambda: [P(2, 3, 97, 131), P(2, 3, 97, 131), R(2, 1, 3, 3)]),
        "pairs of a ranking": (lambda_rank, lambda: [R(17, 65), P(17, 65) * 4]),
        "sources in any order": (permuted_snr, lambda: [R(3, 2, 8001), R(3, 2, 8001)]),
        "scale-invariant depth": (
            lambda x, y, m: ((x.log() - y.log()) * m).flatten(1).var(1).add(1e-6).sqrt().mean(),
            lambda: [P(3, 97, 131) + 0.1, P(3, 97, 131) + 0.1, M(3, 97, 131)],
        ),
        "poly loss": (
            lambda x, y: (
                F.cross_entropy(x, y, reduction="none") + 1 - x.softmax(1).gather(1, y[:, None])[:, 0]
            ).mean(),
            lambda: [R(1000, 37), I(37, 1000)],
        ),
    },
}
