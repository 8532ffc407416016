"""Errors of the compilation of kernels, and errors that kernels report."""

from __future__ import annotations

from pathlib import Path


class CompilerMissing(RuntimeError):  # noqa: N818
    """There is no C++ compiler on this machine; the message lists the names that were tried."""


class IndexOutOfRange(IndexError, RuntimeError):  # noqa: N818
    """An index read from memory is out of range.

    In eager some operators (`index_select`) raise an IndexError and others (`gather`) a RuntimeError. A kernel may
    contain both kinds, so this error is both: code that catches eager's error catches this one.
    """


class CompileFailed(RuntimeError):  # noqa: N818
    """The C++ compiler refused a generated source, crashed or took too long.

    Args:
        source: the file of the source, kept for inspection.
        output: the messages of the compiler.
    """

    def __init__(self, source: Path, output: str) -> None:
        first = next((line for line in output.splitlines() if "error" in line), output.partition("\n")[0])
        super().__init__(f"the C++ compiler made nothing of {source.name}: {first}\n{source}:\n{output}")
        self.source, self.output = source, output
