"""Attentions in training without a GPU: joint graphs moved to one in name, and their kernels interpreted.

joint = joint_of(attend, q, k, v)       forward and backward in one, traced on the CPU
module, record = fused(joint)           the same on a GPU in name, after the pass
out, dq, dk, dv = run(module, [q, k, v], [grad])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

from regraft.compiler.autograd.differentiate import GraphKind
from regraft.compiler.autograd.seed_dropout import seed_calls
from regraft.compiler.backend import Compilation
from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.codegen.wrapper.wrapper import generate
from regraft.compiler.options import Options
from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.attention.training.fuse import fuse_attention_training
from regraft.compiler.templates.common.task import task_of
from regraft.rewrites.profit import Always
from regraft.rewrites.record import Code, GraphRecord

from .offline_gpu import elsewhere, moved, on_cuda
from .triton_kernels import interpreter


def joint_of(function: Callable[..., Any], *inputs: torch.Tensor, seeded: bool = True) -> fx.GraphModule:
    """The joint graph of a function of tensors; those of floating dtypes want gradients."""
    with FakeTensorMode():
        fakes = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, requires_grad=x.is_floating_point()) for x in inputs
        ]
        joint = aot_export_joint_simple(lambda *x: _listed(function(*x)), tuple(fakes), trace_joint=True)
    for check in joint.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        joint.graph.erase_node(check)  # exported graphs have them before casts, compiled ones do not
    if seeded:
        seed_calls(joint)
    return joint


def _listed(results: Any) -> list[Any]:
    results = results if isinstance(results, (tuple, list)) else [results]
    return [x * 1.0 for x in results]  # views are not given back as they are


def fused(
    joint: fx.GraphModule, oracle: Any = None, *, thorough: bool = False, **options: Any
) -> tuple[fx.GraphModule, GraphRecord]:
    """The graph as it would be on a GPU after the pass, and what that recorded."""
    there, record = on_cuda(joint), GraphRecord("test")
    task = task_of(there.graph, oracle or Always(), record, thorough=thorough, training=True)
    assert task is not None
    fuse_attention_training(task, **{"seeds": True, **options})
    there.graph.lint()
    there.recompile()
    return there, record


def kernels(module: fx.GraphModule) -> list[TritonTemplateKernel]:
    """The kernels that a graph calls."""
    return [node.target for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]


class GraphInterpreter(fx.Interpreter):
    """Runs a graph that is on a GPU in name on tensors of the CPU."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, TritonTemplateKernel):
            return interpreted(target, *args)
        args = tuple(torch.device("cpu") if isinstance(x, torch.device) else x for x in args)
        kwargs = {key: torch.device("cpu") if key == "device" else x for key, x in kwargs.items()}
        return super().call_function(target, args, kwargs)


def interpreted(kernel: TritonTemplateKernel, *tensors: torch.Tensor) -> Any:
    """The results of a kernel; what it does not write is NaN, unless it is said to hold zeros."""
    for tensor, layout in zip(tensors, kernel.inputs, strict=True):
        assert (tuple(tensor.shape), tensor.dtype) == (layout.sizes, layout.dtype), (kernel.name, layout)
    given = [_placed(x, layout.strides) for x, layout in zip(tensors, kernel.inputs, strict=True)]
    made = [torch.empty_strided(x.sizes, x.strides, dtype=x.dtype).fill_(float("nan")) for x in kernel.outputs]
    for position in kernel.zeros:
        made[position].zero_()
    own = [torch.empty_strided(x.sizes, x.strides, dtype=x.dtype).zero_() for x in kernel.workspaces]
    held = [_memory(x) for x in (*given, *made, *own)]
    for launch in kernel.source.launches:
        places = getattr(launch, "places", ()) or range(len(held))
        arguments = [held[place] for place in places]
        (after,) = interpreter().run(kernel.source.text, [(launch.name, launch.programs, arguments)])
        for place, filled in zip(places, after, strict=True):
            if place >= len(given):
                held[place].copy_(filled)
    return made[0] if len(made) == 1 else tuple(made)


def _placed(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))


def run(module: fx.GraphModule, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> list[Any]:
    """Results and gradients of a joint graph, its kernels interpreted."""
    with torch.no_grad():
        return list(GraphInterpreter(module).run(*inputs, *tangents, enable_io_processing=False))


def eager(function: Callable[..., Any], inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> list[Any]:
    """The same by autograd, in double precision."""
    leaves = [x.double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    results = _listed(function(*leaves))
    wanted = [x for x in leaves if x.is_floating_point()]
    above = [x.double() for x in tangents]
    gradients = torch.autograd.grad(results, wanted, above, materialize_grads=True)
    found = iter(gradients)
    return [*results, *(next(found) if x.is_floating_point() else None for x in leaves)]


class TrainingBackend:
    """A backend for `torch.compile`: every graph is one on a GPU in name; `with_fake_hopper` must be in force.

    Attributes:
        records, codes, sources: what was done to programs; what was generated, and the wrappers, by graph.
    """

    def __init__(self, **options: Any) -> None:
        torch.compiler.reset()
        self.options = Options(**{"profit": "always", "verify": "structure", **options})
        self.records: list[GraphRecord] = []
        self.codes: dict[str, Code] = {}
        self.sources: dict[str, str] = {}
        self.graphs: dict[str, fx.GraphModule] = {}

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made = TrainingCompilation(module, inputs, self)
        self.records.append(made.record)
        return made._compile()


class TrainingCompilation(Compilation):
    """The compilation of one program, whose joint graph is on a GPU in name."""

    def __init__(self, module: fx.GraphModule, inputs: list[Any], told: TrainingBackend) -> None:
        super().__init__(module, inputs, told.options)
        self._told, self._prepared = told, self._stages.prepare
        self._stages.prepare = self._prepare  # type: ignore[method-assign]

    def _prepare(self, module: fx.GraphModule, kind: Any) -> None:
        """Move a joint graph to the GPU, where it stays."""
        memory: dict[int, torch.Tensor] = {}
        for node in module.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = tree_map(lambda value: moved(value, memory), node.meta["val"])
            node.args, node.kwargs = tree_map(elsewhere, node.args), tree_map(elsewhere, node.kwargs)
        self._stages._devices = frozenset({"cuda"})
        self._prepared(module, kind)

    def _compile_graph(self, module: fx.GraphModule, inputs: Any, kind: GraphKind) -> Callable[..., Any]:
        there = on_cuda(module)
        self._told.graphs[kind] = module
        self._stages.lower(there, kind)
        made = generate_kernels(there, kind)
        self._told.codes[kind] = made.code
        self._told.sources[kind] = generate(fx.GraphModule(there, made.graph), name=kind).source

        def run(args: list[Any]) -> Any:
            given = list(args)
            args.clear()
            with torch.no_grad():
                return GraphInterpreter(module).run(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
