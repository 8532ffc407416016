"""The text of a wrapper: one readable Python function for one functional ATen graph.

    %mm  = aten.mm(%x, %w)             mm = aten.mm.default(x, w)
    %add = aten.add(%mm, %b)     ->    del x
    return (%add,)                     add = aten.add_.Tensor(mm, b)  # over mm
                                       del mm, b
                                       return (add,)

Every value is deleted after its last use; a comment names the user's source line and the rule whenever they change.
"""

from __future__ import annotations

import operator
import textwrap
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.graph import apart, gives_view, op_name
from ....rewrites.moves import VIEWS
from ....rewrites.reason import Site, site_of
from ....rewrites.symbolic import SYMBOLIC
from ..kernel_call import KernelCall, spell
from .lifetimes import last_uses
from .memory_plan import results
from .names import Spelling
from .stride_checks import is_doubtful, order_of, wants_contiguous
from .views import Views

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...ir.program import Buffer
    from ..cpp_wrapper.graph import CppGraph
    from .memory_plan import MemoryPlan

_AS_STRIDED = torch.ops.aten.as_strided.default
_TOGETHER = 8  # fewest single numbers of a kernel that share an allocation
_ALIGNED = 16  # bytes: generated code assumes that buffers begin at multiples of it
_WIDTH = 116
_CODE = 72
_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//", operator.truediv: "/",
    operator.mod: "%", operator.pow: "**", operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=",
    operator.gt: ">", operator.ge: ">=", operator.and_: "&", operator.or_: "|",
}  # fmt: skip


@dataclass(frozen=True)
class WrapperSource:
    """A generated module.

    Args:
        text: the module, which defines `call(args)`; its name `objects` must be bound to the table before it runs.
        objects: constants, submodules and functions that cannot be written as text, by name.
        sites: the user's source line for each line (1-based) of the text.
        calls: the name of the graph node that each line calls, if it calls one.
        cpp: the same graph as a function of C++, if that function is called instead.
        modules: where a line has no site (in containers of torch), the path of the module that it comes from.
    """

    text: str
    objects: dict[str, Any]
    sites: dict[int, Site]
    calls: dict[int, str] = field(default_factory=dict)
    cpp: CppGraph | None = None
    modules: dict[int, str] = field(default_factory=dict)


def emit(graph_module: fx.GraphModule, plan: MemoryPlan, *, name: str) -> WrapperSource:
    """Write the wrapper of `graph_module`; equal graphs give equal text.

    Raises:
        NotImplementedError: an argument is a symbolic number that no node computes.
    """
    body = _Body(graph_module, plan)
    header = list(_header(name, body.spelling, plan, body.uses("math."), body.uses("operator."), body.checks))
    shift = len(header)
    text = "\n".join(header + [f"    {line}" if line else "" for line in body.lines]) + "\n"
    sites = {line + shift: site for line, site in body.sites.items()}
    calls, modules = ({line + shift: name for line, name in found.items()} for found in (body.calls, body.modules))
    return WrapperSource(text, body.spelling.objects, sites, calls, modules=modules)


