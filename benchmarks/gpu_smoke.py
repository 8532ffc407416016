"""Everything of the GPU backend once, on a machine with a GPU: kernels, launches, random numbers, CUDA graphs, models.

    python benchmarks/gpu_smoke.py                     all cases
    python benchmarks/gpu_smoke.py kernel bert         cases whose names begin so
    python benchmarks/gpu_smoke.py --budget 400        no case is started after so many seconds
    python benchmarks/gpu_smoke.py --backends inductor further backends for the models, for comparison

Each case is held against eager. After a failure it goes on, in a new process where the GPU does not answer any more;
tracebacks are shown. Ends with a table; the exit status is the number of failures. `regraft` need not be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARK = "@@"
Case = Callable[[], str]
CASES: dict[str, Case] = {}
BACKENDS: list[str] = []


def case(name: str) -> Callable[[Case], Case]:
    """Add a case: it returns what to show, and raises where something is wrong."""

    def add(function: Case) -> Case:
        CASES[name] = function
        return function

    return add


def find_regraft() -> None:
    """Make ``import regraft`` find this repository."""
    folder = Path(tempfile.gettempdir()) / f"regraft-path-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    link = folder / "regraft"
    if link.is_symlink() and link.resolve() != ROOT:
        link.unlink()
    with contextlib.suppress(FileExistsError):
        link.symlink_to(ROOT)
    sys.path.insert(0, str(folder))


# -- helpers of cases -------------------------------------------------------------------------------------------------


def error_of(found: Any, expected: Any) -> float:
    import torch

    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    assert pairs, "nothing to compare"
    worst = 0.0
    for a, b in pairs:
        assert (a.shape, a.dtype, a.device, a.stride()) == (b.shape, b.dtype, b.device, b.stride()), (a, b)
        a, b = a.detach().double(), b.detach().double()
        assert torch.equal(a.isnan(), b.isnan()), "NaN in other places"
        a, b = a.nan_to_num(), b.nan_to_num()
        worst = max(worst, float((a - b).norm() / b.norm().clamp_min(1e-30)) if b.numel() else 0.0)
    return worst


def leaves(tree: Any) -> list[Any]:
    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if hasattr(tree, "values") else tree if isinstance(tree, (tuple, list)) else ()
    return [leaf for value in values for leaf in leaves(value)]


def milliseconds(step: Callable[[], Any], seconds: float = 0.3) -> float:
    """The GPU's own time of one step, and what of the CPU's it waits for."""
    import torch

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = max(3, min(1000, int(seconds / max(time.perf_counter() - start, 1e-6))))
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(count):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / count


def story(coverage: Any, *, may_fall_back: tuple[str, ...] = ()) -> str:
    """What was generated; raises where kernels were not."""
    fallbacks = sorted({(f.stage, f.code, f.message[:300]) for f in coverage.fallbacks})
    wrong = [f for f in fallbacks if f[1] not in may_fall_back]
    codes = [code for graph in coverage.graphs for code in graph.code]
    kept: dict[str, int] = {}
    for code in codes:
        for call in code.kept:
            name = f"{call.operator.removeprefix('aten.')}:{call.code}"
            kept[name] = kept.get(name, 0) + call.count
            if call.code in ("failed", "metadata", "unsupported"):
                print(f"    kept: {call.operator} x{call.count} {call.code}: {call.message}")
    assert not wrong, f"fallbacks: {wrong}"
    top = ", ".join(f"{n} {name}" for name, n in sorted(kept.items(), key=lambda item: -item[1])[:6])
    return f"kernels {sum(code.kernels for code in codes)}; calls: {top or 'none'}"


GRAPHS = {"mode": "reduce-overhead"}


def compiled(function: Any, **options: Any) -> Any:
    import torch

    dynamic = options.pop("dynamic", None)
    return torch.compile(function, backend="regraft", dynamic=dynamic, options=options)


def agrees(function: Any, *inputs: Any, tolerance: float = 1e-5, **options: Any) -> str:
    """Compile, compare, and time against eager."""
    import torch

    import regraft

    torch.compiler.reset()
    with torch.no_grad(), regraft.coverage() as coverage:
        expected = function(*inputs)
        run = compiled(function, **options)
        start = time.perf_counter()
        error = error_of(run(*inputs), expected)
        cold = time.perf_counter() - start
        error = max(error, error_of(run(*inputs), expected), error_of(run(*inputs), expected))
        assert error <= tolerance, f"relative error {error:.2g}, more than {tolerance:.2g}"
        told = story(coverage)
        ours, eager = milliseconds(lambda: run(*inputs), 0.05), milliseconds(lambda: function(*inputs), 0.05)
    moved = sum(x.numel() * x.element_size() for x in (*leaves(inputs), *leaves(expected)))
    rate = moved / ours / 1e9
    return f"error {error:.1e}; {ours:.3f} ms, {eager / ours:.2f}x eager, {rate:.2f} TB/s, cold {cold:.1f} s; {told}"


# -- kernels ----------------------------------------------------------------------------------------------------------


def kernel_cases() -> dict[str, Callable[[], tuple[Any, ...]]]:
    import torch
    import torch.nn.functional as F

    def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    half = {"dtype": torch.bfloat16}
    n, m = 8192, 4096
    return {
        "add": lambda: (lambda x, y: x + y, randn(n, m), randn(n, m)),
        "gelu-bf16": lambda: (lambda x, b: F.gelu(x + b), randn(n, m, **half), randn(m, **half)),
        "transpose": lambda: (lambda x: x.t().contiguous() * 2, randn(n, m)),
        "softmax": lambda: (lambda x: torch.softmax(x, -1), randn(n, m)),
        "softmax-bf16": lambda: (lambda x: torch.softmax(x.float(), -1).to(x.dtype), randn(n, m, **half)),
        "layer-norm": lambda: (lambda x, w, b: F.layer_norm(x, (m,), w, b), randn(n, m), randn(m), randn(m)),
        "layer-norm-768-bf16": lambda: (
            lambda x, y, w, b: F.layer_norm(x + y, (768,), w, b), *(randn(16, 512, 768, **half) for _ in range(2)),
            randn(768, **half), randn(768, **half),
        ),
        "sum-columns": lambda: (lambda x: x.sum(0), randn(n, m)),
        "sum-all": lambda: (lambda x: x.sum(), randn(n, m)),
        "max-argmax": lambda: (lambda x: (x.max(1).values, x.argmax(1)), randn(n, m)),
        "variance": lambda: (lambda x: (x.var(1), x.std(0)), randn(n, m)),
        "long-rows": lambda: (lambda x: (torch.softmax(x, -1), torch.logsumexp(x, -1)), randn(64, 100003)),
        "cumsum": lambda: (lambda x: x.cumsum(-1), randn(512, 4096)),
        "embedding": lambda: (
            lambda w, i: F.embedding(i, w) * 2, randn(30522, 768), torch.randint(30522, (16, 512), device="cuda"),
        ),
        "index-add": lambda: (
            lambda w, i, x: w.index_add(0, i, x), randn(1000, 64), torch.randint(1000, (5000,), device="cuda"),
            randn(5000, 64),
        ),
        "cross-entropy": lambda: (
            F.cross_entropy, randn(4096, 30522), torch.randint(30522, (4096,), device="cuda"),
        ),
        "double": lambda: (lambda x: (x.double().sin() + 1).sum(-1), randn(1000, 333)),
        "integers": lambda: (
            lambda x: (x // 7, x % 7, x.clamp(3, 9), (x > 4).sum()), torch.randint(-99, 99, (1000, 333), device="cuda"),
        ),
        "strange-sizes": lambda: (lambda x: (x.exp(), x.sum(1), x.flip(0), x[1:, ::3] + 1), randn(37, 1023)),
        "empty": lambda: (lambda x: (x + 1, x.sum(1)), randn(7, 0)),
        "scalar": lambda: (lambda x, s: x * s + s.exp(), randn(100, 100), randn()),
        "cpu-number": lambda: (lambda x, s: (x * s).exp(), randn(100, 100), torch.tensor(0.5)),
    }  # fmt: skip


KERNELS = (
    "add", "gelu-bf16", "transpose", "softmax", "softmax-bf16", "layer-norm", "layer-norm-768-bf16", "sum-columns",
    "sum-all", "max-argmax", "variance", "long-rows", "cumsum", "embedding", "index-add", "cross-entropy", "double",
    "integers", "strange-sizes", "empty", "scalar", "cpu-number",
)  # fmt: skip


def _add_kernel_case(name: str) -> None:
    @case(f"kernel {name}")
    def run() -> str:
        function, *inputs = kernel_cases()[name]()
        return agrees(function, *inputs, tolerance=2e-2 if "bf16" in name else 2e-5)


for _name in KERNELS:
    _add_kernel_case(_name)


@case("bandwidth")
def bandwidth() -> str:
    import torch

    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    took = milliseconds(lambda: y.copy_(x))
    return f"copy: {2 * x.nbytes / took / 1e9:.2f} TB/s"


# -- launches ---------------------------------------------------------------------------------------------------------


@case("launch pointers that are not aligned")
def unaligned() -> str:
    import torch

    torch.compiler.reset()
    memory = torch.randn(1 << 20, device="cuda")
    run = compiled(lambda x: x * 2 + 1)
    for start in (0, 1, 2, 4, 3):
        x = memory[start : start + 100_000]
        assert torch.equal(run(x), x * 2 + 1), start
    return "5 offsets"


@case("launch on other streams and threads")
def streams() -> str:
    import torch

    torch.compiler.reset()
    run = compiled(lambda x: (x.sin() + 1).sum(-1))
    x = torch.randn(512, 512, device="cuda")
    expected = (x.sin() + 1).sum(-1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.testing.assert_close(run(x), expected)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run(x)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    torch.testing.assert_close(found[0], expected)
    return "a stream, a thread"


@case("launch with dynamic sizes")
def dynamic() -> str:
    import torch

    torch.compiler.reset()
    run = compiled(lambda x, y: (torch.softmax(x, -1) + y, x.sum(0)), dynamic=True)
    for rows, columns in ((3, 5), (128, 768), (1000, 33), (17, 9000), (2, 2)):
        x, y = torch.randn(rows, columns, device="cuda"), torch.randn(columns, device="cuda")
        torch.testing.assert_close(run(x, y), (torch.softmax(x, -1) + y, x.sum(0)), rtol=1e-4, atol=1e-4)
    return "5 sizes"


@case("launch without the extension module")
def plain_ctypes() -> str:
    import torch

    find = __import__("importlib").import_module
    launch = find("regraft.compiler.triton.launch")
    launch._module = lambda: None
    torch.compiler.reset()
    x = torch.randn(1000, 100, device="cuda")
    run = compiled(lambda x: (x.tanh() * 3, x.amax(0)))
    torch.testing.assert_close(run(x), (x.tanh() * 3, x.amax(0)))
    return "by ctypes"


@case("launch overhead")
def overhead() -> str:
    import torch

    torch.compiler.reset()
    x = torch.randn(16, device="cuda")
    run = compiled(lambda x: x * 2 + 1)
    for _ in range(10):
        run(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(2000):
        run(x)
    taken = (time.perf_counter() - start) / 2000 * 1e6
    torch.cuda.synchronize()
    return f"{taken:.1f} us a call of a compiled function"


@case("launch indices out of range")
def out_of_range() -> str:
    """The GPU does not answer any more after that; cases that follow run in a new process."""
    import torch
    import torch.nn.functional as F

    torch.compiler.reset()
    run = compiled(lambda w, i: F.embedding(i, w) * 2)
    w, i = torch.randn(10, 4, device="cuda"), torch.full((3,), 1 << 20, device="cuda")
    try:
        run(w, i)
        torch.cuda.synchronize()
    except Exception as error:
        return f"raised: {str(error).splitlines()[0][:80]}"
    raise AssertionError("an index out of range was not noticed")


# -- random numbers ---------------------------------------------------------------------------------------------------


@case("random dropout")
def dropout() -> str:
    import torch
    import torch.nn.functional as F

    import regraft

    torch.compiler.reset()
    x = torch.ones(1000, 1000, device="cuda", requires_grad=True)
    run = compiled(lambda x: F.dropout(x, 0.25) * 1.0)
    with regraft.coverage() as coverage:
        torch.manual_seed(3)
        first = run(x)
        first.sum().backward()
    told = story(coverage)
    assert torch.equal(x.grad, first.detach()), "the backward drew another mask"
    kept = float((first != 0).float().mean())
    assert abs(kept - 0.75) < 0.005, kept
    second = run(x)
    assert not torch.equal(first, second), "two runs drew the same"
    torch.manual_seed(3)
    assert torch.equal(run(x), first), "the same seed drew another mask"
    return f"kept {kept:.4f}; {told}"


@case("random numbers")
def random_numbers() -> str:
    import torch

    torch.compiler.reset()

    def function(x: Any) -> Any:
        return torch.rand_like(x) + 0, torch.randn_like(x) + 0, torch.randint_like(x, 10) + 0

    u, g, k = compiled(function)(torch.empty(1000, 1000, device="cuda"))
    assert abs(float(u.mean()) - 0.5) < 0.003 and abs(float(u.var()) - 1 / 12) < 0.002
    assert abs(float(g.mean())) < 0.005 and abs(float(g.var()) - 1) < 0.01
    assert abs(float(k.mean()) - 4.5) < 0.02 and (int(k.min()), int(k.max())) == (0, 9)
    return "uniform, normal, integers"


# -- CUDA graphs ------------------------------------------------------------------------------------------------------


def mlp() -> Any:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8)]
    return torch.nn.Sequential(*layers).cuda()


@case("graphs inference")
def graph_inference() -> str:
    import torch

    import regraft

    torch.compiler.reset()
    model = mlp()
    with torch.no_grad(), regraft.coverage() as coverage:
        run = torch.compile(model, backend="regraft", options=GRAPHS)
        inputs = [torch.randn(32, 64, device="cuda") for _ in range(6)]
        results = [run(x) for x in inputs]
        for x, y in zip(inputs, results, strict=True):
            torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-4)
        for p in model.parameters():
            p.mul_(0.5)
        torch.testing.assert_close(run(inputs[0]), model(inputs[0]), rtol=1e-4, atol=1e-4)
        told = story(coverage)
        ours, eager = (milliseconds(lambda f=f: f(inputs[0]), 0.05) for f in (run, model))
    return f"{ours:.3f} ms, {eager / ours:.2f}x eager; {told}"


@case("graphs training")
def graph_training() -> str:
    import torch

    import regraft

    torch.compiler.reset()
    model = mlp()
    run = torch.compile(model, backend="regraft", options=GRAPHS)

    def gradients(function: Any, x: Any) -> list[Any]:
        return list(torch.autograd.grad(function(x).square().sum(), list(model.parameters())))

    held = []
    with regraft.coverage() as coverage:
        for _ in range(6):
            x = torch.randn(32, 64, device="cuda")
            held.append((gradients(run, x), gradients(model, x)))
        for ours, eager in held:
            assert error_of(ours, eager) < 1e-4
        xs = [torch.randn(32, 64, device="cuda") for _ in range(7)]
        ys = [run(x) for x in xs]
        for x, y in zip(xs, ys, strict=True):
            ours = torch.autograd.grad(y.square().sum(), list(model.parameters()))
            assert error_of(list(ours), gradients(model, x)) < 1e-4
    return story(coverage, may_fall_back=("captures",))


@case("graphs dropout draws anew")
def graph_dropout() -> str:
    import torch
    import torch.nn.functional as F

    torch.compiler.reset()
    run = torch.compile(lambda x: F.dropout(x, 0.5) * 1.0, backend="regraft", options={"mode": "reduce-overhead"})
    x = torch.ones(4096, device="cuda", requires_grad=True)
    masks = []
    for _ in range(5):
        x.grad = None
        y = run(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
        masks.append(y.detach().clone())
    assert all(not torch.equal(a, b) for k, a in enumerate(masks) for b in masks[:k])
    return "5 masks"


@case("graphs that are not captured")
def graph_skips() -> str:
    import torch

    import regraft

    torch.compiler.reset()
    with torch.no_grad(), regraft.coverage() as coverage:
        run = torch.compile(lambda x: x.add_(1).sum(), backend="regraft", options={"mode": "reduce-overhead"})
        for _ in range(3):
            x = torch.zeros(8, device="cuda")
            assert float(run(x)) == 8 and float(x.sum()) == 8
    codes = {f.code for f in coverage.fallbacks}
    assert "input-mutated" in codes, codes
    return ", ".join(sorted(codes))


# -- models -----------------------------------------------------------------------------------------------------------


def bert(layers: int, dropout: float) -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        attn_implementation="eager",
    )  # fmt: skip
    return BertForMaskedLM(config), 30522


def gpt2(layers: int, dropout: float) -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
        attn_implementation="eager",
    )  # fmt: skip
    return GPT2LMHeadModel(config), 50257


MODELS: dict[str, tuple[Callable[[int, float], tuple[Any, Any]], int]] = {"bert": (bert, 16), "gpt2": (gpt2, 8)}


class Subject:
    """A model with inputs, and what one step of it is."""

    def __init__(self, name: str, training: bool, small: bool, dropout: float = 0.0) -> None:
        import torch

        torch.manual_seed(0)
        make, batch = MODELS[name]
        self.model, vocabulary = make(2 if small else 12, dropout)
        self.model = self.model.cuda().to(torch.float32 if small else torch.bfloat16).train(training)
        shape = (2, 64) if small else (batch, 512)
        self.inputs = {"input_ids": torch.randint(vocabulary, shape, device="cuda")}
        if training:
            self.inputs["labels"] = self.inputs["input_ids"]
        self.training = training

    def step(self, run: Any) -> list[Any]:
        """Logits, or the loss and all gradients."""
        import torch

        if not self.training:
            with torch.no_grad():
                return [run(**self.inputs).logits]
        self.model.zero_grad(set_to_none=True)
        loss = run(**self.inputs).loss
        loss.backward()
        return [loss, *(p.grad for p in self.model.parameters() if p.grad is not None)]


def total_error(found: list[Any], expected: list[Any]) -> float:
    """Relative, of all results as one vector: single gradients may be nothing but rounding."""
    wrong = sum(float((a.detach().double() - b.double()).square().sum()) for a, b in zip(found, expected, strict=True))
    whole = sum(float(b.double().square().sum()) for b in expected)
    return (wrong / whole) ** 0.5


def compile_model(subject: Subject, backend: str) -> Any:
    import torch

    torch.compiler.reset()
    if backend == "eager":
        return subject.model
    name, _, mode = backend.partition("+")
    if name == "regraft":
        return torch.compile(subject.model, backend="regraft", options={"mode": mode or "default"})
    return torch.compile(subject.model, backend=name, mode=mode or None)


def small_model(name: str, training: bool) -> str:
    """Two layers in float32: numbers are eager's."""
    import torch

    import regraft

    subject = Subject(name, training, small=True)
    expected = [x.detach().clone() for x in subject.step(subject.model)]
    told = []
    for backend in ("regraft", "regraft+reduce-overhead"):
        with regraft.coverage() as coverage:
            run = compile_model(subject, backend)
            errors = [total_error(subject.step(run), expected) for _ in range(4)]
        assert max(errors) < 1e-3, f"{backend}: relative errors {errors}"
        told.append(f"{backend}: error {max(errors):.1e}, {story(coverage)}")
        torch.cuda.synchronize()
    return "; ".join(told)


