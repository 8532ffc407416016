"""Statements of random programs, as text with holes: see `spellings`."""

from __future__ import annotations

INPLACE = """
{x}.add_({y})
{x}.mul_({f})
{x}.add_({n})
{x}.zero_()
{x}.fill_({n})
{x}.relu_()
{x}.clamp_(min={n})
{x}.copy_({y})
{x}.sub_({y}, alpha={f})
{x}.masked_fill_({x} > {f}, {n})
{x}[{s}] = {f}
{x}[{s}] += 1
{x}[{s}] *= {f}
{x}[{s}] = {x}[{s}] * 2
{x}[..., {s}] = {n}
{x}[{x} > {f}] = {n}
{x}[{b}] = {f}
{x}[0].add_(1)
{x}[:, 0].zero_()
{x}.view(-1)[0] = {f}
{x}.unfold(-1, 2, 1).mul_({f})
{x}.transpose(0, -1).as_strided((2,), (1,)).fill_({f})
{x}.t().mul_(2)
{x}.transpose(0, -1).add_({f})
{x}.diagonal().fill_({f})
{x} += {y}
{x} *= {f}
{x} -= {n}
{x} /= {p}
{i} += {n}
{i} //= {p}
{i}[{s}] = {n}
{i}.add_({i2})
{i}[{s}] += {n}
{b}.logical_not_()
{b} &= {b2}
{b}[{s}] = {k}
{t}.copy_({t2})
{t}.zero_()
{x}.scatter_(-1, {x}.argsort(stable=True, dim=-1), {f})
{x}.index_add_(0, torch.zeros({x}.shape[0], dtype=torch.long, device=DEVICE), {x} * 2)
{x}.index_put_((torch.tensor([0], device=DEVICE),), {x}[-1] * 2)
{x}[{x} > {f}] += {n}
{x}[-1:] = {x}[:1]
{x}[{x}.argmax(0)] = {f}
{x}.index_fill_(0, torch.tensor([-1], device=DEVICE), {f})
{x}.scatter_reduce_(-1, {x}.argsort(stable=True, dim=-1), {x} * 2, "amax")
{x}.view(torch.int32).bitwise_and_(2147483647)
{x}.unsqueeze_(0)
{x}.squeeze_()
{x}.t_()
{x}.transpose_(0, -1)
{x}.resize_as_({x2})
{x}.detach_()
{x}.cumsum_({d})
{x}.tril_()
torch.add({x}, {y}, out={x2})
torch.mul({x}, {f}, out={x2})
"""

# Statements that give two values.
SEVERAL = """
{x}.chunk(2, {d})
{t}.unbind(0)[:2]
{x}.max({d})
{x}.sort(stable=True, dim={d})
{x}.split(1, {d})[:2]
torch.var_mean({x}, {d})
torch.std_mean({x})
{x}.aminmax()
torch.frexp({x})
{x}.topk(1)
{x}.median({d})
{x}.cummax({d})
torch.unique({i}, return_counts=True)
{x}.split({i}.abs().flatten().tolist())[:2]
{x}.split([{p}, {x}.shape[0] - {p}])
F.max_pool1d({x}.reshape(1, 1, -1), 2, return_indices=True)
"""

# Heads of blocks.
CHOICES = """
if {x}.sum() > {f}:
if {n} > 0:
if {n} >= {n2}:
if {k}:
if {x}.shape[0] > 2:
if {b}.any():
if {i}.max() > 1:
if {x}.numel() == {n}:
if {x}.mean().item() < {f}:
if {f} > {n}:
if {x}.dtype == torch.float32:
if torch.is_grad_enabled():
if {x}.is_contiguous():
"""

LOOPS = """
for _ in range({p}):
for step in range({x}.dim()):
for part in {m}.unbind(0)[:3]:
for step in range(min(abs({n}), 3)):
for part in {i}.flatten()[:2].tolist():
"""

CONTEXTS = """
with torch.no_grad():
with torch.enable_grad():
with torch.autocast(DEVICE, dtype=torch.bfloat16):
with torch.autocast(DEVICE, enabled=False):
with torch.set_grad_enabled({k}):
"""

# Statements that end a graph, and such that must hold.
BREAKS = """
torch._dynamo.graph_break()
print(end="")
{x}.sum().item()
{x}.tolist()
str({x}.shape)
"""

CHECKS = """
torch._check({x}.size(0) >= 0)
torch._check({n} < 9000000000)
torch._check({x}.nonzero().size(0) >= 0)
torch._assert_async({x}.sum() == {x}.sum())
assert {x}.shape[0] >= 0
assert {x}.dim() < 9
"""
