"""Triton's interpreter in a process of its own: whether it interprets is decided when Triton is imported.

parent  -> ("run", source, [(function, programs, arguments)])      arguments: tensors and numbers, positional
worker  -> the tensors after all launches, or the traceback
parent  -> ("touched", source, [(function, arguments)])            arguments: elements and dtypes, numbers
worker  -> bytes that the first program asks for and that memory moves for it, for each launch
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import itertools
import os
import pickle
import re
import sys
import tempfile
import traceback
import types
import warnings
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

# What libdevice computes, by eager's functions: the interpreter has none of it.
_SPECIAL = {
    "rint": torch.round, "pow": torch.pow, "fmod": lambda x, y: torch.from_numpy(np.fmod(x.numpy(), y.numpy())),
    "atan2": torch.atan2, "hypot": torch.hypot,
    "copysign": torch.copysign, "nextafter": torch.nextafter, "erf": torch.erf, "erfc": torch.erfc,
    "erfinv": torch.erfinv, "lgamma": torch.lgamma, "rsqrt": lambda x: 1 / torch.sqrt(x),
    "fast_dividef": torch.div,
}  # fmt: skip
_PLAIN = (
    "floor ceil trunc exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
)
_SECTOR = 32  # bytes that memory moves together
_FOLDER, _NUMBERS = tempfile.TemporaryDirectory(), itertools.count()


def _wrapped(function):
    def call(*args):
        arrays = [torch.from_numpy(np.array(arg.handle.data)) for arg in args]
        result = function(*arrays).numpy()
        kind = args[0].type.scalar
        kind = tl.block_type(kind, list(result.shape)) if result.ndim else kind  # arguments may be spread
        return tl.tensor(interpreter.TensorHandle(result, args[0].handle.dtype), kind)

    return call


_CHANGE = re.compile(r"(xor|shr|and)[.]b32 four, [$\w]+, (\w+);")


def _low_floats(text, numbers):
    """What assembly makes 16-bit floats `even` of, whose low one each is of one byte: bit by bit, like a GPU."""
    kind = torch.float16 if "f16.f16" in text.replace("bf16", "") else torch.bfloat16
    held = {"$6": torch.from_numpy(numbers.astype(np.uint8).astype(np.int32))}
    held |= {name: torch.zeros_like(held["$6"]) for name in ("zero",)}

    def value(name):
        return held[name] if name in held else torch.full_like(held["$6"], int(int(name, 0) & 0xFFFF))

    def as_float(name):
        return (value(name) & 0xFFFF).to(torch.uint16).view(kind).double()

    for name, made, given in re.findall(r"(mov|shr|lop3|fma)[.][\w.]+ (\w+), ([^;]+);", text):
        given = given.split(", ")
        if name == "mov":
            held[made] = value(given[0])
        elif name == "shr":
            held[made] = value(given[0]) >> int(given[1])
        elif name == "lop3":
            assert given[3] == "0x6a"
            held[made] = value(given[0]) & value(given[1]) ^ value(given[2])
        else:
            exact = as_float(given[0]) * as_float(given[1]) + as_float(given[2])
            held[made] = exact.to(kind).view(torch.uint16).to(torch.int32)
    return as_float("even").float().numpy()


def _assembly(text, _constraints, args, dtype, **_):
    """The pieces of assembly that kernels have: the bits of -0.0, of 2**23 + x of bytes, and products of these.

    Where lanes hold elements, nothing here knows: those in another order are as they were, sums are of each element.
    """
    if text.startswith("prmt.b32 $0, $2, $3") or "%laneid" in text:
        return args[0]
    if "mma.sync" in text:
        x, w, total = args
        floats = _low_floats(text, np.array(w.handle.data))
        return total + x.to(tl.float32) * tl.tensor(interpreter.TensorHandle(floats, tl.float32), _floats_like(w))
    if text == "mov.b32 $0, 0x80000000;" and dtype == tl.int32:
        return args[0] + -(2**31)
    assert "prmt.b32 $3, four, 0x4B000000, 0x7443;" in text and dtype == tl.int32
    (x,) = args
    made = x.to(tl.uint8, bitcast=True).to(tl.int32)
    for name, number in _CHANGE.findall(text):
        by = int(number, 0)
        made = {"xor": lambda: made ^ by & 255, "shr": lambda: made >> by, "and": lambda: made & (by & 255)}[name]()  # noqa: B023
    return made | 0x4B000000


def _floats_like(x):
    return tl.block_type(tl.float32, x.type.shape)


def _patch() -> None:
    for name in _PLAIN.split():
        setattr(libdevice, name, _wrapped(getattr(torch, name)))
    for name, function in _SPECIAL.items():
        setattr(libdevice, name, _wrapped(function))
    cuda = importlib.import_module("triton.language.extra.cuda")
    cuda.gdc_wait = cuda.gdc_launch_dependents = lambda: None  # programs run one after the other
    tl.inline_asm_elementwise = _assembly
    plain = interpreter._convert_float

    def convert(data, source, target, rounding):
        """Rounds to bfloat16 as GPUs do, to the nearest; the interpreter cuts off."""
        if source == tl.float32 and target == tl.bfloat16:
            rounded = torch.from_numpy(np.array(data)).to(torch.bfloat16)
            return rounded.view(torch.int16).numpy().view(np.uint16)
        return plain(data, source, target, rounding)

    interpreter._convert_float = convert
    dot = interpreter.InterpreterBuilder.create_dot

    def multiply(self, a, b, *rest):
        """Products of bfloat16; the interpreter multiplies their bits."""
        return dot(self, _widened(a), _widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = multiply
    # Triton 3.6 gives NaN for one NaN, where GPUs give the number unless NaN is asked for.
    interpreter.InterpreterBuilder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    interpreter.InterpreterBuilder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    combine = interpreter.InterpreterBuilder.create_atomic_rmw

    def combine_halves(self, operation, pointers, values, mask, *rest):
        """Sums in bfloat16; the interpreter has none."""
        if values.dtype.scalar != tl.bfloat16:
            return combine(self, operation, pointers, values, mask, *rest)
        lanes = zip(pointers.data.flat, values.data.flat, mask.data.flat, strict=True)
        before = [_added(int(at), int(bits)) if inside else 0 for at, bits, inside in lanes]
        return interpreter.TensorHandle(np.array(before, np.uint16).reshape(values.data.shape), tl.bfloat16)

    interpreter.InterpreterBuilder.create_atomic_rmw = combine_halves
    _guard(interpreter.InterpreterBuilder)
    patch_tensor = interpreter._patch_lang_tensor

    def patched_tensor(tensor, scope):
        """Numbers are ends of ranges; Triton 3.6 has them as arrays, which numpy takes for none."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched_tensor
    interpreter._patch_lang = _patched_once(interpreter._patch_lang)
    # Six more operations for each sum and product of integers, for an assertion that only debugging makes.
    interpreter.interpreter_semantic.binary_op_sanitize_overflow_impl = lambda *args: None
    interpreter.ReduceOps.generic_reduce = _reduced
    interpreter.ScanOps.generic_scan = _scanned
    interpreter._patch_attr = _patch_attr
    _make_types_once()
    _leave_alike_operands()


