"""What can go wrong between a kernel and its machine code."""

from __future__ import annotations

from pathlib import Path


class CompilerMissing(RuntimeError):  # noqa: N818
    """There is no C++ compiler on this machine; the message says where it was looked for."""


class CompileFailed(RuntimeError):  # noqa: N818
    """The C++ compiler refused a generated source.

    Args:
        source: the file, kept for inspection.
        output: what the compiler said.
    """

    def __init__(self, source: Path, output: str) -> None:
        super().__init__(f"the C++ compiler refused {source}:\n{output}")
        self.source, self.output = source, output
