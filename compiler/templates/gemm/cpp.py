"""The kernel of a product: from a description to C++.

    for each batch, panel of columns and block of rows, in parallel:
        pack the panel of b, unless it is there from the block before, or comes packed
        for each strip of rows:
            tile = a[strip] @ b[panel]        in registers, for all of the depth or a step of it
            out = f(tile)                     a row at a time, from the first cache

A panel is vectors of columns one after the other, each contiguous over the depth: packing writes whole cache lines, and
a panel of any width is read as so many streams.
"""

from __future__ import annotations

from ...codegen.cpp.dtypes import memory_type
from ...codegen.cpp.value_text import Vectors
from ...codegen.flatten import flatten_value
from ...ir.program import Buffer
from ..common.cpp_entry import with_entry
from ..common.cpp_text import CppText
from .cpu_tiles import gemm_tiling
from .description import ELEMENT, Matrix, Product

PRELUDE = r"""
namespace gemm {

constexpr i64 RUN = 256;

// c[R][C vectors] (+)= a[R][depth] @ b, N lanes a vector; vector n of b's row k is at b + n * ldb + k * N.
// Runs of the depth are summed apart, which keeps rounding errors small.
template <int N, int R, int C>
static inline void streams(const f32* __restrict a, i64 lda, const f32* __restrict b, i64 ldb, f32* __restrict c,
                           i64 ldc, i64 depth, bool add) {
  typedef V<f32, N> X;
  for (i64 begin = 0; begin < depth; begin += RUN) {
    const i64 end = least<i64>(begin + RUN, depth);
    X acc[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) acc[r][n] = X{};
    for (i64 k = begin; k < end; ++k) {
      X row[C];
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) row[n] = load<N>(b + n * ldb + k * N);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const X x = splat<X>(a[r * lda + k]);
#pragma GCC unroll 16
        for (int n = 0; n < C; ++n) acc[r][n] = fma(x, row[n], acc[r][n]);
      }
    }
    if (add || begin)
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int n = 0; n < C; ++n) acc[r][n] += load<N>(c + r * ldc + n * N);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) store(c + r * ldc + n * N, acc[r][n]);
  }
}

}  // namespace gemm
"""


def gemm_cpp(product: Product, lanes: int) -> str:
    """The functions, to follow the preludes of `cpp` and `micro_kernel` and `PRELUDE`; ``KERNEL`` is the entry.

    It takes what kernels of `cpp` take: the buffers of `Product.reads`, then the result; no sizes.

    Raises:
        UnsupportedDtype: `f` computes with a dtype that C++ has no type for.
    """
    return GemmCpp(product, lanes).text()


