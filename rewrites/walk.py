"""The walk that passes share, with its editor and its count of changes; a changed graph's code is written again.

    @replaces_calls(aten.neg.default)                  y = undo_negation(editor, call)      for each call of `neg`
    def undo_negation(editor, call):           ->      readers of the call read y; the call is erased
        ...                                            the graph's code is written again, once

A call that was erased on the way is not visited, nor is one that was made on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import fx

from . import compat
from .editor import Editor
from .graph import val
from .layout import adapt_users, same_layout

P = ParamSpec("P")
T = TypeVar("T")
AtCall = Callable[Concatenate[Editor, fx.Node, P], T]
OnGraph = Callable[Concatenate[fx.GraphModule, P], T]


def recompiles(run: OnGraph[P, T]) -> OnGraph[P, T]:
    """A pass after which the code of the graph is written again, if it has returned changes."""

    @functools.wraps(run)
    def recompiled(graph_module: fx.GraphModule, /, *args: P.args, **kwargs: P.kwargs) -> T:
        made = run(graph_module, *args, **kwargs)
        if made:
            graph_module.recompile()
        return made

    return recompiled


def visits_calls(*targets: Any, backwards: bool = False) -> Callable[[AtCall[P, int]], OnGraph[P, int]]:
    """Make a pass of a function that changes a graph at one call, and returns the number of changes.

    Args:
        targets: the operators whose calls are visited, in the order of the graph.
        backwards: the last call is visited first.
    """

    def declare(change: AtCall[P, int]) -> OnGraph[P, int]:
        @recompiles
        @functools.wraps(change)
        def run(graph_module: fx.GraphModule, /, *args: P.args, **kwargs: P.kwargs) -> int:
            calls = calls_of(graph_module.graph, targets)
            if not calls:
                return 0
            editor, made = Editor(graph_module.graph), 0
            for call in reversed(calls) if backwards else calls:
                if not compat.is_erased(call):
                    made += change(editor, call, *args, **kwargs)
            return made

        return run

    return declare


def replaces_calls(
    *targets: Any, backwards: bool = False, same_strides: bool = False
) -> Callable[[AtCall[P, fx.Node | None]], OnGraph[P, int]]:
    """Make a pass of a function that computes the result of one call in another way, or returns None.

    Args:
        targets: the operators whose calls are visited, in the order of the graph.
        backwards: the last call is visited first.
        same_strides: a result with other strides is dropped, and the call stays.
    """

    def declare(computed: AtCall[P, fx.Node | None]) -> OnGraph[P, int]:
        @visits_calls(*targets, backwards=backwards)
        @functools.wraps(computed)
        def change(editor: Editor, call: fx.Node, /, *args: P.args, **kwargs: P.kwargs) -> int:
            with editor.at(call):
                new = computed(editor, call, *args, **kwargs)
            return new is not None and put_in_place(editor, call, new, same_strides=same_strides)

        return change

    return declare


def put_in_place(editor: Editor, old: fx.Node, new: fx.Node, *, same_strides: bool = False) -> bool:
    """Let all that read `old` read `new`, and erase `old`.

    With `same_strides`, a value with other strides is erased instead, and the result is False.
    """
    fits = not same_strides or same_layout(val(old), val(new))
    if fits:
        editor.replace(old, new)
    editor.erase_dead(old if fits else new)
    return fits


def put_adapted(editor: Editor, old: fx.Node, new: fx.Node, *, keep_stream: bool = False) -> None:
    """Let all that read `old` read `new`, erase `old`, and adapt the readers to the strides of `new`.

    With `keep_stream`, random numbers must be the same as eager's.
    """
    moved = not same_layout(val(old), val(new))
    if moved:
        new.meta["regraft_layout"] = val(old)
    put_in_place(editor, old, new)
    if moved:
        adapt_users(editor.graph, [new], keep_stream=keep_stream)


def calls_of(graph: fx.Graph, targets: Collection[Any]) -> list[fx.Node]:
    """The calls of operators, in the order of the graph."""
    found = [node for target in targets for node in graph.find_nodes(op="call_function", target=target)]
    return sorted(found) if len(targets) > 1 else found
