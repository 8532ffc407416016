"""Runs Dynamo's graph on fake tensors of its shapes, and records every ATen call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import attention
from ...rewrites.purity import Effect, effects_of
from ...rewrites.reason import Reason
from ..autograd.eager_strides import corrected
from .asserts import ASSERT, Assertions, is_about_sizes, is_inserted, with_message
from .audit import Derivatives, disagreement
from .autocast import ExplicitAutocast, enabled_scopes
from .checkpoints import CAPTURED
from .fast_paths import fast_path
from .finish import finish
from .flex import is_flex, not_spelled, recompute_scores, spelled_out, why_kept
from .given_again import with_given_again
from .made_of_numbers import as_made
from .quantized import quantized
from .screen import refused_call


class LossyTraceError(Exception):
    """Tracing found something that a recorded graph would lose."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


def retrace(gm: fx.GraphModule, example_inputs: Sequence[Any], kept: list[Reason]) -> fx.GraphModule:
    """Record `gm` as ATen calls before autograd.

    The fake tensors belong to a mode of their own that shares Dynamo's symbols. AOTAutograd creates its own fakes
    later, and must not see these, because the traced program may have changed their metadata.

    Args:
        gm: Dynamo's graph.
        example_inputs: an input for each placeholder.
        kept: takes the reasons why calls were kept that are otherwise decomposed.

    Raises:
        LossyTraceError: the recording would not have the meaning of `gm`.
        Exception: any error that torch raises on graphs that it cannot trace.
    """
    context = compat.tracing_context()
    shape_env = None if context is None or context.fake_mode is None else context.fake_mode.shape_env
    mode = compat.new_fake_mode(shape_env)
    compat.correct_fakes(mode, corrected)
    inputs = [_fake(value, mode) for value in example_inputs]  # while the context names Dynamo's own mode
    quiet = compat.saved_tensor_hooks_off()
    grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())  # restored afterwards, even if the program fails
    with quiet, grad_mode, compat.borrowed_context(mode), compat.forget_new_symbols_on_error(shape_env):
        return _record(gm, inputs, mode, kept)


