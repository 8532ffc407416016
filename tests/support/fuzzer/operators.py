"""More expressions of random programs: operators by family, with options that layers seldom use.

    {c} a complex tensor     {z} a tensor of no dims     the other holes are those of `spellings`

Results are those that do not depend on a choice of the algorithm: no eigenvectors, no unstable order.
"""

from __future__ import annotations

IMAGE = "{m}.reshape(1, -1, *{m}.shape[-2:])"
# A matrix that is surely positive definite, and ones of another's dtype.
DEFINITE = "({m}.float().flatten(1) @ {m}.float().flatten(1).t() + torch.eye({m}.shape[0], device=DEVICE))"
LIKE = "dtype={m}.dtype, device=DEVICE"

NUMBERS = """
{x} + {z}
{z} - {x}
{z} * {i}
{i} / {z}
{z} ** 2 + {x}
{x}.clamp(max={z})
torch.where({b}, {z}, {x})
torch.where({x} > 0, {z}, {n})
{x} < {z}
{x}.sum() * {i}
{x} * {x}.max().item()
{i}.to(torch.uint8) - 7
{i}.to(torch.uint8) * 77
{i}.to(torch.uint8) + {i2}
{i}.to(torch.int8) * 100
{i}.to(torch.int32) * 2147483647
{i}.to(torch.int64) * 4611686018427387904
{i}.to(torch.int16) << 9
{i}.to(torch.uint8) >> 1
-{i}.to(torch.uint8)
{i}.to(torch.uint8).sum({d})
{i}.to(torch.int8).cumsum({d})
{i}.to(torch.int8).prod({d}, dtype=torch.int8)
{i}.to(torch.uint8).float().mean({d})
{i}.to(torch.int32) / {i2}.to(torch.uint8).clamp(min=1)
{i}.to(torch.uint8) // 3 * {n}
{i}.to(torch.int8) % -5
{i}.to(torch.int16) * {x}
{i}.pow({p})
{i} ** 2 - {i2}
torch.pow({p}, {i}.abs() % 5)
{p} ** {x}.clamp(-3, 3)
{b} + {b2}
{b} * {i}
{b} / 2
{b}.sum({d}, dtype=torch.uint8)
{b}.to(torch.uint8) - 1
{b}.float().std({d})
{x}.to(torch.float64) + {x2}.to(torch.float16)
{x}.to(torch.bfloat16) * {x2}.to(torch.float16)
{x}.to(torch.float16) * 300.0 * 300.0
{x}.double() * {i}
{x}.clamp(0, 200).to(torch.uint8)
{x}.nan_to_num().clamp(-9, 9).to(torch.int8) * {i}
torch.gcd({i}.long(), {i2}.long())
torch.bitwise_left_shift({i}.long(), 3)
torch.bitwise_xor({i}, {i2})
torch.div({i}, {p}, rounding_mode="floor")
torch.div({x}, {y}, rounding_mode="trunc")
torch.div({x}, {f}, rounding_mode="floor")
torch.true_divide({i}, {n})
torch.float_power({x}.abs(), {f})
torch.ldexp({x}, {i}.clamp(-4, 4))
torch.nextafter({x}, {x} + 1)
torch.heaviside({x}, {x2})
torch.sgn({x})
torch.deg2rad({x})
torch.sinc({x})
torch.i0({x})
torch.special.erfcx({x})
torch.special.xlog1py({x}, {y}.abs())
torch.special.entr({x}.abs())
torch.special.zeta({x}.abs() + 1.5, 2.0)
torch.polygamma(1, {x}.abs() + 0.5)
torch.lgamma({x}.abs() + 0.5)
torch.digamma({x}.abs() + 0.5)
torch.erfinv({x}.clamp(-0.9, 0.9))
torch.logit({x}.sigmoid(), 1e-3)
torch.expm1({x})
torch.exp2({x})
torch.log2({x}.abs() + 1)
torch.log10({x}.abs() + 1)
torch.acos({x}.clamp(-0.9, 0.9))
torch.atanh({x}.clamp(-0.9, 0.9))
torch.sinh({x}.clamp(-5, 5))
torch.asinh({x})
torch.tan({x}.clamp(-1, 1))
torch.logaddexp2({x}, {y})
torch.fmin({x}, {y})
torch.isclose({x}, {y})
torch.isin({i}, torch.tensor([1, 3], device=DEVICE))
torch.isneginf({x} / 0)
torch.isreal({t})
torch.equal({x}, {x2})
torch.allclose({x}, {y})
torch.result_type({x}, {i})
{x} ** ({x}.shape[0] % 3)
F.binary_cross_entropy({x}.clamp(0, 1), {x2}.sigmoid())
F.multilabel_margin_loss({m}.flatten(1), {m}.flatten(1).argsort(stable=True) - 1, reduction="none")
F.prelu({x}, torch.tensor([0.25], dtype={x}.dtype, device=DEVICE))
F.hardsigmoid({x})
F.selu({x})
F.tanhshrink({x})
F.softmin({x}, dim={d})
F.softsign({x})
F.gumbel_softmax({x} * 0, dim={d}).sum({d})
F.hardtanh({x}, {f}, {f} + 1)
F.threshold({i}, {n}, 7)
{x}.addcmul({y}, {z}, value={f})
torch.lerp({x}, {y}, {z}.float())
torch.clamp({i}, {f}, {f2})
torch.clamp({i}, min={x})
"""

