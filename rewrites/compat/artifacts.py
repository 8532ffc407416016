"""Torch's portable caches: `torch.compiler.save_cache_artifacts` and `load_cache_artifacts` (torch 2.11 to 2.15)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from torch.compiler import _cache


def register_artifact(kind: str, save: Callable[[], bytes | None], load: Callable[[bytes], None]) -> None:
    """Have torch save and load what a compiler keeps.

    Args:
        kind: the name of its part; registered once.
        save: called when artifacts are saved: what is to be kept, None for nothing.
        load: called with that when artifacts are loaded.
    """
    if kind in _cache.CacheArtifactFactory._artifact_types:
        return

    class Artifact(_cache.CacheArtifact):
        def populate_cache(self) -> None:
            load(self.content)

        @staticmethod
        def type() -> str:
            return kind

    _cache.CacheArtifactFactory.register(Artifact)
    serialize = _cache.CacheArtifactManager.serialize

    def serialized() -> tuple[bytes, _cache.CacheInfo] | None:
        content = save()
        if content is not None:
            key = hashlib.sha256(content).hexdigest()
            _cache.CacheArtifactManager.record_artifact(kind, key, content)
        return serialize()

    # torch has no hook for what is gathered only when it is asked for.
    _cache.CacheArtifactManager.serialize = staticmethod(serialized)  # type: ignore[method-assign,assignment]