def _fake(value: Any, mode: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    fake = compat.fake_of(value, mode)
    if fake is None:
        raise LossyTraceError(Reason("unknown-input", "Dynamo has no sizes for an input tensor"))
    return fake


def _record(gm: fx.GraphModule, inputs: Sequence[Any], mode: Any, kept: list[Reason]) -> fx.GraphModule:
    """Record `gm` on fakes of `mode`; also used for the bodies of higher-order operators."""
    retracer = Retracer(gm, mode, kept)
    with mode, attention.same_backends_after(), compat.replaced_tensors(gm, retracer.attributes):
        recording = compat.trace_before_dispatch(retracer.record, inputs)
    if retracer.refusal is not None:
        raise LossyTraceError(retracer.refusal)
    finished, refusal = finish(recording, gm)
    if refusal is not None:
        raise LossyTraceError(refusal)
    return finished


class Retracer(fx.Interpreter):
    """Makes the calls of a Dynamo graph under the recorder, and preserves explicitly what the recorder would lose.

    Args:
        module: Dynamo's graph.
        fake_mode: the fake tensor mode of its inputs.
        kept: takes the reasons why calls were kept that are otherwise decomposed.

    After the run, `refusal` is the reason why the recording cannot be used, or None.
    """

    def __init__(self, module: fx.GraphModule, fake_mode: Any, kept: list[Reason]) -> None:
        super().__init__(module, garbage_collect_values=False)  # assertions read these sizes again
        self.extra_traceback = False
        self.refusal: Reason | None = None
        self.attributes = _fakes_of_attributes(module, fake_mode)
        self._fake_mode, self._kept = fake_mode, kept
        self._derivatives = Derivatives()
        self._scopes: dict[int, fx.Node] = {}
        self._open: list[Any] = []  # scopes of autocast and inference mode
        self._assertions = Assertions()
        self._late: list[fx.Node] = []
        self._wrong: frozenset[str] = frozenset()  # facts that Dynamo has wrong

    def record(self, *inputs: Any) -> Any:
        """The function to trace: run the graph, with attributes and autocast prepared."""
        recorder = compat.recorder()
        self._tracer = recorder.tracer
        compat.wrap_decompositions(recorder, lambda table: ExplicitAutocast(with_given_again(self.graph, table)))
        self._adopt_attributes()
        pairs = zip(self.graph.find_nodes(op="placeholder"), inputs, strict=True)
        # Dynamo does not always record that an input requires gradients.
        self._watched = [(n, x) for n, x in pairs if isinstance(x, torch.Tensor) and not x.requires_grad]
        self._derivatives.extend(inputs)
        try:
            return self.run(*inputs)
        finally:
            self._leave_scopes()

    def _leave_scopes(self) -> None:
        """Leave the scopes that a failed program has entered and not left, for the compilations that follow."""
        with compat.no_function_modes():
            while self._open:
                self._open.pop().__exit__(None, None, None)

    def _scope(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Enter or leave a scope."""
        scope = target(*args, **kwargs)
        if scope is not None:
            self._open.append(scope)
        elif args[0] in self._open:
            self._open.remove(args[0])
        return scope

    def _adopt_attributes(self) -> None:
        """Make parameters and buffers of the module `get_attr` nodes with their own names."""
        for name, value in _own_attributes(self.module):
            setattr(self._tracer.root, name, value)  # No constant of the recording may take this name.
        for name, fake in self.attributes.items():
            compat.track(fake, self._tracer.graph.get_attr(name), self._tracer)

    def run_node(self, n: fx.Node) -> Any:
        """Run one of Dynamo's nodes; data-dependent sizes keep the names that they have in its graph."""
        self._node = n
        if is_inserted(n):
            self._late.append(n)
            return None
        if not is_about_sizes(n):
            self._assert_late()
        result = self._asserted(n) if n.target is ASSERT else super().run_node(n)
        compat.rename_unbacked(self._fake_mode, n, result)
        self._assertions.note(n, result)
        if n.op in ("call_function", "call_method", "call_module"):
            self._refuse(self._derivatives.lost(result, n))
        if n.op == "output":
            self._refuse(disagreement(n, result, self._wrong))
            for node, value in self._watched:
                self._refuse(disagreement(node, value))
        return result

    def _assert_late(self) -> None:
        """Record the assertions that Dynamo inserted; the user's about the same sizes are recorded already."""
        late, self._late = self._late, []
        for node in late:
            self._asserted(node)

    def _asserted(self, n: fx.Node) -> Any:
        condition = self._assertions.condition(n.args[0], self.env.__getitem__)
        with self._set_current_node(n):
            return n.target(condition, *n.args[1:])  # type: ignore[operator]

    def _refuse(self, reason: Reason | None) -> None:
        self.refusal = reason if self.refusal is None else self.refusal

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function: under the recorder, unless the recorder would lose its meaning."""
        if is_flex(target):
            return self._attention(target, args, kwargs)
        of_layers = fast_path(target, args)
        if (operators := of_layers or quantized(target, args, kwargs)) is not None:
            # Dynamo takes results under autocast for ones of the input's dtype, and scales of tokens for float64.
            if of_layers is None or compat.autocast_on():
                self._wrong = frozenset({"dtype"})
            return operators(*args, **kwargs)
        target, args = with_message(as_made(target), args)
        if isinstance(target, compat.HigherOrderOperator):
            return self._keep_operator(target, args, kwargs)
        if compat.is_data_call(target):
            return self._keep(target, args, kwargs)
        if target in compat.AUTOCAST_SCOPE:
            with compat.no_function_modes():  # The casts are recorded, so the scope need not be.
                return self._scope(target, args, kwargs)
        if target in compat.INFERENCE_SCOPE:
            return self._as_grad_mode(target, args)
        if target in (attention.BACKEND_NAMED, attention.ALLOW_BACKENDS):
            return self._keep_scope(target, args)
        return super().call_function(target, args, kwargs)

    def _as_grad_mode(self, target: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Enter or leave inference mode, and record the grad mode that follows.

        Inference mode disables gradients. Its other savings do not matter to a compiled graph, and AOTAutograd fails on
        views that are created inside it of tensors from outside.
        """
        scope = self._scope(target, args, {})
        self._effect(compat.SET_GRAD_MODE, (torch.is_grad_enabled(),))
        return scope

    def _keep_scope(self, target: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Enter or leave a scope that the recorder does not support, and record that."""
        scope = target(*args)
        known = compat.tree_map(lambda arg: self._scopes.get(id(arg), arg), args)
        self._scopes[id(scope)] = self._effect(target, known)
        return scope

    def _keep_operator(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Keep a higher-order operator with Dynamo's subgraphs, which still need autocast: its scope is recorded."""
        if target is compat.CHECKPOINT:
            body = self._captured_body(args[0], args[1:])
            if body is not args[0]:
                return self._keep(target, (body, *args[1:]), kwargs)
        enter, leave = compat.AUTOCAST_SCOPE
        entered = [self._effect(enter, scope) for scope in enabled_scopes()]
        result = self._keep(target, args, kwargs)
        for node in reversed(entered):
            self._effect(leave, (node,))
        return result

    def _attention(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Decompose flex attention into operators, or keep it if the operators would lose effects of its functions."""
        reason = why_kept(args, kwargs, self._node)
        if reason is None:
            with compat.not_recorded(), torch.no_grad():
                given = target(*args)
            before = list(self._tracer.graph.nodes)[-1]
            try:
                results = spelled_out(args, given)
            except Exception as error:  # the recorded nodes have no users
                reason = not_spelled(error, self._node)
            else:
                if results[0].requires_grad:
                    recompute_scores(before, args)
                return results
        self._kept.append(reason)
        return self._keep_operator(target, args, kwargs)

    def _keep(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call outside of the recorder, and record the call itself."""
        node_args, node_kwargs = compat.tree_map(self._proxy_of, (args, kwargs))
        proxy = self._tracer.create_proxy("call_function", target, node_args, node_kwargs)
        with compat.not_recorded():
            result = target(*args, **kwargs)
        proxy.node.meta["val"] = None  # Until the call is found to return something.
        return compat.track(result, proxy.node, self._tracer)

    def _effect(self, target: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        node = self._tracer.create_node("call_function", target, args, {})
        node.meta["val"] = None
        return node

    def _captured_body(self, body: fx.GraphModule, inputs: tuple[Any, ...]) -> fx.GraphModule:
        """The body of an activation checkpoint: captured if that is safe, else unchanged.

        The policy of selective checkpointing is applied to every operator of the final body.
        """
        if any(refused_call(n) is not None for n in body.graph.nodes):
            return body
        try:
            with compat.not_recorded():
                captured = _record(body, inputs, self._fake_mode, self._kept)
        except LossyTraceError:
            return body
        if _may_write(captured):
            return body  # Tracing has run it, and `_keep` will run it again, but its writes must happen once.
        self.submodules[self._name_of(body)] = captured
        captured.meta[CAPTURED] = True
        if compat.CHECKPOINT_POLICY in body.meta:
            captured.meta[compat.CHECKPOINT_POLICY] = body.meta[compat.CHECKPOINT_POLICY]
        return captured

    def _proxy_of(self, leaf: Any) -> Any:
        if isinstance(leaf, fx.GraphModule):
            name = self._name_of(leaf)
            self._tracer.root.add_module(name, leaf)
            return fx.Proxy(self._tracer.graph.get_attr(name), self._tracer)
        proxy = self._tracer.unwrap_proxy(leaf)
        if isinstance(proxy, torch.Tensor):
            raise LossyTraceError(
                Reason(
                    "untracked-tensor",
                    "a higher-order operator reads a tensor that is the result of no node in the graph",
                )
            )
        return proxy

    def _name_of(self, body: fx.GraphModule) -> str:
        """The name of a subgraph in Dynamo's module; the captured body of a checkpoint replaces it there."""
        return next(name for name, module in self.submodules.items() if module is body)


def _own_attributes(module: torch.nn.Module) -> list[tuple[str, Any]]:
    tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return [*tensors, *module.named_children()]


def _fakes_of_attributes(module: torch.nn.Module, mode: Any) -> dict[str, torch.Tensor]:
    """Fakes of parameters and buffers by qualified name; tied parameters share a fake."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: _fake_attribute(tensor, mode) for name, tensor in named}


def _fake_attribute(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    fake = compat.fake_of(tensor, mode)
    return mode.from_tensor(tensor, static_shapes=True) if fake is None else fake


def _may_write(gm: fx.GraphModule) -> bool:
    """Whether running a captured graph could change memory, or sizes of its inputs."""
    writes = Effect.WRITES | Effect.NAMES
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return any(effects_of(node) & writes or isinstance(node.target, compat.HigherOrderOperator) for node in calls)
