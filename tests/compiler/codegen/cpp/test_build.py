"""Building kernels: one unit, equal kernels once, errors as in eager, threads as torch says, a cache that is safe."""

import threading
from dataclasses import replace

import pytest
import torch
from support.fresh import run_fresh
from support.kernels import flat_buffer, kernel, loop_kernel, run_compiled

from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp import binding, compiler
from regraft.compiler.codegen.cpp.build import _SPLIT
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.ir.index.index import Loaded, Size, Var, mul
from regraft.compiler.ir.index.index import add as plus
from regraft.compiler.ir.kernel import Assign, Loop, Param
from regraft.compiler.ir.program import Buffer, Store
from regraft.compiler.ir.value import Const, Guarded, Load, Number, Op

F32, I64 = torch.float32, torch.int64


def add(name="add", x="x", y="y", out="out", size=100):
    inputs = [flat_buffer(x, size), flat_buffer(y, size)]
    return loop_kernel(
        name, size, inputs, flat_buffer(out, size),
        lambda i: Op("add", (Load(x, (i,), F32), Load(y, (i,), F32)), F32),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    return tmp_path


def test_equal_kernels_are_generated_once():
    made = cpp.build([add("a"), add("b", "u", "v", "w"), add("c", size=101)])
    assert made[0].source.read_text().count('extern "C" void k') == 2
    assert text(add()) == text(add("b", "u", "v", "w")) != text(add(size=101))
    x = torch.randn(100)
    for one in made[:2]:
        out = torch.empty(100)
        one(x, x, out)
        assert torch.equal(out, x + x)


def text(made):
    return kernel_text(made, cpp.host_target())


def test_many_kernels_become_two_units():
    made = cpp.build([add(size=100 + k) for k in range(_SPLIT)])
    assert len({one.source for one in made}) == 2


def test_a_level_of_optimization_of_its_own_replaces_that_of_all(monkeypatch):
    plain, own, found = (
        compiler.LibrarySource("int one;"),
        compiler.LibrarySource("int one;", ("-O1",)),
        compiler.find_compiler(),
    )

    def names(level):
        monkeypatch.setattr(compiler, "FLAGS", ("-fPIC", level))
        assert [flag for flag in compiler._flags(own, found) if flag.startswith("-O")] == ["-O1"]
        return [compiler._name(source, found) for source in (plain, own)]

    (first, same), (second, again) = names("-O3"), names("-O0")
    assert first != second
    assert same == again


def test_a_source_may_be_c():
    """Not C++: a value of any pointer becomes one of another without a cast."""
    (library, _), (other, _) = compiler.compile_all(
        [
            compiler.LibrarySource(
                "int new = 3; int answer(void) { void* at = &new; int* read = at; return *read; }", c=True
            ),
            compiler.LibrarySource('extern "C" int answer() { return 4; }'),
        ]
    )
    assert (library.answer(), other.answer()) == (3, 4)


def test_nothing_to_build():
    assert cpp.build([]) == []


def gather(wrap=True, guarded=False):
    """``out[i] = table[ids[i]]`` of 10 elements; if guarded -1 where ``ids[i] < 0``."""

    def value(i):
        ids = Load("ids", (i,), I64)
        found = Load("table", (Loaded(ids, 10, wrap).index(),), F32)
        sound = Op("ge", (ids, Const(0, I64)), torch.bool)
        return Guarded(sound, found, Const(-1.0, F32), F32) if guarded else found

    return loop_kernel(
        "gather", 37, [flat_buffer("ids", 37, I64), flat_buffer("table", 10)], flat_buffer("out", 37), value
    )


def gathered(ids, **more):
    return run_compiled(gather(**more), {"ids": ids, "table": torch.arange(10.0)})["out"]


def test_indices_wrap_and_out_of_range_raises():
    ids = torch.arange(37) % 20 - 10
    assert torch.equal(gathered(ids), torch.arange(10.0)[ids])
    for wrong in (10, -11):
        ids[36] = wrong
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension with size 10"):
            gathered(ids)
    with pytest.raises(IndexError, match="index -1 is out of bounds"):
        gathered(torch.full((37,), -1), wrap=False)


def test_what_is_guarded_is_not_checked():
    ids = torch.arange(37) % 12 - 2
    ids[ids > 8] = -99
    expected = torch.where(ids >= 0, torch.arange(10.0)[ids.clamp(min=0)], -1.0)
    assert torch.equal(gathered(ids, wrap=False, guarded=True), expected)
    ids[5] = 10
    with pytest.raises(IndexError, match="index 10 is out of bounds"):
        gathered(ids, wrap=False, guarded=True)


def test_checks_vanish_where_the_range_is_known():
    i = Var("i", 8)
    bound = Op("minimum", (Op("maximum", (Load("ids", (i.index(),), I64), Const(0, I64)), I64), Const(9, I64)), I64)
    store = Assign(Store("out", (i.index(),), Load("table", (Loaded(bound, 10, False).index(),), F32)))
    reads = [flat_buffer("ids", 8, I64), flat_buffer("table", 10)]
    made = kernel("clamped", reads, [flat_buffer("out", 8)], [Loop(i, (store,), True)])
    assert "FAIL" not in text(made)
    assert "FAIL" in text(gather())
    ids = torch.tensor([-5, 0, 3, 9, 10, 99, 1, 2])
    assert torch.equal(run_compiled(made, {"ids": ids, "table": torch.arange(10.0)})["out"], ids.clamp(0, 9).float())


@pytest.mark.parametrize("name", ["floordiv", "truncdiv", "remainder", "fmod"])
def test_integer_division_by_zero_raises(name):
    reads = [flat_buffer("x", 35, I64), flat_buffer("y", 35, I64)]
    made = loop_kernel(
        name, 35, reads, flat_buffer("out", 35, I64),
        lambda i: Op(name, (Load("x", (i,), I64), Load("y", (i,), I64)), I64),
    )  # fmt: skip
    x, y = torch.arange(35) - 17, torch.full((35,), 3)
    run_compiled(made, {"x": x, "y": y})
    y[34] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_compiled(made, {"x": x, "y": y})


def scaled():
    """``out[i] = x[i] * number + size``, the number by value, for i < size."""
    n = Size("n", 0, None).index()
    number = Buffer("number", torch.float64, (), (), torch.device("cpu"), "input", True)
    i = Var("i", n)
    factor = Op("cast", (Load("number", (), torch.float64),), F32)
    value = Op("add", (Op("mul", (Load("x", (i.index(),), F32), factor), F32), Number(n, F32)), F32)
    body = [Loop(i, (Assign(Store("out", (i.index(),), value)),), True)]
    return kernel("scaled", [flat_buffer("x", n), number], [flat_buffer("out", n)], body, sizes=[n.terms[0][0][0]])


@pytest.mark.parametrize("headers", [True, False])
def test_numbers_and_sizes_go_by_value(headers, monkeypatch):
    if not headers:
        monkeypatch.setattr(binding, "_module", lambda: None)
    (made,) = cpp.build([scaled()])
    for size in (0, 1, 33):
        x, out = torch.randn(size), torch.empty(size)
        made(x, 2.5, out, size)
        torch.testing.assert_close(out, x * 2.5 + size)
        made(x.data_ptr(), 1.5, out.data_ptr(), size)
        torch.testing.assert_close(out, x * 1.5 + size)
    ids = torch.arange(37) % 10
    assert torch.equal(gathered(ids), ids.float())
    ids[20] = 11
    with pytest.raises(IndexError, match="index 11 is out of bounds for dimension with size 10"):
        gathered(ids)


def test_a_wrong_number_of_arguments_is_refused():
    (made,) = cpp.build([add()])
    with pytest.raises(TypeError, match="takes 3 tensors and 0 sizes, not 2"):
        made(torch.empty(100), torch.empty(100))
    with pytest.raises(TypeError):
        made(torch.empty(100), "text", torch.empty(100))


def test_atomic_additions_of_threads_are_all_counted():
    size, threads = 200_000, torch.get_num_threads()
    i = Var("i", size)
    place = Loaded(Load("ids", (i.index(),), I64), 7, False).index()
    body = [Loop(i, (Assign(Store("out", (place,), Const(1.0, F32), "add")),), True)]
    made = kernel("count", [flat_buffer("ids", size, I64)], [], body)
    made = replace(made, params=(*made.params, Param(flat_buffer("out", 7), "update")))
    assert "atomic_add" in text(made)
    ids = torch.randint(0, 7, (size,))
    try:
        torch.set_num_threads(2)
        out = run_compiled(made, {"ids": ids, "out": torch.zeros(7)})["out"]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(out, ids.bincount(minlength=7).float())


def test_kernels_may_be_called_from_several_threads():
    (made,) = cpp.build([add(size=4_000_000)])
    x = torch.randn(4_000_000)
    outs = [torch.empty_like(x) for _ in range(3)]
    workers = [threading.Thread(target=made, args=(x, x, out)) for out in outs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(out, x + x) for out in outs)


def test_libraries_are_kept_and_broken_ones_replaced(own_cache):
    (made,) = cpp.build([add()])
    library = made.source.with_suffix(".so")
    first = library.stat().st_mtime_ns
    cpp.build([add()])
    assert library.stat().st_mtime_ns == first
    source = compiler.LibrarySource('extern "C" int answer() { return 42; }')
    path = compiler._place(own_cache / "code", compiler._name(source, compiler.find_compiler()))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a library")
    ((loaded, _),) = compiler.compile_all([source])
    assert loaded.answer() == 42
    assert path.stat().st_size > 1000
    assert not [path for path in own_cache.rglob(".*") if path.is_file()]


def test_a_cache_that_is_off_leaves_nothing_behind(own_cache, monkeypatch):
    monkeypatch.setenv("REGRAFT_DISABLE_CACHE", "1")
    (made,) = cpp.build([add(size=103)])
    assert own_cache not in made.source.parents
    assert not list(own_cache.iterdir())


def test_processes_share_a_cache(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch; from regraft.compiler.codegen.cpp.compiler import LibrarySource, compile_all\n"
        "lib, _ = compile_all([LibrarySource('extern \"C\" int answer() { return 42; }')])[0]; print(lib.answer())"
    )
    assert [done.output.split() for done in run_fresh([[program]] * 2)] == [["42"]] * 2


def test_what_is_loaded_is_what_was_looked_at(tmp_path):
    """A library that is damaged under its name once its seal was read: the system's loader would end the process."""
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, sys\n"
        "from regraft.compiler.codegen.cpp import compiler\n"
        "from regraft.compiler.storage import seal\n"
        "text = 'extern \"C\" int answer() { return 42; } double many[4096] = {1};'\n"
        "name = compiler._name(compiler.LibrarySource(text), compiler.find_compiler())\n"
        "place = compiler._place(compiler.code_folder('code'), name)\n"
        "found = lambda: compiler.compile_all([compiler.LibrarySource(text)])[0][0].answer()\n"
        "def spoiling(function):\n"
        "    times = []\n"
        "    def run(name, data):\n"
        "        result = function(name, data)\n"
        "        if len(times) < 2:\n"
        "            times.append(name)\n"
        "            place.unlink()\n"
        "            place.write_bytes(data[:5000])\n"
        "        return result\n"
        "    return run\n"
        "if sys.argv[1] == 'spoil':\n"
        "    seal.opened = spoiling(seal.opened)\n"
        "print(found())"
    )
    for argument in ("compile", "spoil", "compile"):
        (done,) = run_fresh([[program, argument]])
        assert (done.code, done.output.split()) == (0, ["42"]), (argument, done.errors)


