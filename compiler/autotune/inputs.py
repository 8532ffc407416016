"""Creates the real inputs of a measurement from fake tensors.

The inputs have the metadata of the fake tensors: sizes, strides (0 for expanded dims), alignment, dtype, device,
requires_grad, and identity of tensors that are passed twice. Values are made up, since they are unknown while
compiling:

    floating point, complex   normal
    bool                      mostly True, with a True and a False in every row of more than one element
    integers                  0 and 1; on a GPU only 0 where a size 1 could make 1 an index out of range

Known values are used as they are: numbers, and real tensors such as constants of the graph.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.symbolic import SYMBOLIC, hint

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ALIGNMENT = 64  # elements: storage offsets are kept modulo this, because only alignment affects time
_BLOCK = 65_537  # number of values before they repeat; prime, so that the rows of a matrix differ
_MOSTLY = 0.9
MEMORY_SHARE = 0.25  # largest share of free memory for the inputs of a measurement
_SEED = 2026


class UnmeasurableError(Exception):
    """A question that cannot be measured; the message says why."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's metadata with every symbolic size replaced by its hint (strides in elements)."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @property
    def extent(self) -> int:
        """The number of elements of storage that the tensor spans."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def nbytes(self) -> int:
        """The number of bytes of storage that the tensor spans, which is smaller if dims are expanded."""
        return self.extent * self.dtype.itemsize

    def __str__(self) -> str:
        offset = f" offset {self.offset}" if self.offset else ""
        grad = " grad" if self.requires_grad else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}{list(self.shape)} stride {list(self.stride)}{offset} {self.device.type}{grad}"


@dataclass
class Inputs:
    """Real arguments for the programs of a question.

    `values` are the arguments in order; `tensors` are the distinct tensors among them; `arrange` overwrites those that
    follow from others.
    """

    values: list[Any]
    tensors: list[torch.Tensor]
    _templates: list[tuple[torch.Tensor, TensorSpec]] = field(default_factory=list)
    arrange: Callable[[Sequence[Any]], None] | None = None

    def refill(self) -> None:
        """Restore the first values of every tensor, also after a program that writes to its inputs."""
        _fill_all(self.tensors, self._templates)
        if self.arrange is not None:
            with torch.no_grad():
                self.arrange(self.values)

    def versions(self) -> list[int]:
        """Counters that change when a tensor is written to."""
        return [compat.writes_to(tensor) for tensor in self.tensors]

    @property
    def devices(self) -> list[torch.device]:
        """The devices of the tensors, each once, in order of appearance."""
        return list(dict.fromkeys(tensor.device for tensor in self.tensors))


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """The concrete metadata of a tensor, fake or real.

    Raises:
        UnmeasurableError: a size has no hint, or the tensor is not plain strided memory (sparse, subclass, meta).
    """
    if not compat.is_fake(tensor) and type(tensor) not in _PLAIN:
        raise UnmeasurableError(f"an input is a tensor subclass ({type(tensor).__name__})")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnmeasurableError(f"an input is not plain strided memory ({tensor.layout}, {tensor.dtype})")
    if tensor.device.type == "meta":
        raise UnmeasurableError("an input is on the meta device")
    return TensorSpec(
        shape=tuple(map(concrete, tensor.shape)),
        stride=tuple(map(concrete, tensor.stride())),
        offset=concrete(tensor.storage_offset()) % _ALIGNMENT,
        dtype=tensor.dtype,
        device=tensor.device,
        requires_grad=tensor.requires_grad,
    )


def concrete(value: Any) -> Any:
    """A number, or the hint of a symbolic one.

    Raises:
        UnmeasurableError: the symbol has no hint (a size that depends on data).
    """
    known = hint(value)
    if known is None and value is not None:
        raise UnmeasurableError(f"no example value is known for the size {value}")
    return known


def describe(inputs: Sequence[Any]) -> list[str]:
    """The properties of `inputs` on which a measurement depends, one per line: metadata of tensors, values of numbers.

    Raises:
        UnmeasurableError: as `tensor_spec`.
    """
    seen: dict[int, int] = {}
    return [_describe_leaf(leaf, seen) for leaf in compat.tree_leaves(list(inputs))]


def _describe_leaf(leaf: Any, seen: dict[int, int]) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(concrete(leaf))
    number = seen.setdefault(id(leaf), len(seen))
    return f"{tensor_spec(leaf)} #{number}"


def specs(inputs: Sequence[Any]) -> list[TensorSpec]:
    """The metadata of the distinct tensors among `inputs`, in order."""
    return [tensor_spec(tensor) for tensor in _distinct(inputs)]


def has_symbols(inputs: Sequence[Any]) -> bool:
    """Whether a size, stride or number among `inputs` is symbolic, so that its example value represents others."""
    numbers: list[Any] = []
    for leaf in compat.tree_leaves(list(inputs)):
        numbers += (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
    return any(isinstance(number, SYMBOLIC) for number in numbers)


def synthesize(
    inputs: Sequence[Any], training: bool = False, arrange: Callable[[Sequence[Any]], None] | None = None
) -> Inputs:
    """Real tensors in place of fake ones. Must run outside of every tracing mode.

    Args:
        inputs: fake tensors, real tensors (copied), numbers, symbolic numbers, or lists of these.
        training: keep requires_grad.
        arrange: overwrites the values that follow from others (`Question.arrange`).

    Raises:
        UnmeasurableError: as `tensor_spec`, or the inputs would take too much of the free memory.
    """
    sources = _distinct(inputs)
    templates = [(source, tensor_spec(source)) for source in sources]
    _guard_memory([spec for _, spec in templates])
    tensors = [_allocate(spec) for _, spec in templates]
    for tensor, (_, spec) in zip(tensors, templates, strict=True):
        tensor.requires_grad_(training and spec.requires_grad)
    real = {id(source): tensor for source, tensor in zip(sources, tensors, strict=True)}
    values = compat.tree_map(
        lambda leaf: real[id(leaf)] if isinstance(leaf, torch.Tensor) else concrete(leaf), list(inputs)
    )
    made = Inputs(values, tensors, templates, arrange)
    made.refill()
    return made


def made_up(like: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor with the shape, dtype and device of `like`, and reproducible made-up values."""
    flat = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    _fill(flat, torch.Generator(like.device).manual_seed(_SEED + 1), largest=1)
    return flat.view(like.shape)


