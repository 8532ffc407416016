"""Programs that write to an input and return views of it: the input may begin anywhere in its memory."""

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft  # noqa: F401 - the backend


def half(x, w):
    v = x[..., : x.shape[1] // 2]
    v.mul_(2)
    return v


def turned(x, w):
    x.add_(1)
    return x.t(), x[:, -1], x.view(-1)


def beside_others(x, w):
    v = x[1:]
    v.mul_(3)
    return (x * w).sum(), v, v[None]


def written_twice(x, w):
    first, last = x[:1], x[-1:]
    first.zero_()
    last.add_(w.detach().sum())
    return last, first, x


def complex_of_real(x, w):
    z = torch.view_as_complex(x.view(x.shape[0], -1, 2))
    z.mul_(2)
    return z, z[1:].t(), z.imag, z.conj()


def part_of_complex(x, w):
    return torch.view_as_complex(x.view(x.shape[0], -1, 2)).imag.mul_(2)


@one_row_in(3)
@takes_turns("trained")
@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("program", [half, turned, beside_others, written_twice, complex_of_real, part_of_complex])
def test_results_begin_where_eagers_do(program, trained, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    w = torch.tensor([0.5], requires_grad=trained)
    sizes = ((3, 4, 2), (2, 6, 6), (4, 2, 0), (3, 4, 4))
    for rows, columns, before in sizes if dynamic is not False else (sizes[0], sizes[-1]):
        memory = torch.arange(float(rows * columns + before + 3))
        x, y = (m[before : before + rows * columns].view(rows, columns) for m in (memory.clone(), memory.clone()))
        ours, eager = compiled(x, w), program(y, w)
        assert torch.equal(x, y)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, eager)), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
            if b.dim():
                assert (a.data_ptr() - x.data_ptr(), a.storage_offset()) == (
                    b.data_ptr() - y.data_ptr(),
                    b.storage_offset(),
                )
        if trained and ours is not None and program is beside_others:
            found, expected = (torch.autograd.grad(r[0], w)[0] for r in (ours, eager))
            assert torch.equal(found, expected)
