"""Trials: who agrees, who fails, how long each takes, and what is left behind (nothing)."""

from __future__ import annotations

import time

import pytest
import torch

from regraft.compiler.autotune import benchmark as trial_module
from regraft.compiler.autotune.benchmark import MAX_RUNS, MIN_RUNS, CudaClock, run_trial, wall_clock
from regraft.compiler.autotune.inputs import UnmeasurableError, synthesize


def program(seconds=0.0, result=lambda x: x * 2):
    """A program that takes at least `seconds`."""

    def run(x):
        time.sleep(seconds)
        return result(x)

    return run


def run(original, *, shape=(8,), training=False, seconds=0.0, deadline=float("inf"), **candidates):
    inputs = synthesize([torch.linspace(1, 2, 8).expand(shape).clone().requires_grad_(training)], training)
    return run_trial(original, candidates, inputs, training, seconds, deadline)


@pytest.fixture
def calls(monkeypatch):
    """Counts timed runs by program, under a clock that claims a millisecond for each."""
    counts: dict[object, int] = {}

    def clock(step):
        step()
        counts[step] = counts.get(step, 0) + 1
        return 1e-3

    monkeypatch.setattr(trial_module, "_clock", lambda devices, cold: clock)
    return counts


def test_times_every_program():
    trial = run(program(0.02), quick=program(0.001), slow=program(0.03))
    assert trial.times["original"] >= 0.02 and trial.times["slow"] >= 0.03
    assert 0.001 <= trial.times["quick"] < trial.times["original"]
    assert not trial.dropped and not trial.notes


def test_big_programs_run_two_times(calls):
    run(program(), seconds=1e-9, a=program())
    assert list(calls.values()) == [2, 2]


def test_programs_of_middle_size_run_three_times(calls):
    run(program(), seconds=2.5e-3, a=program())
    assert list(calls.values()) == [MIN_RUNS, MIN_RUNS]


def test_small_programs_run_until_their_time_is_up(calls):
    run(program(), seconds=9.5e-3)
    assert list(calls.values()) == [10]


def test_runs_are_bounded(calls):
    run(program(), seconds=1e9)
    assert list(calls.values()) == [MAX_RUNS]


def test_two_runs_after_the_deadline(calls):
    run(program(), seconds=1e9, deadline=0.0, a=program())
    assert list(calls.values()) == [2, 2]


def test_hopeless_programs_stop_early():
    slow = [1.0, 1.0]
    assert trial_module._done("slow", {"original": [0.1], "slow": slow}, seconds=1e9, late=False)
    assert not trial_module._done("slow", {"original": [0.9], "slow": slow}, seconds=1e9, late=False)


def test_programs_that_are_far_apart_stop_early():
    def done(**samples):
        return [trial_module._done(name, samples, seconds=1e9, late=False) for name in samples]

    apart = {"original": [2.0] * 5, "slow": [1.5] * 5, "fast": [1.1] * 5}
    assert done(**apart) == [True, True, True]
    assert done(**{**apart, "close": [1.2] * 5}) == [True, True, False, False]
    assert done(**{**apart, "fast": [1.1] * 4}) == [True, True, False]
    assert done(original=[1.0] * 5) == [False]


def test_programs_whose_times_lie_apart_stop_early():
    def done(**samples):
        return [trial_module._done(name, samples, seconds=1e9, late=False) for name in samples]

    def times(least, runs=9):
        return [least + 0.01 * k for k in range(runs)]

    assert done(original=times(2.0), slower=times(2.1), slowest=times(2.2)) == [True, True, True]
    assert done(original=times(2.0), alike=times(2.02), slower=times(2.1)) == [False, False, True]
    assert done(original=times(2.0, 8), slower=times(2.1, 8)) == [False, False]
    assert done(original=times(2.0, 2), faster=times(1.9)) == [False, True]


def test_wall_clock_measures():
    assert wall_clock(lambda: time.sleep(0.01) or []) >= 0.01


def test_raising_candidate_is_dropped():
    def broken(x):
        raise RuntimeError("no kernel for float7\nstack...")

    trial = run(program(), broken=broken, fine=program())
    assert trial.dropped == {"broken": "raised RuntimeError: no kernel for float7"}
    assert set(trial.times) == {"original", "fine"}
    assert not trial.out_of_memory


def test_candidate_that_raises_while_timed_is_dropped():
    runs = []

    def tires(x):
        runs.append(1)
        if len(runs) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return x * 2

    trial = run(program(), tires=tires)
    assert "out of memory" in trial.dropped["tires"]
    assert set(trial.times) == {"original"} and trial.out_of_memory


