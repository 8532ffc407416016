"""Random programs agree with eager as loop programs, as schedules and as C++; so do those that once did not."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from support.fuzzing import check_batch, failure_of, shrink
from support.random_ops import EXACT, ROUNDED
from support.random_programs import SYMBOLIC, Given, RandomProgram, Step, draw
from support.random_symbols import NUMBERS
from support.stages import Wrong, check_code, check_lowering, check_schedule_by_interpreter, difference, staged
from support.thorough import thorough

from regraft.compiler.codegen.cpp import build

F32, I64, BOOL = torch.float32, torch.int64, torch.bool


def given(*sizes, dtype=F32, layout="contiguous", fill="small"):
    return Given(sizes, dtype, layout, fill)


def program(inputs, steps, outputs, seed=0, exact=False):
    made = tuple(Step(name, (*operands, *operands[-1:] * (3 - len(operands))), n) for name, operands, n in steps)
    return RandomProgram(tuple(inputs), made, outputs, seed, exact)


# What each got wrong: (program, symbolic sizes).
ONCE_WRONG = {
    "sizes of inputs that no loop needs": (
        program(
            [given(), given(2)],
            [("reduced", [1], 8725), ("joined", [2, 2, 0], 7113), ("lost", [3, 1, 3], 7253)],
            (4,),
        ),
        True,
    ),
    "rows picked by data are apart": (program([given(2, 2, 1)], [("scattered", [0], 4264)], (1,)), False),
    "a reduction of nothing": (
        program([given(2, 0)], [("expanded", [0], 6851), ("extremes", [1], 1929), ("bits", [1, 2, 1], 9528)], (3,)),
        False,
    ),
    "a stride that is a symbol": (program([given(1, layout="stepped")], [("padded", [0], 2525)], (1,)), True),
    "scratch read where data says": (
        program([given(2, 2)], [("paired", [0], 431), ("gathered", [1], 779)], (2,), seed=462032725),
        False,
    ),
    "division by a product of sizes": (
        program([given(2, 2, 16, layout="transposed"), given(17)], [("arithmetic", [1, 0, 1], 9706)], (2,), 726961930),
        True,
    ),
    "loops of a fold and of its store": (
        program([given(3, 7, 3, 17)], [("written", [0], 2814), ("lost", [1], 3439)], (2,)),
        False,
    ),
    "an offset of sizes alone": (
        program(
            [given(1, 3, 20, 4, dtype=I64), given(1, 3, 7, dtype=BOOL, layout="expanded")],
            [("moved", [1, 0], 8320), ("paired", [2, 0], 681), ("sliced", [3, 1], 420), ("paired", [1, 4, 4], 1363)],
            (5,),
        ),
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ONCE_WRONG)
def test_what_was_wrong_once(what):
    failure = failure_of(*ONCE_WRONG[what])
    assert failure is None, str(failure)


@pytest.mark.parametrize("start", [0, thorough(30)])
def test_random_programs_agree_with_eager(start):
    counts = Counter()
    programs = {n: (draw(random.Random(n)), n % 3 == 0) for n in range(start, start + 30)}
    failures = check_batch(programs, counts)
    assert not failures, "\n\n".join(map(str, failures))
    assert counts["agree"] > 25 and counts["kernels"] > 25 and counts["kernels by interpreter"] > 15


def test_a_seed_gives_one_program_and_its_inputs():
    one, other = draw(random.Random(5)), draw(random.Random(5))
    assert one == other and str(one) == str(other) and one != draw(random.Random(6))
    for a, b in zip(one.inputs(), other.inputs(), strict=True):
        assert torch.equal(a.isnan(), b.isnan()) and a.stride() == b.stride()


@pytest.mark.parametrize("name", SYMBOLIC)
def test_operations_take_any_number(name):
    for number in range(60):
        for k, x in enumerate([torch.randn(3, 4), torch.ones(()), torch.zeros(0, 2), torch.tensor([[True]])]):
            result = SYMBOLIC[name](x, torch.tensor([2, -1, 0]), number, NUMBERS[(number + k) % len(NUMBERS)])
            assert isinstance(result, torch.Tensor)


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_operations_take_anything(name):
    operation = {**EXACT, **ROUNDED}[name]
    operands = [torch.randn(3, 4), torch.ones(()), torch.zeros(0, 2), torch.tensor([2, -1, 0]), torch.tensor([[True]])]
    for number in range(40):
        for k, x in enumerate(operands):
            result = operation(x.clone(), operands[number % 5], operands[k - 1], number)
            assert all(isinstance(r, torch.Tensor) for r in (result if isinstance(result, tuple) else (result,)))


def wrong_kernels(staged_program):
    """Kernels that leave the last element of what they write as it was."""

    def spoiled(kernel, run):
        def call(*args):
            run(*args)
            for param, tensor in zip(kernel.params, args, strict=False):
                if param.access != "read":
                    tensor.as_strided((tensor.numel(),), (1,))[-1:] += 1

        return call

    kernels = staged_program.plan.kernels
    return {k.name: spoiled(k, run) for k, run in zip(kernels, build(kernels), strict=True)}


def test_kernels_of_gpus_agree_by_their_interpreter():
    pytest.importorskip("triton")
    counts = Counter()
    failures = check_batch({n: (draw(random.Random(n)), n % 3 == 0) for n in range(900, 916)}, counts, "interpreter")
    assert not failures, failures[0]
    assert counts["agree"] > 10 and counts["kernels"] > 10


def test_a_wrong_kernel_is_seen():
    found = staged(program([given(3, 4)], [("plain", [0], 3)], (1,), exact=True))
    assert check_schedule_by_interpreter(found)
    with pytest.raises(Wrong, match="1 of 12 elements"):
        check_code(found, wrong_kernels(found))


def test_a_number_taken_for_a_size_is_seen(monkeypatch):
    from regraft.compiler.lowering import sizes

    def size(expr, shape_env, known=sizes._range):
        low, high = known(expr, shape_env)
        return max(low or 0, 0), high

    monkeypatch.setattr(sizes, "_range", size)
    made = replace(program([given(3, 4)], [("counted", [0], 28)], (1,), exact=True), numbers=(-7, 1))
    with pytest.raises(Wrong, match="12 of 12 elements"):
        check_lowering(staged(made, dynamic=True))


def test_failing_programs_shrink(monkeypatch):
    import support.fuzzing as fuzzing

    def bad_cumsum(programs, counts, device):
        return [
            fuzzing.Failure(n, p, d, "code", "scanned is wrong")
            for n, (p, d) in programs.items()
            if any(step.operation == "scanned" for step in p.steps)
        ]

    monkeypatch.setattr(fuzzing, "check_batch", bad_cumsum)
    large = program([given(16, 7), given(2)], [("plain", [0], 1), ("scanned", [2, 1], 4), ("plain", [3], 2)], (4, 3))
    small = shrink(fuzzing.failure_of(large, False)).program
    assert [step.operation for step in small.steps if step.operation != "kept"] == ["scanned"]
    assert small.outputs in ((3,), (2,)) and small.given[0].sizes != (16, 7)


def test_differences():
    x = torch.tensor([1.0, torch.nan, torch.inf])
    assert difference(x.clone(), x, 0.0) is None
    assert "float64" in difference(x.double(), x, 0.0)
    assert "1 of 3" in difference(torch.tensor([1.0, torch.nan, -torch.inf]), x, 1e-3)
    assert difference(x + 1e-5, x, 1e-4) is None and difference(x + 1e-5, x, 0.0) is not None
    moving = [torch.tensor([1.2, torch.nan, torch.inf]), torch.tensor([0.9, torch.nan, torch.inf])]
    assert difference(x + torch.tensor([0.1, 0, 0]), x, 1e-4, moving) is None
