"""A compiled graph as a function of C++: the twin of the wrapper in Python, for the same graph and memory plan.

%mm  = aten.mm(%x, %w)              Tensor mm = tensor(call(op0(), x, constants[0]), 0);
%add = k0_add(%mm, %b)      ->      Tensor add = mm;  // over it
return (%add,)                      { void* p[] = {memory(mm), ...}; launch(::k3f9a, p, nullptr); }
                                    mm.reset();

Statements call functions that are declared without torch's headers (`prelude.py`), by artifacts and in this process.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.compat import export
from ....rewrites.graph import apart
from ....rewrites.reason import site_of
from ....rewrites.symbolic import SYMBOLIC
from ..cpp.build import CppKernel
from ..kernel_call import CppTemplateCall, KernelCall
from ..wrapper.lifetimes import last_uses
from ..wrapper.memory_plan import MemoryPlan, results
from ..wrapper.names import Identifiers
from ..wrapper.size_checks import check_sizes
from ..wrapper.stride_checks import is_doubtful, order_of
from ..wrapper.views import Views
from .errors import NotInCppError, refusal
from .numbers import dtype_text, expression_text, index_text, integer_text, string_text
from .operators import arguments, kind_of, number_text
from .python_call import PythonCall, Slot
from .tables import Tables

_TYPES = {"tensor": "Tensor", "int": "int64_t", "float": "double", "bool": "bool"}
_UNPACK = {"tensor": "tensor", "int": "whole", "float": "real", "bool": "truth"}
_SIZES = {torch.ops.aten.sym_size.int: "size", torch.ops.aten.sym_stride.int: "stride"}
_ASSERT = torch.ops.aten._assert_scalar.default
_HINTS = (torch.ops.aten.sym_constrain_range.default, torch.ops.aten.sym_constrain_range_for_size.default)
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool case catch char compl concept const
    constexpr const_cast co_await co_return co_yield decltype default delete do double dynamic_cast
    enum explicit export extern false float friend goto inline int long mutable namespace new
    noexcept not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile
    wchar_t xor xor_eq in out model frame site p r z errno assert
""".split()  # noqa: SIM905