class _Shape(tl.tuple):
    """The sizes of a block, which the interpreter compares at each operation."""

    def __eq__(self, other):
        return self.values == (other.values if isinstance(other, tl.tuple) else list(other))

    def __hash__(self):
        return id(self)


def _make_types_once() -> None:
    """Types and shapes of tensors, which the interpreter makes anew for each value: two fifths of its time."""
    dtypes, shapes, blocks, made = {}, {}, {}, {}
    dtype_of, new_tensor, new_block = interpreter._get_np_dtype, tl.tensor.__init__, tl.block_type.__init__

    def np_dtype(kind):
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = dtype_of(kind)
        return dtypes[name]

    def tensor(self, handle, type):
        shape = type.shape if type.is_block() else ()
        if shape not in shapes:
            new_tensor(self, handle, type)
            shapes[shape] = {name: value for name, value in vars(self).items() if name in ("shape", "numel")}
            assert vars(self).keys() - shapes[shape] == {"handle", "type", "dtype"}
        self.handle, self.type, self.dtype = handle, type, type.scalar
        vars(self).update(shapes[shape])

    def block(self, element_ty, shape):
        sizes = tuple([size.value if type(size) is tl.constexpr else size for size in shape])
        if sizes not in made:
            made[sizes] = _Shape(sizes)
        if type(element_ty) is not tl.dtype:
            new_block(self, element_ty, made[sizes])
            self.shape = made[sizes]
            return
        if (element_ty.name, sizes) not in blocks:
            new_block(self, element_ty, made[sizes])
            blocks[element_ty.name, sizes] = {**vars(self), "shape": made[sizes]}
        vars(self).update(blocks[element_ty.name, sizes])

    interpreter._get_np_dtype = np_dtype
    tl.tensor.__init__, tl.block_type.__init__ = tensor, block


