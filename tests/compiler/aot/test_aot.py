"""Programs compiled ahead of time, held against eager: in this process, in a new one, in C++."""

import copy
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sympy
import torch
from support.aot_models import Mixed, bert, bert_inputs, convolutional, mixed_inputs
from support.kept_objects import object_of, objects_kept
from support.light_code import OPTIMIZED
from support.thorough import in_thorough_runs
from torch.utils._sympy.functions import FloorDiv, Max, Min

import regraft
from regraft.compiler import aot
from regraft.compiler.aot.artifact import read_manifest
from regraft.compiler.aot.prelude import ARTIFACT, HEAD
from regraft.compiler.aot.program import export_model, program_of
from regraft.compiler.aot.ranges import tightened
from regraft.compiler.aot.runtime_source import RUNTIME
from regraft.compiler.codegen.cpp import can_build, compiler
from regraft.compiler.codegen.cpp_wrapper import runtime_python
from regraft.compiler.codegen.cpp_wrapper.emit import CppFunction
from regraft.compiler.codegen.cpp_wrapper.tables import Tables
from regraft.compiler.codegen.wrapper.memory_plan import plan_memory

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "aot" / "run_artifact.cpp"
Dim = torch.export.Dim

pytestmark = pytest.mark.skipif(not can_build(), reason="no C++ compiler")


def equal(found, expected, atol=1e-5):
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-4)


def without_gradients(value):
    return torch.utils._pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, value)


@pytest.fixture(scope="module", autouse=True)
def _objects():
    with objects_kept():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("aot")