def test_raising_original_is_an_error():
    with pytest.raises(UnmeasurableError, match="original program raised ZeroDivisionError"):
        run(lambda x: 1 / 0, fine=program())


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: x * 2.2, "relative error"),
        (lambda x: (x * 2).double(), "dtype"),
        (lambda x: (x * 2)[:-1], "shape"),
        (lambda x: x * 2 + torch.where(x > 1.9, torch.nan, 0.0), "NaN"),
        (lambda x: (x * 2, x), "2 results"),
    ],
)
def test_wrong_candidate_is_never_timed(result, said):
    trial = run(program(), wrong=program(0, result))
    assert said in trial.dropped["wrong"] and "disagrees" in trial.dropped["wrong"]
    assert set(trial.times) == {"original"}


def test_containers_of_results_do_not_matter():
    trial = run(lambda x: (x, [x + 1]), flat=lambda x: [x, x + 1])
    assert not trial.dropped


def test_random_programs_are_compared_by_metadata_only():
    dropout = torch.nn.functional.dropout
    trial = run(lambda x: dropout(x, 0.5), other=lambda x: dropout(x * 1.0, 0.4), wrong=lambda x: dropout(x)[:3])
    assert "shape" in trial.dropped["wrong"] and "other" in trial.times
    assert trial.notes == ["draws random numbers: values not compared"]


def test_deterministic_original_and_random_candidate_are_compared():
    trial = run(program(), noisy=lambda x: x * 2 + torch.rand_like(x))
    assert "relative error" in trial.dropped["noisy"]


def test_programs_that_write_to_their_inputs_see_first_values():
    def writes_and_fails(x):
        x.zero_()
        raise RuntimeError("too late")

    trial = run(lambda x: x.add_(1), failing=writes_and_fails, copying=lambda x: x + 1, wrong=lambda x: x.add_(1.5))
    assert set(trial.times) == {"original", "copying"}
    assert "relative error" in trial.dropped["wrong"]


class Doubled(torch.autograd.Function):
    """Right forward; `factor` scales the gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.005)
        return grad * ctx.factor, None


def test_training_compares_and_times_gradients():
    trial = run(
        lambda x: Doubled.apply(x, 2.0),
        training=True,
        plain=program(),
        wrong=lambda x: Doubled.apply(x, 2.5),
        detached=lambda x: (x * 2).detach(),
    )
    assert trial.times["original"] >= 0.005 > trial.times["plain"]
    assert "relative error" in trial.dropped["wrong"]
    assert "1 result instead of 2" in trial.dropped["detached"]


def test_inference_ignores_gradients():
    seen = []
    run(lambda x: seen.append((torch.is_grad_enabled(), x.requires_grad)) or x, training=False)
    assert set(seen) == {(False, False)}


def test_training_without_gradients_times_forward():
    inputs = synthesize([torch.ones(3)], training=True)
    assert run_trial(lambda x: x + 1, {}, inputs, training=True, seconds=0.0).times


def test_unused_inputs_get_zero_gradients():
    inputs = synthesize([torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)], training=True)
    trial = run_trial(lambda x, y: x + y * 0, {"simplified": lambda x, y: x * 1}, inputs, training=True, seconds=0.0)
    assert not trial.dropped


def test_random_state_is_restored_even_after_failure():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(lambda x: torch.randn(7) and x if False else torch.randn_like(x) + x)
    with pytest.raises(UnmeasurableError):
        run(lambda x: torch.rand(3) / 0 + 1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_from_above_come_in_the_strides_of_their_outputs():
    seen = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append((grad.stride(), grad.contiguous()))
            return grad

    def turned(x):
        return Noted.apply(x.t().contiguous().t())

    trial = run(lambda x: Noted.apply(x), shape=(4, 8), training=True, turned=turned)
    assert not trial.dropped
    strides = {stride for stride, _ in seen}
    assert strides == {(8, 1), (1, 4)} and all(torch.equal(grad, seen[0][1]) for _, grad in seen)


def test_only_a_gpu_is_asked_for_cold_caches():
    inputs = synthesize([torch.ones(8)], False)
    assert run_trial(lambda x: x + 1, {"same": lambda x: 1 + x}, inputs, seconds=0.0, cold=True).times


@pytest.mark.parametrize(("launches", "taken"), [([5e-5], 1e-5), ([9e-4, 9e-4, 5e-5], 1e-5), ([4e-3] * 9, 4e-3)])
def test_what_the_cpu_was_late_for_is_measured_again(monkeypatch, launches, taken):
    """A GPU that waits for its launches is not slow: `taken` of what takes 1e-5 seconds, the last after all tries."""
    clock, left = CudaClock(), list(launches)

    def step():
        return None

    clock._launch[step] = 1e-5

    def once(_, spun):
        launched = left.pop(0)
        return (1e-5 if launched < spun else launched), launched

    monkeypatch.setattr(CudaClock, "LIMITS", (1e-4, 1e-3))
    monkeypatch.setattr(clock, "_once", once)
    assert clock(step) == taken