class CppFunction:
    """The statements of one graph.

    Args:
        graph_module: a compiled graph.
        plan: what is written over what.
        tables: what its calls refer to.
        given: the expression of each placeholder, by node.
        symbols: the names of symbolic sizes.
        reads_memory: kernels read results of calls, which must lie as metadata says.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        plan: MemoryPlan,
        tables: Tables,
        given: Mapping[fx.Node, str],
        symbols: Mapping[Any, str],
        *,
        reads_memory: bool = True,
    ) -> None:
        self._reads_memory, self._views, self._dialect = reads_memory, Views(), tables.dialect
        self._module, self._plan, self._tables, self._symbols = graph_module, plan, tables, dict(symbols)
        self._texts: dict[fx.Node, str] = dict(given)
        self._own = {node for node in given if self._dialect.owns_inputs and self.kind(node) == "tensor"}
        self._names = Identifiers()
        # No value may hide a function that statements call.
        words = sorted({*_KEYWORDS, *re.findall(r"[A-Za-z_]\w*", tables.dialect.words)})
        for word in (*words, *given.values(), *symbols.values()):
            self._names.make(word)
        self.lines: list[str] = []
        self.functions: list[PythonCall] = []
        self.sites: list[str] = []
        self._site = ""
        nodes = list(graph_module.graph.nodes)
        self._dying = last_uses(nodes)
        self._apart = frozenset(apart(nodes[-1]))
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self._statement(node)
        output = nodes[-1].args[0]
        self.results: list[Any] = list(output) if isinstance(output, (list, tuple)) else [output]

    def name(self, value: Any) -> str:
        """The expression of a value: a node's, or a symbolic number's."""
        if isinstance(value, SYMBOLIC):
            return expression_text(value.node.expr, self._symbols)
        if value not in self._texts:
            raise NotInCppError("internal", f"{value.format_node()} is read before it is made")
        return self._texts[value]

    def owns(self, value: Any) -> bool:
        """Whether a value is a tensor that the function may hand on: what it made, and inputs that are its own."""
        return value in self._own

    def kind(self, value: Any) -> str:
        """The kind of a value in C++."""
        return kind_of(value.meta.get("val") if isinstance(value, fx.Node) else value)

    # -- statements ----------------------------------------------------------------------------------------------------

    def _statement(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            self._constant(node)
            return
        if node.op != "call_function":
            raise refusal("module", node, f"is a {node.op} of another module")
        if node.target is operator.getitem and node in self._texts:
            self._delete(node)
            return
        self._comment(node)
        if isinstance(node.target, KernelCall):
            self._kernel(node, node.target)
        elif isinstance(node.target, CppTemplateCall):
            self._template(node, node.target)
        elif node.target is check_sizes:
            self._check_sizes(node)
        elif node.target in _SIZES:
            value, dim = node.args
            self._number(node, f"{self.name(value)}.{_SIZES[node.target]}({dim})")
        elif isinstance(node.target, compat.OpOverload):
            self._operator(node, node.target)
        else:
            self._python(node)
        self._delete(node)

    def _constant(self, node: fx.Node) -> None:
        value = operator.attrgetter(str(node.target))(self._module)
        if not isinstance(value, torch.Tensor):
            if not self._dialect.everywhere or all(_calls_graphs(user) for user in node.users):
                return  # Python gets it, or it is told by the operator that calls it
            raise refusal("constant", node, f"is a {type(value).__name__}, which is no constant of C++")
        self._texts[node] = self._tables.constant(f"constant {node.target}", value)

    def _comment(self, node: fx.Node) -> None:
        site = site_of(node)
        text = f"{site.file.rpartition('/')[2]}:{site.line}  {site.code}" if site is not None else ""
        if text != self._site:
            self.lines.append(f"// {text}".rstrip("\\? "))
            self._site = text
            if not self._dialect.everywhere:
                self.lines.append(f"frame.site = {len(self.sites) if site is not None else -1};")
                self.sites += [] if site is None else [str(site)]

    def _declare(self, node: fx.Node) -> str:
        """A name for a tensor that a statement sets."""
        name = self._texts[node] = self._names.make(node.name)
        self._own.add(node)
        return name

    def _number(self, node: fx.Node, text: str) -> None:
        kind = self.kind(node)
        if kind not in _TYPES or kind == "tensor":
            raise refusal("value", node, "is no number and no tensor")
        name = self._texts[node] = self._names.make(node.name)
        self.lines.append(f"const {_TYPES[kind]} {name} = {text};")

    def _python(self, node: fx.Node) -> None:
        text = None if _calls_graphs(node) else number_text(node, self.name)
        if text is not None:
            self._number(node, text)
        elif not self._dialect.everywhere:
            self._through_python(node, node.target, node.args, node.kwargs)
        elif _calls_graphs(node):
            raise refusal("control-flow", node, "is an operator that calls graphs, which Python runs")
        else:
            raise refusal("python", node, "is computed by Python")

    def _through_python(self, node: fx.Node, target: Any, args: Any, kwargs: Any) -> None:
        """A call that Python does, with the values that C++ has."""
        values: list[str] = []

        def slot(value: Any) -> Any:
            if isinstance(value, SYMBOLIC) or (isinstance(value, fx.Node) and value in self._texts):
                values.append(self.name(value))
                return Slot(len(values) - 1)
            if isinstance(value, fx.Node) and value.op == "get_attr":
                return operator.attrgetter(str(value.target))(self._module)
            if isinstance(value, fx.Node):
                raise NotInCppError("internal", f"{value.format_node()} is read before it is made")
            return value

        call = PythonCall(target, compat.tree_map(slot, tuple(args)), compat.tree_map(slot, dict(kwargs)))
        text = f"python({', '.join([str(len(self.functions)), *values])})"
        self.functions.append(call)
        self._take(node, text, listed=False)

    def _check_sizes(self, node: fx.Node) -> None:
        tensor, sizes = node.args
        for dim, size in sizes:  # type: ignore[union-attr]
            text = self.name(size) if isinstance(size, fx.Node) else integer_text(int(size))  # type: ignore[arg-type]
            self.lines.append(f"relied_on({self.name(tensor)}, {dim}, {text});")

    # -- kernels -------------------------------------------------------------------------------------------------------

    def _kernel(self, node: fx.Node, call: KernelCall) -> None:
        run = call.run
        if not isinstance(run, CppKernel):
            raise refusal("kernel", node, "is no kernel of C++")
        texts = dict(zip((*call.given, *call.sizes), map(self._value, node.args), strict=True))
        for buffer, result in zip(call.made, results(node), strict=True):
            reuse = self._plan.reuses.get(result)
            sizes, strides = (_list(index_text(n, texts) for n in part) for part in (buffer.sizes, buffer.strides))
            name = texts[buffer.name] = self._declare(result)
            if reuse is None:
                made = f"empty({sizes}, {strides}, {dtype_text(buffer.dtype)})"
            else:
                old = self.name(reuse.operand)
                made = f"over({old}, {sizes}, {strides})" if reuse.reshaped else old
            self.lines.append(f"Tensor {name} = {made};")
        self._launch(
            run, [texts[p.buffer.name] for p in call.kernel.params], [texts[s.name] for s in call.kernel.sizes]
        )

    def _launch(self, run: CppKernel, params: Sequence[str], sizes: Sequence[str]) -> None:
        function = self._tables.kernel(run.name, run.unit)
        numbers = {"i": "int64_t", "f": "double"}
        parts, pointers = [], []
        for position, (kind, text) in enumerate(zip(run.kinds, params, strict=True)):
            if kind in numbers:
                parts.append(f"{numbers[kind]} n{position} = {text};")
            pointers.append(f"&n{position}" if kind in numbers else f"memory({text})")
        parts.append(f"void* p[] = {{{', '.join(pointers)}}};")
        if sizes:
            parts.append(f"const long long z[] = {{{', '.join(f'(long long)({s})' for s in sizes)}}};")
        self.lines.append(f"{{ {' '.join(parts)} launch(::{function}, p, {'z' if sizes else 'nullptr'}); }}")

    def _template(self, node: fx.Node, kernel: CppTemplateCall) -> None:
        """A kernel of a template: what comes in another layout is copied into the one it was generated for."""
        placed = []
        for value, layout in zip(node.args, kernel.inputs, strict=True):
            name = self._names.make("placed")
            sizes, strides = (_list(map(integer_text, part)) for part in (layout.sizes, layout.strides))
            self.lines.append(f"const Tensor {name} = placed({self.name(value)}, {sizes}, {strides});")
            placed.append(name)
        out, name = kernel.output, self._declare(node)
        sizes, strides = (_list(map(integer_text, part)) for part in (out.sizes, out.strides))
        self.lines.append(f"Tensor {name} = empty({sizes}, {strides}, {dtype_text(out.dtype)});")
        function = self._tables.kernel(kernel.name, kernel.unit())
        pointers = ", ".join(f"memory({text})" for text in [*placed, name])
        given = f"const long long z[] = {{{', '.join(f'{n}ll' for n in kernel.numbers)}}}; " if kernel.numbers else ""
        numbers = "z" if kernel.numbers else "nullptr"
        self.lines.append(f"{{ void* p[] = {{{pointers}}}; {given}launch(::{function}, p, {numbers}); }}")

    # -- operators -----------------------------------------------------------------------------------------------------

    def _operator(self, node: fx.Node, target: Any) -> None:
        if target in _HINTS:
            return
        if target is _ASSERT:
            condition, message = node.args
            self.lines.append(f"require({self._value(condition)}, {string_text(str(message))});")
            return
        reuse = self._plan.reuses.get(node)
        view = self._views.strided(node) if self._reads_memory and reuse is None else None
        if view is not None:
            self._view(node, *view)
            return
        called = target if reuse is None else reuse.target
        keywords = {**node.kwargs, "out": reuse.operand} if reuse is not None and reuse.out else node.kwargs
        try:
            given = arguments(called, node.args, keywords, self.name)
            text = f"call({', '.join([self._tables.operator(called, node), *given])})"
        except NotInCppError:
            if self._dialect.everywhere:
                raise
            self._through_python(node, called, node.args, keywords)
            return
        self._take(node, text, listed=len(export.result_types(target)) == 1)

    def _take(self, node: fx.Node, text: str, *, listed: bool) -> None:
        """What is read of a call's results gets its name."""
        kind = self.kind(node)
        if kind == "none" and node.users and not isinstance(node.target, compat.OpOverload):
            raise refusal("value", node, "gives a value of unknown shape and dtype")
        if kind == "many":
            self._many(node, text, listed)
            return
        if kind == "none" or not (node.users or kind == "tensor"):
            self.lines.append(f"{text};")
            return
        if kind != "tensor":
            self._number(node, f"{_UNPACK[kind]}({text}, 0)")
            return
        name = self._declare(node)
        self.lines.append(f"Tensor {name} = tensor({text}, 0);")
        self._keep_promise(node, node)

    def _view(self, node: fx.Node, sizes: Iterable[int], strides: Iterable[int], offset: int) -> None:
        """A view by the sizes and strides that metadata promises, without a call."""
        source = self.name(node.args[0])
        seen, steps = (_list(map(integer_text, part)) for part in (sizes, strides))
        name = self._declare(node)
        word = "tracked" if self._is_tracked(node) else "strided"
        self.lines.append(f"Tensor {name} = {word}({source}, {seen}, {steps}, {integer_text(offset)});")

    def _is_tracked(self, node: fx.Node) -> bool:
        """Whether somebody else may see that a tensor is a view: the caller, or who writes to what it is a view of."""
        if self._dialect.everywhere:
            return False
        return not all(node in self._apart if user.op == "output" else self._only_reads(user) for user in node.users)

    def _only_reads(self, node: fx.Node) -> bool:
        """Whether a call neither writes to its operands nor gives parts of them that somebody else may see."""
        if isinstance(node.target, (KernelCall, CppTemplateCall)):
            return True
        if not isinstance(node.target, compat.OpOverload) or node in self._plan.reuses:
            return False
        schema = compat.schema(node.target)
        if schema.is_mutable:
            return False
        viewed = any(r.alias_info is not None for r in schema.returns)
        return not viewed or (self._views.strided(node) is not None and not self._is_tracked(node))

    def _many(self, node: fx.Node, text: str, listed: bool) -> None:
        """A call of several results, or of a list: those that are read are named in its own statement."""
        users = [user for user in node.users if user.target is operator.getitem and type(user.args[1]) is int]
        if len(users) != len(node.users):
            raise refusal("list", node, "gives a list that is passed on whole")
        read = "item" if listed else "tensor"
        inside = []
        for user in users:
            if self.kind(user) not in ("tensor", "none"):
                kind = self.kind(user)
                if listed or kind not in _TYPES:
                    raise refusal("value", node, "gives a value that is neither a tensor nor a number")
                name = self._texts[user] = self._names.make(user.name)
                self.lines.append(f"{_TYPES[kind]} {name};")
                inside.append(f"{name} = {_UNPACK[kind]}(r, {user.args[1]});")
                continue
            name = self._declare(user)
            self.lines.append(f"Tensor {name};")
            inside.append(f"{name} = {read}(r, {user.args[1]});")
        self.lines.append(f"{{ auto r = {text}; {' '.join(inside)} }}")
        for user in users:
            self._keep_promise(node, user)

    def _keep_promise(self, node: fx.Node, result: fx.Node) -> None:
        """What reads `result` relies on the strides that it was compiled for."""
        value = result.meta.get("val")
        trusted = not self._reads_memory or node in self._plan.reuses
        if trusted or not is_doubtful(node.target, value):
            return
        order = order_of(value)
        if order is not None:
            name = self._texts[result]
            self.lines.append(f"lay_out({name}, {{{', '.join(map(str, order))}}});")

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, value: Any) -> str:
        if isinstance(value, (fx.Node, *SYMBOLIC)):
            return self.name(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return integer_text(value)
        raise NotInCppError("value", f"the argument {value!r} of a kernel is not a number")

    def _delete(self, node: fx.Node) -> None:
        dead = [n for n in self._dying.get(node, []) if n in self._own]
        unread = [n for n in (node, *node.users) if n in self._own and not n.users]
        names = [self._texts[n] for n in dict.fromkeys([*dead, *unread])]
        if names:
            self.lines.append(" ".join(f"{name}.reset();" for name in names))


def _calls_graphs(node: fx.Node) -> bool:
    return isinstance(node.target, compat.HigherOrderOperator)


def _list(texts: Iterable[str]) -> str:
    return "{" + ", ".join(texts) + "}"
