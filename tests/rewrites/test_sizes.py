import math

import pytest
import sympy
import torch
import torch.utils._sympy.functions as torch_functions
from support.engine import X, calls, capture, ops
from torch.fx.experimental.sym_node import SymNode

from regraft.rewrites.editor import Editor
from regraft.rewrites.sizes import SizeTable


def reshaped(sizes):
    """`a` reshaped to sizes that are computed from its own, and the operators that this took."""
    module = capture(lambda a: torch.exp(a), X, dynamic=True)
    (exp,) = calls(module)
    editor = Editor(module.graph)
    with editor.at(exp):
        new = editor.call(torch.ops.aten.reshape.default, exp.args[0], sizes(*exp.meta["val"].shape))
    module.graph.output_node().replace_input_with(exp, new)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return module


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        (lambda m, n: [n, m], (5, 2)),
        (lambda m, n: [m * n], (10,)),
        (lambda m, n: [1, m * n, 1], (1, 10, 1)),
        (lambda m, n: [m, (n + 1) - 1], (2, 5)),
        (lambda m, n: [m * n // 1, 1], (10, 1)),
        (lambda m, n: [torch.sym_max(m, n), torch.sym_min(m, n)], (5, 2)),
    ],
)
def test_symbolic_sizes_become_nodes(sizes, shape):
    assert reshaped(sizes)(torch.randn(2, 5)).shape == shape


def test_a_size_is_read_once_right_after_the_inputs():
    module = reshaped(lambda m, n: [m, 1, n, 1])
    assert ops(module) == ["sym_size", "sym_size", "reshape"]


def test_plain_sizes_stay_plain():
    module = capture(lambda a: torch.exp(a), X)
    assert SizeTable(module.graph).resolve([1, (2, "s"), {"k": 3.5}, None]) == [1, (2, "s"), {"k": 3.5}, None]


def test_a_symbol_that_a_call_makes_known_is_read_after_it():
    module = capture(lambda a: torch.nonzero(a).relu(), X, dynamic=True)
    _, last = calls(module)
    editor = Editor(module.graph)
    with editor.at(last):
        new = editor.call(torch.ops.aten.ones.default, [last.meta["val"].shape[0] + 1])
        again = editor.call(torch.ops.aten.ones.default, [last.meta["val"].shape[0] * 2])
        both = editor.call(torch.ops.aten.cat.default, [new, again])
    module.graph.output_node().replace_input_with(last, both)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    assert [name for name in ops(module) if name == "sym_size"] == ["sym_size"]
    for count in (0, 1, 4):
        assert module(torch.arange(6)[:, None] < count).shape == (3 * count + 1,)


def test_a_symbol_that_nothing_makes_known_is_named():
    module = capture(lambda a: torch.exp(a), X, dynamic=True)
    unknown = calls(module)[0].meta["val"].shape[0].node.shape_env.create_unbacked_symint()
    with pytest.raises(NotImplementedError, match=f"no input has the size {unknown}"):
        SizeTable(module.graph).node(unknown)


