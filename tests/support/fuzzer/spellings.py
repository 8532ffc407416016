"""Expressions of random programs, as text with holes.

    {x} a floating-point tensor     {t} any tensor     {i} one of integers     {b} one of bools
    {y} one that broadcasts with {x}                   {m} a floating-point tensor of two dims or more
    {n} an int     {p} a small positive int            {f} a float             {k} a Python bool
    {d} a dim of the first tensor                      {s} a subscript         {e} a dtype      {r} one of floats

A digit makes another hole of the same kind: ``{x} + {x2}``. Drawn text is kept where eager takes it.
"""

from __future__ import annotations

POINTWISE = """
{x} + {y}
{x} - {y}
{x} * {y}
{x} / {y}
{x} / ({y}.abs() + 1)
{x} + {n}
{x} * {n}
{x} - {f}
{n} - {x}
{f} / ({x} + 3)
{x} / {n}
{x} // {n}
{x} % {n}
{x} // 0.7
{x} ** 2
{x} ** {p}
-{x}
{x}.abs()
{x}.exp()
{x}.relu()
{x}.sigmoid()
{x}.tanh()
{x}.sin() + {y}.cos()
{x}.abs().sqrt()
({x} * {x}).rsqrt()
{x}.abs().log1p()
{x}.square().mean({d}, keepdim=True)
{x}.sign()
{x}.floor()
{x}.round()
{x}.trunc()
{x}.frac()
{x}.erf()
{x}.clamp({f}, {f2})
{x}.clamp(min={f})
{x}.clamp(min={n})
{x}.clamp(max={y})
{x}.reciprocal()
{x}.nan_to_num({f})
{x}.lerp({y}, {f})
torch.add({x}, {y}, alpha={n})
torch.add({x}, {y}, alpha={f})
torch.sub({x}, {y}, alpha={f})
torch.addcmul({x}, {y}, {y2}, value={f})
torch.addcdiv({x}, {y}, {y2}.abs() + 1, value={f})
torch.maximum({x}, {y})
torch.minimum({x}, {y})
torch.fmax({x}, {y})
torch.where({x} > {y}, {x}, {y})
torch.where({b}, {x}, {f})
torch.where({b}, {x}, {y})
torch.where({x} > {n}, {x} * {n2}, {f})
torch.atan2({x}, {y})
torch.hypot({x}, {y})
torch.copysign({x}, {y})
torch.remainder({x}, {y})
torch.fmod({x}, {y})
torch.pow({x}.abs(), {y})
torch.logaddexp({x}, {y})
torch.xlogy({x}, {y}.abs())
F.gelu({x})
F.gelu({x}, approximate="tanh")
F.silu({x})
F.softplus({x}, beta={f}, threshold={n})
F.softplus({x})
F.leaky_relu({x}, {f})
F.elu({x}, {f})
F.celu({x}, {f})
F.hardtanh({x}, -{p}, {p2})
F.hardswish({x})
F.mish({x})
F.threshold({x}, {f}, {n})
F.hardshrink({x}, {f})
F.softshrink({x}, abs({f}))
F.logsigmoid({x})
F.relu6({x})
F.glu(torch.cat([{x}, {x}], -1), -1)
{x}.masked_fill({x} > {y}, {n})
{x}.masked_fill({b}, {f})
{x}.masked_fill({x}.abs() < 0.5, float("-inf"))
0.5 * {x} * (1 + torch.erf({x} * 0.7071067811865476))
{x} * torch.sigmoid({x})
{x}.to({e})
{x}.to({r})
{t}.to({r})
{t}.float()
{t}.half().float()
{t}.bool()
{t}.long()
{x}.int()
{x}.type_as({x2})
{i} + {n}
{i} * {n}
{i} // {p}
{i} // {n}
{i} % {p}
{i} % {n}
{i} - {x}
{i} / {p}
{i} & {p}
{i} | 1
{i} ^ {p}
{i} << 1
{i} >> 1
{i}.clamp({n}, {n2})
{i}.clamp(min=0)
-{i}
{i}.abs()
~{i}
~{b}
{b} & ({x} > 0)
{b} | {b2}
{b} ^ {b2}
{b}.logical_not()
{b} * {x}
{x} > {y}
{x} <= {n}
{x} == {y}
{x} != {x}
{i} >= {n}
{i} == {i2}
{i}.eq({n})
torch.isnan({x})
torch.isfinite({x} / {y})
torch.signbit({x} * 0)
torch.bitwise_and({i}, {i2})
torch.floor_divide({i}, {p})
torch.full_like({x}, {n})
torch.full_like({t}, {f})
torch.zeros_like({t})
torch.ones_like({x}) * {n}
{x} + torch.tensor({f})
{x} * torch.tensor([{f}])
{x} + torch.tensor({n}, device=DEVICE)
{x}.double() * {f}
{x} * ({n} / {p})
{x} + {p} ** -{p2}
{x} * (1 - 0.9 ** {p})
{x} * ({n} % {p}) - ({n} // {p})
torch.add({x}, {y}, alpha={n} / 3)
{x}.mul(float({n}))
{x} + {k}
{x} * ({n} if {k} else {f})
torch.complex({x}.float(), {x}.float()).abs()
torch.view_as_real(torch.complex({x}.float(), {x}.float() + 1))
{x}.detach() + {x}
{x}.clone()
"""