def _leave_alike_operands() -> None:
    """Operands of one dtype and one shape are what operations take; Triton finds that out for a third of its time."""
    semantic = type(interpreter.interpreter_semantic)
    check = semantic.binary_op_type_checking_impl

    def checked(self, lhs, rhs, allow_lhs_ptr=False, allow_rhs_ptr=False, arithmetic_check=True, div_or_mod=False):
        if not div_or_mod and type(lhs) is tl.tensor and type(rhs) is tl.tensor and _alike(lhs, rhs):
            return lhs, rhs
        return check(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    semantic.binary_op_type_checking_impl = checked


def _alike(lhs, rhs):
    if lhs.dtype is not rhs.dtype or type(lhs.dtype) is not tl.dtype:
        return False
    one, other = lhs.type, rhs.type
    return one is other or (type(one) is type(other) is tl.block_type and one.shape is other.shape)


def _patch_attr(holder, name, member, _builder, scope):
    """The interpreter's, which makes a second dictionary at each call."""

    def call(*args, **named):
        named["_semantic"] = interpreter.interpreter_semantic
        return member(*args, **named)

    scope.set_attr(holder, name, call)


def _patched_once(patch):
    """Triton's language becomes the interpreter's once; the interpreter does that anew at each call of a function."""
    done = set()

    def once(function):
        modules = frozenset(id(x) for x in function.__globals__.values() if x is tl or x is tl.core)
        if modules not in done:
            done.add(modules)
            patch(function)
        return types.SimpleNamespace(restore=lambda: None)

    return once


def _reduced(self, values):
    """A reduction with a function of ours, neighbours first, by blocks: the interpreter takes element after element."""
    values, axis = self.unravel(values, self.axis)
    dims = values[0].handle.data.ndim
    parts = [np.moveaxis(value.handle.data, axis, 0) for value in values]
    while len(parts[0]) > 1:
        parts = _combined(self, [part[::2] for part in parts], [part[1::2] for part in parts], values)
    results = [part[0] for part in parts]
    if self.keep_dims:
        results = [np.expand_dims(x, tuple(range(dims)) if self.axis is None else axis) for x in results]
    return [self.to_tensor(x, value.dtype) for x, value in zip(results, values, strict=True)]


def _scanned(self, values):
    """A scan with a function of ours: each element with what is so many before it, then twice as many, and so on."""
    parts = [np.moveaxis(value.handle.data, self.axis, 0) for value in values]
    apart = 1
    while apart < len(parts[0]):
        made = _combined(self, [np.roll(part, apart, 0) for part in parts], parts, values)  # blocks are powers of 2
        parts = [np.concatenate([part[:apart], new[apart:]]) for part, new in zip(parts, made, strict=True)]
        apart *= 2
    parts = [np.moveaxis(part, 0, self.axis) for part in parts]
    return [self.to_tensor(x, value.dtype) for x, value in zip(parts, values, strict=True)]


def _combined(self, left, right, values):
    """What the function makes of blocks, in the dtypes of `values`."""
    blocks = [self.to_tensor(x, value.dtype) for side in (left, right) for x, value in zip(side, values, strict=True)]
    made = self.combine_fn.fn(*blocks)
    made = made if isinstance(made, tuple) else (made,)
    arrays = [x.handle.data if isinstance(x, tl.tensor) else x for x in made]
    return [np.broadcast_to(x, y.shape).astype(y.dtype) for x, y in zip(arrays, left, strict=True)]


class _Memory:
    """The memory of a launch's arguments; what a kernel touches beside it stops it, as it may a GPU."""

    def __init__(self) -> None:
        self.begins, self.ends = np.zeros(0, np.uint64), np.zeros(0, np.uint64)

    def hold(self, arguments) -> None:
        spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in arguments if isinstance(x, torch.Tensor))
        joined = []
        for begin, end in spans:
            if joined and begin < joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([begin, end])
        self.begins, self.ends = np.array(joined, np.uint64).reshape(-1, 2).T

    def check(self, pointers, mask) -> None:
        inside = np.broadcast_to(np.asarray(mask.data, bool), pointers.data.shape)
        places = pointers.data[inside]
        if not places.size:
            return
        size = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty())).itemsize
        span = np.searchsorted(self.begins, places, "right") - 1
        if (span < 0).any() or (places + size > self.ends[span]).any():
            raise IndexError(f"touches {places.min()} to {places.max()} of {self.begins} to {self.ends}")


