"""The rules of the house that no linter knows: rooms and their order, torch's private parts, sizes, packages."""

import ast
import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("rewrites", "patterns", "compiler")
SOURCES = sorted([*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))])
TESTS = sorted((ROOT / "tests").rglob("*.py"))

TORCH_PRIVATE = set((ROOT / "rewrites" / "compat").glob("*.py"))
# Operators, dispatch modes, the dispatcher of symbolic programs and functions of their numbers are what torch.fx lives
# on, but have no public name.
_OF_NUMBERS = ("sqrt", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")
TORCH_NAMELESS = (
    "torch._C._AutoDispatchBelowAutograd",
    "torch._ops",
    "torch._dispatch.python.enable_python_dispatcher",
    "torch.utils._python_dispatch.TorchDispatchMode",
    *(f"torch._sym_{name}" for name in _OF_NUMBERS),
)
MAX_LINES, MAX_FUNCTION_LINES = 600, 60


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@functools.cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(file: Path) -> Iterator[tuple[str, ...]]:
    """Absolute dotted paths of what a file imports, the package being `regraft`: ("regraft", "rewrites", ...)."""
    package = ("regraft", *file.relative_to(ROOT).parent.parts)
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*module, alias.name) for alias in node.names)


def room(path: tuple[str, ...]) -> str:
    return path[1] if len(path) > 1 and path[0] == "regraft" and path[1] in ROOMS else ""


def findings(look: Callable[[Path], Iterable[str]], files: Iterable[Path]) -> dict[str, list[str]]:
    """What `look` objects to, by file."""
    return {name(file): found for file in files if (found := sorted(set(look(file))))}


def test_sources_are_found():
    assert {name(file).split("/")[0] for file in SOURCES} >= {"__init__.py", *ROOMS}


def test_imports_run_from_compiler_to_patterns_to_rewrites():
    def wrong(file: Path) -> Iterator[str]:
        own = room(("regraft", *file.relative_to(ROOT).parts))
        allowed = ROOMS[: ROOMS.index(own) + 1] if own else ROOMS
        return (".".join(path) for path in imports(file) if room(path) and room(path) not in allowed)

    assert not findings(wrong, SOURCES)


def test_imports_inside_the_package_are_relative():
    def absolute(file: Path) -> Iterator[str]:
        for node in ast.walk(parse(file)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            yield from (path for path in names if path.split(".")[0] == "regraft")

    assert not findings(absolute, SOURCES)


def test_nothing_of_inductor_is_used():
    def inductor(file: Path) -> Iterator[str]:
        return (".".join(path) for path in imports(file) if path[:2] == ("torch", "_inductor"))

    assert not findings(inductor, SOURCES + TESTS)


def test_private_parts_of_torch_are_touched_in_one_place():
    def private(file: Path) -> Iterator[str]:
        paths = [
            ".".join(path) for path in imports(file) if path[0] == "torch" and any(p.startswith("_") for p in path)
        ]
        paths += [f"torch.{node.attr}" for node in ast.walk(parse(file)) if _is_private_of_torch(node)]
        return (path for path in paths if path not in TORCH_NAMELESS)

    found = findings(private, [file for file in SOURCES if file not in TORCH_PRIVATE])
    assert not found, "put functions that use these into rewrites/compat/"


def _is_private_of_torch(node: ast.AST) -> bool:
    is_torch = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"
    return is_torch and node.attr.startswith("_") and not node.attr.startswith("__")


def test_files_are_short():
    lengths = {name(file): len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES + TESTS}
    assert not {file: lines for file, lines in lengths.items() if lines > MAX_LINES}


def test_functions_are_short():
    def long(file: Path) -> Iterator[str]:
        for node in ast.walk(parse(file)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                yield from [f"{node.name}: {lines} lines"] if lines > MAX_FUNCTION_LINES else []

    assert not findings(long, SOURCES + TESTS)


def test_every_module_says_what_it_is_for():
    assert not [name(file) for file in SOURCES if not ast.get_docstring(parse(file))]


def test_no_path_of_some_machine():
    def paths(file: Path) -> list[str]:
        return re.findall(r"/(?:root|work|Users)/\w+|/home/(?!u\b)\w+", file.read_text(encoding="utf-8"))

    documents = [f for f in [*(ROOT / "docs").rglob("*"), ROOT / "README.md"] if f.is_file()]
    assert not findings(paths, [file for file in [*SOURCES, *TESTS, *documents] if file != Path(__file__)])


def test_package_list_is_complete():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    folders = {file.parent.relative_to(ROOT).parts for file in SOURCES}
    assert listed == {".".join(("regraft", *parts)) for parts in folders}
    assert all((ROOT / Path(*package.split(".")[1:]) / "__init__.py").exists() for package in listed)


def test_the_fence_sees_a_wrong_import(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "rewrites").mkdir()
    file = tmp_path / "rewrites" / "bad.py"
    file.write_text("from ..compiler import wrapper\nfrom .. import patterns\nimport torch._dynamo\n")
    assert {room(path) for path in imports(file)} == {"compiler", "patterns", ""}