def large_model(name: str, training: bool, dropout: float = 0.0) -> str:
    """All layers in bfloat16: how fast."""
    import torch

    import regraft

    subject = Subject(name, training, small=False, dropout=dropout)
    eager = milliseconds(lambda: subject.step(subject.model))
    expected = [x.detach().clone() for x in subject.step(subject.model)]
    told, wrong = [f"eager {eager:.2f} ms"], []
    for backend in ("regraft", "regraft+reduce-overhead", *BACKENDS):
        try:
            torch.cuda.reset_peak_memory_stats()
            with regraft.coverage() as coverage:
                run = compile_model(subject, backend)
                start = time.perf_counter()
                found = subject.step(run)
                torch.cuda.synchronize()
                cold = time.perf_counter() - start
                error = total_error(found, expected)
                del found
                took = milliseconds(lambda run=run: subject.step(run))
                error = max(error, total_error(subject.step(run), expected))
            peak = torch.cuda.max_memory_allocated() / 2**30
            line = (
                f"{backend} {took:.2f} ms ({eager / took:.2f}x), cold {cold:.1f} s, error {error:.1e}, {peak:.1f} GiB"
            )
            told.append(line)
            if backend.startswith("regraft"):
                told.append(story(coverage))
                for graph in coverage.graphs:
                    stages = {k: round(v, 2) for k, v in graph.seconds.items()}
                    print(f"    {backend} {graph.name} {graph.kind} seconds {stages} applied {len(graph.applied)}")
            assert dropout or error < 0.1, f"{backend}: relative error {error:.2g}"
        except Exception as error:
            traceback.print_exc()
            wrong.append(f"{backend}: {type(error).__name__}: {str(error)[:200]}")
    for line in told:
        print("   ", line)
    assert not wrong, "; ".join([*wrong, *told])
    return "; ".join(told)


