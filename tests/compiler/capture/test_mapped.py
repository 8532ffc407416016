"""Maps by `vmap` become operators on whole batches, also if they write to tensors or contain constants."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import regraft

X = torch.linspace(-2, 3, 24).reshape(4, 6)


def filled(row):
    own = row * 2
    own[0] = 1
    own[1:].mul_(row[:-1])
    return own.add_(torch.tensor([1.0, 2, 3]).sum()) * own


def chosen(row):
    own = row * 2
    own[row.argmax()] = 7
    return own


def bits(row):
    kept = (row > 0).__and__(row < 2)
    kept &= row != 1
    return kept.__or__(row < -1) * row


def written(row):
    row[2] = 5
    return row * 2


def outside(x):
    own = x * 2
    torch.vmap(lambda row: row.mul_(3))(own)
    return own * x


PROGRAMS = [
    torch.vmap(filled),
    torch.vmap(chosen),
    torch.vmap(bits),
    torch.vmap(torch.vmap(lambda a: a + a.sin_())),
    outside,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [torch.vmap(written), torch.vmap(lambda row: row.add_(1) * 2), *PROGRAMS])
def test_writes_and_constants(program, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    with regraft.coverage() as found:
        for rows in (4, 3):
            ours, theirs = X[:rows].clone(), X[:rows].clone()
            torch.testing.assert_close(compiled(ours), program(theirs))
            torch.testing.assert_close(ours, theirs)
    assert not found.fallbacks


@pytest.mark.parametrize("program", PROGRAMS[:3] + PROGRAMS[4:])
def test_gradients(program):
    torch._dynamo.reset()
    ours, theirs = (X.clone().requires_grad_() for _ in range(2))
    with regraft.coverage() as found:
        torch.compile(program, backend="regraft")(ours).square().sum().backward()
    program(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert not found.fallbacks


def test_constants_beside_attributes_of_the_program():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(3.0))
            self.table = torch.arange(6.0)

        def forward(self, x):
            return torch.vmap(filled)(x * self.scale + self.table).sum(0) + torch.vmap(chosen)(x)

    torch._dynamo.reset()
    model = Model()
    with regraft.coverage() as found:
        torch.testing.assert_close(torch.compile(model, backend="regraft")(X), model(X))
    assert not found.fallbacks


def test_a_mask_of_blocks_by_itself():
    """`create_block_mask` is a map of the mask function, and a map that writes to a table."""

    def program(ends):
        mask = create_block_mask(lambda b, _, i, j: (j <= i) & (j < ends[b]), 2, None, 160, 160, device="cpu")
        return mask.kv_indices, mask.q_indices, mask.full_q_num_blocks

    torch._dynamo.reset()
    ends = torch.tensor([9, 140])
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft")(ends)
    assert all(map(torch.equal, ours, program(ends))) and not found.fallbacks
