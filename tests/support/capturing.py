"""A backend that is capture and nothing else, and a comparison with eager that looks at everything a caller can see."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._pytree import tree_leaves

from regraft import compiler
from regraft.compiler.capture import Captured, capture

OURS = (str(Path(compiler.__file__).parent), __file__)
Context = Callable[[], contextlib.AbstractContextManager[Any]]


def interpret(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """The compiler of AOTAutograd's graphs: none."""

    def run(args: list[Any]) -> Any:
        return fx.Interpreter(graph_module).boxed_run(args)

    run._boxed_call = True
    return run


@dataclass
class CaptureBackend:
    """Captures what Dynamo hands over, and keeps it; AOTAutograd and torch's own operators do the rest.

    With `enabled` false, AOTAutograd gets Dynamo's graph: what capture must not change.
    """

    enabled: bool = True
    captured: list[Captured] = field(default_factory=list)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found = capture(gm, example_inputs) if self.enabled else Captured(gm, example_inputs)
        self.captured.append(found)
        compiler = aot_autograd(fw_compiler=interpret, keep_inference_input_mutations=True)
        return compiler(found.graph_module, found.example_inputs)

    @property
    def codes(self) -> list[str]:
        """Why graphs fell back; empty where all were captured."""
        return [c.fallback.code for c in self.captured if c.fallback is not None]

    @property
    def graph(self) -> fx.GraphModule:
        """The one graph there is."""
        (only,) = self.captured
        assert only.fallback is None, only.fallback
        return only.graph_module

    def calls(self) -> list[str]:
        """Names of the operators of the one graph, in order."""
        return [target_name(n) for n in self.graph.graph.nodes if n.op == "call_function"]


def target_name(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.target.__name__


def fresh(value: Any) -> Any:
    """A copy with memory and gradients of its own."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value)
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def observe(program: Callable[..., Any], args: Sequence[Any], backward: bool, context: Context, seed: int) -> Any:
    """Run a program on `args` and list what a caller can observe, in a form that `==` compares bit for bit."""
    torch.manual_seed(seed)
    with context():
        out = program(*args)
    outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    facts = {
        "structure": torch.utils._pytree.tree_structure(out),
        "numbers": [leaf for leaf in tree_leaves(out) if not isinstance(leaf, torch.Tensor)],
        "outputs": [(bits(t), t.requires_grad, t.is_inference()) for t in outs],
        "aliases": aliases([*outs, *(a for a in args if isinstance(a, torch.Tensor))]),
    }
    if backward:
        gradients(outs)
    module = getattr(program, "_orig_mod", program)
    tensors = [*(a for a in args if isinstance(a, torch.Tensor))]
    if isinstance(module, nn.Module):
        tensors += [*module.parameters(), *module.buffers()]
    facts["inputs"] = [bits(t) for t in tensors]
    facts["gradients"] = [None if not t.is_leaf or t.grad is None else bits(t.grad) for t in tensors]
    facts["random"] = bits(torch.get_rng_state())
    return facts


def gradients(outs: Sequence[torch.Tensor]) -> None:
    """Backward of a sum in which every element counts differently."""
    roots = [t for t in outs if t.requires_grad and t.grad_fn is not None]
    if roots:
        weights = [torch.linspace(-1, 2, t.numel()).reshape(t.shape).to(t.dtype) for t in roots]
        torch.autograd.backward(roots, weights)


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor as something that compares bit for bit, NaN included."""
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    data = plain.contiguous().view(torch.uint8).tolist() if plain.dim() else plain.reshape(1).view(torch.uint8).tolist()
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), data


def aliases(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """For each tensor: the first that is the same object, the first on the same memory, and the offset into it."""
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    same = [next(i for i, other in enumerate(tensors) if other is t) for t in tensors]
    return [(i, storages.index(s), t.storage_offset()) for i, s, t in zip(same, storages, tensors, strict=True)]


def same_as_eager(
    program: Callable[..., Any],
    *args: Any,
    backward: bool = True,
    context: Context = contextlib.nullcontext,
    reference: str = "eager",
    **options: Any,
) -> CaptureBackend:
    """Assert that a program compiled with capture is the program; return the backend, to ask what it captured.

    Args:
        program: a function or module; modules are copied.
        args: its inputs, copied for each run.
        backward: run backward too.
        context: entered around the call, such as an autocast.
        reference: ``"aot"`` compares with AOTAutograd on Dynamo's own graph, where that differs from eager by itself.
        options: for `torch.compile`.
    """
    backend = CaptureBackend()
    expected_program = fresh(program)
    if reference == "aot":
        torch._dynamo.reset()
        expected_program = torch.compile(expected_program, backend=CaptureBackend(enabled=False), **options)
    expected = observe(expected_program, [fresh(a) for a in args], backward, context, seed=7)
    torch._dynamo.reset()
    found_program = torch.compile(fresh(program), backend=backend, **options)
    found = observe(found_program, [fresh(a) for a in args], backward, context, seed=7)
    for fact, value in expected.items():
        assert found[fact] == value, fact
    for captured in backend.captured:
        if captured.fallback is None:
            check_metadata(captured.graph_module)
    return backend


def check_metadata(gm: fx.GraphModule) -> None:
    """Every node has metadata; every call the source line of a program that is not ours."""
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            assert "val" in node.meta, node
        if node.op == "call_function":
            trace = node.meta.get("stack_trace", "")
            assert trace and not any(path in trace for path in OURS), (node, trace)
    gm.graph.lint()
