"""The functions of a C++ template kernel: the work of one thread, and the entry point that starts threads."""

from __future__ import annotations

from collections.abc import Iterable

GRAIN = 200_000  # fewest multiplications that justify a thread: some microseconds


def with_entry(lines: Iterable[str], units: int, work: str) -> str:
    """The kernel's functions.

    Args:
        lines: C++ that runs units `begin` to `end`.
        units: the number of units.
        work: the number of multiplications of all units, in C++; a thread gets at least `GRAIN` of them.
    """
    return "\n".join([
        "static void KERNEL_0(const Call* call, i64 begin, i64 end) {", *lines, "}",
        'extern "C" void KERNEL(void** given, const i64* sizes, Runtime* runtime) {',
        "  Call call = {given, sizes, 0, runtime, 0, 0};",
        f"  run(&call, KERNEL_0, {units}, {work}, {GRAIN});", "}",
    ])  # fmt: skip