def _add_model_cases(name: str) -> None:
    for training in (False, True):
        kind = "training" if training else "inference"
        CASES[f"{name} small {kind}"] = lambda training=training: small_model(name, training)
        CASES[f"{name} large {kind}"] = lambda training=training: large_model(name, training)
    CASES[f"{name} large training dropout"] = lambda: large_model(name, True, 0.1)


for _name in MODELS:
    _add_model_cases(_name)


@case("warm start")
def warm_start() -> str:
    """The second process of a model: everything comes from disk."""
    folder = str(Path(__file__).parent)
    code = (
        f"import sys, time; sys.path.insert(0, {folder!r}); import gpu_smoke as s; s.find_regraft();"
        "import torch, regraft; m = s.Subject('bert', False, small=False); r = s.compile_model(m, 'regraft');"
        "torch.cuda.synchronize(); t = time.perf_counter(); m.step(r); torch.cuda.synchronize();"
        "print('took', time.perf_counter() - t)"
    )
    took = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        took.append(float(done.stdout.split()[-1]))
    return f"first calls of bert in two processes: {took[0]:.1f} s, {took[1]:.1f} s"


# -- parent and child -------------------------------------------------------------------------------------------------


def child(names: list[str]) -> int:
    """Run cases; a line of JSON for each, after what they print."""
    find_regraft()
    import torch

    torch.set_float32_matmul_precision("highest")
    for name in names:
        start = time.perf_counter()
        try:
            told, passed = CASES[name](), True
        except Exception as error:
            traceback.print_exc()
            told, passed = f"{type(error).__name__}: {error}", False
        row = {"name": name, "passed": passed, "told": told, "seconds": time.perf_counter() - start}
        print(f"{MARK}{json.dumps(row)}", flush=True)
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            print(f"the GPU does not answer any more: {error}".splitlines()[0], flush=True)
            return 1
    return 0