class GemmCpp(CppText):
    """Writes the kernel of a product; what reads weights in another way overrides how units are computed.

    Attributes:
        number: the C++ type of sums.
        together: numbers along the depth that one lane multiplies.
    """

    number, together = "f32", 1

    def __init__(self, product: Product, lanes: int) -> None:
        self._p = p = product
        self._depth = p.depth // self.together
        self._t = gemm_tiling(p.row.extent, p.column.extent, self._depth, lanes)
        super().__init__((*p.reads, p.out), {p.batch: "g", p.row: "i", p.column: "j"})
        raw = Buffer(ELEMENT.buffer, p.element.dtype, (1,), (1,), p.out.device)
        self._value = flatten_value(p.value, [*p.reads, raw])

    def text(self) -> str:
        """The kernel's functions."""
        t, p = self._t, self._p
        self._constants()
        self._memory()
        with self._w.block("for (i64 unit = begin; unit < end; ++unit)"):
            self._unit()
        units = -(-p.row.extent // t.block) * t.panels * p.batch.extent
        return with_entry(self._w.lines, units, f"{p.multiplications}ll")

    # -- a thread -------------------------------------------------------------------------------------------------

    def _constants(self) -> None:
        t, p = self._t, self._p
        self._define({
            "W": t.lanes, "ROWS": p.row.extent, "COLUMNS": p.column.extent, "DEPTH": self._depth, "STEP": t.step,
            "STRIP": t.strip, "BLOCK": t.block, "BLOCKS": -(-p.row.extent // t.block), "PANEL": t.panel,
            "PANELS": t.panels, "VECTORS": t.vectors, "PITCH": t.pitch,
        })  # fmt: skip

    def _memory(self) -> None:
        t, p = self._t, self._p
        self._pointers_to_buffers()
        panel = 0 if p.packed else t.pitch * t.step
        tiles = t.pitch * (t.strip if t.step == self._depth else t.block)
        self._line(f"const Heap scratch({(panel + tiles) * 4});")
        self._line(f"f32* const tiles = (f32*)scratch.memory + {panel};")
        if not p.packed:
            self._line("f32* const packed = (f32*)scratch.memory;", "i64 known = -1;")

    def _unit(self) -> None:
        self._line(
            "const i64 i0 = unit % BLOCKS * BLOCK, rows = least(ROWS - i0, BLOCK), panel = unit / BLOCKS % PANELS;",
            "[[maybe_unused]] const i64 g = unit / (BLOCKS * PANELS);",
            "const i64 vector = panel * PANEL, count = least(VECTORS - vector, PANEL);",
            "const i64 j0 = vector * W, stop = least(j0 + count * W, COLUMNS);",
        )
        self._line(f"const {memory_type(self._p.dtype)}* const a = {self._base(self._p.a)} + i0 * {self._p.a.row}ll;")
        with self._w.block("for (i64 k0 = 0; k0 < DEPTH; k0 += STEP)"):
            self._line("const i64 depth = least(DEPTH - k0, STEP);")
            self._panel()
            with self._w.block("for (i64 r = 0; r < rows; r += STRIP)"):
                self._strip()

    def _base(self, x: Matrix) -> str:
        name = self._pointers[x.buffer.name]
        return f"{name} + g * {x.batch}ll" if self._p.batch.extent > 1 else name

    def _panel(self) -> None:
        """Find or make `b`, vectors of columns `ldb` apart."""
        b = self._p.b
        if self._p.packed:
            self._line(f"const f32* const b = {self._base(b)} + vector * (W * DEPTH) + k0 * W;")
            self._line("constexpr i64 ldb = W * DEPTH;")
            return
        self._line("const f32* const b = packed;", "const i64 ldb = W * depth;")
        with self._w.block("if (STEP < DEPTH || unit / BLOCKS != known)"):
            self._line("known = unit / BLOCKS;")
            self._line(f"const f32* const from = {self._base(b)} + j0 * {b.column}ll + k0 * {b.row}ll;")
            if b.column == 1:
                with self._w.block("for (i64 k = 0; k < depth; ++k)"), self._w.block("for (i64 n = 0; n < count; ++n)"):
                    row = f"packed + n * ldb + k * W, from + k * {b.row}ll + n * W"
                    self._line(f"gemm::pack_row<W, 1>({row}, 1, COLUMNS - j0 - n * W);")
                return
            move = f"packed + n * ldb, from + n * W * {b.column}ll, {b.column}, {b.row}"
            with self._w.block("for (i64 n = 0; n < count; ++n)"):
                self._line(f"gemm::pack_transposed<W, 1>({move}, COLUMNS - j0 - n * W, depth);")

    def _strip(self) -> None:
        t, p = self._t, self._p
        whole = t.step == self._depth
        self._line(f"{self.number}* const tile = tiles{'' if whole else ' + r * PITCH'};")
        self._line("const i64 height = least(rows - r, STRIP);")
        heights = [t.strip, p.row.extent % t.strip]
        widths = [t.panel, t.vectors % t.panel]
        for height in filter(None, heights):
            for width in filter(None, widths):
                self._line(f"if (height == {height} && count == {width}) {self._multiply(height, width)}")
        if not whole:
            self._line("if (k0 + depth < DEPTH) continue;")
        with self._w.block("for (i64 q = 0; q < height; ++q)"):
            self._line(f"const {self.number}* const row = tile + q * PITCH;")
            self._line("[[maybe_unused]] const i64 i = i0 + r + q;")
            self._epilogue()

    def _multiply(self, height: int, width: int) -> str:
        """The call that multiplies a tile of so many rows and vectors."""
        given = f"a + r * {self._p.a.row}ll + k0, {self._p.a.row}, b, ldb, tile, PITCH, depth, k0 > 0"
        return f"gemm::streams<W, {height}, {width}>({given});"

    def _epilogue(self) -> None:
        """`f` of a row of the tile, to where the result is."""
        p, lanes = self._p, self._t.lanes
        varying = frozenset({p.column, ("buffer", ELEMENT.buffer)})
        tiles = {p.element: f"load<{lanes}>(row + (j - j0))"}
        self._values.vectors = Vectors(p.column, lanes, 1, varying, tiles=tiles)
        self._values.hoist(self._value)
        self._line("i64 j = j0;")
        with self._w.block("for (; j + W <= stop; j += W)"):
            value = self._values.vector(self._value)
            self._line(f"store({self._to()}, {value});")
        if p.column.extent % lanes:
            with self._w.block("if (j < stop)"):
                inside = self._w.define(f"V<i32, {lanes}>", "first<W>(stop - j)")
                with self._values.masked(inside):
                    value = self._values.vector(self._value)
                self._line(f"store_if({inside}, {self._to()}, {value});")
        self._values.vectors = None

    def _to(self) -> str:
        self._values.prepare(self._p.place)
        return f"{self._pointers[self._p.out.name]} + {self._values.at(self._p.place)}"
