"""What users of compilers complain about, as listed by thread: one test, or the tests that hold it, for each complaint.

`HELD` names tests that live beside the code they test, so that none of them is lost or renamed unnoticed. What has no
home elsewhere, because it takes several parts of the compiler to get wrong, is tested here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from support.attentions import SPELLINGS, B, D, H, S, T, attend, by_hand, normal, qkv
from support.rewriting import assert_agrees, compiled, rewritten, trained

TESTS = Path(__file__).parent
WRONG = "patterns/test_attention_silent_wrong.py"
MASKS = "patterns/test_attention_masks.py"
TRAINING = "patterns/test_attention_training.py"

# complaint, with its threads (of pytorch/pytorch, where only a number stands) -> the tests that hold it
HELD: dict[str, tuple[str, ...]] = {
    "1 rewrites fire where they must not: #195320 #195282 #191260 #181568 vLLM#48324": (
        f"{WRONG}::test_right_or_refused", f"{WRONG}::test_compiled",
        "patterns/test_rules_check.py::test_default_rules_hold",
        "patterns/test_rules_check.py::test_no_condition_can_be_dropped_unnoticed",
        "rewrites/test_live.py::test_a_scale_off_by_one_percent_is_seen_and_logged",
        "patterns/test_planting.py::test_planted_almost_and_refused",
    ),
    "2 patterns are spellings: #119760 #126057 #107578 #155792 #185574 onnxruntime#23864": (
        "patterns/test_attention_spellings.py::test_matches", "patterns/test_attention_spellings.py::test_compiled",
        "compiler/tools/coverage/test_corpus.py::test_drops_are_named",
    ),
    "3 why did it not match: #169440 onnxscript#1491 OpenVINO#33116": (
        f"{WRONG}::test_near_miss_tells_where", f"{WRONG}::test_near_miss_tells_what",
        f"{WRONG}::test_another_softmax_is_explained",
        "compiler/tools/explain/test_expect.py::test_the_message_says_why_not",
    ),
    "4 mutation blocks patterns: #149879 #137229 #164041 vLLM#14703": (
        f"{WRONG}::test_query_changed_between", f"{WRONG}::test_query_changed_between_compiled",
        f"{WRONG}::test_value_changed_before_use", "rewrites/test_legality.py::test_a_write_in_between",
        "rewrites/test_effects.py::test_writes_through_views_are_found_by_position",
    ),
    "5 splicing: #148751 #162019 #137280 #188223": (
        "test_pains.py::test_a_mask_that_is_made_after_the_scores",
        "test_pains.py::test_attentions_that_interleave", "rewrites/test_verifier.py::test_order",
        "rewrites/test_legality.py::test_operands_that_must_not_move",
        "rewrites/test_driver.py::test_provenance_survives",
        "rewrites/test_layout.py::test_metadata_downstream_is_renewed",
    ),
    "6 dynamic sizes switch patterns off: #111190 #136329 #102670": (
        "patterns/test_attention_spellings.py::test_many_layers_and_one_shape_after_another",
        "rewrites/test_symbolic.py::test_assume_emits_one_guard_and_then_it_is_known",
        f"{MASKS}::test_causal_dynamic", f"{MASKS}::test_mask_of_size_d_is_not_confused",
    ),
    "7 fully masked rows: #109517 #110213 #131552": (
        f"{WRONG}::test_dead_row_compiled", f"{MASKS}::test_dead_rows_stay_nan",
        f"{MASKS}::test_dead_rows_are_finite_where_asked", f"{MASKS}::test_low_rows_stay_uniform",
        f"{MASKS}::test_nan_and_inf_in_inputs",
    ),
    "8 dropout differs from eager: #113169 #142853 #192635 #174078": (
        f"{TRAINING}::test_dropout_draws_what_eager_draws", f"{TRAINING}::test_other_draws_keep_their_order",
        "compiler/test_rng.py::test_eager_keeps_eagers_stream_in_every_form",
        "test_pains.py::test_dropout_on_weights_that_lie_transposed",
        "compiler/test_rng.py::test_forward_and_backward_have_one_mask",
    ),
    "9 low precision drifts: #150638 #159239 #168186 #196957": (
        "patterns/test_attention.py::test_half_precision", "patterns/test_attention.py::test_large_scores",
        "compiler/test_backend.py::test_live_comparison_reports_the_error_of_each_rule",
    ),
    "10 one global slot for passes: #178048 #130772 #177403": (
        "compiler/test_backend.py::test_rules_are_scoped_to_one_compilation", "rewrites/test_ruleset.py::test_plugins",
        "compiler/options/test_fields.py::test_key_tells_options_and_rule_contents_apart",
    ),
    "11 slow starts: #122540 #172547 #128398 #118213": (
        "compiler/runtime/graph_cache/test_entry.py::test_another_process_recalls_it",
        "compiler/runtime/graph_cache/test_key.py::test_what_the_code_depends_on_is_in_the_key",
    ),
    "12 autotuning: #154301 #161764 #159525 #172819": (
        "compiler/autotune/test_autotuner.py::test_slower_candidates_are_declined",
        "compiler/autotune/test_autotuner.py::test_second_time_is_answered_from_memory",
        "compiler/autotune/test_autotuner.py::test_memory_is_guarded",
        "compiler/autotune/test_autotuner.py::test_spent_budget_takes_the_nearest_shape",
    ),
    "13 skips are explained: #148439 #152887 #170604 #192748": (  # there are no captured CUDA graphs to overwrite
        "compiler/test_backend.py::test_cuda_graphs_need_a_cuda_device",
    ),
    "14 strides and aliases: #149732 #182328 #136837": (
        "test_pains.py::test_strides_and_aliases_of_results_are_eagers",
        "test_pains.py::test_rows_that_overlap_or_repeat",
        "patterns/test_attention.py::test_layouts", "patterns/test_attention.py::test_result_keeps_its_layout",
        "rewrites/test_layout.py::test_an_output_keeps_its_strides",
        "compiler/capture/test_capture.py::test_aliases_and_structures_of_outputs",
    ),
    "15 the scheduler and writes in place: #171493 #191433 #101950 #195966": (
        "test_pains.py::test_writes_in_place_around_a_match",
        "compiler/schedule/test_check.py::test_bugs_planted_in_the_scheduler_are_found",
        "compiler/schedule/test_random.py::test_schedules_compute_what_programs_do",
        "compiler/capture/test_capture.py::test_inputs_that_share_memory",
        "compiler/codegen/wrapper/test_memory_plan.py::test_random_programs_keep_every_bit",
    ),
    "16 indices out of range: #183608 #151918 #111952": (
        "test_pains.py::test_indices_out_of_range_raise",
        "compiler/lowering/ops/test_indexing.py::test_out_of_range_raises",
        "compiler/lowering/ops/test_scatter.py::test_out_of_range_raises",
        "compiler/lowering/ops/test_indexing.py::test_only_indexing_counts_from_the_end",
    ),
    "17 positions of extrema: #118266 #99879 #184893": (
        "test_pains.py::test_positions_of_extrema_among_nan_and_ties",
        "compiler/lowering/ops/test_reductions.py::test_positions_of_nan_and_ties",
        "compiler/lowering/ops/test_reductions.py::test_extrema_with_positions",
    ),
    "18 padding and layout: #193638 #196992 #119578 #118082": (
        "patterns/test_padding.py::test_strides_of_results_are_eagers", "patterns/test_padding.py::test_measured",
        "compiler/passes/test_channels_last.py::test_measured",
        "compiler/passes/test_channels_last.py::test_strides_of_outputs_are_eagers",
    ),
    "19 small kernels: #109700 #106466 #122281 #122961": (
        "compiler/schedule/test_legality.py::test_few_shared_iterations_would_leave_threads_idle",
        "compiler/codegen/cpp/test_kernels.py::test_tails_touch_nothing_else",
        "compiler/codegen/cpp/test_kernels.py::test_other_instruction_sets_agree",
    ),
    "20 silent fallbacks: thunder#2539 TensorRT#2175 OpenVINO#37215": (
        "compiler/test_backend.py::test_a_program_that_our_faults_break_runs_as_it_was_written",
        "compiler/capture/test_refusals.py::test_a_fallback_is_dynamos_graph_itself",
        "rewrites/test_driver.py::test_without_verification_the_program_stays_as_it_was",
        "rewrites/test_driver.py::test_a_broken_rule_costs_that_rule_alone",
    ),
    "spelled: a causal mask built in the graph": (f"{MASKS}::test_known_causal", f"{MASKS}::test_causal_compiled"),
    "spelled: dropout, also with an additive mask": (f"{TRAINING}::test_dropout_draws_what_eager_draws",),
    "spelled: dropout by hand": (f"{TRAINING}::test_handwritten_dropout",),
}  # fmt: skip

# What Inductor 2.13 gets wrong without a word, by the name of its case here
WRONG_PROGRAMS = (
    "softmax over rows", "softmax over heads", "softmax over the batch", "permuted, S == H", "permuted, S != H",
    "permuted differently, S == H",
)  # fmt: skip

# What it does not recognize as attention, by the name of the spelling here
MISSED_SPELLINGS = (
    "scale on query", "scale on key", "no scale", "einsum", "log_softmax and exp", "exp and sum by hand",
    "additive mask after scale", "masked_fill (S, T)", "where (S, T)", "ALiBi", "3-D bmm", "baddbmm with mask",
    "0-d tensor", "0-d tensor given",
)  # fmt: skip


def test_every_complaint_is_held() -> None:
    numbers = [int(m.group()) for m in (re.match(r"\d+", name) for name in HELD) if m]
    assert numbers == list(range(1, 21))


@pytest.mark.parametrize("complaint", HELD)
def test_what_holds_it_is_there(complaint: str) -> None:
    for node_id in HELD[complaint]:
        file, _, name = node_id.partition("::")
        assert name in _tests_of(file), f"there is no {node_id}"


def _tests_of(file: str) -> set[str]:
    nodes = ast.walk(ast.parse((TESTS / file).read_text(encoding="utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def test_programs_that_others_get_wrong_are_cases() -> None:
    tree = ast.parse((TESTS / WRONG).read_text(encoding="utf-8"))
    keys = {k.value for n in ast.walk(tree) if isinstance(n, ast.Dict) for k in n.keys if isinstance(k, ast.Constant)}
    assert set(WRONG_PROGRAMS) <= keys


def test_spellings_that_others_miss_are_cases() -> None:
    assert set(MISSED_SPELLINGS) <= set(SPELLINGS)


# -- 5: splicing


def test_a_mask_that_is_made_after_the_scores() -> None:
    """What a match needs may be computed between its first call and its last: the replacement stands after it."""

    def attention(q, k, v, x):
        scores = q @ k.mT
        mask = torch.where(x > 0, 0.0, -1e9) + scores.new_zeros(())  # here, and not before
        bias = mask.cumsum(-1)
        return attend(scores * 0.5 + bias, v * bias.sum(-1).mean())

    given = [*qkv(), normal(S, T)]
    found = rewritten(attention, trained(given))
    assert found.count() == 1, found.record.near_misses
    found.graph.lint()
    assert_agrees(attention, found.run, trained(given))


def test_attentions_that_interleave() -> None:
    """The calls of two matches stand in turns, and one needs the other's result."""

    def attentions(q, k, v):
        first, second = q @ k.mT, (q + 1) @ k.mT
        a, b = torch.softmax(first * 0.3, -1), torch.softmax(second * 0.2, -1)
        inner = a @ v
        return b @ (v + inner.mean()), inner

    found = rewritten(attentions, trained(qkv()))
    assert found.count() == 2, found.record.near_misses
    found.graph.lint()
    assert_agrees(attentions, found.run, trained(qkv()))


