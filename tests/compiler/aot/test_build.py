"""The object that artifacts are linked with: compiled once for a machine, again where its copy is damaged."""

import pytest
from support.caches import cache_in

from regraft.compiler.aot import build
from regraft.compiler.codegen.code_cache_dir import code_folder
from regraft.compiler.codegen.cpp import can_build
from regraft.compiler.codegen.cpp.compiler import find_compiler

pytestmark = pytest.mark.skipif(not can_build(), reason="no C++ compiler")


def test_an_object_is_compiled_once_and_again_where_its_copy_is_damaged(tmp_path, monkeypatch):
    compiled = []
    real = build._object
    monkeypatch.setattr(build, "_object", lambda *args: compiled.append(args[2]) or real(*args))
    text = f"int number() {{ return {hash(tmp_path) % (1 << 30)}; }}\n"
    with cache_in(tmp_path / "cache"):

        def made(flags=()):
            return build._kept_object(find_compiler(), tmp_path / "runtime.cpp", text, ["-w", *flags]).read_bytes()

        before = set(code_folder("code").rglob("*.o"))
        first = made()
        (kept,) = set(code_folder("code").rglob("*.o")) - before
        assert made() == first and len(compiled) == 1
        for damaged in (b"", kept.read_bytes()[:-1], b"x" + kept.read_bytes()[1:]):
            kept.write_bytes(damaged)
            compiled.clear()
            assert made() == first and len(compiled) == 1
        made(["-O1"])
        assert len(compiled) == 2
        kept.unlink()