def test_a_library_that_another_process_replaced_by_as_good_a_one_is_loaded(own_cache, monkeypatch):
    """It is neither deleted nor compiled again: processes that did so would do it to each other."""
    source = compiler.LibrarySource('extern "C" int answer() { return 42; }')
    compiler.compile_all([source])
    (library,) = own_cache.rglob("*.so")
    opened, replaced = compiler.seal.opened, []

    def replacing(name, data):
        if not replaced:
            replaced.append(name)
            library.unlink()
            library.write_bytes(data)
        return opened(name, data)

    monkeypatch.setattr(compiler.seal, "opened", replacing)
    monkeypatch.setattr(compiler, "_run", lambda *_: pytest.fail("compiled again"))
    assert compiler.compile_all([source])[0][0].answer() == 42
    assert replaced and library.exists()


def test_a_missing_compiler_has_its_own_error(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(cpp.CompilerMissing, match="no-such-compiler"):
        cpp.build([add()])
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(cpp.CompilerMissing, match="none of"):
        cpp.build([add()])


def test_a_refused_source_is_kept_and_shown():
    with pytest.raises(cpp.CompileFailed, match="nonsense") as caught:
        compiler.compile_all([compiler.LibrarySource("int nonsense = undeclared;")])
    assert caught.value.source.read_text() == "int nonsense = undeclared;"
    assert "undeclared" in caught.value.output


def test_dtypes_without_a_c_type_are_refused():
    made = loop_kernel(
        "cpx", 3, [flat_buffer("x", 3, torch.complex64)], flat_buffer("out", 3, torch.complex64),
        lambda i: Load("x", (i,), torch.complex64),
    )  # fmt: skip
    with pytest.raises(cpp.UnsupportedDtype, match="complex64"):
        cpp.build([made])


@pytest.mark.parametrize("size", [1, 6, 64])
def test_additions_within_rows_that_threads_share_are_not_atomic(size):
    rows, columns, threads = 3000, 40, torch.get_num_threads()
    i, j = Var("i", rows), Var("j", columns)
    place = Loaded(Load("ids", (plus(mul(i.index(), columns), j.index()),), I64), size, True).index()
    at = plus(mul(i.index(), size), place)
    body = [Loop(i, (Loop(j, (Assign(Store("out", (at,), Const(1.0, F32), "add")),)),), True)]
    made = kernel("count", [flat_buffer("ids", rows * columns, I64)], [], body)
    made = replace(made, params=(*made.params, Param(flat_buffer("out", rows * size), "update")))
    assert "atomic_add(call" not in text(made)
    ids = torch.randint(-size, size, (rows, columns))
    try:
        torch.set_num_threads(2)
        out = run_compiled(made, {"ids": ids.view(-1), "out": torch.zeros(rows * size)})["out"]
    finally:
        torch.set_num_threads(threads)
    expected = torch.zeros(rows, size).scatter_add(1, ids % size, torch.ones(rows, columns))
    torch.testing.assert_close(out.view(rows, size), expected, rtol=0, atol=0)


def test_neighbouring_rows_of_overlapping_digits_stay_atomic():
    i, rows = Var("i", 100), flat_buffer("ids", 100, I64)
    place = Loaded(Load("ids", (i.index(),), I64), 7, False).index()
    body = [Loop(i, (Assign(Store("out", (plus(mul(i.index(), 5), place),), Const(1.0, F32), "add")),), True)]
    made = kernel("count", [rows], [], body)
    made = replace(made, params=(*made.params, Param(flat_buffer("out", 600), "update")))
    assert "atomic_add(call" in text(made)