REDUCTIONS = """
{x}.sum()
{x}.sum({d})
{x}.sum({d}, keepdim=True)
{x}.mean()
{x}.mean({d})
{x}.mean({d}, keepdim=True)
{x}.amax({d})
{x}.amin({d}, keepdim=True)
{x}.max()
{x}.max({d}).values
{x}.max({d}).indices
{x}.min({d})[0]
{x}.argmax({d})
{x}.argmin({d}, keepdim=True)
{x}.argmax()
{x}.prod({d})
{x}.var({d})
{x}.std({d}, unbiased=False, keepdim=True)
torch.var_mean({x}, {d}, correction=0)[0]
{x}.norm()
{x}.norm(dim={d})
{x}.norm({p}, {d})
{x}.norm({f})
torch.linalg.vector_norm({x}, {p}, {d}, keepdim=True)
{x}.logsumexp({d})
{x}.softmax({d})
{x}.log_softmax({d})
{x}.float().softmax({d}).to({x}.dtype)
{x}.cumsum({d})
{x}.cumprod({d})
{x}.cummax({d}).values
{x}.cummax({d})[1]
{x}.logcumsumexp({d})
{x}.all()
{x}.any({d})
{b}.sum()
{b}.sum({d})
{b}.any()
{b}.all({d})
{b}.cumsum({d})
{i}.sum()
{i}.sum({d}, dtype=torch.int32)
{i}.cumsum({d})
{i}.prod({d})
{i}.amax()
{i}.max({d})[1]
{x}.count_nonzero({d})
{x}.median({d}).values
{x}.kthvalue(1, {d})[0]
{x}.aminmax()[1]
F.normalize({x}, dim={d})
{x} - {x}.logsumexp({d}, keepdim=True)
({x} - {x}.amax({d}, keepdim=True)).exp()
{x}.exp() / {x}.exp().sum({d}, keepdim=True)
({x} - {x}.mean({d}, keepdim=True)) / ({x}.var({d}, keepdim=True, unbiased=False) + 1e-5).sqrt()
F.mse_loss({x}, {y})
F.l1_loss({x}, {y}, reduction="none")
F.smooth_l1_loss({x}, {y}, beta=abs({f}) + 0.1)
F.huber_loss({x}, {y})
F.binary_cross_entropy_with_logits({x}, {x}.sigmoid())
F.kl_div({x}.log_softmax(-1), {x2}.softmax(-1), reduction="sum")
F.cosine_similarity({x}, {y}, dim=-1)
F.layer_norm({x}, {x}.shape[-1:])
F.rms_norm({x}, {x}.shape[-1:])
torch.diff({x}, dim={d})
{x}.sort({d}).values
{x}.sort(stable=True, dim={d}, descending=True).indices
{x}.argsort(stable=True, dim={d})
{i}.sort(stable=True, dim={d})[0]
{x}.topk(1, {d}).values
{x}.topk(min({p}, {x}.shape[-1]), -1)[0]
torch.trapezoid({x}, dim={d})
torch.bincount({i}.flatten().long() % 7)
torch.histc({x}.detach().float(), 4, -2, 2)
torch.unique({i})
torch.searchsorted({x}.detach().sort(-1)[0], {x}.detach())
torch.bucketize({x}.detach(), torch.tensor([-1.0, 0.0, 1.0], device=DEVICE))
"""

