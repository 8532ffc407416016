"""The attention kernel: from a description to C++.

    for each lead iteration and block of queries, in parallel:
        pack k (transposed) and v of this head into panels, unless they are there from the block before
        for each chunk of keys:                                   one chunk, unless the head outgrows the cache
            S = q @ k^T                                           micro-kernel, a strip of rows at a time
            S = exp(f(S) - row maximum), row sums                 rescaling what earlier chunks came to
            O += S @ v                                            micro-kernel
        out = O / row sum

The scores of a block never leave the cache, and are exactly eager's `f` of the products: NaN and infinities spread as
they do there. Rows without a finite score give NaN, or 0 in the safe variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .attention import Attention, Operand
from .gemm import PRELUDE as GEMM_PRELUDE
from .gemm import Panels, panels, strip_rows
from .score_cpp import C_TYPES, ScoreCpp
from .score_cpp import PRELUDE as SCORE_PRELUDE

_BLOCK_BYTES = 24 << 10  # scores of a block: about half of L1
_HEAD_BYTES = 512 << 10  # packed k and v of one chunk: about half of L2
_MAX_ROWS = 96
_GRAIN = 200_000  # multiplications that are worth a thread: some microseconds

PRELUDE = (
    """
extern "C" void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__);
extern "C" void free(void*);
extern "C" int omp_get_num_threads(void);
extern "C" int omp_get_thread_num(void);
"""
    + GEMM_PRELUDE
    + SCORE_PRELUDE
    + r"""
namespace attention {
using namespace gemm;

// Puts exp(row - max) in place of a row; `top` and `sum` are the row's maximum and sum so far. Gives what the result of
// earlier chunks must be multiplied with.
static inline float exponentiate(float* row, long vectors, float& top, float& sum) {
  vec m = splat(top);
  for (long j = 0; j < vectors; ++j) {
    vec x = load(row + j * LANES);
    m = x > m ? x : m;
  }
  float high = m[0];
  for (int l = 1; l < LANES; ++l) high = m[l] > high ? m[l] : high;
  const float shift = high == -__builtin_inff() ? 0.0f : high;
  const float rescale = score::exp(top - shift);
  float total[LANES] = {};
  for (long j = 0; j < vectors; ++j)
#pragma omp simd
    for (int l = 0; l < LANES; ++l) {
      float e = score::exp(row[j * LANES + l] - shift);
      row[j * LANES + l] = e;
      total[l] += e;
    }
  float added = 0.0f;
  for (int l = 0; l < LANES; ++l) added += total[l];
  top = high;
  sum = sum * rescale + added;
  return rescale;
}

}  // namespace attention
"""
)


@dataclass(frozen=True)
class Plan:
    """Sizes of the tiles, all static.

    Args:
        lanes: floats a vector.
        strip: rows of a register tile; `block`: rows of a block, a multiple of it.
        keys, columns: panels of k^T and of v.
        chunk: vectors of keys a chunk, a multiple of a panel's.
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