@pytest.fixture(scope="module")
def perceptron(folder):
    """A dynamic model of one input, for C++ and errors: that of `docs/examples`, so that both compile one wrapper."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    rows = Dim("batch", min=1, max=64)
    path = regraft.aot_compile(model.eval(), (torch.randn(2, 16),), folder / "mlp.rgx", dynamic_shapes=({0: rows},))
    return model, path


@pytest.fixture(scope="module")
def mixed(folder):
    model = Mixed().eval()
    rows, (args, kwargs) = Dim("rows", min=1, max=64), mixed_inputs(3)
    shapes = {"x": {0: rows}, "k": None, "extra": {"a": {0: rows}}}
    path = regraft.aot_compile(model, args, folder / "mixed.rgx", kwargs=kwargs, dynamic_shapes=shapes)
    return model, path


def test_a_model_with_state_nested_values_and_numbers_gives_eagers_results(mixed):
    model, loaded = copy.deepcopy(mixed[0]), regraft.load(mixed[1])
    for rows in (3, 1, 64):
        args, kwargs = mixed_inputs(rows)
        found = loaded(*args, **kwargs)
        equal(found, without_gradients(model(*args, **kwargs)))
        assert found[0]["x"] is not args[0]
        assert found[0]["x"].data_ptr() != args[0].data_ptr()
    assert loaded.manifest["writes"] == {"state": ["count"], "inputs": []}


def test_each_load_has_state_of_its_own(mixed):
    args, kwargs = mixed_inputs(2)
    first, second = regraft.load(mixed[1]), regraft.load(mixed[1])
    before = first(*args, **kwargs)[0]["y"]
    assert not torch.equal(first(*args, **kwargs)[0]["y"], before)
    assert torch.equal(second(*args, **kwargs)[0]["y"], before)


MISMATCHES = [
    (lambda x, k, a: ((x[:, :3], k), {"extra": {"a": a}}), ValueError, "input 'x': dim 1 is 3; it must be 4"),
    (lambda x, k, a: ((x, 3), {"extra": {"a": a}}), ValueError, "input 'k' is 3; the program was compiled for 2"),
    (
        lambda x, k, a: ((x, k), {"extra": {"a": a[:2]}}),
        ValueError,
        "dim 0 is 2; it must be 3, as is dim 0 of input 'x'",
    ),
    (lambda x, k, a: ((x.double(), k), {"extra": {"a": a}}), ValueError, "dtype Double; it must be Float"),
    (lambda x, k, a: ((x[0], k), {"extra": {"a": a}}), ValueError, "input 'x' has 1 dims; it must have 2"),
    (lambda x, k, a: ((x.repeat(30, 1), k), {"extra": {"a": a}}), ValueError, "is 90; it must be from 1 to 64"),
    (
        lambda x, k, a: ((x[:0], k), {"extra": {"a": a[:0]}}),
        ValueError,
        "is 0; it must be from 1 to 64 (dynamic dims of size 0",
    ),
    (lambda x, k, a: ((7, k), {"extra": {"a": a}}), TypeError, "input 'x' must be a tensor, not a int"),
    (lambda x, k, a: ((x,), {"extra": {"a": a}}), TypeError, "takes 2 positional inputs and the keywords extra"),
    (lambda x, k, a: ((x, k), {"extra": {"b": a}}), TypeError, "must have the keys a, not b"),
]


@pytest.mark.parametrize(("change", "kind", "message"), MISMATCHES, ids=[m for _, _, m in MISMATCHES])
def test_inputs_that_do_not_match_are_named(mixed, change, kind, message):
    (x, k), kwargs = mixed_inputs(3)
    args, kwargs = change(x, k, kwargs["extra"]["a"])
    with pytest.raises(kind, match=message.replace("(", r"\(")):
        regraft.load(mixed[1])(*args, **kwargs)


def test_inputs_of_other_strides_are_taken(perceptron):
    model, path = perceptron
    x = torch.randn(16, 5).t()
    equal(regraft.load(path)(x), model(x).detach())


def test_a_new_process_needs_the_file_alone(perceptron, tmp_path):
    model, path = perceptron
    x = torch.randn(5, 16)
    torch.save((x, model(x).detach()), tmp_path / "values.pt")
    code = (
        "import regraft, sys, torch\n"
        "x, y = torch.load('values.pt')\n"
        "torch.testing.assert_close(regraft.load(sys.argv[1])(x), y)\n"
        "assert 'regraft.compiler.backend' not in sys.modules\n"
    )
    moved = shutil.copy(path, tmp_path / "moved.rgx")
    done = subprocess.run([sys.executable, "-c", code, moved], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_example_in_cpp_runs_an_artifact(perceptron, tmp_path):
    model, path = perceptron
    torch_folder = Path(torch.__file__).parent
    include = [
        torch_folder / "include",
        torch_folder / "include/torch/csrc/api/include",
        Path(aot.__file__).parent / "include",
    ]
    libraries = [f"-L{torch_folder / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10", "-ldl"]
    flags = ["-std=c++20", "-O0", "-w", *(f"-I{i}" for i in include)]
    compiled = object_of(EXAMPLE, flags, [include[-1] / "regraft_aot.h"])
    link = ["g++", compiled, *libraries, f"-Wl,-rpath,{torch_folder / 'lib'}", "-o", tmp_path / "run"]
    subprocess.run(link, check=True)
    done = subprocess.run([tmp_path / "run", path, "3", "16"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    equal(torch.tensor([float(line) for line in done.stdout.split()]).view(3, 4), model(torch.ones(3, 16)).detach())
    wrong = subprocess.run([tmp_path / "run", path, "3", "15"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "dim 1 is 15; it must be 16" in wrong.stderr


@in_thorough_runs  # a convolution is in `Patches`, a batch of any size in `Rows`
def test_convolutions_with_any_batch_and_layout(folder):
    model = convolutional()
    path = regraft.aot_compile(
        model, (torch.randn(2, 3, 16, 16),), folder / "conv.rgx", dynamic_shapes=({0: Dim("rows", min=1, max=512)},)
    )
    loaded = regraft.load(path)
    assert loaded.manifest["conditions"] == []
    for rows in (2, 1, 17):
        x = torch.randn(rows, 3, 16, 16)
        equal(loaded(x), model(x).detach())
        equal(loaded(x.to(memory_format=torch.channels_last)), model(x).detach())


class Patches(torch.nn.Module):
    """Attention over pixels, then a convolution of one image: products and kernels of templates, views in between."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.conv = torch.nn.Linear(32, 96), torch.nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):
        q, k, v = self.inward(x).view(1, 64, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = torch.softmax(q @ k.mT / 4, -1) @ v
        y = torch.nn.functional.gelu(mixed.transpose(1, 2).reshape(1, 64, 32))
        return self.conv(y.transpose(1, 2).reshape(1, 32, 8, 8))


def test_sizes_known_ahead_take_kernels_of_templates_and_views_without_calls(folder, monkeypatch):
    monkeypatch.setattr(compiler, "FLAGS", OPTIMIZED)  # as users have them: templates are chosen by their time
    model, x = Patches().eval(), torch.randn(1, 64, 32)
    exported = torch.export.export(model, (x,))
    loaded = regraft.load(regraft.aot_compile(exported, None, folder / "patches.rgx"))
    equal(loaded(x), model(x).detach())
    assert loaded(x).stride() == model(x).stride()
    assert any(not name.startswith("k") for name in loaded.manifest["kernels"])
    called = {name.partition(".")[0] for name in loaded.manifest["operators"]}
    assert not called & {"aten::permute", "aten::transpose", "aten::select", "aten::t", "aten::unsqueeze"}


class Rows(torch.nn.Module):
    """What sizes of 1 change where they are known: regrouped dims, broadcasting, folds, strides of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = torch.nn.Conv1d(4, 4, 3, padding=1), torch.nn.Linear(4, 6)
        self.lstm = torch.nn.LSTM(1, 3, batch_first=True)

    def forward(self, x):
        rows, tokens, _ = x.shape
        split = self.linear(x).view(rows, tokens, 2, 3).transpose(1, 2)
        scores = (split @ split.mT + torch.arange(tokens)).softmax(-1)
        mixed = (scores @ split).transpose(1, 2).reshape(rows, tokens, 6)
        summed = x.flip(0).cumsum(0) + x.mean(0, keepdim=True) - x.amax((0, 1))
        return (
            mixed,
            self.conv(x.mT),
            self.lstm(x.mean(1)[..., None])[0],
            summed,
            x.mT.reshape(-1, tokens),
            torch.cat([x, x[:1]]),
        )


class Dynamic(torch.nn.Module):
    """A transformer beside `Rows`, in one artifact."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, self.rows = bert(), Rows()

    def forward(self, input_ids, attention_mask, x):
        return dict(self.bert(input_ids, attention_mask)), self.rows(x)


@pytest.fixture(scope="module")
def dynamic(folder):
    model = Dynamic().eval()
    rows, tokens = Dim("rows", min=1, max=64), Dim("tokens", min=1, max=128)
    shapes = {name: {0: rows, 1: tokens} for name in ("input_ids", "attention_mask")}
    inputs = {**bert_inputs(3, 10), "x": torch.randn(1, 3, 4)}
    shapes["x"] = {0: Dim.AUTO, 1: Dim.AUTO}
    path = regraft.aot_compile(model, (), folder / "dynamic.rgx", kwargs=inputs, dynamic_shapes=shapes)
    loaded = regraft.load(path)
    assert loaded.manifest["conditions"] == []
    return model, loaded


def test_a_transformer_with_dynamic_batch_and_tokens(dynamic):
    model, loaded = dynamic
    for sizes in ((3, 10), (1, 10), (4, 1), (1, 1), (2, 128)):
        inputs = bert_inputs(*sizes)
        with torch.no_grad():
            expected = model.bert(**inputs)
        equal(loaded(**inputs, x=torch.ones(1, 1, 4))[0], dict(expected), atol=1e-4)


def test_dynamic_dims_serve_from_one_whatever_examples_are(dynamic):
    model, loaded = dynamic
    told = {name: ends for name, ends in loaded.manifest["dynamic"].items() if name.endswith("'x'")}
    assert told == {"dim 0 of input 'x'": [1, None], "dim 1 of input 'x'": [1, None]}
    other = bert_inputs(1, 1)
    for rows, tokens in ((1, 3), (1, 1), (4, 1), (2, 2), (5, 7)):
        x = torch.randn(rows, tokens, 4)
        equal(loaded(**other, x=x)[1], without_gradients(model.rows(x)))
    with pytest.raises(ValueError, match=r"dim 1 of input 'x' is 0; it must be at least 1 \(dynamic dims of size 0"):
        loaded(**other, x=torch.randn(2, 0, 4))


class OnlyOne(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x + 1


def test_what_the_program_asks_of_a_size_is_a_condition():
    program = program_of(export_model(OnlyOne(), (torch.randn(3, 4),), None, ({0: Dim.AUTO},)))
    (symbol,) = program.facts.symbols.values()
    assert tightened({symbol: (1, None)}, program.facts.conditions()) == ({symbol: (2, None)}, [])


def test_what_is_assumed_of_sizes_is_told_as_ranges():
    s, t = sympy.symbols("s t", positive=True, integer=True)
    known = {s: (1, None), t: (1, 100)}
    cases = [
        (sympy.Eq(s, Min(512, s)), (1, 512)),
        (sympy.Or(sympy.Eq(s, Min(512, s)), sympy.Eq(Min(512, s), 1)), (1, 512)),
        (sympy.Ne(s, 1), (2, None)),
        (sympy.Eq(Max(8, s), s), (8, None)),
        (2 * s + 1 <= 8, (1, 3)),
        (s - 3 >= 1, (4, None)),
    ]
    for condition, expected in cases:
        assert tightened(known, [condition]) == ({**known, s: expected}, [])
    for condition in (sympy.Ne(s, 5), s <= t, sympy.Eq(FloorDiv(s, 2), 4)):
        assert tightened(known, [condition]) == (known, [condition])


def test_no_value_hides_a_function_that_statements_call():
    functions = set(re.findall(r"^(?:inline )?[\w:&*]+ (\w+)\(", HEAD, re.MULTILINE))
    assert {"placed", "lay_out", "memory", "launch", "strided"} <= functions
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, device="meta")
    value = x
    for name in sorted(functions):
        value = graph.create_node("call_function", torch.ops.aten.relu.default, (value,), name=name)
        value.meta["val"] = x.meta["val"]
    graph.output((value,))
    module = torch.fx.GraphModule({}, graph)
    lines = CppFunction(module, plan_memory(graph), Tables(ARTIFACT), {x: "input0"}, {}).lines
    declared = {found for line in lines for found in re.findall(r"^Tensor (\w+) =", line)}
    assert len(declared) == len(functions)
    assert not declared & functions


class Bernoulli(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, training=True)


@torch.library.custom_op("regraft_tests::aot_twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Custom(torch.nn.Module):
    def forward(self, x):
        return twice(x)


class Branching(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@pytest.mark.parametrize(
    ("model", "operator"),
    [(Bernoulli(), "random numbers cannot.*after eval"), (Custom(), "regraft_tests.aot_twice"), (Branching(), "cond")],
    ids=["random", "custom", "control-flow"],
)
def test_what_cannot_go_ahead_of_time_is_refused_by_name(model, operator, tmp_path):
    with pytest.raises(regraft.AotError, match=operator):
        regraft.aot_compile(model, (torch.randn(8),), tmp_path / "refused.rgx")
    assert not list(tmp_path.iterdir())


def test_errors_name_inputs_as_the_module_does(perceptron):
    loaded = regraft.load(perceptron[1])
    with pytest.raises(ValueError, match="input 'input': dim 1 is 5; it must be 16"):
        loaded(torch.randn(3, 5))
    with pytest.raises(TypeError, match="takes 1 positional input, not 0"):
        loaded()


@in_thorough_runs
def test_messages_where_a_compiler_links_its_library_statically(tmp_path, monkeypatch):
    """Streams of such a library do not know the locales of the one that torch has loaded, and end in a crash."""
    plain, found = shutil.which("g++"), compiler.find_compiler
    script = tmp_path / "g++"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *-c*) ;; *) set -- "$@" -static-libstdc++ -static-libgcc;; esac\nexec {plain} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr("regraft.compiler.aot.build.find_compiler", lambda: replace(found(), path=str(script)))
    regraft.aot_compile(torch.nn.Linear(4, 4), (torch.randn(3, 4),), tmp_path / "static.rgx")
    loaded = regraft.load(tmp_path / "static.rgx")
    with pytest.raises(ValueError, match="input 'input': dim 1 is 5; it must be 4"):
        loaded(torch.randn(3, 5))
    with pytest.raises(ValueError, match="has dtype Double; it must be Float"):
        loaded(torch.randn(3, 4).double())


@pytest.mark.parametrize("source", [RUNTIME, runtime_python.PYTHON], ids=["artifact", "wrapper"])
def test_messages_are_joined_without_streams(source):
    """torch joins several parts of a message by a stream."""
    for call in re.finditer(r"TORCH_CHECK\w*(?=\()", source):
        assert len(arguments_at(source, call.end())) <= 2, source[call.start() : call.start() + 120]


def arguments_at(source, begin):
    """The arguments of a call in C++ whose bracket opens at `begin`."""
    text, depth, commas, last = re.sub(r'"(?:[^"\\]|\\.)*"', lambda m: "s" * len(m[0]), source[begin:]), 0, [0], 0
    for last, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 1:
            commas.append(last)
        if not depth:
            break
    return [text[a + 1 : b] for a, b in itertools.pairwise([*commas, last])]


def test_other_devices_and_kinds_are_refused(tmp_path):
    with pytest.raises(regraft.AotError, match="not a function"):
        regraft.aot_compile(lambda x: x, (torch.ones(2),), tmp_path / "refused.rgx")
    with pytest.raises(regraft.AotError, match="on meta"):
        regraft.aot_compile(
            torch.nn.Linear(2, 2, device="meta"), (torch.ones(1, 2, device="meta"),), tmp_path / "no.rgx"
        )
    with pytest.raises(regraft.AotError, match="leave kwargs and dynamic_shapes out"):
        exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        regraft.aot_compile(exported, None, tmp_path / "no.rgx", dynamic_shapes={})
    with pytest.raises(regraft.OptionError):
        regraft.aot_compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), tmp_path / "no.rgx", options={"frezing": True})