# -- 8: dropout


def test_dropout_on_weights_that_lie_transposed() -> None:
    """Found by planting: eager draws in the order of memory, which is that of the transposed scores here."""

    def attention(q, k, v):
        return torch.dropout(by_hand((k @ q.mT).mT * 0.3), 0.2, True) @ v

    eager, statistical = (rewritten(attention, qkv(), rng=rng) for rng in ("eager", "statistical"))
    assert (eager.count(), statistical.count()) == (0, 1)
    assert "random-layout-changes" in eager.codes
    results = []
    for run in (eager.run, attention):
        torch.manual_seed(0)
        results.append(run(*qkv()))
    torch.testing.assert_close(*results)


# -- 14: strides and aliases

_WINDOWS = normal(B, H, T + D - 1).unfold(-1, D, 1)  # each row starts one number after the row before
_REPEATED = normal(B, H, 1, D).expand(B, H, T, D)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("at", ["query", "key", "value"])
@pytest.mark.parametrize("rows", [_WINDOWS, _REPEATED], ids=["overlapping", "repeated"])
def test_rows_that_overlap_or_repeat(rows: torch.Tensor, at: str, dynamic: bool) -> None:
    """Found by planting: torch's CPU kernel gives garbage for a query whose rows overlap, as `unfold` makes them."""

    def attention(q, k, v):
        return attend(q @ k.mT * 0.3, v)

    given = dict(zip(("query", "key", "value"), qkv(T, T), strict=True)) | {at: rows}
    found = rewritten(attention, list(given.values()), dynamic=dynamic)
    assert found.count() == 1
    assert_agrees(attention, found.run, list(given.values()))