def plan(attention: Attention, lanes: int) -> Plan:
    """Tiles for an attention on vectors of `lanes` floats."""
    rows, keys = attention.row.extent, attention.key.extent
    strip = strip_rows(rows, lanes)
    key_panels = panels(keys, strip, lanes)
    chunk = key_panels.vectors
    if keys * (attention.depth + attention.width) * 4 > 2 * _HEAD_BYTES:
        chunk = max(_HEAD_BYTES // ((attention.depth + attention.width) * 4 * lanes) & ~1, 2)
    wanted = _MAX_ROWS if chunk < key_panels.vectors else _BLOCK_BYTES // (chunk * lanes * 4)
    strips = min(max(wanted // strip, 1), max(_MAX_ROWS // strip, 1), -(-rows // strip))
    return Plan(lanes, strip, strips * strip, key_panels, panels(attention.width, strip, lanes), chunk)


class AttentionCpp:
    """Emits one kernel.

    ``void name(void* const* buffers, int threads)``: the buffers of `Attention.reads`, then the result.
    """

    def __init__(self, name: str, attention: Attention, lanes: int) -> None:
        self._name, self._a = name, attention
        self._plan = plan(attention, lanes)
        names = {var: f"g{number}" for number, var in enumerate(attention.lead)}
        names |= {attention.row: "i", attention.key: "j"}
        self._pointers = {b.name: f"in{number}" for number, b in enumerate(attention.reads)}
        self._emit = ScoreCpp(names, {b.name: (b, self._pointers[b.name]) for b in attention.reads})

    def source(self) -> str:
        """The function's C++, to follow `PRELUDE`."""
        body = [*self._parameters(), *self._constants(), *self._parallel()]
        lines = [f'extern "C" void {self._name}(void* const* buffers, int threads) {{', "  using namespace attention;"]
        return "\n".join([*lines, *_indented(body), "}", ""])

    def _parameters(self) -> list[str]:
        lines = [
            f"const {C_TYPES[b.dtype]}* const in{number} = (const {C_TYPES[b.dtype]}*)buffers[{number}];"
            for number, b in enumerate(self._a.reads)
        ]
        kind = C_TYPES[self._a.out.buffer.dtype]
        return [*lines, f"{kind}* const result = ({kind}*)buffers[{len(self._a.reads)}];"]

    def _constants(self) -> list[str]:
        p, a = self._plan, self._a
        values = {
            "M": a.row.extent, "N": a.key.extent, "DEPTH": a.depth, "STRIP": p.strip, "BLOCK": p.block,
            "BLOCKS": -(-a.row.extent // p.block), "VECTORS": p.keys.vectors, "CHUNK": p.chunk, "PITCH": p.pitch,
            "OUT_PITCH": p.out_pitch, "UNITS": _product([v.extent for v in a.lead]) * -(-a.row.extent // p.block),
        }  # fmt: skip
        products = values["UNITS"] * p.block * a.key.extent * (a.depth + a.width)
        values["GRAINS"] = max(products // _GRAIN, 1)
        sizes = {
            "KT": p.keys.vectors * p.lanes * a.depth, "VP": p.columns.vectors * p.lanes * a.key.extent,
            "Q": p.block * a.depth, "S": p.block * p.pitch, "O": p.block * p.out_pitch,
        }  # fmt: skip
        lines = [f"constexpr long {name} = {value};" for name, value in values.items()]
        total = 0
        for name, size in sizes.items():
            lines.append(f"constexpr long {name}_AT = {total};")
            total += -(-size // 16) * 16
        return [*lines, f"constexpr long SCRATCH = {total * 4};"]

    def _parallel(self) -> list[str]:
        work = ["const long of = omp_get_num_threads(), me = omp_get_thread_num();"]
        work += ["float* const scratch = (float*)aligned_alloc(64, SCRATCH);"]
        work += [f"float *const {n} = scratch + {n.upper()}_AT;" for n in ("kt", "vp", "q", "s", "o")]
        work += [f"const {C_TYPES[x.buffer.dtype]}* {n}_packed = nullptr;" for n, x in self._packed()]
        work += ["for (long unit = UNITS * me / of; unit < UNITS * (me + 1) / of; ++unit) {", *_indented(self._unit())]
        work += ["}", "free(scratch);"]
        lines = ["const long most = threads < UNITS ? threads : UNITS;"]
        lines += ["const int team = most < GRAINS ? most : GRAINS;"]
        return [*lines, "#pragma omp parallel num_threads(team) if (team > 1)", "{", *_indented(work), "}"]

    def _packed(self) -> tuple[tuple[str, Operand], ...]:
        return ("k", self._a.k), ("v", self._a.v)

    def _unit(self) -> list[str]:
        lines = ["const long i0 = unit % BLOCKS * BLOCK;"]
        lines += self._lead()
        lines += ["const long rows = M - i0 < BLOCK ? M - i0 : BLOCK;"]
        lines += ["const long padded = (rows + STRIP - 1) / STRIP * STRIP;"]
        for name, x in self._packed():
            lines.append(f"const {C_TYPES[x.buffer.dtype]}* const {name}_head = {self._base(x)};")
        lines += self._pack()
        lines += self._queries()
        lines += self._state()
        lines += ["for (long c = 0; c < VECTORS; c += CHUNK) {", *_indented(self._chunk()), "}"]
        return lines + self._finish()

    def _lead(self) -> list[str]:
        lines, rest = [], "unit / BLOCKS"
        for number, var in reversed(list(enumerate(self._a.lead))):
            lines.append(f"const long g{number} = {rest} % {var.extent};")
            rest += f" / {var.extent}"
        return lines

    def _base(self, x: Operand, name: str = "") -> str:
        return f"{name or self._pointers[x.buffer.name]} + ({self._emit.index(x.base)})"

    def _pack(self) -> list[str]:
        a, p = self._a, self._plan
        lines = ["if (k_head != k_packed) {", "  k_packed = k_head;"]
        for loop, at, count in p.keys:
            move = f"kt + {at} * LANES * DEPTH, k_head + {at} * LANES * ({a.k.row}L), {a.k.row}, {a.k.column}"
            lines += [f"  {loop} pack_transposed<{count}>({move}, N - {at} * LANES, DEPTH);"]
        lines += ["}", "if (v_head != v_packed) {", "  v_packed = v_head;"]
        for loop, at, count in p.columns:
            row = f"v_head + j * ({a.v.row}L) + {at} * LANES * ({a.v.column}L), {a.v.column}, {a.width} - {at} * LANES"
            lines += [f"  {loop}", "    for (long j = 0; j < N; ++j)"]
            lines += [f"      pack_row<{count}>(vp + {at} * LANES * N + j * {count} * LANES, {row});"]
        return [*lines, "}"]

    def _queries(self) -> list[str]:
        x = self._a.q
        return [
            f"const {C_TYPES[x.buffer.dtype]}* const q_head = {self._base(x)} + i0 * ({x.row}L);",
            "for (long r = 0; r < padded; ++r)",
            "  for (long d = 0; d < DEPTH; ++d)",
            f"    q[r * DEPTH + d] = r < rows ? number(q_head[r * ({x.row}L) + d * ({x.column}L)]) : 0.0f;",
        ]

    def _state(self) -> list[str]:
        lines = ["float top[BLOCK], sum[BLOCK];", "for (long r = 0; r < rows; ++r) {"]
        if self._a.sink is None:
            return [*lines, "  top[r] = -__builtin_inff();", "  sum[r] = 0.0f;", "}"]
        statements, sink = self._emit.statements(self._a.sink, "")
        return [
            *lines, "  const long i = i0 + r;", *_indented(statements), f"  top[r] = {sink};",
            "  sum[r] = top[r] == -__builtin_inff() ? 0.0f : score::exp(top[r] - top[r]);", "}",
        ]  # fmt: skip

    def _chunk(self) -> list[str]:
        p = self._plan
        lines = ["const long end = c + CHUNK < VECTORS ? c + CHUNK : VECTORS;"]
        lines += ["const long first = c * LANES, keys = (end * LANES < N ? end * LANES : N) - first;"]
        if p.keys.count:
            stop = f"(end < {p.keys.count * 2} ? end : {p.keys.count * 2})"
            lines += [f"for (long p = c; p < {stop}; p += 2)", *_indented(self._scores("p", 2))]
        if p.keys.last:
            first = p.keys.count * 2
            lines += ["if (end == VECTORS)", *_indented(self._scores(str(first), p.keys.last))]
        lines += ["for (long r = 0; r < rows; ++r) {", *_indented(self._row()), "}"]
        for loop, at, count in p.columns:
            lines += [loop, "  for (long r = 0; r < padded; r += STRIP)"]
            panel = f"vp + {at} * LANES * N + first * {count} * LANES"
            out = f"o + r * OUT_PITCH + {at} * LANES"
            add = "true" if p.chunked else "false"
            lines += [f"    tile<STRIP, {count}, {add}>(s + r * PITCH, PITCH, {panel}, {out}, OUT_PITCH, keys);"]
        return lines

    def _scores(self, at: str, count: int) -> list[str]:
        panel, to = f"kt + {at} * LANES * DEPTH", f"s + r * PITCH + ({at} - c) * LANES"
        return [
            "for (long r = 0; r < padded; r += STRIP)",
            f"  tile<STRIP, {count}, false>(q + r * DEPTH, DEPTH, {panel}, {to}, PITCH, DEPTH);",
        ]

    def _row(self) -> list[str]:
        statements, score = self._emit.statements(self._a.score, "row[x]")
        lines = ["float* const __restrict__ row = s + r * PITCH;", "[[maybe_unused]] const long i = i0 + r;"]
        lines += ["#pragma omp simd", "for (long x = 0; x < keys; ++x) {"]
        lines += ["  [[maybe_unused]] const long j = first + x;", *_indented(statements), f"  row[x] = {score};", "}"]
        lines += ["for (long x = keys; x < (end - c) * LANES; ++x) row[x] = -__builtin_inff();"]
        if not self._plan.chunked:
            return [*lines, "exponentiate(row, end - c, top[r], sum[r]);"]
        lines += ["const float rescale = exponentiate(row, end - c, top[r], sum[r]);"]
        lines += ["float* const to = o + r * OUT_PITCH;"]
        lines += ["for (long d = 0; d < OUT_PITCH; ++d) to[d] = c ? to[d] * rescale : 0.0f;"]
        return lines

    def _finish(self) -> list[str]:
        x, kind = self._a.out, C_TYPES[self._a.out.buffer.dtype]
        inverse = "sum[r] == 0.0f ? 0.0f : 1.0f / sum[r]" if self._a.safe else "1.0f / sum[r]"
        at, width, lanes = f"to + d * ({x.column}L)", self._a.width, self._plan.lanes
        whole = width // lanes * lanes if x.column == 1 else 0
        return [
            "for (long r = 0; r < rows; ++r) {",
            f"  const float inverse = {inverse};",
            f"  {kind}* const to = {self._base(x, 'result')} + (i0 + r) * ({x.row}L);",
            f"  for (long d = 0; d < {whole}; d += LANES) store(to + d, load(o + r * OUT_PITCH + d) * inverse);",
            f"  for (long d = {whole}; d < {width}; ++d) put({at}, o[r * OUT_PITCH + d] * inverse);",
            "}",
        ]


def _indented(lines: Sequence[str]) -> list[str]:
    return [line if line.startswith("#") else f"  {line}" for line in lines]


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


__all__ = ["PRELUDE", "AttentionCpp", "Plan", "plan"]