def module_path(node: fx.Node) -> str:
    """The qualified name of the module that `node` (or its forward) comes from, e.g. ``"encoder.layer.0"``."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    innermost = next(reversed(stack.values()), None) if stack else None
    if innermost is None:
        return ""
    path = str(innermost[0])
    # Dynamo writes the path from the frame to the module: L['self'].encoder, or L['fn'].__self__.encoder.
    return path.partition("]")[2].lstrip(".") if path.startswith("L[") else path


class _Body:
    """Emits the statements of `call`, line by line."""

    def __init__(self, graph_module: fx.GraphModule, plan: MemoryPlan) -> None:
        nodes = list(graph_module.graph.nodes)
        calls = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
        self._parts = {node: parts for node in calls if (parts := _unpacked(node))}
        self.spelling = Spelling(graph_module, {*self._parts, *(node for node in calls if not _is_bound(node))})
        self.lines: list[str] = []
        self.sites: dict[int, Site] = {}
        self.calls: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        self._plan, self._views = plan, Views()
        self.checks = False
        self._provenance = ""
        self._dying = last_uses(nodes)
        self._inputs([node for node in nodes if node.op == "placeholder"])
        hoisted = {part for parts in self._parts.values() for part in parts}
        for node in calls:
            if node not in hoisted:
                self._statement(node)
        self._return(nodes[-1])

    def uses(self, prefix: str) -> bool:
        return any(prefix in line for line in self.lines)

    def _emit(self, line: str, node: fx.Node | None = None) -> None:
        self.lines.append(line)
        if node is None:
            return
        self.calls[len(self.lines)] = node.name
        site = site_of(node)
        if site is not None:
            self.sites[len(self.lines)] = site
        elif path := module_path(node):
            self.modules[len(self.lines)] = path

    def _inputs(self, placeholders: list[fx.Node]) -> None:
        names = [self.spelling.locals[node] for node in placeholders]
        if names:
            for line in _wrapped(names, "", " = args"):
                self._emit(line)
            self._emit("args.clear()")
        self._delete(node for node in placeholders if not node.users)

    def _statement(self, node: fx.Node) -> None:
        self._comment(node)
        if isinstance(node.target, KernelCall):
            self._kernel(node, node.target)
            return
        parts = self._parts.get(node, [])
        bound = [self.spelling.locals[n] for n in parts or [node] if n in self.spelling.locals]
        left = f"{', '.join(bound)} = " if bound else ""
        index = f"[{parts[0].args[1]}]" if len(parts) == 1 else ""
        self._emit(f"{left}{self._call(node)}{index}{self._remark(node)}", node)
        for result in parts or [node] if bound else []:
            self._keep_promise(node, result)
        self._delete(self._dying.get(node, []))

    def _keep_promise(self, node: fx.Node, result: fx.Node) -> None:
        """Check the strides of `result` if readers rely on them."""
        if self._views.strided(node) is not None:
            return
        value = result.meta.get("val")
        while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        if node in self._plan.reuses or not is_doubtful(node.target, value):
            return
        order, name = order_of(value), self.spelling.locals[result]
        if order is None:
            return
        self.checks = True
        told = all(isinstance(stride, int) for stride in value.stride())
        test = f"if {name}.stride() != {tuple(value.stride())}: " if told else ""
        self._emit(f"{test}{name} = laid_out({name}, {order})", node)

    def _kernel(self, node: fx.Node, call: KernelCall) -> None:
        """Allocate memory for the results, then call the kernel."""
        arguments = dict(zip((*call.given, *call.sizes), map(self.spelling.value, node.args), strict=True))
        together = self._allocate_together(node, call)
        for buffer, result in zip(call.made, results(node), strict=True):
            name = arguments[buffer.name] = self.spelling.locals[result]
            sizes, strides = (_tuple_of(part, arguments) for part in (buffer.sizes, buffer.strides))
            reuse = self._plan.reuses.get(result)
            if result in together:
                continue
            if reuse is not None:
                old = self.spelling.value(reuse.operand)
                seen = f"{self.spelling.function(_AS_STRIDED)}({old}, {sizes}, {strides})" if reuse.reshaped else old
                self._emit(f"{name} = {seen}  # over it")
                continue
            self._emit(f"{name} = {self.spelling.empty(buffer)}({sizes}, {strides}, {buffer.dtype})")
        names = [p.buffer.name for p in call.kernel.params] + [s.name for s in call.kernel.sizes]
        function = self.spelling.object(call.run, call.kernel.name)
        self._emit(f"{function}({', '.join(arguments[n] for n in names)})", node)
        self._delete(self._dying.get(node, []))

    def _allocate_together(self, node: fx.Node, call: KernelCall) -> set[fx.Node]:
        """Allocate memory for single numbers that only kernels read at once: an optimizer step has two per tensor.

        A number over which a result is written has memory of its own: such a result has the sizes of what it is
        written over, and a row of the shared memory is longer than one number.
        """
        overwritten = {reuse.operand for reuse in self._plan.reuses.values()}
        found: dict[tuple[torch.device, torch.dtype], dict[fx.Node, Buffer]] = {}
        for buffer, result in zip(call.made, results(node), strict=True):
            single = all(size == 1 for size in buffer.sizes) and result not in {*self._plan.reuses, *overwritten}
            if single and all(isinstance(user.target, KernelCall) for user in result.users):
                found.setdefault((buffer.device, buffer.dtype), {})[result] = buffer
        groups = [group for group in found.values() if len(group) >= _TOGETHER]
        for group in groups:
            buffer = next(iter(group.values()))
            width = _ALIGNED // buffer.dtype.itemsize
            names = [self.spelling.locals[result] for result in group]
            made = f"{self.spelling.empty(buffer)}(({len(group)}, {width}), ({width}, 1), {buffer.dtype})"
            readers = (user.target for result in group for user in result.users)
            if all(hasattr(each.run, "bare") for each in (call, *readers)):  # takes addresses, too: no view is made
                memory = f"{names[0]}_and_others"
                self._emit(f"{memory} = {made}")
                begin = f"{memory}.data_ptr()"
                made = f"range({begin}, {begin} + {len(group) * _ALIGNED}, {_ALIGNED})"
            else:
                made = f"{made}.unbind()"
            for line in _wrapped(names, "", f" = {made}"):
                self._emit(line)
        return {result for group in groups for result in group}

    def _return(self, output: fx.Node) -> None:
        value = output.args[0]
        for node in apart(output):
            if gives_view(node) or op_name(node) in VIEWS:  # autograd refuses writes to views that it has not seen made
                name = self.spelling.locals[node]
                self._emit(f"{name} = {name}.data")
        if type(value) is not tuple or not value:
            self._emit(f"return {self.spelling.value(value)}")
            return
        for line in _wrapped([self.spelling.value(v) for v in value], "return ", ""):
            self._emit(line)

    def _comment(self, node: fx.Node) -> None:
        text = _provenance(node)
        if text != self._provenance:
            self.lines += ["", f"# {text}"]
            self._provenance = text

    def _remark(self, node: fx.Node) -> str:
        reuse = self._plan.reuses.get(node)
        return f"  # over {self.spelling.value(reuse.operand)}" if reuse else ""

    def _delete(self, nodes: Iterable[fx.Node]) -> None:
        names = [self.spelling.locals[n] for n in nodes if n in self.spelling.locals and _holds_memory(n)]
        if names:
            for line in textwrap.wrap(", ".join(names), _WIDTH - 8, break_long_words=False):
                self._emit(f"del {line.rstrip(',')}")

    def _operand(self, node: fx.Node, operand: Any) -> str:
        text = self.spelling.value(operand)
        value = operand.meta.get("val") if isinstance(operand, fx.Node) else None
        return f"{text}.contiguous()" if wants_contiguous(node.target, value) else text

    def _call(self, node: fx.Node) -> str:
        spell = self.spelling
        arguments = [self._operand(node, a) for a in node.args]
        arguments += [f"{k}={spell.value(v)}" for k, v in node.kwargs.items()]
        if node.op == "call_method":
            return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
        if node.op == "call_module":
            return f"{spell.submodule(str(node.target))}({', '.join(arguments)})"
        if node.target is operator.getitem:
            return f"{arguments[0]}[{arguments[1]}]"
        if node.target in _INFIX and not node.kwargs:
            return f" {_INFIX[node.target]} ".join(f"({a})" if a.startswith("-") else a for a in arguments)
        reuse = self._plan.reuses.get(node)
        view = self._views.strided(node) if reuse is None else None
        if view is not None:
            sizes, strides, offset = view
            begin = f", {arguments[0]}.storage_offset() + {offset}" if offset else ""
            return f"torch.as_strided({arguments[0]}, {sizes}, {strides}{begin})"
        if reuse is None:
            return f"{spell.function(node.target)}({', '.join(arguments)})"
        if reuse.out:
            arguments.append(f"out={spell.value(reuse.operand)}")
        return f"{spell.function(reuse.target)}({', '.join(arguments)})"


def _tuple_of(numbers: Iterable[Any], names: dict[str, str]) -> str:
    """Sizes or strides as a tuple in Python."""
    parts = [spell(n, names) for n in numbers]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _unpacked(node: fx.Node) -> list[fx.Node]:
    """The `getitem` nodes to bind in the call's own statement, so that no tuple is kept; empty to bind the tuple.

    getitem = f(x)[1]          where one output is used
    getitem, getitem_1 = f(x)  where all are

    A list among the outputs is bound, and separate statements bind its items.
    """
    if isinstance(node.target, KernelCall):
        return results(node) if len(node.target.made) > 1 else []
    users = list(node.users)
    if node.target is operator.getitem:
        return []
    if not users or not all(_is_item_of(user, node) and user.users for user in users):
        return []
    if len(users) == 1:
        return users
    outputs = node.meta.get("val")
    count = len(outputs) if isinstance(outputs, (tuple, list)) else -1
    parts: dict[Any, fx.Node] = {user.args[1]: user for user in users}
    all_once = len(users) == count and set(parts) == set(range(count))
    return [parts[i] for i in range(count)] if all_once else []


def _is_item_of(user: fx.Node, node: fx.Node) -> bool:
    return user.target is operator.getitem and user.args[0] is node and type(user.args[1]) is int


def _is_bound(node: fx.Node) -> bool:
    """Whether a value needs a name: results of kernels do, because their memory is passed to the kernel."""
    if isinstance(node.target, KernelCall):
        return len(node.target.made) == 1
    made = node.args[0] if node.target is operator.getitem else None
    return bool(node.users) or isinstance(getattr(made, "target", None), KernelCall)


def _holds_memory(node: fx.Node) -> bool:
    return not isinstance(node.meta.get("val"), (*SYMBOLIC, int, float, bool))


def _provenance(node: fx.Node) -> str:
    """A line such as ``encoder.layer.0  modeling.py:133  attn = softmax(...)  [rule sdpa]``."""
    site, rule = site_of(node), node.meta.get("regraft_rule")
    place = f"{PurePath(site.file).name}:{site.line}" if site else "no source line"
    code = textwrap.shorten(site.code, _CODE, placeholder=" ...") if site else ""
    parts = [module_path(node), place, code, f"[rule {rule}]" if rule else ""]
    backward = "backward of " if node.meta.get("partitioner_tag") == "is_backward" and site else ""
    return backward + "  ".join(part for part in parts if part)


def _wrapped(items: list[str], prefix: str, suffix: str) -> Iterator[str]:
    """``(a, b) = args`` or ``return (a, b)``, on as many lines as it takes."""
    line = f"{prefix}({', '.join(items)}{',' if len(items) == 1 else ''}){suffix}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"{prefix}("
    for part in textwrap.wrap(", ".join(items) + ",", _WIDTH - 4, break_long_words=False, break_on_hyphens=False):
        yield f"    {part}"
    yield f"){suffix}"


def _header(
    name: str, spelling: Spelling, plan: MemoryPlan, uses_math: bool, uses_operator: bool, checks: bool
) -> Iterator[str]:
    saved = f", results written over dead operands: {len(plan.reuses)}" if plan.reuses else ""
    yield f'"""{name}{saved}."""'
    yield ""
    for module in ["math"] * uses_math + ["operator"] * uses_operator + ["torch"]:
        yield f"import {module}"
    if checks:
        yield f"from {__package__}.stride_checks import laid_out"
    if spelling.operators:
        yield f"from {compat.__name__} import bare_calls"
    yield ""
    for namespace, calls in sorted(spelling.operators.items()):
        yield f"{spelling.space(namespace)} = bare_calls("
        yield from textwrap.wrap(
            ", ".join(f'"{c}"' for c in [namespace, *sorted(calls)]) + ",", _WIDTH,
            initial_indent="    ", subsequent_indent="    ", break_long_words=False,
        )  # fmt: skip
        yield ")"
    for target, bound in sorted(spelling.higher_order.items()):
        yield f"{bound} = torch.ops.higher_order.{target}"
    for device, bound in spelling.devices.items():
        yield f'{bound} = torch.device("{device}")'
    for bound in spelling.objects:
        yield f'{bound} = objects["{bound}"]'
    yield from ("", "", "def call(args):")
