"""Limits of a device, measured once: bytes a second of a copy, FLOPs a second of a product of matrices.

Kept with the other decisions in the cache directory, under all that they depend on.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from ....rewrites.compat import memory
from ....rewrites.machine import cpu_model
from ...autotune.decision_cache import decision_cache, digest, environment, gpu_model
from ...options import cache_dir
from .clock import Clock, EventClock, HostClock

_COPY_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}  # more than caches hold
_READ_BYTES = 256 << 20  # more than the caches of a socket
_LARGEST = {"cpu": 2048, "cuda": 8192}  # rows of a matrix
_LONG_ENOUGH = {"cpu": 20e-3, "cuda": 1e-3}  # seconds of a product
_REPEATS = 7

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Limits:
    """The limits of one device.

    Args:
        device: which.
        bandwidth: bytes a second, read and written together, of a large copy.
        rates: FLOPs a second of a large product, by dtype (``"bfloat16"``); 0 where the device has none.
    """

    device: str
    bandwidth: float
    rates: dict[str, float] = field(default_factory=dict)

    def seconds(self, moved: int, flops: int, dtype: str) -> tuple[float, float]:
        """The least time for that many bytes, and for that many FLOPs."""
        rate = self.rates.get(dtype, 0.0)
        return moved / self.bandwidth if self.bandwidth else 0.0, flops / rate if rate else 0.0


def measured_limits(device: torch.device, dtypes: set[str]) -> Limits:
    """The limits of a device for products in these dtypes, measured where they are not known."""
    bandwidth = _known("copy", device, lambda: _copy_bandwidth(device))
    rates = {
        dtype: _known(f"matrix product {dtype}", device, partial(_product_rate, device, dtype))
        for dtype in sorted(filter(None, dtypes))  # not of products of wider integers
    }
    return Limits(str(device), bandwidth, rates)


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second at which much memory is read: by a sum on CPUs; as a copy moves it on others, which is no slower.

    A copy on a CPU reads what it writes first, and says little of reading.
    """
    if device.type != "cpu":
        return measured_limits(device, set()).bandwidth
    return _known("read", device, _sum_bandwidth)


def _known(what: str, device: torch.device, measure: Callable[[], float]) -> float:
    depends = {
        "limit": what,
        "device": gpu_model(device.index or 0) if device.type == "cuda" else cpu_model(),
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "tf32": memory.allows_tf32(),
        "torch": environment()["torch"],
    }
    store, key = decision_cache(cache_dir()), digest(json.dumps(depends, sort_keys=True))
    known = store.get(key)
    if known is not None and isinstance(known.get("per_second"), (int, float)):
        return float(known["per_second"])
    found = measure()
    store.put(key, {**depends, "per_second": found})
    return found


def _copy_bandwidth(device: torch.device) -> float:
    size = _COPY_BYTES.get(device.type, 64 << 20)
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(device, lambda: target.copy_(source))


def _sum_bandwidth() -> float:
    numbers = torch.ones(_READ_BYTES // 4, dtype=torch.float32)
    return _READ_BYTES / _seconds(torch.device("cpu"), numbers.sum)


def _product_rate(device: torch.device, dtype: str) -> float:
    """The rate of a square product, as large as needed to take a while; 0 where there is no such product."""
    products = [torch.ops.aten._int_mm] if dtype == "int8" else _products(device)
    return max(_rate(device, dtype, product) for product in products)


def _products(device: torch.device) -> list[Product]:
    """The library's products: on CPUs it has two, and which one is faster depends on the processor."""
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if device.type == "cpu" else None
    return [torch.mm] if onednn is None else [torch.mm, lambda a, b: onednn(a, b, None, "none", [], "")]


def _rate(device: torch.device, dtype: str, product: Product) -> float:
    rows = 512
    try:
        while True:
            a = torch.randn(rows, rows, device=device).to(getattr(torch, dtype))
            seconds = _seconds(device, partial(product, a, a))
            if seconds > _LONG_ENOUGH.get(device.type, 20e-3) or rows >= _LARGEST.get(device.type, 2048):
                return 2 * rows**3 / seconds
            rows *= 2
    except (RuntimeError, NotImplementedError):  # no product of this dtype, or no memory for one
        return 0.0


def _seconds(device: torch.device, run: Callable[[], object]) -> float:
    """Median seconds of a few runs."""
    clock: Clock = EventClock() if device.type == "cuda" else HostClock()
    samples = []
    start = time.perf_counter()
    run()
    for _ in range(_REPEATS):
        clock.start("run")
        run()
        clock.stop()
        samples.append(clock.collect()["run"])
        if time.perf_counter() - start > 3.0:
            break
    return max(statistics.median(samples), 1e-9)
