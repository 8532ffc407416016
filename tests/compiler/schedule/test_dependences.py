"""Effects of items, dead code, and what must come before what."""

from __future__ import annotations

from support.schedules import Builder, op

from regraft.compiler.schedule.dependences import effects, live, order_of


def chain():
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("exp", x.at(i)))
    b.map("dead", (4,), lambda i: op("exp", t.at(i)))
    u = b.map("u", (4,), lambda i: op("neg", t.at(i)))
    return b, x, t, u


def test_what_nobody_reads_is_dead():
    b, _, _, u = chain()
    assert [item.name for item in live(b.program(u))] == ["t", "u"]


def test_writes_to_inputs_and_effects_are_alive():
    b, x, t, _ = chain()
    b.write("copy_", x, (4,), lambda i: i, t.at)
    b.extern("draw", ["t"], ["noise"], pure=False)
    b.extern("unused", ["t"], ["w"])
    b.low.buffers["noise"] = b.low.buffers["w"] = b.low.buffers["t"]
    assert [item.name for item in live(b.program())] == ["t", "copy_", "draw"]


def test_a_combining_store_reads_its_buffer():
    b, x, t, _ = chain()
    b.write("add_", t, (4,), lambda i: i, x.at, "add")
    found = effects(b.low.items[-1])
    assert found.reads == {"x", "t"} and found.writes == {"t"}


def test_order_by_buffer():
    b, x, _, u = chain()
    b.write("copy_", x, (4,), lambda i: i, u.at)  # 3: after t (0), which reads x, and u (2)
    b.map("again", (4,), lambda i: x.at(i))  # 4: after copy_
    before = order_of([effects(item) for item in b.low.items])
    assert before == [set(), {0}, {0}, {0, 2}, {3}]


def test_calls_with_effects_keep_their_order():
    b = Builder()
    for name, pure in (("a", False), ("b", True), ("c", False)):
        b.given(name, (1,), kind="made")
        b.extern(name, [], [name], pure)
    assert order_of([effects(item) for item in b.low.items]) == [set(), set(), {0}]