REDUCED = """
{x}.repeat({p}, *[1] * {x}.dim()).flatten().repeat(97).sum()
{x}.flatten().repeat(701).mean()
{i}.flatten().repeat(301).sum()
{x}.flatten().repeat(513).logsumexp(0)
{x}.flatten().repeat(129).std()
{x}.flatten().repeat(129).cumsum(0)[-1]
{x}.expand({p}, 40, *{x}.shape).sum((0, 1))
{x}.sum((0, -1), keepdim=True)
{x}.mean((0, -1), dtype=torch.float64)
{x}.amax((0, -1))
{x}.var((0, -1), correction={p})
torch.var_mean({x}, (0, -1), correction={p})[1]
{x}.sum(dtype=torch.float16)
{x}.nansum({d})
{x}.nanmean({d})
{x}.nanmedian({d})[0]
{x}.quantile(0.3, {d})
{x}.mode({d})[0]
{x}.median()
{x}.cummin({d})[0]
{x}.cummin({d})[1]
{x}.flip({d}).cumsum({d}).flip({d})
{x}.cumsum({d}, dtype=torch.float64)
{i}.cumprod({d})
{i}.cummax({d})[0]
{x}.renorm(2, 0, 1.0)
torch.linalg.vector_norm({x}, float("inf"), {d})
torch.linalg.vector_norm({x}, 0, {d})
torch.linalg.matrix_norm({m})
torch.linalg.matrix_norm({m}, 1)
torch.linalg.norm({m}, {f}, {d})
torch.dist({x}, {y}, {p})
torch.count_nonzero({i}, {d})
{i}.bincount(minlength=3)
torch.bincount({i}.flatten().long().abs(), {x}.flatten()[: {i}.numel()].detach())
torch.histogram({x}.detach().float(), 5)[0]
torch.unique({i}, return_inverse=True)[1]
torch.unique({i}, dim=0)
torch.unique_consecutive({i})
torch.unique_consecutive({i}, return_counts=True)[1]
torch.sort({i}, stable=True, dim={d}, descending=True)[1]
torch.sort({b}.long(), stable=True, dim={d})[1]
torch.topk({x}, min(2, {x}.shape[-1]), largest=False)[0]
torch.msort({x})
{x}.kthvalue(min(2, {x}.shape[-1]))[0]
torch.searchsorted({x}.detach().sort(-1)[0], {x}.detach(), right=True)
torch.searchsorted(torch.tensor([-1.0, 0.0, 0.5], device=DEVICE), {x}.detach().float(), out_int32=True)
torch.bucketize({x}.detach(), {x2}.detach().flatten().sort()[0])
torch.bucketize({i}, torch.tensor([0, 2, 4], device=DEVICE), right=True)
torch.cumulative_trapezoid({x}, dim={d})
torch.gradient({x}, dim=0)[0]
torch.diff({i}, n=2, dim={d})
torch.cov({m}.flatten(1))
torch.corrcoef({m}.flatten(1))
torch.aminmax({i}, dim={d})[0]
torch.all({i}, {d})
torch.logcumsumexp({x}, {d})
torch.segment_reduce({x}.flatten()[:4], "sum", lengths=torch.tensor([1, 0, 3], device=DEVICE))
"""