def test_a_symbol_follows_from_a_size_that_is_a_sum_of_it():
    """A backward is given what a forward keeps, which may have the size `2 * s + t - 3`, and none that is `s`."""
    module = capture(lambda a: torch.exp(a), X, dynamic=True)
    (m, n) = next(node for node in module.graph.nodes if node.op == "placeholder").meta["val"].shape
    graph = torch.fx.Graph()
    for k, sizes in enumerate(([2 * m + n - 3], [n], [m // 2])):
        given = graph.placeholder(f"given_{k}")
        given.meta["val"] = torch.empty(sizes, device="meta")
    made = SizeTable(graph).node(m * 2)
    graph.output(made)
    graph.lint()
    run = torch.fx.GraphModule({}, graph)
    for s, t in ((5, 2), (3, 9), (0, 3)):
        assert run(torch.ones(2 * s + t - 3), torch.ones(t), torch.ones(s // 2)) == 2 * s


S, T = sympy.Symbol("s", integer=True, positive=True), sympy.Symbol("t", integer=True, positive=True)
REAL = torch_functions.IntTrueDiv(S, 7)
# Every function that torch makes numbers with: an expression, and what it must come to.
FUNCTIONS = {
    "BitwiseFn_bitwise_and": lambda f: (f(S, T), lambda s, t: s & t),
    "BitwiseFn_bitwise_or": lambda f: (f(S, T), lambda s, t: s | t),
    "BitwiseFn_bitwise_xor": lambda f: (f(S, T), lambda s, t: s ^ t),
    "CeilDiv": lambda f: (f(S, T), lambda s, t: -(-s // t)),
    "CeilToInt": lambda f: (f(REAL), lambda s, t: math.ceil(s / 7)),
    "CleanDiv": lambda f: (f(S, T), lambda s, t: s // t),
    "FloatPow": lambda f: (f(torch_functions.ToFloat(S), 0.5), lambda s, t: s**0.5),
    "FloatTrueDiv": lambda f: (f(torch_functions.ToFloat(S), 2.5), lambda s, t: s / 2.5),
    "FloorDiv": lambda f: (f(S, T), lambda s, t: s // t),
    "FloorToInt": lambda f: (f(-REAL), lambda s, t: math.floor(-(s / 7))),
    "Identity": lambda f: (f(S) + 1, lambda s, t: s + 1),
    "IntTrueDiv": lambda f: (f(S, T), lambda s, t: s / t),
    "LShift": lambda f: (f(S, T), lambda s, t: s << t),
    "Max": lambda f: (f(S, T, 9), lambda s, t: max(s, t, 9)),
    "Min": lambda f: (f(S, T, 9), lambda s, t: min(s, t, 9)),
    "Mod": lambda f: (f(S, T), lambda s, t: s % t),
    "ModularIndexing": lambda f: (f(S, 2, T), lambda s, t: s // 2 % t),
    "PowByNatural": lambda f: (f(2, T), lambda s, t: 2**t),
    "PythonMod": lambda f: (f(-S, T), lambda s, t: -s % t),
    "RShift": lambda f: (f(S, T), lambda s, t: s >> t),
    "RoundDecimal": lambda f: (f(REAL, 2), lambda s, t: round(s / 7, 2)),
    "RoundToInt": lambda f: (f(torch_functions.IntTrueDiv(S, 2)), lambda s, t: round(s / 2)),
    "ToFloat": lambda f: (f(S) * 0.3, lambda s, t: s * 0.3),
    "TruncToFloat": lambda f: (f(-REAL), lambda s, t: float(math.trunc(-(s / 7)))),
    "TruncToInt": lambda f: (f(-REAL), lambda s, t: math.trunc(-(s / 7))),
    "Where": lambda f: (f(sympy.Gt(S, T), S, T * 2), lambda s, t: s if s > t else 2 * t),
} | {
    f"OpaqueUnaryFn_{name}": lambda f, name=name: (
        f(torch_functions.FloatTrueDiv(1.0, torch_functions.ToFloat(S))),
        lambda s, t: getattr(math, name)(1.0 / s),
    )
    for name in ("sqrt", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")
}
# Guards only, tensors' layouts; functions that symbolic numbers do not have: Python calls them on plain ones.
OTHERS = {
    "IsNonOverlappingAndDenseIndicator",
    "MinMaxBase",
    *(f"OpaqueUnaryFn_{name}" for name in ("exp", "log", "asinh")),
}
# What sympy itself brings.
SYMPY = {
    "sums": (S + 2 * T - 3, lambda s, t: s + 2 * t - 3),
    "powers": (S**3 * T, lambda s, t: s**3 * t),
    "absolute": (abs(S - T), lambda s, t: abs(s - t)),
    "choice": (
        sympy.Piecewise((S, sympy.Gt(S, T + 5)), (T * 3, sympy.Lt(S, 3)), (S + T, True)),
        lambda s, t: s if s > t + 5 else 3 * t if s < 3 else s + t,
    ),
    "conditions": (
        sympy.And(sympy.Ge(S, T), sympy.Or(sympy.Ne(S, 6), sympy.Eq(T, 4))) | sympy.Le(S, 2),
        lambda s, t: (s >= t and (s != 6 or t == 4)) or s <= 2,
    ),
}


def test_the_table_of_functions_is_complete():
    kinds = {
        name
        for name, kind in vars(torch_functions).items()
        if isinstance(kind, type) and issubclass(kind, sympy.Basic) and kind.__module__ == torch_functions.__name__
    }
    assert kinds <= FUNCTIONS.keys() | OTHERS


def computed(expr, hint):
    """A graph of tensors (s, t) that gives what an expression of their sizes comes to, by its nodes."""
    module = capture(lambda a: torch.exp(a), X, dynamic=True)
    s, t = calls(module)[0].meta["val"].shape
    expr = expr.subs({S: s.node.expr, T: t.node.expr})
    make = {bool: torch.SymBool, int: torch.SymInt, float: torch.SymFloat}[type(hint)]
    with module.graph.inserting_before(calls(module)[0]):
        node = SizeTable(module.graph).node(make(SymNode(expr, s.node.shape_env, type(hint), hint)))
    assert isinstance(node.meta["val"], make)
    module.graph.output_node().args = (node,)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return module


@pytest.mark.parametrize("name", [*FUNCTIONS, *SYMPY])
def test_every_function_of_symbols_is_computed_as_python_does(name):
    if name in FUNCTIONS and not hasattr(torch_functions, name):
        pytest.skip("this torch does not have it")
    expr, wanted = FUNCTIONS[name](getattr(torch_functions, name)) if name in FUNCTIONS else SYMPY[name]
    module = computed(expr, wanted(*X.shape))
    pairs = [(2, 5), (5, 2), (6, 4), (9, 3), (12, 6), (17, 4), (17, 2)]
    if name == "CleanDiv":
        pairs = [(6, 3), (12, 4)]
    for s, t in pairs:
        found = module(torch.empty(s, t))
        assert found == wanted(s, t) and type(found) is type(wanted(s, t)), (s, t)


def test_expressions_without_an_operator_are_named():
    with pytest.raises(NotImplementedError, match="no graph operation for the symbolic expression"):
        computed(sympy.gamma(S), 1)