def test_strides_and_aliases_of_results_are_eagers() -> None:
    """Results that share memory still do, inputs that are returned are themselves, and strides are eager's."""

    def program(q, k, v):
        out = attend(q @ k.mT, v).transpose(1, 2)
        return out, out[:, 0], q, q.mT

    run, _ = compiled(program)
    given = qkv()
    ours, eager = run(*given), program(*given)
    assert [x.stride() for x in ours] == [x.stride() for x in eager]
    assert ours[2] is given[0]
    assert ours[3].data_ptr() == given[0].data_ptr()
    ours[0].zero_()
    assert not ours[1].any()


# -- 15: writes in place


def test_writes_in_place_around_a_match() -> None:
    """Writes before, in between and after, through views and aliases, to inputs that the caller sees."""

    def program(q, k, v):
        k[:, :, 0] += 1.0
        scores = q @ k.mT
        alias = v.view(-1)
        alias.mul_(0.5)
        out = attend(scores, v)
        q.transpose(-1, -2).add_(out.mean())
        out += q.sum()
        return out, alias[:3]

    run, _ = compiled(program)
    ours, eager = ([x.clone() for x in qkv()] for _ in range(2))
    for a, b in zip([*run(*ours), *ours], [*program(*eager), *eager], strict=True):
        torch.testing.assert_close(a, b)


# -- 16: indices out of range


@pytest.mark.parametrize("bad", [5, -6])
def test_indices_out_of_range_raise(bad: int) -> None:
    """As in eager code, and not for the last index that is still in range."""

    def program(x, index):
        return x[index] * 2.0 + 1.0

    run, _ = compiled(program)
    x = normal(5, 4)
    for good in (4, -5):
        index = torch.tensor([0, good])
        torch.testing.assert_close(run(x, index), program(x, index))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        run(x, torch.tensor([0, bad]))


# -- 17: positions of extrema


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_positions_of_extrema_among_nan_and_ties(dynamic: bool) -> None:
    """The first of equals, and NaN before any number."""

    def program(x):
        y = x + 0.0
        return y.argmax(-1), y.argmin(-1), y.argmax(0), *y.max(-1), *y.min(0)

    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[1.0, 3, 3, 0, 0], [1, nan, 9, nan, 0], [2, 2, 2, 2, 2], [-inf, 5, 5, -inf, 1]])
    x = torch.cat([x, x.flip(0)]).repeat(1, 7)  # longer than a vector, with ties across its lanes
    run, _ = compiled(program, dynamic=dynamic)
    for a, b in zip(run(x), program(x), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=0, atol=0)
