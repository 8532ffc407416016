"""Object files of sources that include torch's headers, kept for all runs by the hash of all that they depend on."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from regraft.compiler.aot import build
from regraft.compiler.codegen.code_cache_dir import code_folder
from regraft.compiler.codegen.cpp.compiler import find_compiler

_Compile = Callable[[str, Path, str, Sequence[str]], Path]


@contextmanager
def objects_kept() -> Iterator[None]:
    """`aot.build` compiles a source once for all runs."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_object", kept(build._object))
        yield


def object_of(source: Path, flags: Sequence[str], headers: Sequence[Path]) -> Path:
    """The object file of a source in the repository, which includes these headers of ours."""
    text = "".join(path.read_text() for path in (source, *headers))
    with tempfile.TemporaryDirectory() as folder:

        def compiled(compiler: str, path: Path, _text: str, flags: Sequence[str]) -> Path:
            made = Path(folder) / f"{path.stem}.o"
            subprocess.run([compiler, "-c", *flags, path, "-o", made], check=True)
            return made

        return kept(compiled)(find_compiler().path, source, text, flags)


def kept(compile_source: _Compile) -> _Compile:
    """A function that compiles each source once for all runs."""

    def look_up(compiler: str, source: Path, text: str, flags: Sequence[str]) -> Path:
        parts = [text, *flags, find_compiler().version, torch.__version__, str(torch.version.git_version)]
        kept = code_folder("code") / "objects" / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.o"
        if not kept.exists():
            made = compile_source(compiler, source, text, flags)
            kept.parent.mkdir(parents=True, exist_ok=True)
            aside = kept.with_name(f".{kept.stem}.{made.parent.name}.o")
            shutil.move(made, aside)
            aside.replace(kept)
        return kept

    return look_up
