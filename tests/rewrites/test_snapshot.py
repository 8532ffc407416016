"""Snapshots: what a graph was before and after, and where the rules found something; taken only when asked for."""

import torch
from support.engine import X, applied, capture, rule

import regraft
from regraft.rewrites.coverage import Coverage, is_watched
from regraft.rewrites.driver import Settings, rewrite
from regraft.rewrites.profit import Never
from regraft.rewrites.record import GraphRecord, Region, Snapshot
from regraft.rewrites.snapshot import keep_start, regions_by_name, snapshot, type_text

RELU_EXP = lambda x: torch.relu(torch.exp(x))  # noqa: E731


def relu_exp(**declaration):
    return rule(RELU_EXP, lambda x: torch.exp(x).clamp(min=0), "relu_exp", **declaration)


def names(taken: Snapshot, region: Region) -> list[str]:
    return [taken.nodes[n].name for n in region.nodes]


def test_nothing_is_kept_unless_asked_for():
    assert applied(capture(RELU_EXP, X), relu_exp()).snapshots == []


def test_before_and_after_a_rewrite():
    module = capture(lambda a: torch.relu(torch.exp(a)) + a, X)
    before, after = applied(module, relu_exp(), drawn="program").snapshots
    assert (before.graph, before.stage, after.graph, after.stage) == (
        "program",
        "capture",
        "program",
        "rewrite-forward",
    )
    assert [n.op for n in before.nodes] == ["placeholder", "aten.exp", "aten.relu", "aten.add", "output"]
    (region,) = before.regions
    assert (region.kind, region.index, names(before, region)) == ("applied", 0, ["exp", "relu"])
    assert [(n.op, n.rule) for n in after.nodes if n.rule] == [("aten.exp", "relu_exp"), ("aten.clamp", "relu_exp")]
    assert after.regions == ()
    relu = before.nodes[2]
    assert relu.inputs == (1,) and relu.type == f"f32[{', '.join(map(str, X.shape))}]"
    assert before.sites[relu.site].line == 2


def test_a_region_is_what_exists_for_the_match_alone():
    def program(a):
        shared = a * 2  # read by the match and by others
        return torch.relu(torch.exp(shared)) + shared

    before, _ = applied(capture(program, X), relu_exp(), drawn="program").snapshots
    assert names(before, before.regions[0]) == ["exp", "relu"]


def test_declined_matches_and_near_misses_are_marked():
    before, *more = applied(capture(RELU_EXP, X), relu_exp(), drawn="program", oracle=Never()).snapshots
    assert [r.kind for r in before.regions] == ["declined"] and not more, "nothing was changed"

    def escaping(a):
        inner = torch.exp(a)
        return torch.relu(inner), inner

    record = applied(capture(escaping, X), relu_exp(), drawn="program")
    ((region,),) = [taken.regions for taken in record.snapshots]
    assert region.kind == "near_misses" and names(record.snapshots[0], region) == ["relu"]
    assert record.near_misses[region.index].code == "inner-value-escapes"


def test_the_end_of_a_stage_is_the_start_of_the_next():
    module = capture(lambda a: torch.relu(torch.exp(a)) + a, X)
    record = GraphRecord("test")
    for run in (relu_exp(), rule(lambda x: torch.relu(x), lambda x: x, "absent"), relu_exp()):
        rewrite(module, [run], Settings(drawn="program", near_miss_depth=0), record)
    assert [taken.stage for taken in record.snapshots] == ["capture", "rewrite-forward"]
    assert [r.kind for r in record.snapshots[0].regions] == ["applied"]
    other = Snapshot("inference", "differentiate")
    keep_start(record, other)
    assert record.snapshots[-1] is other, "another graph is another start"


def test_regions_of_matches_that_name_their_nodes():
    taken = snapshot(capture(RELU_EXP, X).graph, "inference", "differentiate")
    record = applied(capture(RELU_EXP, X), relu_exp())
    assert regions_by_name(taken, record, (0, 0)).regions == (Region("applied", 0, (1, 2)),)
    assert regions_by_name(taken, record, (1, 0)).regions == ()


def test_types():
    assert type_text(torch.empty(2, 3, dtype=torch.bfloat16)) == "bf16[2, 3]"
    assert type_text((torch.empty(2), torch.empty(1, dtype=torch.bool))) == "f32[2], bool[1]"
    assert type_text(3) == type_text(None) == "" and type_text(torch.empty(0, dtype=torch.uint8)) == "u8[0]"


def test_blocks_ask_for_snapshots():
    assert not is_watched()
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: torch.nn.functional.linear(a, a).relu() + 1, backend="regraft")
    with torch.no_grad(), regraft.coverage() as cov:
        assert is_watched()
        compiled(torch.randn(8, 8))
    (record,) = cov.graphs
    assert {taken.graph for taken in record.snapshots} == {"program", "inference"}
    assert all(region.index < len(getattr(record, region.kind)) for s in record.snapshots for region in s.regions)
    assert Coverage.from_json(cov.to_json()).graphs[0].snapshots == record.snapshots