VIEWS = """
{t}[{s}]
{t}[{s}, {s2}]
{t}[..., {s}]
{t}[None]
{t}[:, None]
{t}[..., None]
{t}.flip({d})
{t}.flip(0)
{t}.t()
{t}.mT
{t}.transpose(0, -1)
{t}.transpose({d}, 0)
{t}.movedim(0, -1)
{t}.flatten()
{t}.flatten(0, 1)
{t}.reshape(-1)
{t}.reshape({t}.shape[0], -1)
{t}.reshape(-1, {t}.shape[-1])
{t}.reshape({t}.shape[::-1])
{t}.view(-1)
{t}.view({t}.shape[0], -1)
{t}.view({t}.size(0), 1, -1)
{t}.view(*{t}.shape, 1)
{t}.unsqueeze({d})
{t}.squeeze()
{t}.squeeze({d})
{t}.expand({p}, *{t}.shape)
{t}.unsqueeze(0).expand({p}, *[-1] * {t}.dim())
{t}.repeat({p}, *[1] * {t}.dim())
{t}.repeat_interleave({p}, {d})
{t}.narrow({d}, 0, min(2, {t}.shape[{d}]))
{t}.narrow(0, {t}.shape[0] // 2, {t}.shape[0] - {t}.shape[0] // 2)
{t}.select({d}, 0)
{t}.select({d}, -1)
{t}.diagonal()
{t}.diagonal({n}, 0, -1)
{t}.unfold({d}, 2, 1)
{t}.unbind({d})[0]
{t}.unbind()[-1]
{t}.chunk(2, {d})[-1]
{t}.split(2, {d})[0]
{t}.split([1, {t}.shape[0] - 1])[1]
{t}.tensor_split(3, {d})[1]
{t}.contiguous()
{t}.permute(*range({t}.dim())[::-1])
{t}.swapaxes(0, -1)
{t}.as_strided(({t}.shape[0],), (1,))
{t}.roll(1, {d})
{t}.roll({n}, 0)
{t}.tril()
{t}.triu({n})
{m}.tril({n})
torch.diag_embed({x})
torch.block_diag({m}, {m})
torch.atleast_2d({t})
torch.broadcast_to({t}, ({p}, *{t}.shape))
torch.broadcast_tensors({x}, {y})[1]
torch.stack([{x}, {x}], {d})
torch.stack([{x}, {y}.expand_as({x})], -1)
torch.cat([{x}, {x2}], {d})
torch.cat([{x}, {x} * 2], {d})
torch.cat([{t}, {t}[:1]])
torch.cat([{t}.flatten(), {t2}.flatten()])
F.pad({x}, (1, {p}))
F.pad({x}, (-1, 1))
F.pad({x}, (0, {p}, 1, 0), value={f})
F.pad({x}, ({n}, {p}))
F.pad({x}.reshape(1, 1, -1), (1, 1), mode="reflect")
F.pad({x}.reshape(1, 1, -1), (1, 2), mode="replicate")
F.pad({x}.reshape(1, 1, -1), (1, 1), mode="circular")
{x}.view(torch.int32)
{x}.unflatten(-1, (1, -1))
F.one_hot({i}.long() % 5, 5)
F.interpolate({x}.reshape(1, 1, -1), scale_factor={p})
F.interpolate({x}.reshape(1, 1, -1), size={p}, mode="linear")
torch.meshgrid({x}.flatten(), {x}.flatten()[:2], indexing="ij")[0]
torch.cartesian_prod({x}.flatten()[:3], {x}.flatten()[:2])
torch.outer({x}.flatten(), {x2}.flatten())
"""

