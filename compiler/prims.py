"""Operators that compute random numbers from a seed; `seed_dropout` inserts them for calls that use a generator.

    seeds = regraft.seeds(2)                      two int64 from eager's generator, the only call that uses it
    a, b  = regraft.split(seeds)                  one seed, a tensor of no dims, for each random call
    mask  = regraft.bernoulli([8, 64], 0.9, a)    element i is a function of (a, i), of nothing else
    noise = regraft.normal([8, 64], b, float32)

The same seed gives the same numbers in the forward, in the backward and when values are recomputed, so that only the
seed is saved. An element's bits are a function of the seed (the key) and of its position in row-major order (the
counter). They do not depend on layout, tiles, threads or the length of vectors.

    bits        Philox 4x32 of 10 rounds; with `fast` a keyed 32-bit hash (`ir/hash32.py`), which repeats after 2**32
                elements of one call, and which `bernoulli` and `uniform` of at most 32 bits use. Masks use the
                hash unless it repeats (`is_hashed`), because Philox costs too much for one bit per element
    bernoulli   bits < p * 2**32 (p is exact to 2**-33)
    uniform     24 bits, the bits of the significand in 16-bit dtypes, 53 in float64
    normal      Box-Muller transform of 23 and 24 bits
    integers    63 bits modulo the range; 32 for up to 2**16 values

Kernels compute them (`lowering/ops/random.py`). The functions here are the reference, and run if there is no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .ir.hash32 import hash32
from .ir.philox import philox

UNIFORM_BITS = {torch.bfloat16: 8, torch.float16: 11}
"""Bits of a uniform number of a dtype; 24 else."""

_library = torch.library.Library("regraft", "FRAGMENT")
_library.define("seeds(int n, Device? device=None) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("split(Tensor(a -> *) seeds) -> Tensor(a)[]")  # on a GPU, the results are views
_library.define("bernoulli(SymInt[] size, float p, Tensor seed, bool fast=False) -> Tensor")
_library.define("uniform(SymInt[] size, Tensor seed, ScalarType dtype, bool interior=False, bool fast=False) -> Tensor")
_library.define("normal(SymInt[] size, Tensor seed, ScalarType dtype) -> Tensor")
_library.define("integers(SymInt[] size, int low, int high, Tensor seed, ScalarType dtype) -> Tensor")

ops = torch.ops.regraft


def threshold(p: float) -> int:
    """The number of 32-bit integers that represent true with probability `p`."""
    return round(p * 2**32)


def is_hashed(size: Sequence[int | torch.SymInt]) -> bool:
    """Whether a mask of this size uses the hash: not if it is known to have more elements than there are hashes."""
    known = [n for n in size if isinstance(n, int)]
    return math.prod(known) <= 2**32 if len(known) == len(size) else True


def _seeds(n: int, device: torch.device | None = None) -> torch.Tensor:
    return torch.randint(0, 2**63 - 1, (n,), dtype=torch.int64, device=device)


def _split(seeds: torch.Tensor) -> list[torch.Tensor]:
    """On a GPU, views of one tensor: a copy would need a kernel launch for each seed."""
    return list(seeds.unbind()) if seeds.is_cuda else [seed.clone() for seed in seeds.unbind()]


def _places(size: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.arange(math.prod(size), device=device).view(list(size))


def keys(seed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The key of the hash: every bit of the seed affects both words, so that similar seeds give different numbers."""
    low, high = seed, seed >> 32
    first = hash32(low, high, high)
    return first, hash32(high, first, low)


def word(size: Sequence[int], seed: torch.Tensor, which: int = 0, fast: bool = False) -> torch.Tensor:
    """One of the four words of each element (the hash has only the first), int64 in [0, 2**32)."""
    places = _places(size, seed.device)
    if fast:
        return hash32(places, *keys(seed)).long() + 2**31
    return philox(seed.expand(places.shape), places)[which]


def _bernoulli(size: Sequence[int], p: float, seed: torch.Tensor, fast: bool = False) -> torch.Tensor:
    return word(size, seed, fast=fast) < threshold(p)


def _uniform(
    size: Sequence[int], seed: torch.Tensor, dtype: torch.dtype, interior: bool = False, fast: bool = False
) -> torch.Tensor:
    """Numbers in [0, 1); with `interior` in (0, 1), of 23 bits."""
    if interior:
        return ((word(size, seed, fast=fast) >> 9).float() * 2.0**-23 + 2.0**-24).to(dtype)
    if dtype == torch.float64:
        whole = ((word(size, seed) >> 5) << 26) + (word(size, seed, 1) >> 6)
        return whole.double() * 2.0**-53
    bits = UNIFORM_BITS.get(dtype, 24)
    return ((word(size, seed, fast=fast) >> (32 - bits)).float() * 2.0**-bits).to(dtype)


def _normal(size: Sequence[int], seed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    radius = (-2.0 * _uniform(size, seed, torch.float32, True).log()).sqrt()
    angle = (word(size, seed, 1) >> 8).float() * 2.0**-24 * (2 * math.pi)
    return (radius * angle.cos()).to(dtype)


def _integers(size: Sequence[int], low: int, high: int, seed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    bits = word(size, seed)
    if high - low > 2**16:
        bits = (bits << 31) | (word(size, seed, 1) >> 1)
    return (bits % (high - low) + low).to(dtype)


def _register() -> None:
    kernels = {
        "seeds": _seeds, "split": _split, "bernoulli": _bernoulli, "uniform": _uniform, "normal": _normal,
        "integers": _integers,
    }  # fmt: skip
    for name, function in kernels.items():
        _library.impl(name, function, "CompositeExplicitAutograd")
    fakes: dict[str, Callable[..., Any]] = {
        "seeds": lambda n, device=None: torch.empty((n,), dtype=torch.int64, device=device),
        "split": lambda seeds: [seeds.new_empty(()) for _ in range(seeds.shape[0])],
        "bernoulli": lambda size, p, seed, fast=False: seed.new_empty(size, dtype=torch.bool),
        "uniform": lambda size, seed, dtype, interior=False, fast=False: seed.new_empty(size, dtype=dtype),
        "normal": lambda size, seed, dtype: seed.new_empty(size, dtype=dtype),
        "integers": lambda size, low, high, seed, dtype: seed.new_empty(size, dtype=dtype),
    }
    for name, fake in fakes.items():
        torch.library.register_fake(f"regraft::{name}", fake, lib=_library)


_register()


@ops.split.default.py_functionalize_impl
def _split_apart(context: Any, seeds: torch.Tensor) -> list[torch.Tensor]:
    """Copies, where AOTAutograd traces a graph of ours once more: it knows no views but torch's own.

    Compiled autograd does so with the backward.
    """
    whole = context.unwrap_tensors(seeds)
    with context.redispatch_to_next():
        parts = [seed.clone() for seed in whole.unbind()]
    return context.wrap_tensors(parts)