_MEMORY = _Memory()


def _guard(builder) -> None:
    """Loads, stores and atomic operations look where they go."""
    load, store, combine = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

    def guarded_load(self, pointers, mask, *rest, **named):
        _MEMORY.check(pointers, mask)
        return load(self, pointers, mask, *rest, **named)

    def guarded_store(self, pointers, value, mask, *rest, **named):
        _MEMORY.check(pointers, mask)
        return store(self, pointers, value, mask, *rest, **named)

    def guarded_combine(self, operation, pointers, values, mask, *rest, **named):
        _MEMORY.check(pointers, mask)
        return combine(self, operation, pointers, values, mask, *rest, **named)

    builder.create_masked_load, builder.create_masked_store = guarded_load, guarded_store
    builder.create_atomic_rmw = guarded_combine


def _widened(x):
    if x.dtype != tl.bfloat16:
        return x
    wide = torch.from_numpy(np.array(x.data).view(np.int16)).view(torch.bfloat16).float()
    return interpreter.TensorHandle(wide.numpy(), tl.float32)


def _added(at, bits):
    """Add to the bfloat16 at an address; what was there."""
    cell = ctypes.c_uint16.from_address(at)
    before = cell.value
    total = torch.tensor([before << 16, bits << 16], dtype=torch.int64).to(torch.int32).view(torch.float32).sum()
    cell.value = total.to(torch.bfloat16).view(torch.int16).item() & 0xFFFF
    return before


@functools.lru_cache(maxsize=64)
def _module(source):
    """Kernels as a module, in a file that stays: the interpreter reads functions again when they are first called."""
    path = Path(_FOLDER.name) / f"kernels{next(_NUMBERS)}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(source, calls):
    module = _module(source)
    for function, programs, arguments in calls:
        given = [_typed(argument) for argument in arguments]
        _MEMORY.hold(given)
        if programs:
            getattr(module, function)[(programs,)](*given)
    return [arguments for _, _, arguments in calls]


def _touched(source, calls):
    """What first programs touch; nothing is loaded (all numbers are 0), nothing stored."""
    module, builder = _module(source), interpreter.InterpreterBuilder
    plain = builder.create_masked_load, builder.create_masked_store
    total = [0, 0]

    def note(pointers, mask, size):
        inside = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        places = np.unique(pointers.data[inside])
        total[0] += size * len(places)
        total[1] += _SECTOR * len(np.unique(places // _SECTOR))

    def load(self, pointers, mask, *rest):
        dtype = pointers.get_element_ty()
        zeros = np.zeros(pointers.data.shape, interpreter._get_np_dtype(dtype))
        note(pointers, mask, zeros.itemsize)
        return interpreter.TensorHandle(zeros, dtype)

    def store(self, pointers, value, mask, *rest):
        note(pointers, mask, value.data.dtype.itemsize)

    builder.create_masked_load, builder.create_masked_store = load, store
    found = []
    try:
        for function, arguments in calls:
            total[:] = 0, 0
            given = [torch.empty(x[0], dtype=x[1]) if isinstance(x, tuple) else x for x in arguments]
            getattr(module, function)[(1,)](*given)
            found.append(tuple(total))
    finally:
        builder.create_masked_load, builder.create_masked_store = plain
    return found


def _typed(argument):
    """An argument; bytes with the name of a dtype, as tensors of that which do not pickle."""
    if isinstance(argument, bool):  # of which Triton 3.6's interpreter makes no int1
        return int(argument)
    return argument[1].view(getattr(torch, argument[0])) if isinstance(argument, tuple) else argument


def main() -> None:
    """Serve requests until the parent goes."""
    sys.dont_write_bytecode = True  # of modules that are imported once
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    _patch()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what kernels print is no reply
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            kind, *what = request
            reply = (True, {"run": _run, "touched": _touched}[kind](*what))
        except Exception:
            reply = (False, traceback.format_exc())
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    main()