INDEXING = """
{t}[{i}.long().flatten() % {t}.shape[0]]
{t}[:, {i}.long().flatten() % {t}.shape[1]]
{t}[{i}.long() % {t}.shape[0], {i}.long() % {t}.shape[1]]
{t}[[0, -1]]
{t}[torch.arange({t}.shape[0], device=DEVICE) // 2]
{t}[{b}]
{x}[{x} > 0]
{x}[{x} > {f}].sum()
{x}[{x} > 0].softmax(0)
{x}[{x} > 0] * 2 + 1
{x}[{x}.sum(-1) > 0]
{t}[{b}, :]
{x}.masked_select({x} > {n})
{x}.nonzero()
{b}.nonzero()
{b}.nonzero().sum(0)
{x}.nonzero(as_tuple=True)[0] + {n}
torch.argwhere({x} > 0)
torch.where({x} > 0)[0]
{t}.index_select({d}, {i}.long().flatten() % {t}.shape[{d}])
{t}.gather({d}, {i}.long() % 1)
{x}.gather(-1, {x}.argsort(stable=True, dim=-1))
{x}.take_along_dim({x}.argmax(-1, keepdim=True), -1)
{t}.take({i}.long() % {t}.numel())
{x}.scatter({d}, {x}.argsort(stable=True, dim={d}), {x})
{x}.scatter(-1, {x}.argmax(-1, keepdim=True), {f})
{x}.scatter_add(-1, {x}.argsort(stable=True, dim=-1), {x} * 2)
{x}.scatter_reduce(-1, {x}.argsort(stable=True, dim=-1), {x}, "amax")
{x}.index_add(0, torch.zeros({x}.shape[0], dtype=torch.long, device=DEVICE), {x})
{x}.index_fill({d}, torch.tensor([0], device=DEVICE), {f})
{x}.index_copy(0, torch.tensor([0], device=DEVICE), {x}[-1:])
{x}.index_put((torch.tensor([0], device=DEVICE),), {x}[-1], accumulate={k})
{m}.new_zeros({p}, {m}.shape[-1]).index_add(0, torch.arange({m}.shape[0], device=DEVICE) % {p}, {m})
{x}.index_put((torch.tensor([0, -1, 0], device=DEVICE),), {x}[:1], accumulate=True)
{x}.scatter_reduce(-1, {x}.argsort(stable=True, dim=-1), {x}, "mean", include_self={k})
{x}.scatter_reduce({d}, {x}.argsort(stable=True, dim={d}), {x}, "prod", include_self={k})
{x}.index_reduce(0, torch.tensor([0], device=DEVICE), {x}[-1:], "amin", include_self={k})
torch.unique({i}, return_inverse=True)[1] * 2
torch.bincount({i}.abs().flatten())
{x}.repeat_interleave({p}, {d})
{t}.roll((1, {p}), (0, 0))
{x} + {x}[{x} > {f}].sum()
{x}[{x} > {f}] * {x}
{x}.slice_scatter({x}[1:], 0, 1)
{x}.select_scatter({x}.select(0, 0) * 2, 0, -1)
{x}.diagonal_scatter({x}.diagonal() + 1)
F.embedding({i}.long() % {m}.shape[0], {m})
F.embedding({i}.long().flatten() % {m}.shape[0], {m}, padding_idx=0)
F.cross_entropy({m}.flatten(1), {m}.flatten(1).argmin(1))
F.nll_loss({m}.flatten(1).log_softmax(1), {m}.flatten(1).argmin(1), ignore_index={n})
{x}[:, -1] if {x}.dim() > 1 and {x}.shape[1] > 0 else {x}
{x}[max({n}, 0) :]
{x}[: max({n}, 0) + 2]
{x}[-abs({n}) :]
{x}[: {n}]
{x}[{n} :]
{x}[:: {p}]
{x}[..., : {x}.shape[-1] // 2]
{x}[..., {x}.shape[-1] // 2 :]
torch.cat([-{x}[..., {x}.shape[-1] // 2 :], {x}[..., : {x}.shape[-1] // 2]], -1)
"""

MADE = """
torch.arange({n}, {n} + {p}, device=DEVICE)
torch.arange({p}, device=DEVICE) + {n}
torch.arange(13, 0, -{p}, device=DEVICE)
torch.arange({n}, {n} - {p}, -1, device=DEVICE)
torch.arange(0, {f}, 0.25, device=DEVICE)
torch.arange({x}.shape[0], device=DEVICE) * {n}
torch.linspace({n}, {f}, {p}, device=DEVICE)
torch.linspace({f}, {f2}, {x}.shape[-1], device=DEVICE)
torch.full(({p}, {p2}), {n}, device=DEVICE)
torch.full(({p},), {f}, device=DEVICE)
torch.zeros({x}.shape, device=DEVICE)
torch.zeros({x}.shape[0], {p}, dtype={e}, device=DEVICE)
torch.ones({x}.shape[-1], device=DEVICE) * {f}
torch.eye({p}, device=DEVICE)
torch.eye({x}.shape[0], {x}.shape[-1], device=DEVICE) + {f}
{x}.new_zeros({p}, {x}.shape[-1])
{x}.new_zeros({p} + {x}.shape[0])
{x}.new_full(({x}.shape[-1],), {n})
{x}.new_ones({x}.numel()).cumsum(0)
torch.tensor([{f}, {n}, 1.5], device=DEVICE)
torch.tensor([{n}, {p}], device=DEVICE)
torch.ones({x}.shape[-1], {x}.shape[-1], device=DEVICE).tril()
torch.ones({p}, {p}, dtype=torch.bool, device=DEVICE).triu(1)
torch.tril_indices({p}, {p}, device=DEVICE)
torch.logspace(0, 1, {p}, device=DEVICE)
"""