def run_children(names: list[str], budget: float) -> Iterator[dict[str, Any]]:
    """The results of cases, in order, from as many processes as it takes."""
    todo, end = list(names), time.monotonic() + budget
    while todo:
        more = [flag for backend in BACKENDS for flag in ("--backends", backend)]
        command = [sys.executable, "-u", __file__, "--child", *more, *todo]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        done = 0
        for line in process.stdout:
            if not line.startswith(MARK):
                print(line, end="", flush=True)
                continue
            row = json.loads(line.removeprefix(MARK))
            state = "ok    " if row["passed"] else "FAILED"
            print(f"{state} {row['name']} ({row['seconds']:.1f} s): {row['told'][:1500]}", flush=True)
            yield row
            done += 1
            if time.monotonic() > end:
                process.kill()
        process.wait()
        if time.monotonic() > end:
            yield from ({"name": name, "passed": None, "told": "no time left", "seconds": 0.0} for name in todo[done:])
            return
        if not done:
            told = f"the process ended with status {process.returncode}"
            print(f"FAILED {todo[0]}: {told}")
            yield {"name": todo[0], "passed": False, "told": told, "seconds": 0.0}
            done = 1
        todo = todo[done:]


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="how their names begin; all if none are given")
    parser.add_argument("--backends", action="append", default=[], help="e.g. inductor or inductor+reduce-overhead")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--list", action="store_true", help="show the cases")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    BACKENDS.extend(given.backends)
    if given.child:
        return child(given.cases)
    names = [name for name in CASES if not given.cases or any(name.startswith(wanted) for wanted in given.cases)]
    if given.list:
        print("\n".join(names))
        return 0
    import torch

    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}")
    os.environ.setdefault("REGRAFT_CACHE_DIR", tempfile.mkdtemp(prefix="regraft-smoke-"))
    rows = list(run_children(names, given.budget))
    print(f"\n{'case':44} {'':7} {'seconds':>8}")
    for row in rows:
        state = {True: "ok", False: "FAILED", None: "skipped"}[row["passed"]]
        print(f"{row['name']:44} {state:7} {row['seconds']:8.1f}  {str(row['told']).splitlines()[0][:300]}")
    failures = sum(row["passed"] is False for row in rows)
    print(f"{failures} of {len(rows)} cases failed")
    return min(failures, 99)


if __name__ == "__main__":
    sys.exit(main())
