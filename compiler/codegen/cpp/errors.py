"""Errors of compiling kernels, and those that kernels report."""

from __future__ import annotations

from pathlib import Path


class CompilerMissing(RuntimeError):  # noqa: N818
    """There is no C++ compiler on this machine; the message says where it was looked for."""


class IndexOutOfRange(IndexError, RuntimeError):  # noqa: N818
    """An index read from memory is out of range.

    Eager raises an IndexError from some operators (`index_select`) and a RuntimeError from others (`gather`), and a
    kernel may hold several: whoever catches eager's error catches this one.
    """


class CompileFailed(RuntimeError):  # noqa: N818
    """The C++ compiler refused a generated source, crashed or took too long.

    Args:
        source: the file, kept for inspection.
        output: what the compiler said.
    """

    def __init__(self, source: Path, output: str) -> None:
        first = next((line for line in output.splitlines() if "error" in line), output.partition("\n")[0])
        super().__init__(f"the C++ compiler made nothing of {source.name}: {first}\n{source}:\n{output}")
        self.source, self.output = source, output
