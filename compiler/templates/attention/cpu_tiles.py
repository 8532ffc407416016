"""Sizes of the attention kernel's tiles: what of q, k, v and the scores is in registers and caches at a time.

Sizes are static, and every tile, loop and stride a constant of the kernel. Attentions with symbolic sizes keep their
operators, with the reason ``symbolic``: a kernel for all lengths would need tiles that fit the shortest and longest.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..common.micro_kernel import PANEL, Panels, panels, strip_rows
from .description import Attention

_BLOCK_BYTES = 24 << 10  # scores of a block: about half of L1
_HEAD_BYTES = 512 << 10  # packed k and v of one chunk: about half of L2
_MAX_ROWS = 96


@dataclass(frozen=True)
class Tiling:
    """Sizes of the tiles, all static.

    Args:
        lanes: floats a vector.
        strip: rows of a register tile; `block`: rows of a block, a multiple of it.
        keys, columns: panels of k^T and of v.
        chunk: vectors of keys a chunk, whole panels.
    """

    lanes: int
    strip: int
    block: int
    keys: Panels
    columns: Panels
    chunk: int

    @property
    def chunked(self) -> bool:
        """Whether a row's scores come in several chunks."""
        return self.chunk < self.keys.vectors

    @property
    def pitch(self) -> int:
        """Elements from one row of scores to the next: never a power of two, which would crowd one set of the cache."""
        return (self.chunk | 1) * self.lanes

    @property
    def out_pitch(self) -> int:
        """Elements from one row of the result to the next, while it is being summed."""
        return (self.columns.vectors | 1) * self.lanes


def tiling(attention: Attention, lanes: int) -> Tiling:
    """Tiles for an attention on vectors of `lanes` floats."""
    rows, keys = attention.row.extent, attention.key.extent
    strip = strip_rows(rows, lanes)
    key_panels = panels(keys, strip, lanes)
    chunk, key_bytes = key_panels.vectors, (attention.depth + attention.width) * 4
    if keys * key_bytes > 2 * _HEAD_BYTES:
        chunk = max(_HEAD_BYTES // (key_bytes * lanes) // PANEL, 1) * PANEL
        key_panels = Panels(*divmod(key_panels.vectors, PANEL))  # no panel straddles two chunks
    wanted = _MAX_ROWS if chunk < key_panels.vectors else _BLOCK_BYTES // (chunk * lanes * 4)
    strips = min(max(wanted // strip, 1), max(_MAX_ROWS // strip, 1), -(-rows // strip))
    return Tiling(lanes, strip, strips * strip, key_panels, panels(attention.width, strip, lanes), chunk)
