"""Internals of torch about memory and GPUs.

Every function here wraps exactly one internal fact of torch and says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_LARGE, _FEW = 1 << 16, 4  # bytes, tensors: what is copied one by one


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the memory behind a tensor, while it lives."""
    return tensor.untyped_storage()._cdata


def is_others_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor looks at memory that torch has not allocated (NumPy's, DLPack's): it cannot be resized."""
    return not tensor.untyped_storage().resizable()


def storage_reference(tensor: torch.Tensor) -> StorageWeakRef:
    """A reference that keeps a `storage_key` from being given anew, but not the memory alive; ``cdata`` is the key."""
    return StorageWeakRef(tensor.untyped_storage())


def storages_users(keys: Iterable[int]) -> Iterable[int]:
    """How many references there are to each memory that lives, by its `storage_key`.

    One for each tensor that looks at it, and Python's own.
    """
    return map(torch._C._storage_Use_Count, keys)


def shared_memories(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The `storage_key`s of memory into which other tensors look, too: more than one, and Python's own reference."""
    keys = {storage_key(x) for x in tensors}
    return {key for key, users in zip(keys, storages_users(keys), strict=True) if users > 2}


def share_memory(inputs: Iterable[Any]) -> bool:
    """Whether two inputs lie in the same memory: writes to one of them may be seen in the other."""
    keys = [storage_key(x) for x in inputs if isinstance(x, torch.Tensor) and x.layout == torch.strided]
    return len(set(keys)) < len(keys)


def tensors_users(tensors: Iterable[torch.Tensor]) -> Iterable[int]:
    """How many references there are to each tensor, all of Python's counting as one; autograd's are among them."""
    return map(torch.Tensor._use_count, tensors)  # type: ignore[attr-defined]


def borrowed(x: torch.Tensor) -> torch.Tensor:
    """A GPU's tensor in the same memory, which does not keep it alive."""
    storage = x.untyped_storage()
    seen = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), x.device, storage.nbytes())
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(seen, x.storage_offset(), x.shape, x.stride())


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source to its target, in few launches."""
    alone, together = in_few_launches({k: source.nbytes for k, source in enumerate(sources)})
    for k in alone:
        targets[k].copy_(sources[k])
    if together:
        torch._foreach_copy_([targets[k] for k in together], [sources[k] for k in together])


copy_many = torch._foreach_copy_
"""Copy each of some sources to its target, in one launch on a GPU."""


def in_few_launches(sizes: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Of tensors with so many bytes, those that are copied one by one, and those that one launch copies.

    The launch for many has a program for each 64 thousand elements: large ones, where they are few, take longer in it
    than a copy of their own.
    """
    alone = [k for k, size in sizes.items() if size > _LARGE or len(sizes) == 1]
    alone = alone if len(alone) <= _FEW else []
    return alone, [k for k in sizes if k not in alone]


def empty_strided(device: torch.device) -> Callable[..., torch.Tensor]:
    """``f(sizes, strides, dtype)``: uninitialised memory on a device, by the shortest way there is."""
    fast = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)
    # The one for GPUs allocates on the current device: right where there is no other.
    if fast is not None and (device.type == "cpu" or (device.type == "cuda" and torch.cuda.device_count() == 1)):
        return fast

    def allocate(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)

    return allocate


def unused_memory(pool: tuple[int, int]) -> list[range]:
    """Addresses of a private memory pool of CUDA's that nothing holds."""
    segments = torch.cuda.memory_snapshot(pool, include_traces=False)
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] != "active_allocated"]
    return [range(block["address"], block["address"] + block["size"]) for block in blocks]


def cuda_stream() -> Callable[[int], int]:
    """``f(device index)``: the handle of the current stream, by the shortest way there is."""
    return torch._C._cuda_getCurrentRawStream


def cuda_spin(seconds: float) -> None:
    """Keep the current CUDA stream busy for about `seconds`, so that kernels launched meanwhile queue up behind."""
    spin = getattr(torch.cuda, "_sleep", None)
    if spin is not None:
        spin(int(seconds * 2e9))  # cycles: GPUs clock at about 2 GHz


def clear_cublas_workspaces() -> None:
    """Let cuBLAS allocate its workspaces anew: memory of a captured graph's own must not be shared with others."""
    torch._C._cuda_clearCublasWorkspaces()


def allows_tf32() -> bool:
    """Whether the user lets GPUs round operands of float32 products to the 10 bits that tensor cores take."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set through torch's newer interface, beside which this one refuses to answer
        return getattr(torch.backends.cuda.matmul, "fp32_precision", "") == "tf32"


def float32_settings() -> tuple[str, ...]:
    """All that the user may set about the precision of libraries in float32, and of sums in 16 bits."""
    precision, cublas = torch._C._get_fp32_precision_getter, torch.backends.cuda.matmul
    kinds = [precision(library, kind) for library in ("cuda", "mkldnn") for kind in ("matmul", "conv", "rnn")]
    halves = [cublas.allow_fp16_reduced_precision_reduction, cublas.allow_bf16_reduced_precision_reduction]
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # as above
        legacy = ""
    return (*kinds, *map(str, halves), legacy)


def guard_float32_precision() -> None:
    """Have Dynamo compile anew where the user changes what libraries on GPUs may make of float32.

    Dynamo itself looks at the setting for products, but not at that for convolutions.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return
    from torch._dynamo.source import GlobalStateSource

    context.guards_context.dynamo_guards.add(torch._guards.Guard(GlobalStateSource(), _precision_guard))


def _precision_guard(builder: Any, guard: Any) -> None:  # noqa: ARG001
    precision = torch._C._get_fp32_precision_getter
    known = precision("cuda", "conv"), precision("cuda", "matmul")

    def holds(_: Any) -> bool:
        return (precision("cuda", "conv"), precision("cuda", "matmul")) == known

    parts = [f"the precision of float32 convolutions and products is {known}"]
    root = builder.guard_manager.root
    try:
        root.add_lambda_guard(holds, parts, None)
    except TypeError:  # before there were user stacks
        root.add_lambda_guard(holds, parts)


def convolutions_allow_tf32() -> bool:
    """The same for convolutions, which have a setting of their own."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", "") == "tf32"