PRODUCTS = """
{m} @ {m}.mT
{m} @ {m2}
{m}.mT @ {m}
{m} @ {m}.transpose(-1, -2) * {f}
torch.matmul({m}, {x})
torch.einsum("...i,...j->...ij", {x}, {x})
torch.einsum("...ij,...kj->...ik", {m}, {m})
F.linear({x}, {m})
F.linear({x}, {m}, {m}.sum(-1))
torch.addmm({m}.flatten(1) @ {m}.flatten(1).t(), {m}.flatten(1), {m}.flatten(1).t(), beta={f}, alpha={n})
torch.baddbmm({x}[:, :1, :1], {x}, {x}.mT)
torch.bmm({m}, {m}.mT)
torch.dot({x}.flatten(), {x}.flatten())
torch.mv({m}, {m}[0])
torch.tensordot({m}, {m}, 1)
torch.cdist({m}.float(), {m}.float() + 1)
torch.kron({m}, {m})
torch.cross({x}[..., :3], {x}[..., :3] + 1, dim=-1)
F.bilinear({m}, {m}, torch.ones(2, {m}.shape[-1], {m}.shape[-1], device=DEVICE))
F.avg_pool1d({x}.reshape(1, 1, -1), 2)
F.max_pool1d({x}.reshape(1, 1, -1), 3, stride=2)
F.adaptive_avg_pool1d({x}.reshape(1, 1, -1), {p})
F.conv1d({x}.reshape(1, 1, -1), torch.ones(2, 1, 3, device=DEVICE, dtype={x}.dtype), padding=1)
F.fold(F.unfold({m}.reshape(1, 1, -1, {m}.shape[-1]), (2, 1)), ({m}.numel() // {m}.shape[-1], {m}.shape[-1]), (2, 1))
F.pixel_shuffle({x}.reshape(1, 4, -1, 1), 2)
"""

RANDOM = """
F.dropout({x}, 0.5)
F.dropout({x}, 0.5, training={k})
torch.rand_like({x}) + {x}
torch.rand({x}.shape, device=DEVICE) * {x}
torch.randn({p}, {x}.shape[-1], device=DEVICE)
torch.randint(0, {p}, ({p2},), device=DEVICE)
torch.bernoulli({x}.sigmoid())
torch.randperm({p}, device=DEVICE)
{x} + torch.randn_like({x}) * 0.1
torch.normal({x}.detach(), 1.0)
torch.empty_like({x}).uniform_(0, 1)
{x}.clone().bernoulli_(0.3)
F.rrelu({x}, training=True)
F.gumbel_softmax({x})
{x} - torch.empty_like({x}).exponential_()
torch.stack([{x} * torch.empty_like({x}).exponential_(), {x} * torch.empty_like({x}).exponential_()])
torch.cat([F.rrelu({x}, training=True), F.rrelu({x}, training=True)])
torch.cat([F.gumbel_softmax({x}, dim=0), F.gumbel_softmax({x}, dim=0)])
{x} * torch.empty_like({x}).log_normal_() - {x} * torch.empty_like({x}).log_normal_()
torch.multinomial({x}.detach().abs().flatten() + 0.1, 1)
"""

INTS = """
{n} + 1
{n} - {p}
{n} * {p}
{n} // {p}
{n} % {p}
-{n}
max({n}, {p})
min({n}, {t}.shape[0])
abs({n}) + 1
{t}.shape[0]
{t}.shape[-1]
{t}.numel()
{t}.dim()
len({t})
{t}.size({d}) // 2
{t}.stride(0)
{t}.shape[0] * {t}.shape[-1]
int({f})
int({t}.shape[0] / 2)
math.ceil({t}.shape[0] / 2)
math.floor({t}.shape[-1] * 0.75)
round({f})
int({n} / {p})
{n} ** 2
{i}.sum().item()
int({b}.sum())
{t}.shape[0] if {k} else {n}
{x}.nonzero().shape[0]
{b}.sum().item()
int({i}.max())
int({x}.argmax())
{x}[{x} > {f}].shape[0]
{n} & 3
({n} > 0) + 1
"""

FLOATS = """
{f} + {n}
{f} * {f2}
{n} / {p}
{p} / 7
1 / {p}
1 - 0.9 ** {p}
-{f}
abs({f})
max({f}, {n})
{t}.shape[-1] ** -0.5
1 / math.sqrt({p})
math.sqrt({t}.shape[-1])
math.exp(-abs({f}))
float({n})
{x}.sum().item()
{x}.amax().item()
float({x}.mean())
{x}.shape[0] / 3
{f} if {f} > 0 else 0.5
{f} // 1
{f} % 1
"""