PLACED = """
{x}.index_put(({i}.long().flatten() % {x}.shape[0],), {z}.to({x}.dtype), accumulate=True)
{x}.index_put(({i}.long().flatten() % {x}.shape[0],), {x}[0], accumulate=True)
{i}.index_put(({i2}.long().flatten() % {i}.shape[0],), torch.ones((), dtype={i}.dtype, device=DEVICE), accumulate=True)
{x}.index_reduce(0, {i}.long().flatten()[: {x}.shape[0]] % {x}.shape[0], {x}[: {i}.numel()], "amax")
{x}.scatter_reduce(-1, {x}.argsort(stable=True, dim=-1) // 2, {x}, "sum", include_self=False)
{x}.scatter_reduce(0, torch.zeros_like({x}, dtype=torch.long), {x}, "prod")
{x}.scatter_reduce(0, torch.zeros_like({x}, dtype=torch.long), {x}, "mean")
{x}.scatter_add(0, torch.zeros_like({x}, dtype=torch.long), {x2})
{x}.put({i}.long() % {x}.numel(), {i}.to({x}.dtype), accumulate=True)
{x}.masked_scatter({x} > 0, {x}.flatten())
{t}.index_select(-1, torch.tensor([0, 0], device=DEVICE))
{t}[..., torch.tensor([-1, 0], device=DEVICE)]
{t}[torch.tensor([[0], [-1]], device=DEVICE), None]
{t}[:, torch.tensor([0, -1], device=DEVICE), ..., 0]
{t}[torch.tensor(0, device=DEVICE)]
{t}[torch.tensor([True] + [False] * ({t}.shape[0] - 1), device=DEVICE)]
{t}[:, None, ::2]
{t}[{t}.shape[0] :]
{t}[0:0]
{t}.narrow(0, 0, 0).sum()
torch.cat([{t}[0:0], {t}])
torch.cat([{x}, {i}.to({x}.dtype).flatten()[:0].reshape(0, *{x}.shape[1:])])
torch.cat([{x}.flatten(), {i}.flatten(), {b}.flatten()])
torch.stack([{t}, {t}.flip(0)]).unbind(1)[0]
torch.hstack([{x}, {x}])
torch.dstack([{x}, {x}])
torch.column_stack([{x}, {x}])
{t}.as_strided(({t}.shape[0], 2), (1, 0))
{t}.as_strided((2, {t}.numel() // 2), (1, 2))
{t}.as_strided((1,), (1,), {t}.storage_offset())
{t}.unfold(-1, min(3, {t}.shape[-1]), 2)
{t}.T
{t}.H
{t}.rot90()
{t}.fliplr()
{t}.swapdims(0, 1)
{t}.expand_as({t2})
{t}.tile(2)
{t}.repeat_interleave({i}.long().flatten()[: {t}.shape[0]] % 3, 0)
{t}.view({t}.dtype)
{t}.view(torch.uint8)
{t}.diag()
{t}.trace()
{x}.tril(-1) + {x}.triu(1)
{t}.hsplit(2)[1]
{t}.vsplit(2)[0]
{t}.tensor_split((1, 2), -1)[1]
{t}.unsafe_chunk(2)[0]
{t}.index_fill(0, torch.tensor([-1], device=DEVICE), 2)
{t}.ravel()
{t}.new_empty({t}.shape).fill_(1)
{t}.new_tensor([1, 2])
torch.empty_like({t}).zero_()
torch.combinations({x}.flatten()[:4])
torch.vander({x}.flatten()[:3], 3)
torch.kron({m}.flatten(1), torch.ones(2, 2, dtype={m}.dtype, device=DEVICE))
torch.cross({x}.flatten()[:3], {x2}.flatten()[:3], dim=0)
F.pad({t}, (1, 0), value=True)
F.pad({x}, (-1, {p}, {p2}, -1), value={f})
F.pad({m}.reshape(1, -1, *{m}.shape[-2:]), (1, 2, 0, 1), mode="circular")
F.pad({m}.reshape(1, -1, *{m}.shape[-2:]), (1, 1, 1, 0), mode="replicate")
F.unfold({m}.reshape(1, -1, *{m}.shape[-2:]), 2, padding=1, stride=2)
F.fold({x}.flatten()[:16].reshape(1, 4, 4), (3, 3), 2)
F.pixel_unshuffle({m}[:2, :2].reshape(1, 1, 2, 2), 2)
F.channel_shuffle({m}.reshape(1, -1, *{m}.shape[-2:]), {p})
"""