def changed(path, to, **told):
    """An artifact whose manifest says something else."""
    manifest = read_manifest(path) | told
    data = path.read_bytes()
    from regraft.compiler.aot import artifact

    magic, library, constants, end, begin, _, _ = artifact._FOOTER.unpack(data[-artifact._FOOTER.size :])
    text = json.dumps(manifest).encode()
    total = begin + len(text) + artifact._FOOTER.size
    to.write_bytes(
        data[:begin] + text + artifact._FOOTER.pack(magic, library, constants, end, begin, begin + len(text), total)
    )
    return to


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"torch": "1.0"}, "compiled for torch 1.0, here is"),
        ({"machine": "riscv64"}, "compiled for machine riscv64"),
        ({"format": 0}, "has format 0"),
        ({"features": ["avx9000"]}, "processor lacks avx9000"),
    ],
    ids=["torch", "machine", "format", "features"],
)
def test_what_an_artifact_needs_is_checked_before_its_library_is_loaded(perceptron, tmp_path, told, message):
    with pytest.raises(regraft.AotError, match=message):
        regraft.load(changed(perceptron[1], tmp_path / "other.rgx", **told))


def test_damaged_files_are_refused(perceptron, tmp_path):
    path, data = tmp_path / "damaged.rgx", perceptron[1].read_bytes()
    for content in (b"", b"x" * 200, data[:-1], data[: len(data) // 2], data + b"x"):
        path.write_bytes(content)
        with pytest.raises(regraft.AotError, match=r"damaged\.rgx is no artifact"):
            regraft.load(path)
    with pytest.raises(regraft.AotError, match="cannot be read"):
        regraft.load(tmp_path / "absent.rgx")
