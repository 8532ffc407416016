"""The functions of a C++ template kernel: what one thread does, and the entry that hands units to threads."""

from __future__ import annotations

from collections.abc import Iterable

GRAIN = 200_000  # multiplications that are worth a thread: some microseconds


def with_entry(lines: Iterable[str], units: int, work: str) -> str:
    """The kernel's functions.

    Args:
        lines: C++ that runs units `begin` to `end`.
        units: how many there are.
        work: multiplications of all of them, in C++; no thread is woken for fewer than `GRAIN`.
    """
    return "\n".join([
        "static void KERNEL_0(const Call* call, i64 begin, i64 end) {", *lines, "}",
        'extern "C" void KERNEL(void** given, const i64* sizes, Runtime* runtime) {',
        "  Call call = {given, sizes, 0, runtime, 0, 0};",
        f"  run(&call, KERNEL_0, {units}, {work}, {GRAIN});", "}",
    ])  # fmt: skip