PRODUCTS = """
torch.einsum("ij,kj->ik", {m}.flatten(1), {m}.flatten(1))
torch.einsum("ii->i", {m} @ {m}.mT)
torch.einsum("...ij->...ji", {m})
torch.einsum("i,j,k->ijk", {x}.flatten()[:3], {x}.flatten()[:2], {x2}.flatten()[:2])
torch.einsum("...i->...", {x})
torch.einsum("bij,bjk->ik", {m}.unsqueeze(0), {m}.mT.unsqueeze(0))
{i} @ {i}.mT
{m}.double() @ {m}.double().mT
{m}.half() @ {m}.half().mT
{m}.mT.contiguous().mT @ {m}.mT
{m}[..., ::2] @ {m}[..., ::2].mT
{m}[:0] @ {m}.mT
{m}[..., :0] @ {m}[..., :0].mT
torch.addmv({m}.flatten(1)[:, 0], {m}.flatten(1), {m}.flatten(1)[0], beta={f})
torch.addr({m}.flatten(1), {m}.flatten(1)[:, 0], {m}.flatten(1)[0], alpha={f})
torch.chain_matmul({m}.flatten(1), {m}.flatten(1).t(), {m}.flatten(1))
torch.linalg.multi_dot([{m}.flatten(1), {m}.flatten(1).t(), {m}.flatten(1)])
torch.inner({x}, {x2})
torch.vdot({x}.flatten(), {x}.flatten())
torch.linalg.vecdot({x}, {x})
torch.tensordot({m}, {m}, ([0], [0]))
torch.linalg.det({m}.flatten(1) @ {m}.flatten(1).t() + torch.eye({m}.shape[0], device=DEVICE))
torch.logdet(DEFINITE)
torch.linalg.inv(DEFINITE)
torch.linalg.cholesky(DEFINITE)
torch.linalg.solve(DEFINITE, {m}.float().flatten(1))
torch.linalg.eigvalsh({m}.float().flatten(1) @ {m}.float().flatten(1).t())
torch.linalg.svdvals({m}.float())
torch.linalg.matrix_power({m} @ {m}.mT, 3)
torch.linalg.pinv({m}.float()) @ {m}.float()
torch.matrix_exp({m}.float().flatten(1)[:2, :2] * 0.1)
torch.linalg.lstsq({m}.float().mT @ {m}.float() + torch.eye({m}.shape[-1], device=DEVICE), {m}.float().mT)[0]
torch.cdist({m}, {m}, p=1.0)
torch.pdist({m}.float().flatten(1))
F.bilinear({x}.flatten()[:2], {x}.flatten()[:2], {x}.flatten()[:4].reshape(1, 2, 2))
F.pairwise_distance({m}, {m} + 1)
F.linear({x}, {x}.flatten()[: {x}.shape[-1]])
F.embedding_bag({i}.long().flatten() % {m}.shape[0], {m}.flatten(1), torch.tensor([0, 1], device=DEVICE), mode="sum")
F.embedding_bag({i}.long().flatten() % {m}.shape[0], {m}.flatten(1), torch.tensor([0, 0], device=DEVICE), mode="max")
F.embedding({i}.long() % {m}.shape[0], {m}.flatten(1), max_norm=None, scale_grad_by_freq=True)
""".replace("DEFINITE", DEFINITE)

