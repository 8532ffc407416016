"""Gradients of results that are conjugated where they are read, given as plain tensors or as conjugates themselves."""

from __future__ import annotations

import pytest
import torch

PROGRAMS = {
    "plain": lambda x: torch.complex(x, x * 2) * 3,
    "conjugated": lambda x: torch.complex(x, x * 2).conj(),
    "transposed": lambda x: torch.complex(x, x * 2).exp().mH,
    "twice": lambda x: torch.complex(x, x * 2).exp().conj().t().contiguous().conj(),
    "part": lambda x: torch.complex(x, x * 2).conj().imag,
    "two": lambda x: (torch.complex(x, x * 2).conj(), torch.complex(x * 3, x).mH.sin().conj()),
}
Z = torch.complex(torch.arange(16.0).reshape(4, 4), torch.linspace(-1, 1, 16).reshape(4, 4))


def gradient(y, lazily):
    if not y.is_complex():
        return Z.conj().imag if lazily else Z.real
    return Z.conj() if lazily else Z


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_eagers(name, lazily):
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()

    def trained(program):
        results = program(x)
        results = results if isinstance(results, tuple) else (results,)
        gradients = [gradient(y, lazily) for y in results]
        return [(y.detach(), y.is_conj()) for y in results], torch.autograd.grad(results, x, gradients)

    compiled = torch.compile(PROGRAMS[name], backend="regraft", options={"strict": True, "verify": True})
    torch.testing.assert_close(trained(compiled), trained(PROGRAMS[name]))
