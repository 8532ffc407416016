"""What the page draws: repetitions once, every node somewhere, boxes apart and edges downwards."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import graph, snapshots

from regraft.rewrites.record import GraphRecord, Region, Snapshot, SnapshotNode
from regraft.rewrites.report.drawing import LIMIT, Strings, draw, plain_name
from regraft.rewrites.report.folding import Block, Box, Line, boxes, cut, fold, fold_untouched, summary
from regraft.rewrites.report.layout import GAP_X, HEIGHT, place


def chain(count: int) -> list[Line]:
    return [Line(i, (i - 1,) if i else ()) for i in range(count)]


def shape(items) -> list:
    """`["a", (2, ["b", "c"])]`: boxes by their first node, blocks with their count."""
    return [item.nodes[0] if isinstance(item, Box) else (item.count, shape(item.items)) for item in items]


def test_layers_are_folded():
    colours = list("i" + "abcd" * 5 + "o")
    (first, block, last) = fold(chain(len(colours)), colours)
    assert (first, last) == (Box((0,)), Box((21,)))
    assert block.count == 5 and shape(block.items) == [1, 2, 3, 4] and block.twins[5] == 1 and block.twins[20] == 4


def test_the_longer_repetition_wins_and_blocks_nest():
    layer = "x" + "abcd" * 3 + "y"
    (block,) = fold(chain(4 * len(layer)), list(layer * 4))
    assert block.count == 4 and shape(block.items) == [0, (3, [1, 2, 3, 4]), 13]


def test_a_run_is_cut_where_fewest_values_cross():
    # Each layer is q, k, attend, mlp; cut anywhere else, two values would cross.
    lines = [Line(0, ())]
    for layer in range(3):
        below = 4 * layer
        lines += [Line(below + 1, (below,)), Line(below + 2, (below,)), Line(below + 3, (below + 1, below + 2))]
        lines.append(Line(below + 4, (below + 3,)))
    lines += [Line(13, (12,)), Line(14, (12,)), Line(15, (13, 14))]
    (_, block, *_) = fold(lines, list("i" + "qkam" * 3 + "qka"))
    assert block.count == 3 and [box.nodes[0] for box in block.items] == [1, 2, 3, 4]


def test_runs_of_other_wiring_are_not_equal():
    lines = chain(12)
    lines[9] = Line(9, (8, 6))
    assert shape(fold(lines, list("abcdefabcdef"))) == list(range(12))


def test_short_or_different_runs_stay():
    assert shape(fold(chain(6), list("ababab"))) == list(range(6))
    assert shape(fold(chain(3), list("abc"))) == [0, 1, 2] and fold([], []) == []


@given(st.lists(st.sampled_from("abc"), max_size=40))
@settings(max_examples=80, deadline=None)
def test_every_node_is_drawn_once_or_has_a_twin(colours):
    items = fold(chain(len(colours)), colours)
    twins = {n for item in items if isinstance(item, Block) for n in _twins(item)}
    drawn = [n for box in boxes(items) for n in box.nodes]
    assert sorted([*drawn, *twins]) == list(range(len(colours)))


def _twins(block: Block) -> set[int]:
    return set(block.twins) | {n for item in block.items if isinstance(item, Block) for n in _twins(item)}


def test_what_no_rule_touched_becomes_one_box():
    touched = [n in (4, 5) for n in range(10)]
    assert [box.nodes for box in fold_untouched([Box((n,)) for n in range(10)], touched)] == [
        (0, 1, 2, 3), (4,), (5,), (6, 7, 8, 9),
    ]  # fmt: skip


def test_long_drawings_are_cut():
    (*kept, rest) = cut([Box((n,)) for n in range(10)], 4)
    assert len(kept) == 4 and rest.nodes == (4, 5, 6, 7, 8, 9)
    assert summary(["view", "view", "add", "mul", "sub"]) == "view ×2, add, mul, …"


@st.composite
def layered(draw_value):
    count = draw_value(st.integers(1, 16))
    edges = draw_value(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    split = draw_value(st.integers(0, count))
    widths = draw_value(st.lists(st.floats(20, 200), min_size=count, max_size=count))
    return widths, sorted((a, b) for a, b in edges if a < b), [list(range(split)), list(range(split, count))]


@given(layered())
@settings(max_examples=100, deadline=None)
def test_a_layout_keeps_boxes_apart_and_edges_downwards(given_graph):
    widths, edges, bands = given_graph
    placed = place(widths, edges, bands)
    for a, b in edges:
        assert placed.centres[a][1] < placed.centres[b][1]
    for (x, y), v in zip(placed.centres, range(len(widths)), strict=True):
        assert x >= widths[v] / 2 and x + widths[v] / 2 <= placed.width and HEIGHT / 2 <= y <= placed.height
        beside = [u for u in range(v) if placed.centres[u][1] == y]
        assert all(abs(placed.centres[u][0] - x) >= (widths[u] + widths[v]) / 2 + GAP_X - 1e-6 for u in beside)
    for (top, bottom), band in zip(placed.bands, bands, strict=True):
        assert all(top < placed.centres[v][1] < bottom for v in band)
    assert all(path[0][1] < path[-1][1] for path in placed.paths)


def test_a_chain_is_a_straight_line():
    placed = place([50.0, 90.0, 70.0, 60.0], [(0, 1), (1, 2), (2, 3)], [[0, 1, 2, 3]])
    assert len({x for x, _ in placed.centres}) == 1


def drawn(taken: Snapshot, record: GraphRecord | None = None, **options):
    strings = Strings()
    made = draw(taken, record or GraphRecord("g"), strings, **options)
    json.dumps(made)
    return made, list(strings.table)


def test_a_drawing_of_equal_layers():
    before, after = snapshots(12)
    made, strings = drawn(before, graph(12))
    assert [strings[box[3]] for box in made["boxes"]] == [
        "x", "w", "linear", "matmul", "softmax", "matmul", "add", "relu", "output",
    ]  # fmt: skip
    ((kind, rule, inside, count, index),) = made["regions"]
    assert (kind, strings[rule], inside, count, index) == ("applied", "sdpa", [3, 4, 5], 12, 0)
    ((top, bottom, times, depth),) = made["frames"]
    assert (
        times == 12
        and depth == 0
        and [top < box[1] < bottom for box in made["boxes"]] == [False, False, *[True] * 6, False]
    )
    softmax = [strings[i] for i in made["boxes"][4][3:10]]
    assert softmax[:4] == ["softmax", "1×<128>", "aten.softmax", "f32[1, <128>]"]
    assert softmax[4:] == ["models/bert.py:128\nscores = torch.matmul(q, k.mT) * scale", "layer.0", ""]
    made, strings = drawn(after, graph(12))
    assert [strings[box[9]] for box in made["boxes"]] == ["", "", "", "sdpa", "", "", ""]


def test_parts_of_tuples_and_weights_are_not_drawn():
    nodes = (
        SnapshotNode("x", "placeholder"), SnapshotNode("w", "placeholder"), SnapshotNode("wt", "aten.t", (1,)),
        SnapshotNode("relu", "aten.relu", (0,)), SnapshotNode("mm", "aten.mm", (3, 2)),
        SnapshotNode("split", "aten.split", (4,)),
        SnapshotNode("a", "getitem", (5,)), SnapshotNode("b", "getitem", (5,)),
        SnapshotNode("add", "aten.add", (6, 7)), SnapshotNode("output", "output", (8,)),
    )  # fmt: skip
    made, strings = drawn(Snapshot("program", "capture", nodes))
    assert [strings[box[3]] for box in made["boxes"]] == ["x", "relu", "mm", "split", "add", "output"]
    assert [edge[:2] for edge in made["edges"]] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]


def test_of_what_is_computed_from_weights_the_last_step_is_drawn():
    weight = "l_self_modules_norm_parameters_weight_"
    nodes = (
        SnapshotNode("x", "placeholder"), SnapshotNode(weight, "placeholder"),
        SnapshotNode("_tensor_constant0", "get_attr"),
        SnapshotNode("rsqrt", "aten.rsqrt", (2,)), SnapshotNode("mul", "aten.mul", (1, 3), rule="batch_norm"),
        SnapshotNode("conv", "aten.conv2d", (0, 4)), SnapshotNode("output", "output", (5,)),
    )  # fmt: skip
    made, strings = drawn(Snapshot("program", "rewrite-forward", nodes))
    assert [strings[box[3]] for box in made["boxes"]] == ["x", "mul", "conv2d", "output"]
    inputs = tuple(SnapshotNode("l_ids_", n.op) if n.op == "placeholder" else n for n in nodes)
    made, strings = drawn(Snapshot("program", "rewrite-forward", inputs))
    assert "rsqrt" in [strings[box[3]] for box in made["boxes"]], "read together with an input"


def test_large_graphs_stay_small():
    ops = [f"aten.op{i}" for i in range(5000)]
    nodes = [SnapshotNode("x", "placeholder"), *(SnapshotNode(f"n{i}", op, (i,)) for i, op in enumerate(ops))]
    taken = Snapshot("program", "capture", tuple(nodes), regions=(Region("applied", 0, (2500, 2501)),))
    made, strings = drawn(taken, graph(1))
    assert [strings[box[3]] for box in made["boxes"]] == ["2500 operators", "op2499", "op2500", "2499 operators"]
    nodes = [*nodes[:2], *(SnapshotNode(n.name, n.op, n.inputs, rule="sdpa") for n in nodes[2:])]
    assert len(drawn(Snapshot("program", "capture", tuple(nodes)))[0]["boxes"]) == LIMIT + 1


def test_names_for_people():
    names = [
        "aten.matmul",
        "mkldnn._linear_pointwise",
        "kernel.k12_native_layer_norm_3_2_",
        "kernel.attention_1b30229856b7",
    ]
    assert [plain_name(name) for name in names] == ["matmul", "linear_pointwise", "native_layer_norm", "attention"]