WINDOWS = """
F.max_pool2d(IMAGE, 3, 2, 1)
F.max_pool2d(IMAGE, (2, 1), (1, 3), dilation=1, ceil_mode=True)
F.max_pool2d(IMAGE, 2, 1, dilation=2)
F.max_pool2d(IMAGE, 2, return_indices=True)[1]
F.avg_pool2d(IMAGE, 3, 2, 1, count_include_pad=False)
F.avg_pool2d(IMAGE, 3, 2, 1, ceil_mode=True)
F.avg_pool2d(IMAGE, (2, 3), (3, 1), divisor_override=5)
F.avg_pool1d(IMAGE[0], 3, 2, 1)
F.max_pool1d(IMAGE[0], 2, 3)
F.lp_pool2d(IMAGE.abs(), 2.0, 2)
F.adaptive_avg_pool2d(IMAGE, (3, 2))
F.adaptive_max_pool2d(IMAGE, (2, 3))
F.adaptive_avg_pool1d(IMAGE[0], 5)
F.interpolate(IMAGE, scale_factor=(2.0, 0.5), mode="bilinear")
F.interpolate(IMAGE, size=(5, 3), mode="bilinear", align_corners=True)
F.interpolate(IMAGE, size=(4, 7), mode="nearest-exact")
F.interpolate(IMAGE, scale_factor=1.7, mode="bicubic")
F.interpolate(IMAGE, size=(3, 3), mode="area")
F.interpolate(IMAGE, scale_factor=0.6, mode="bilinear", antialias=True)
F.interpolate(IMAGE[0], scale_factor=2.3, mode="linear")
F.interpolate((IMAGE.detach().float() * 40).clamp(0, 255).to(torch.uint8), scale_factor=1.5, mode="bilinear")
F.grid_sample(IMAGE, torch.linspace(-1.2, 1.2, 12, LIKE).reshape(1, 2, 3, 2), align_corners=False)
F.affine_grid(torch.eye(2, 3, device=DEVICE)[None] * {f}, (1, 1, 3, 4), align_corners=False)
F.conv1d(IMAGE[0], torch.ones(2, {m}.shape[-2], 2, LIKE), stride=2, padding=1)
F.conv2d(IMAGE, torch.ones(3, IMAGE.shape[1], 2, 3, LIKE), stride=(1, 2), padding=(1, 2), dilation=(2, 1))
F.conv2d(IMAGE, torch.ones(2 * IMAGE.shape[1], 1, 3, 3, LIKE), padding=1, groups=IMAGE.shape[1])
F.conv_transpose1d(IMAGE[0], torch.ones({m}.shape[-2], 2, 3, LIKE), stride=2, output_padding=1)
F.conv_transpose2d(IMAGE, torch.ones(IMAGE.shape[1], 1, 2, 2, LIKE), groups=IMAGE.shape[1], dilation=2)
F.conv3d(IMAGE[None], torch.ones(2, 1, 1, 2, 2, LIKE))
F.local_response_norm(IMAGE, 2)
F.group_norm(IMAGE, 1)
F.instance_norm(IMAGE)
F.batch_norm(IMAGE, None, None, training=True)
F.layer_norm(IMAGE, IMAGE.shape[-2:])
F.dropout(IMAGE, 0.0)
F.ctc_loss({m}.flatten(1).log_softmax(-1)[:, None], torch.ones(1, 1, dtype=torch.long), ({m}.shape[0],), (1,))
F.multi_margin_loss({m}.flatten(1), {m}.flatten(1).argmin(1))
F.triplet_margin_loss({m}, {m} + 1, {m} * 2)
F.poisson_nll_loss({x}, {x}.abs())
F.gaussian_nll_loss({x}, {x} * 2, {x}.abs() + 1)
F.margin_ranking_loss({x}, {x} * 2, {x}.sign())
F.soft_margin_loss({x}, {x}.sign())
F.hinge_embedding_loss({x}, {x}.sign(), reduction="sum")
F.cross_entropy({m}.flatten(1), {m}.flatten(1).softmax(1))
F.cross_entropy({m}.flatten(1), {m}.flatten(1).argmin(1), weight={m}.flatten(1)[0].abs(), ignore_index=0)
F.binary_cross_entropy({x}.sigmoid(), ({x2} > 0).to({x}.dtype).expand_as({x}))
F.nll_loss({m}.flatten(1).log_softmax(1), {m}.flatten(1).argmin(1), reduction="sum")
""".replace("IMAGE", IMAGE).replace("LIKE", LIKE)

