"""The times of kernels in one call of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ....rewrites.reason import Site
from .limits import Limits


@dataclass
class KernelRow:
    """Equal calls of one kernel: the same code on the same shapes.

    Args:
        name: the kernel's.
        kind: ``"generated"``, ``"template"`` or ``"library"``.
        graph: ``"inference"``, ``"forward"`` or ``"backward"``.
        count: calls in one call of the program.
        seconds: of all these calls.
        shapes: dtypes and sizes of what goes in and out.
        read, written: bytes that one call must read and write at least.
        flops: multiplications and additions of its products, one call.
        operations: other arithmetic, one call.
        dtype: what its products are computed in.
        rule: the rewrite rules it comes from.
        module: the path of the module that it, or the first of equal calls, belongs to: ``"encoder.layer.0"``.
        sites: the user's source lines.
        memory_seconds, product_seconds: the least time of all these calls by measured bandwidth and rate.
    """

    name: str
    kind: str
    graph: str
    count: int = 0
    seconds: float = 0.0
    shapes: str = ""
    read: int = 0
    written: int = 0
    flops: int = 0
    operations: int = 0
    dtype: str = ""
    rule: str = ""
    module: str = ""
    sites: list[Site] = field(default_factory=list)
    memory_seconds: float = 0.0
    product_seconds: float = 0.0

    def bounded_by(self, limits: Limits) -> KernelRow:
        """The row with its least times on a device with these limits."""
        memory, product = limits.seconds(self.moved, self.flops, self.dtype)
        return replace(self, memory_seconds=self.count * memory, product_seconds=self.count * product)

    @property
    def moved(self) -> int:
        """Bytes read and written, one call."""
        return self.read + self.written

    @property
    def bound_seconds(self) -> float:
        """The least time of all calls."""
        return max(self.memory_seconds, self.product_seconds)

    @property
    def bound(self) -> str:
        """The limit that takes this time: ``"memory"``, ``"matrix"`` products, or ``""`` if there is nothing to do."""
        if not self.bound_seconds:
            return ""
        return "matrix" if self.product_seconds > self.memory_seconds else "memory"

    def part(self, of: float) -> float:
        """`of` as a part of the time taken; 0 where no time was measured."""
        return of / self.seconds if self.seconds else 0.0

    def facts(self, total: float) -> dict[str, Any]:
        """The row as JSON; `total` is the time of all kernels."""
        shown = asdict(self)
        for name in ("memory_seconds", "product_seconds"):
            del shown[name]
        return shown | {
            "share": self.seconds / total if total else 0.0,
            "bytes_per_second": self.part(self.count * self.moved),
            "flops_per_second": self.part(self.count * self.flops),
            "bandwidth_fraction": self.part(self.memory_seconds),
            "rate_fraction": self.part(self.product_seconds),
            "bound": self.bound,
            "bound_seconds": self.bound_seconds,
            "bound_fraction": self.part(self.bound_seconds),
        }


@dataclass(frozen=True)
class KernelTimes:
    """The kernels of a program with their times, and the totals; `KernelReport` documents the fields."""

    rows: Sequence[KernelRow]
    limits: Limits
    call_seconds: float
    rounds: int
    kind: str
    environment: dict[str, str]
    name: str = ""

    @property
    def kernel_seconds(self) -> float:
        """Time of all kernels."""
        return sum(row.seconds for row in self.rows)

    @property
    def gap_seconds(self) -> float:
        """Time of a call in which no kernel ran: launching, Python, allocation. Below 0 where kernels overlap."""
        return self.call_seconds - self.kernel_seconds

    @property
    def bound_seconds(self) -> float:
        """Time that the kernels would take at the device's limits."""
        return sum(row.bound_seconds for row in self.rows)

    @property
    def calls(self) -> int:
        """Kernel calls in one call of the program."""
        return sum(row.count for row in self.rows)
