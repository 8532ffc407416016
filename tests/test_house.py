"""The rules of the house that no linter knows: rooms and their order, torch's private parts, sizes, numbers."""

import ast
import functools
import graphlib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.constants import DECIDING, bare_numbers, choices, constants, fixed, sources
from support.thorough import THOROUGH, leave_out_turns

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("rewrites", "patterns", "compiler")
SOURCES = sorted([*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))])
TESTS = sorted((ROOT / "tests").rglob("*.py"))

TORCH_PRIVATE = set((ROOT / "rewrites" / "compat").glob("*.py"))
# Dispatch modes and the dispatcher of symbolic programs are what torch.fx lives on, but have no public name.
TORCH_NAMELESS = (
    "torch._C._AutoDispatchBelowAutograd",
    "torch._dispatch.python.enable_python_dispatcher",
    "torch.utils._python_dispatch.TorchDispatchMode",
)
# Attributes of torch that have the name of something of ours.
PRIVATE_OF_TORCH = {"_version"}
# Attributes that others than torch keep private: Hugging Face's constructor from a configuration.
PRIVATE_ELSEWHERE = {"_from_config"}
# The folders and files of `compiler/`, each above those that it may import.
FLOORS = (
    "ir", "options", "gpu", "storage", "prims", "autotune", "normal", "schedule", "lowering", "autograd", "codegen",
    "passes", "capture", "runtime", "freezing", "templates", "pipeline", "stages", "graph_code", "backend", "aot",
    "tools",
)  # fmt: skip
# Arithmetic, bounds and division of indices define each other.
RECURSIVE = ROOT / "compiler" / "ir" / "index"
MAX_LINES, MAX_TEST_LINES, MAX_FUNCTION_LINES = 500, 600, 60
NO_ROW = SimpleNamespace(params={})
MAX_ROWS = 120  # of a test's table of several parameters, in short runs


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@functools.cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, so that each test need not walk them again."""
    return tuple(ast.walk(parse(file)))


def imports(file: Path) -> Iterator[tuple[str, ...]]:
    """Absolute dotted paths of what a file imports, the package being `regraft`: ("regraft", "rewrites", ...)."""
    package = ("regraft", *file.relative_to(ROOT).parent.parts)
    for node in nodes(file):
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


def test_folders_of_the_compiler_import_what_is_below_them():
    """Also inside functions and for types alone; so no folders import each other in a circle."""

    def wrong(file: Path) -> Iterator[str]:
        own = file.relative_to(ROOT).with_suffix("").parts
        allowed = FLOORS[: FLOORS.index(own[1]) + 1] if own[1] != "__init__" else ()
        below = (path for path in imports(file) if path[:2] == ("regraft", "compiler") and len(path) > 2)
        return (".".join(path) for path in below if path[2] not in allowed)

    assert not findings(wrong, (ROOT / "compiler").rglob("*.py"))


def test_modules_do_not_import_each_other_in_circles():
    """Also inside functions and for types alone."""
    modules = {module_of(file): file for file in SOURCES}

    def imported(file: Path) -> set[tuple[str, ...]]:
        found = {path if path in modules else path[:-1] for path in imports(file)}
        together = module_of(file) if RECURSIVE in file.parents else ()
        return {path for path in found & modules.keys() if path != module_of(file) and path[:-1] != together[:-1]}

    graphlib.TopologicalSorter({module: imported(file) for module, file in modules.items()}).prepare()


def module_of(file: Path) -> tuple[str, ...]:
    parts = ("regraft", *file.relative_to(ROOT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def test_every_folder_of_the_compiler_has_its_floor():
    present = {p.stem for p in (ROOT / "compiler").iterdir() if (p / "__init__.py").exists() or p.suffix == ".py"}
    assert present - {"__init__"} == set(FLOORS)


def test_imports_inside_the_package_are_relative():
    def absolute(file: Path) -> Iterator[str]:
        for node in nodes(file):
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
        paths += [f"torch.{node.attr}" for node in nodes(file) if _is_private_of_torch(node)]
        return (path for path in paths if path not in TORCH_NAMELESS)

    found = findings(private, [file for file in SOURCES if file not in TORCH_PRIVATE])
    assert not found, "put functions that use these into rewrites/compat/"


def test_private_attributes_are_those_of_regraft():
    """A private attribute that no code of regraft defines is somebody else's: torch's belong into `rewrites/compat`."""
    own = set().union(*(defined(file) for file in SOURCES)) - PRIVATE_OF_TORCH | PRIVATE_ELSEWHERE

    def foreign(file: Path) -> Iterator[str]:
        for node in nodes(file):
            if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in own:
                holder = ast.unparse(node.value)
                yield from [] if holder == "self" or is_namespace(holder) else [f"{holder}.{node.attr}"]

    assert not findings(foreign, [file for file in SOURCES if file not in TORCH_PRIVATE])


def defined(file: Path) -> Iterator[str]:
    """Names of functions, classes, variables and attributes that a file defines."""
    for node in nodes(file):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def is_namespace(holder: str) -> bool:
    """Whether an expression names a namespace of operators, in which a leading underscore is part of a name."""
    return holder in ("aten", "prims") or holder.startswith("torch.ops.")


def _is_private_of_torch(node: ast.AST) -> bool:
    is_torch = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"
    return is_torch and node.attr.startswith("_") and not node.attr.startswith("__")


def test_files_are_short():
    for files, limit in ((SOURCES, MAX_LINES), (TESTS, MAX_TEST_LINES)):
        lengths = {name(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
        assert not {file: lines for file, lines in lengths.items() if lines > limit}


def test_functions_are_short():
    def long(file: Path) -> Iterator[str]:
        for node in nodes(file):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                yield from [f"{node.name}: {lines} lines"] if lines > MAX_FUNCTION_LINES else []

    assert not findings(long, SOURCES + TESTS)


def test_a_class_name_stands_for_one_class():
    """In each room and across rooms: a reader who meets a name need not ask which of several it is."""
    places: dict[str, list[str]] = {}
    for file in SOURCES:
        for node in nodes(file):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name(file))
    assert not {found: files for found, files in places.items() if len(files) > 1}


def test_every_module_says_what_it_is_for():
    assert not [name(file) for file in SOURCES if not ast.get_docstring(parse(file))]


def test_no_path_of_some_machine():
    def paths(file: Path) -> list[str]:
        return re.findall(r"/(?:root|work|Users)/\w+|/home/(?!u\b)\w+", file.read_text(encoding="utf-8"))

    documents = [f for f in [*(ROOT / "docs").rglob("*"), ROOT / "README.md"] if f.is_file() and f.suffix != ".pyc"]
    assert not findings(paths, [file for file in [*SOURCES, *TESTS, *documents] if file != Path(__file__)])


def test_package_list_is_complete():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    folders = {file.parent.relative_to(ROOT).parts for file in SOURCES}
    assert listed == {".".join(("regraft", *parts)) for parts in folders}
    assert all((ROOT / Path(*package.split(".")[1:]) / "__init__.py").exists() for package in listed)


def test_every_constant_has_one_row():
    """Numbers that steer choices, see `docs/constants.md` for the rule."""
    rows, found = [*(key for key, _ in choices()), *fixed()], {(c.file, c.name): c for c in constants()}
    assert len(rows) == len(set(rows)), "a constant is listed twice"
    missing = [
        f"{c.file}: | `{c.name}` | {c.spelled} | {c.comment} | ..." for key, c in found.items() if key not in rows
    ]
    assert not missing, "add these rows to docs/constants.md, with what the values rest on"
    assert not set(rows) - set(found), "docs/constants.md lists constants that are gone"


def test_values_are_those_of_the_sources():
    values = {(c.file, c.name): c.spelled for c in constants()}
    wrong = {key: (cells[0], values[key]) for key, cells in choices() if cells[0] != values[key]}
    assert not wrong, "(listed, in the source): a changed value needs a new day, and a new measurement or 'estimate'"


def test_entries_of_the_changelog_are_whole():
    """Git joins what branches add to it without asking (`.gitattributes`)."""
    lines = (ROOT / "CHANGELOG.md").read_text().split("\n")
    assert not [line for line in lines if line and not re.match(r"#{1,3} \S|( {2})*- \S|( {2})+\S", line)]
    entries = [text.strip() for text in re.split(r"\n(?=- |#|\n)", "\n".join(lines))]
    beginnings = Counter(text[:80] for text in entries if text)  # of an entry that two branches reword, Git keeps both
    assert not [text for text, count in beginnings.items() if count > 1]
    assert not [text for text in entries if text.startswith("- ") and not text.endswith((".", ":", ")", "`", "|"))]


def test_rows_are_whole():
    for key, (_, what, device, since, basis) in choices():
        assert what and device in ("any", "CPU", "GPU", "A100", "H100", "H200"), key
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", since), key
        kind, _, command = basis.partition(": ")
        assert kind in ("measured", "estimate", "limit") and bool(command) == (kind == "measured"), key
        assert device in ("H100", "H200") if kind == "measured" and "gpu" in command else True, key
        assert not command or (ROOT / command.strip("`")).exists(), f"{key}: no such command"


def test_numbers_in_comparisons_have_names():
    """Above 16, but for compute capabilities and ranges of types (``2**32``)."""
    found = {}
    for file in sources():
        path = file.relative_to(ROOT).as_posix()
        bare = list(bare_numbers(ast.parse(file.read_text()))) if path.startswith(DECIDING) else []
        found |= {path: bare} if bare else {}
    assert not found


def test_the_fence_sees_a_wrong_import(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "rewrites").mkdir()
    file = tmp_path / "rewrites" / "bad.py"
    file.write_text("from ..compiler import wrapper\nfrom .. import patterns\nimport torch._dynamo\n")
    assert {room(path) for path in imports(file)} == {"compiler", "patterns", ""}


def test_long_tables_take_turns(request: pytest.FixtureRequest) -> None:
    """All pairs of two parameters, triples of three: in short runs, one of them takes turns (`takes_turns`)."""
    rows: Counter[str] = Counter()
    for item in request.session.items:
        if len(getattr(item, "callspec", NO_ROW).params) > 1 and not any(item.iter_markers("skip")):
            rows[item.nodeid.partition("[")[0]] += 1
    assert THOROUGH or not {test: count for test, count in rows.items() if count > MAX_ROWS}


@pytest.mark.skipif(THOROUGH, reason="thorough runs leave nothing out")
@pytest.mark.parametrize(
    ("marks", "kept"),
    [
        ([pytest.mark.one_row_in(2)], {("a", 0), ("b", 1), ("c", 1)}),
        ([pytest.mark.one_row_in(3)], {("a", 0), ("c", 1)}),
        ([pytest.mark.takes_turns("size")], {("a", 0), ("b", 1), ("c", 1)}),
        ([pytest.mark.takes_turns("size"), pytest.mark.one_row_in(2)], {("a", 0)}),
        ([], {(name, size) for name in "abc" for size in (0, 1)}),
    ],
)
def test_short_runs_have_some_rows(marks: list[pytest.MarkDecorator], kept: set[tuple[str, int]]) -> None:
    """Of several parameters in no step with any: of two sizes a name stays with one or the other."""
    rows = [Row({"name": name, "size": size}, [mark.mark for mark in marks]) for name in "abc" for size in (0, 1)]
    leave_out_turns(rows)  # type: ignore[arg-type]
    left = [row.callspec.params for row in rows if not row.get_closest_marker("skip")]
    assert {(given["name"], given["size"]) for given in left} == kept


class Row:
    """As much of a test's row as is looked at."""

    nodeid = "test.py::test[row]"

    def __init__(self, params: dict[str, Any], marks: list[pytest.Mark]) -> None:
        self.callspec, self._marks = SimpleNamespace(params=params), list(marks)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self._marks.append(marker.mark)

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (mark for mark in self._marks if mark.name == name)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(self.iter_markers(name), None)