COMPLEX = """
{c} + 1
{c} * {c2}
{c} * {x}
{c} / 2
{c} * (1 + 2j)
{c}.conj()
{c}.conj().mT
{c}.real
{c}.imag
{c}.real + {c}.imag
{c}.abs()
{c}.angle()
{c}.exp()
{c}.sum({d})
{c}.mean()
{c}.conj() * {c}
{c} @ {c}.mT
{c}[..., :1]
{c}.reshape(-1)
{c} == {c2}
{c}.to(torch.complex128)
{c}.conj().resolve_conj().flip(0)
torch.cat([{c}, {c}.conj()])
torch.where({c}.real > 0, {c}, {c}.conj())
torch.view_as_real({c})
torch.view_as_real({c}).sum(-1)
torch.view_as_complex({x}.float().reshape(-1, 2))
torch.complex({x}.float(), {x}.float() * 2)
torch.polar({x}.float().abs(), {x}.float())
torch.fft.fft({x}.float())
torch.fft.ifft({c})
torch.fft.rfft({x}.float(), dim={d})
torch.fft.irfft({c}, n=6)
torch.fft.fft2({m}.float()).abs()
torch.fft.rfftn({m}.float()).real
torch.fft.hfft({c}, n=4)
torch.fft.fftshift({x})
torch.fft.fftfreq({x}.shape[-1], {f}, device=DEVICE)
torch.fft.irfft(torch.fft.rfft({x}.float(), n=8) * 2, n=8)
torch.stft({x}.float().flatten().repeat(9)[:32], 8, 4, window=torch.ones(8, device=DEVICE), return_complex=True).abs()
"""

WRITTEN = """
torch.sub({x}, {y}, out={x2})
torch.exp({x}, out={x2})
torch.matmul({m}, {m}.mT, out={m2})
torch.cat([{x}, {x}], out={x2})
torch.where({b}, {x}, {y}, out={x2})
torch.sum({x}, {d}, out={x2})
torch.cumsum({x}, {d}, out={x2})
torch.gt({x}, {y}, out={b})
{x}.index_put_(({i}.long().flatten() % {x}.shape[0],), {x}[0] * 0.5, accumulate=True)
{x}.index_add_(0, torch.arange({x}.shape[0], device=DEVICE) // 2, {x}.clone(), alpha={p})
{x}.scatter_add_(-1, {x}.argsort(stable=True, dim=-1), {x2})
{x}.scatter_reduce_(-1, {x}.argsort(stable=True, dim=-1), {x2}, "amin")
{x}.masked_scatter_({x} > 0, {x2}.flatten())
{x}.put_({i}.long() % {x}.numel(), {i}.to({x}.dtype), accumulate=True)
{x}.as_strided(({x}.shape[0],), (1,)).mul_(2)
{x}.view(-1)[::2].neg_()
{x}.flatten()[0] = 3
{x}.reshape(-1)[1:].zero_()
{x}[..., 0], {x}[..., -1] = {x}[..., -1].clone(), {x}[..., 0].clone()
{x}[torch.tensor([0, 0], device=DEVICE)] += 1
{x}[:, torch.tensor([0], device=DEVICE)] = {f}
{x}[{i}.long() % {x}.shape[0]] = {f}
{x}[{x} > 0] *= 2
{x}.mT.copy_({x}.mT * 2)
{x}.unfold(-1, 2, 2).add_(1)
{x}.expand(2, *{x}.shape)[0].add_(1)
{x}.real.mul_(2)
{i} *= 77
{i} <<= 2
{i}.clamp_(0, 3)
{i}.bitwise_not_()
{i}.fmod_(3)
{i}.scatter_(-1, torch.zeros_like({i}, dtype=torch.long), 7)
{b} |= {x} > 0
{b}.fill_({k})
{x}.pow_({p})
{x}.lerp_({x2}, {f})
{x}.addcmul_({x}, {x2}, value={f})
{x}.floor_divide_({p})
{x}.remainder_({p})
{x}.clamp_(max={z})
{x}.sort({d})[0].mul_(2)
{x}.triu_({n})
{x}.fill_diagonal_({f})
{x}.swapaxes_(0, -1)
{x}.squeeze_({d})
{x}.exp_().log1p_()
{x}.where({x} > 0, {x2}).add_(1)
{x}.set_({x2})
{x}.data.mul_(2)
{t}.flatten().contiguous().zero_()
F.relu({x}, inplace=True)
F.dropout({x}, 0.0, inplace=True)
F.hardtanh({x}, inplace=True)
{c} *= 2
{c}.conj().add_(1)
{c}.real.zero_()
"""

