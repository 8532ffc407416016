"""The registry of `node.meta` keys: every key that is read or written has its entry, and every entry is in use."""

import ast
import functools
from pathlib import Path

from regraft.rewrites.meta import KEYS

ROOT = Path(__file__).resolve().parents[2]
FILES = [file for room in ("rewrites", "patterns", "compiler") for file in (ROOT / room).rglob("*.py")]
TAKES_A_KEY = ("get", "pop", "setdefault")


def is_meta(node):
    return isinstance(node, ast.Attribute) and node.attr == "meta"


def keys_in(tree):
    """The expressions that stand for keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_meta(node.value):
            yield node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_meta(node.func.value):
            yield from node.args[:1] if node.func.attr in TAKES_A_KEY else []
        elif isinstance(node, ast.Compare) and any(map(is_meta, node.comparators)):
            yield node.left
        elif isinstance(node, ast.Dict) and any(
            key is None and is_meta(value) for key, value in zip(node.keys, node.values, strict=True)
        ):
            yield from filter(None, node.keys)


def constants(tree):
    """The strings of a module that have names."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        values = (
            node.value.elts if isinstance(getattr(node, "value", None), ast.Tuple) else [getattr(node, "value", None)]
        )
        names = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
        for name, value in zip(names, values, strict=False):
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield name.id, value.value


@functools.cache
def used():
    """Keys and files; the trees themselves, which every collection of garbage would go through, are not kept."""
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    named = {name: value for tree in trees.values() for name, value in constants(tree) if value in KEYS}
    found = set()
    for file, tree in trees.items():
        own = dict(constants(tree))
        for key in keys_in(tree):
            if isinstance(key, ast.Constant):
                found.add((key.value, file))
            elif isinstance(key, ast.Name) and key.id.isupper() and (known := own.get(key.id) or named.get(key.id)):
                found.add((known, file))
    return found


def test_every_key_is_registered():
    assert not {(key, file.name) for key, file in used() if key not in KEYS}


def test_every_entry_is_in_use():
    texts = "\n".join(file.read_text() for file in FILES if file.name != "meta.py")
    assert not [key for key in KEYS if f'"{key}"' not in texts]


def test_writers_exist_and_name_the_key():
    named = {key: {file.relative_to(ROOT).as_posix() for name, file in used() if name == key} for key in KEYS}
    for key, entry in KEYS.items():
        if entry.written != "torch":
            assert entry.written in named[key] or f'"{key}"' in (ROOT / entry.written).read_text(), key
