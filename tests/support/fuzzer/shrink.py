"""Makes a failing source smaller: statements go, expressions become their operands, settings and inputs plain."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator

from .runner import Verdict

Check = Callable[[str], Verdict]
_SEED = "manual_seed("


def shrink(text: str, kind: str, check: Check, seconds: float = 60.0) -> str:
    """The smallest source found that is wrong in the same way.

    Args:
        text: a source that fails.
        kind: of its failure.
        check: what runs a source.
        seconds: after which the smallest so far is given.
    """
    end, tried = time.monotonic() + seconds, {text}
    found = True
    while found:
        found = False
        for candidate in _smaller(text):
            if time.monotonic() > end:
                return text
            if candidate in tried or len(candidate) > len(text) + 12:
                continue
            tried.add(candidate)
            if _fails(candidate, kind, check):
                text, found = candidate, True
                break
    return text


def _fails(text: str, kind: str, check: Check) -> bool:
    try:
        verdict = check(text)
    except Exception:
        return False
    return verdict.outcome == "wrong" and verdict.failure is not None and verdict.failure.kind == kind


def _smaller(text: str) -> Iterator[str]:
    """Smaller sources, of which each seeds what `text` seeds: without a seed, all runs have other inputs."""
    tree = ast.parse(text)
    for change in (_without_statements, _unwrapped, _fewer_results, _plainer_how, _operands, _plainer_numbers):
        for made in change(tree):
            candidate = ast.unparse(ast.fix_missing_locations(made))
            if candidate.count(_SEED) >= text.count(_SEED):
                yield candidate


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Lists of statements that may be shortened, long ones first."""
    found = [
        body
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.If, ast.For, ast.With)) and (body := node.body)
    ]
    yield from sorted(found, key=len, reverse=True)


def _without_statements(tree: ast.Module) -> Iterator[ast.Module]:
    """A stretch of statements fewer: halves, quarters, single ones, from the end."""
    for place, body in enumerate(_bodies(tree)):
        size = max(1, len(body) // 2)
        while size:
            for start in range(len(body) - size, -1, -1):
                if size > 1 and start % size:
                    continue
                if not any(isinstance(s, ast.Return) for s in body[start : start + size]) and len(body) > size:
                    made = copy.deepcopy(tree)
                    del list(_bodies(made))[place][start : start + size]
                    yield made
            size //= 2


def _unwrapped(tree: ast.Module) -> Iterator[ast.Module]:
    """A block in place of its statement."""
    for place, body in enumerate(_bodies(tree)):
        for k, statement in enumerate(body):
            if isinstance(statement, (ast.If, ast.For, ast.With)):
                made = copy.deepcopy(tree)
                new = list(_bodies(made))[place]
                new[k : k + 1] = new[k].body  # type: ignore[attr-defined]
                yield made


def _fewer_results(tree: ast.Module) -> Iterator[ast.Module]:
    """A result or an argument fewer, a name at both places of an argument."""
    for place, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Return) and isinstance(node.value, (ast.Tuple, ast.List)) and len(node.value.elts) > 1:
            for k in range(len(node.value.elts)):
                made = copy.deepcopy(tree)
                del list(ast.walk(made))[place].value.elts[k]  # type: ignore[attr-defined]
                yield made
    yield from _fewer_arguments(tree)


def _fewer_arguments(tree: ast.Module) -> Iterator[ast.Module]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    target = functions.get("program") or functions.get("forward")
    if target is None or "given" not in functions:
        return
    names = [a.arg for a in target.args.args if a.arg != "self"]
    for name in names:
        made = copy.deepcopy(tree)
        new = {node.name: node for node in ast.walk(made) if isinstance(node, ast.FunctionDef)}
        function = new.get("program") or new["forward"]
        function.args.args = [a for a in function.args.args if a.arg != name]
        last = new["given"].body[-1]
        if isinstance(last, ast.Return) and isinstance(last.value, ast.List):
            last.value.elts = [e for e in last.value.elts if not (isinstance(e, ast.Name) and e.id == name)]
            yield made


_PLAIN = {"dynamic": (False, None, True), "grad": (False,), "mode": ("",), "autocast": ("",), "capture": (False,),
          "profit": ("never",), "freezing": (False,), "rng": ("statistical",)}  # fmt: skip


def _plainer_how(tree: ast.Module) -> Iterator[ast.Module]:
    """A setting at its default, calls fewer."""
    for place, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.Dict):
            continue
        for k, key in enumerate(node.keys):
            value = node.values[k]
            if not isinstance(key, ast.Constant) or not isinstance(value, ast.Constant):
                continue
            choices = _PLAIN.get(str(key.value), ())
            for plain in choices[: choices.index(value.value)] if value.value in choices else choices:
                made = copy.deepcopy(tree)
                list(ast.walk(made))[place].values[k] = ast.Constant(plain)  # type: ignore[attr-defined]
                yield made
    if not any(isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "CALLS" for n in tree.body):
        for calls in (1, 2):
            made = copy.deepcopy(tree)
            made.body.insert(-2, ast.parse(f"CALLS = {calls}").body[0])
            yield made


class _Replace(ast.NodeTransformer):
    """Puts an expression in the place of another."""

    def __init__(self, place: ast.AST, new: ast.expr) -> None:
        self._place, self._new = place, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._place else super().generic_visit(node)


def _replaced(tree: ast.Module, place: int, new: ast.expr) -> ast.Module:
    made = copy.deepcopy(tree)
    return _Replace(list(ast.walk(made))[place], copy.deepcopy(new)).visit(made)


def _operands(tree: ast.Module) -> Iterator[ast.Module]:
    """An expression's operand in its place."""
    for place, node in enumerate(ast.walk(tree)):
        for operand in _operands_of(node):
            yield _replaced(tree, place, operand)


def _operands_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        method = isinstance(node.func, ast.Attribute) and not (
            isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F", "nn", "math")
        )
        own = [node.func.value] if method and isinstance(node.func, ast.Attribute) else []
        return [*own, *[a for a in node.args if not isinstance(a, ast.Constant | ast.Starred)]]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Subscript) and not isinstance(node.value, ast.Attribute):
        if isinstance(node.value, ast.Tuple) and isinstance(node.slice, ast.Name):
            return node.value.elts[:1]
        return [node.value]
    return []


def _plainer_numbers(tree: ast.Module) -> Iterator[ast.Module]:
    """Smaller sizes."""
    for place, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 3:
            for value in (2, 3):
                yield _replaced(tree, place, ast.Constant(value))