# Transforms, functions as arguments, containers.
FUNCTIONS = """
torch.func.vmap(lambda r: r * 2 + r.sum())({m})
torch.func.vmap(lambda r: r.softmax(-1) * r)({m})
torch.func.vmap(torch.dot)({m}.flatten(1), {m}.flatten(1))
torch.func.vmap(lambda r, s: r * s, in_dims=(0, None))({m}, {z})
torch.func.vmap(lambda r: r.sort()[0], in_dims=1, out_dims=1)({m})
torch.func.vmap(lambda r, k: r[k])({m}, torch.zeros({m}.shape[0], dtype=torch.long, device=DEVICE))
torch.func.grad(lambda q: (q * q).sum())({x})
torch.func.grad(lambda q: q.sin().sum())({x} * 2)
torch.func.vmap(torch.func.grad(lambda r: r.exp().sum()))({m})
torch.func.grad_and_value(lambda q: q.square().mean())({x})[1]
torch.func.jvp(lambda q: q * q.sin(), ({x},), (torch.ones_like({x}),))[1]
torch.func.vjp(lambda q: q.tanh(), {x})[1](torch.ones_like({x}))[0]
torch.func.jacrev(lambda q: q.square().sum(-1))({m}.flatten(1))
torch.utils.checkpoint.checkpoint(lambda q: q.sin() * q.cos(), {x}, use_reentrant=False)
torch.utils.checkpoint.checkpoint(lambda q, s: (q * s).softmax(-1), {x}, {f}, use_reentrant=False)
torch.cond({x}.sum() > 0, lambda q: q * 2, lambda q: q - 1, ({x},))
sum([part * 2 for part in {m}.unbind(0)])
torch.stack([part.cumsum(0) for part in {m}.unbind(0)])
torch.cat([part[:k] for k, part in enumerate({m}.unbind(0))])
{"a": {x}, "b": {x} * 2}["b"]
(lambda q, *rest, scale=2: q * scale + len(rest))({x}, {n}, scale={f})
[{x} for _ in range(2)][-1] + 1
{x} * max({x}.shape)
torch.tensor({x}.tolist())
{x}.numpy(force=True).sum() + {x}
getattr({x}, "relu")()
torch._foreach_add([{x}, {x} * 2], 1)[1]
torch._foreach_mul([{x}, {x}], {f})[0]
torch._foreach_norm([{x}, {x} * 2])[1]
torch.nn.functional.scaled_dot_product_attention({m}, {m}, {m})
nn.functional.normalize({x}, p={p}, dim={d}, eps=1e-3)
torch.broadcast_shapes({x}.shape, (1,))[0] * {x}
torch.Size({t}.shape).numel() * {x}
"""
