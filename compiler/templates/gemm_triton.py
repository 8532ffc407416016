"""The kernel of a product on a GPU: from a description to Triton.

    program of one tile (with descriptors: of one tile after the other):
        for each step of the depth:
            acc += a[rows, step] @ b[step, columns]          tensor cores, float32 sums
        out = f(acc)                                         written by `triton.values`: rows i, columns j

Sums go into `f` as they are, in float32. Tiles are enumerated in groups of rows, so that programs that run at the same
time share rows of `a` and columns of `b` in the second cache. Conditions vanish where tiles divide the sizes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..cpp.flatten import flatten_value
from ..ir.dependence import Dependence
from ..ir.index import Var
from ..ir.program import Buffer
from ..ir.value import Value
from ..triton import KernelSource, LaunchText
from ..triton.dtypes import signature_name, type_name
from ..triton.source import module_text
from ..triton.values import Axis, Names, Values
from ..triton.writer import TritonWriter
from .gemm_triton_tiles import GemmTile, described
from .product import ELEMENT, Matrix, Product, Result

_GROUP = 8  # rows of tiles that are taken together
_TF32 = ', input_precision="tf32"'  # where the user allows that; else float32 is left to the library
_INT32 = 2**31 - 1


@dataclass(frozen=True)
class GemmLaunch(LaunchText):
    """One launch of the template.

    Args:
        stages: of its software pipeline (``num_stages``).
    """

    stages: int = 3


def gemm_triton(product: Product, tile: GemmTile, processors: int, label: str = "") -> KernelSource:
    """The kernel's source; equal products have the same, whatever their buffers are called.

    It takes the buffers of `Product.reads`, then those of `Product.results`; no sizes.

    Args:
        product: what to compute; the devices of its buffers are not looked at.
        tile: one that `gemm_triton_tiles.fits`.
        processors: how many programs there are where programs take several tiles.
        label: what it computes, for its name.

    Raises:
        UnsupportedDtypeError: the epilogue computes with a dtype that Triton has no type for.
    """
    launch = _GemmTriton(product, tile, processors).launch(label)
    return KernelSource(module_text([launch.text]), (launch,))


class _GemmTriton:
    def __init__(self, product: Product, tile: GemmTile, processors: int) -> None:
        self._p, self._t = product, tile
        self._programs = min(tile.count(product), processors) if tile.descriptors else tile.count(product)
        self._buffers = (*product.reads, *(result.buffer for result in product.results))
        # By position, as the call has it: a result may be called like what it is made from.
        self._arguments = [f"p{number}_ptr" for number in range(len(self._buffers))]
        pairs = list(zip(self._buffers, self._arguments, strict=True))
        names = Names({b.name: name for b, name in pairs}, {b.name: b.dtype for b, _ in pairs})
        names.variables = {product.batch: "g", product.row: "i", product.column: "j"}
        self._w = TritonWriter()
        self._long = "" if all(map(_is_small, self._buffers)) else ".to(tl.int64)"
        self._values = Values(self._w, names, Dependence(), "tl.int64" if self._long else "tl.int32")
        halves = product.a.buffer.dtype.itemsize == 2
        self._dot = f"acc = tl.dot(a, b, acc{'' if halves else _TF32})"
        raw = Buffer(ELEMENT.buffer, ELEMENT.dtype, (1,), (1,), product.out.device)
        self._raw = flatten_value(ELEMENT, [raw])
        self._results = [(result, flatten_value(result.value, [*product.buffers, raw])) for result in product.results]

    def launch(self, label: str) -> GemmLaunch:
        """Write the kernel."""
        self._write()
        text = "\n".join([*(str(buffer.dtype) for buffer in self._buffers), str(self._t), *self._w.lines])
        name = (
            f"gemm_{f'{label}_' if label else ''}{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}_{self._t}"
        )
        kinds = {name: f"*{signature_name(b.dtype)}" for name, b in zip(self._arguments, self._buffers, strict=True)}
        head = f"@triton.jit\ndef {name}({', '.join(self._arguments)}):"
        return GemmLaunch(
            name, "\n".join([head, *self._w.lines]) + "\n", tuple(b.name for b in self._buffers), (), (), kinds,
            self._programs, self._t.warps, self._t.stages,
        )  # fmt: skip

    def _line(self, *lines: str) -> None:
        for line in lines:
            self._w.line(line)

    def _write(self) -> None:
        self._line("program = tl.program_id(0)")
        if not self._t.descriptors:
            self._tile("program")
            self._by_pointers()
            self._epilogue()
            return
        self._descriptor("a", self._p.a, self._p.row.extent, self._p.depth)
        self._descriptor("b", self._p.b, self._p.depth, self._p.column.extent)
        with self._w.block(f"for tile in tl.range(program, {self._t.count(self._p)}, {self._programs}, flatten=True)"):
            self._tile("tile")
            self._by_descriptors()
            self._epilogue()

    # -- which part of the result ---------------------------------------------------------------------------------

    def _tile(self, number: str) -> None:
        """Where the tile with this number begins; `i` and `j` are its rows and columns."""
        rows, columns = -(-self._p.row.extent // self._t.rows), -(-self._p.column.extent // self._t.columns)
        if self._p.batch.extent > 1:
            self._line(f"g = ({number} // {rows * columns}){self._long}", f"part = {number} % {rows * columns}")
            number = "part"
        else:
            self._line("g = 0")
        if rows % _GROUP == 0 or rows < _GROUP:
            height = str(min(rows, _GROUP))
            self._line(f"group = {number} // {int(height) * columns} * {height}")
        else:
            height = "height"
            self._line(f"group = {number} // {_GROUP * columns} * {_GROUP}")
            self._line(f"height = tl.minimum({rows} - group, {_GROUP})")
        within = f"({number} % {min(rows, _GROUP) * columns})"
        self._line(f"row = (group + {within} % {height}) * {self._t.rows}")
        self._line(f"column = {within} // {height} * {self._t.columns}")
        self._line(f"i = (row + tl.arange(0, {self._t.rows}))[:, None]{self._long}")
        self._line(f"j = (column + tl.arange(0, {self._t.columns}))[None, :]{self._long}")
        self._line(f"acc = tl.zeros([{self._t.rows}, {self._t.columns}], tl.float32)")

    # -- the product ----------------------------------------------------------------------------------------------

    def _by_pointers(self) -> None:
        a, b, depth = self._p.a, self._p.b, self._t.depth
        self._line(f"k = tl.arange(0, {depth}){self._long}")
        self._line(f"a_at = {self._base(a)} + i * {a.row} + k[None, :] * {a.column}")
        self._line(f"b_at = {self._base(b)} + k[:, None] * {b.row} + j * {b.column}")
        rows, columns = self._row_mask(), self._column_mask()
        with self._w.block(f"for start in range(0, {self._p.depth}, {depth})"):
            inside = self._p.depth % depth != 0
            if inside:
                self._line(f"inside = k < {self._p.depth} - start")
            self._line(f"a = tl.load(a_at{_where(rows, 'inside[None, :]' if inside else None)})")
            self._line(f"b = tl.load(b_at{_where('inside[:, None]' if inside else None, columns)})")
            self._line(self._dot)
            self._line(f"a_at += {depth * a.column}", f"b_at += {depth * b.row}")

    def _base(self, x: Matrix) -> str:
        name = self._values.names.buffers[x.buffer.name]
        return f"{name} + g * {x.batch}" if self._p.batch.extent > 1 and x.batch else name

    def _row_mask(self) -> str | None:
        return f"(i < {self._p.row.extent})" if self._p.row.extent % self._t.rows else None

    def _column_mask(self) -> str | None:
        return f"(j < {self._p.column.extent})" if self._p.column.extent % self._t.columns else None

    def _descriptor(self, name: str, x: Matrix, rows: int, columns: int) -> None:
        """Describe an operand to the unit that copies tiles; what lies outside of it is 0."""
        found = described(x, rows, columns)
        assert found is not None, x
        line, turned = found
        block = (self._t.rows, self._t.depth) if name == "a" else (self._t.depth, self._t.columns)
        sizes = (rows, columns)
        if turned:
            block, sizes = block[::-1], sizes[::-1]
        pointer = self._values.names.buffers[x.buffer.name]
        self._line(
            f"{name}_tiles = tl.make_tensor_descriptor({pointer}, shape={list(sizes)}, strides=[{line}, 1], "
            f"block_shape={list(block)})"
        )

    def _by_descriptors(self) -> None:
        p = self._p
        with self._w.block(f"for start in range(0, {p.depth}, {self._t.depth})"):
            for name, x, sizes, at in (
                ("a", p.a, (p.row.extent, p.depth), ("row", "start")),
                ("b", p.b, (p.depth, p.column.extent), ("start", "column")),
            ):
                found = described(x, *sizes)
                turned = found is not None and found[1]
                place = ", ".join(at[::-1] if turned else at)
                self._line(f"{name} = {name}_tiles.load([{place}]){'.T' if turned else ''}")
            self._line(self._dot)

    # -- what becomes of it ---------------------------------------------------------------------------------------

    def _epilogue(self) -> None:
        """`f` of the tile, to where results are."""
        self._values.rows = self._axis("i", self._p.row, self._t.rows, self._row_mask())
        self._values.columns = self._axis("j", self._p.column, self._t.columns, self._column_mask())
        self._w.name(self._raw, "acc")
        for result, value in self._results:
            self._store(result, value)

    def _axis(self, name: str, var: Var, block: int, mask: str | None) -> Axis:
        if mask is not None:
            self._line(f"{name}_inside = {mask}")
        return Axis(frozenset({var}), str(block), None if mask is None else f"{name}_inside")

    def _store(self, result: Result, value: Value) -> None:
        held = type_name(result.buffer.dtype)
        text = self._values.get(value)
        pointer = self._values.pointer(result.buffer.name, result.place)
        mask = self._values.mask(always=True)
        self._line(f"tl.store({pointer}, {text}.to({held}){f', mask={mask}' if mask else ''})")


def _where(*masks: str | None) -> str:
    found = [mask for mask in masks if mask is not None]
    return f", mask={' & '.join(found)}, other=0.0" if found else ""


def _is_small(buffer: Buffer) -> bool:
    """Whether 32 bits hold every offset into a buffer, and what lanes outside of it make."""
    reach = sum(abs((size - 1) * stride) for size, stride in zip(buffer.sizes, buffer.strides, strict=True))
    return reach < _INT32 // 2