def _distinct(inputs: Sequence[Any]) -> list[torch.Tensor]:
    leaves = compat.tree_leaves(list(inputs))
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())


def _allocate(spec: TensorSpec) -> torch.Tensor:
    flat = torch.empty(spec.extent + spec.offset, dtype=spec.dtype, device=spec.device)
    # Not a view to autograd, so that programs may write to it as to any tensor.
    return flat.new_empty(0).set_(flat.untyped_storage(), spec.offset, spec.shape, spec.stride)


@torch.no_grad()
def _fill_all(tensors: list[torch.Tensor], templates: list[tuple[torch.Tensor, TensorSpec]]) -> None:
    generators: dict[torch.device, torch.Generator] = {}
    all_specs = [spec for _, spec in templates]
    for tensor, (source, spec) in zip(tensors, templates, strict=True):
        # Bypasses autograd: a leaf that requires grad must not be written to.
        flat = tensor.detach().as_strided((spec.extent,), (1,), spec.offset)
        if not compat.is_fake(source):
            flat.copy_(source.detach().as_strided((spec.extent,), (1,), source.storage_offset()))
            continue
        if spec.device not in generators:
            generators[spec.device] = torch.Generator(spec.device).manual_seed(_SEED)
        _fill(flat, generators[spec.device], _largest_integer(spec, all_specs))
        if spec.dtype is torch.bool:
            _mix_rows(tensor.detach())


def _fill(flat: torch.Tensor, generator: torch.Generator, largest: int) -> None:
    """Fill 1-d memory with a repeated block of made-up values, which is faster than drawing each value."""
    block = flat[:_BLOCK]
    block.copy_(_draw(block, generator, largest))
    filled = block.numel()
    while filled < flat.numel():
        more = min(filled, flat.numel() - filled)
        flat[filled : filled + more].copy_(flat[:more])
        filled += more


def _draw(like: torch.Tensor, generator: torch.Generator, largest: int) -> torch.Tensor:
    shape, device, dtype = like.shape, like.device, like.dtype
    if dtype is torch.bool:
        return torch.rand(shape, device=device, dtype=torch.float32, generator=generator) < _MOSTLY
    if dtype.is_complex or dtype.is_floating_point:
        # Drawn wide and rounded: 8-bit floats have no generator of their own.
        wide = torch.promote_types(dtype, torch.float32) if dtype.itemsize > 1 else torch.float32
        return torch.randn(shape, device=device, dtype=wide, generator=generator)
    return torch.randint(0, largest + 1, shape, device=device, dtype=torch.int64, generator=generator)


def _largest_integer(spec: TensorSpec, all_specs: list[TensorSpec]) -> int:
    """1, or 0 on a GPU if a table may have 1 row: an index out of range would break the whole process."""
    tables = [other for other in all_specs if other.dtype.is_floating_point]
    return 0 if spec.device.type != "cpu" and any(1 in table.shape for table in tables) else 1


def _mix_rows(mask: torch.Tensor) -> None:
    """Let no row be all True or all False, since fully masked rows give NaN, whichever value masks."""
    if mask.dim() == 0 or mask.shape[-1] == 0:
        return
    mask[..., -1].fill_(False)
    mask[..., 0].fill_(True)


def _guard_memory(all_specs: list[TensorSpec]) -> None:
    for device in {spec.device for spec in all_specs}:
        needed = sum(spec.nbytes for spec in all_specs if spec.device == device)
        free = free_memory(device)
        if free is not None and needed > MEMORY_SHARE * free:
            raise UnmeasurableError(
                f"its inputs take {needed / 2**20:.0f} MiB, more than {MEMORY_SHARE:.0%} of the {free / 2**20:.0f} MiB "
                f"free on {device.type}"
            )


def free_memory(device: torch.device) -> int | None:
    """The bytes that can be allocated on `device`; None if not known."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            return None
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return _free_host_memory() if device.type == "cpu" else None


def _free_host_memory() -> int | None:
    found = [size for size in (_available_to_system(), _available_to_container()) if size is not None]
    return min(found, default=None)


def _available_to_system() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _available_to_container() -> int | None:
    """The bytes that the control group (version 2) leaves, counting file caches as free."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
        return int((group / "memory.max").read_text()) - used
    return None
