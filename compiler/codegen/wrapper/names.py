"""Names and literals of generated Python: every value as an expression that means it again.

What has no spelling of its own (constant tensors, submodules, functions without a public path) goes to a table,
`objects`, and is called by a name that the generated module binds from that table.
"""

from __future__ import annotations

import builtins
import keyword
import math
import operator
import re
import sys
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.compat import memory
from ....rewrites.symbolic import SYMBOLIC
from ...ir.program import Buffer
from .huge_pages import empty_large, is_large

# Names that generated modules use for themselves.
_OWN = ("args", "call", "math", "objects", "operator", "torch")
_PUBLIC = {"_operator": "operator", "math": "math", "operator": "operator", "torch": "torch"}


class Identifiers:
    """Hands out Python identifiers, each once."""

    def __init__(self) -> None:
        self._taken = {*_OWN, *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}

    def make(self, wanted: str) -> str:
        """`wanted`, made an identifier and, where it is taken, numbered."""
        base = re.sub(r"\W", "_", wanted) or "value"
        base = f"_{base}" if base[0].isdigit() else base
        name, number = base, 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


class Spelling:
    """Spells the values of one graph; collects what the generated module must bind before the function can run.

    Args:
        graph_module: the graph's owner, to which `get_attr` nodes refer.
        unbound: nodes whose value is never bound to a name.
    """

    def __init__(self, graph_module: fx.GraphModule, unbound: set[fx.Node]) -> None:
        self._root = graph_module
        self._names = Identifiers()
        self.locals: dict[fx.Node, str] = {}
        self.symbols: dict[Any, str] = {}
        self.objects: dict[str, Any] = {}
        self.devices: dict[torch.device, str] = {}
        self.operators: dict[str, set[str]] = {}
        self.higher_order: dict[str, str] = {}
        self._spaces: dict[str, str] = {}
        for node in graph_module.graph.nodes:
            if node.op not in ("get_attr", "output") and node not in unbound:
                self.locals[node] = self._names.make(self._wanted(node))

    def _wanted(self, node: fx.Node) -> str:
        """Inputs that are sizes go by their symbol, others by the node's name."""
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.SymInt):
            return node.name
        symbol = value.node.expr
        if not symbol.is_Symbol or symbol in self.symbols:
            return node.name
        self.symbols[symbol] = str(symbol)
        return str(symbol)

    def value(self, value: Any) -> str:
        """The expression for one argument, with everything inside it."""
        if isinstance(value, fx.Node):
            return self.locals[value] if value in self.locals else self.attribute(value)
        if isinstance(value, (list, tuple, dict, slice)):
            return self._container(value)
        if isinstance(value, SYMBOLIC):
            return self._symbol(value)
        return self._scalar(value)

    def _scalar(self, value: Any) -> str:
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}math.{abs(value)}"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            if value not in self.devices:
                self.devices[value] = self._names.make(str(value))
            return self.devices[value]
        return self.object(value)

    def _container(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        items = [self.value(item) for item in value]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        text = f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        if type(value) is tuple:
            return text
        made = self.object(type(value))
        return f"{made}{text}" if hasattr(value, "_fields") else f"{made}({text})"

    def _symbol(self, value: Any) -> str:
        expr = value.node.expr
        if expr.is_Integer:
            return str(int(expr))
        if expr in self.symbols:
            return self.symbols[expr]
        raise NotImplementedError(f"the symbolic number {expr} is an argument, but no node of the graph computes it")

    def attribute(self, node: fx.Node) -> str:
        """The name of a constant, buffer or submodule of the graph's owner."""
        return self.object(operator.attrgetter(str(node.target))(self._root), str(node.target))

    def submodule(self, target: str) -> str:
        """The name of a submodule that is called."""
        return self.object(self._root.get_submodule(target), target)

    def object(self, value: Any, wanted: str = "") -> str:
        """The name under which `value` is bound from the table; one name for one object."""
        for name, known in self.objects.items():
            if known is value:
                return name
        name = self._names.make(wanted or getattr(value, "__name__", type(value).__name__))
        self.objects[name] = value
        return name

    def function(self, target: Any) -> str:
        """The expression for a function that a node calls."""
        path = compat.operator_path(target)
        if path is not None:
            namespace, packet, overload = path
            self.operators.setdefault(namespace, set()).add(f"{packet}.{overload}")
            return f"{self.space(namespace)}.{packet}.{overload}"
        name = getattr(target, "__name__", "")
        if isinstance(target, compat.HigherOrderOperator) and compat.is_registered(target):
            if name not in self.higher_order:
                self.higher_order[name] = self._names.make(name)
            return self.higher_order[name]
        module = _PUBLIC.get(getattr(target, "__module__", None) or "", "")
        if module and getattr(sys.modules[module], name, None) is target:
            return f"{module}.{name}"
        return self.object(target)

    def empty(self, buffer: Buffer) -> str:
        """The name of the function that allocates a buffer's memory."""
        device = buffer.device
        if is_large(buffer.sizes, buffer.dtype):
            return self.object(empty_large(device), f"empty_large_{device.type}")
        return self.object(memory.empty_strided(device), f"empty_strided_{device.type}")

    def space(self, namespace: str) -> str:
        """The name of an operator namespace such as `aten`."""
        if namespace not in self._spaces:
            self._spaces[namespace] = self._names.make(namespace)
        return self._spaces[namespace]
