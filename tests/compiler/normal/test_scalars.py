"""Tensors without dims take 0 and -1 as dims all the same: the normal form leaves such calls as they are."""

import torch

import regraft


def of_no_dims(x):
    return [
        x.movedim(0, -1) * 2, x.moveaxis(-1, 0) + 1, x.transpose(0, -1) * 3, x.sum(0) * 1.0,
        x.sum(-1, keepdim=True) * 0.5,
        x.mean(0) * 2, x.amax(-1) - x, x.softmax(0) * x, x - x.logsumexp(0), x / x.sum(0, keepdim=True),
        (x - x.mean(-1, keepdim=True)) * x, x.cumsum(-1) + 1, x.squeeze(0) * 2, x.flatten() * 2, x.sort(0)[0] * 2,
    ]  # fmt: skip


def test_dims_of_tensors_without_dims():
    x = torch.tensor(1.5)
    torch._dynamo.reset()
    with regraft.coverage() as block:
        ours = torch.compile(of_no_dims, backend="regraft", options={"profit": "always"})(x)
    assert not block.fallbacks
    torch.testing.assert_close(ours, of_no_dims(x))
