import threading

import torch
from torch import fx

from regraft.rewrites import switches
from regraft.rewrites.switches import Step, StepSearch, allowed, changing, left_out, naming, pausing, search


def graph():
    def f(x):
        return x.relu().tanh()

    return fx.symbolic_trace(f).graph


def test_everything_is_allowed_by_itself():
    assert allowed("rule", "sdpa") and not switches.searching()


def test_the_first_steps_of_a_kind_are_allowed():
    with search(StepSearch({"rule": 2, "pass": 0})) as found:
        answers = [allowed("rule", "a"), allowed("pass", "p"), allowed("rule", "b"), allowed("rule", "c")]
        assert switches.searching() and allowed("kernel", "k")
    assert answers == [True, False, True, False]
    assert [step.name for step in found.steps["rule"]] == ["a", "b", "c"]


def test_names_and_kinds_are_left_out_and_not_counted():
    with search(StepSearch()) as found, left_out(["cse", "fusion"]):
        assert not allowed("pass", "cse") and not allowed("fusion", "a with b") and allowed("pass", "fold")
    assert {kind: len(steps) for kind, steps in found.steps.items()} == {"pass": 1}
    assert allowed("pass", "cse")


def test_plans_that_may_not_run_are_not_counted():
    with search(StepSearch({"fusion": 0})) as found, pausing():
        assert allowed("fusion", "a with b")
    assert not found.steps


def test_searches_see_all_threads():
    with search(StepSearch({"rule": 0})):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(allowed("rule", "a")))
        thread.start()
        thread.join()
    assert answers == [False]


def test_steps_know_their_source_lines():
    made = graph()
    trace = '  File "model.py", line 7, in forward\n    x.tanh()'
    node = next(n for n in made.nodes if n.target == "tanh")
    node.meta["stack_trace"] = trace
    with search(StepSearch()) as found, naming(made):
        allowed("kernel", "aten.tanh", node)
        allowed("fusion", "relu with tanh", ("relu", "tanh"))
    for steps in found.steps.values():
        assert (steps[0].site.line, steps[0].nodes[-1]) == (7, "tanh")
    assert str(found.steps["kernel"][0]) == "kernel aten.tanh at model.py:7 in forward: x.tanh()"


def test_what_the_last_step_allowed_changes_is_noted():
    made = graph()
    node = next(n for n in made.nodes if n.target == "tanh")
    node.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    x.tanh()'
    with search(StepSearch({"pass": 2})) as found:
        for name in ("first", "last", "left out"):
            if allowed("pass", name):
                with changing("pass", made):
                    node.target = "sin" if name == "last" else "cos"
    first, last, _ = found.steps["pass"]
    assert first.site is None and last.site.line == 7 and last.nodes == ("tanh",)


def test_steps_are_told_before_they_are_made():
    told: list[Step] = []
    with search(StepSearch({"rule": 0}, told.append)):
        allowed("rule", "sdpa")
    assert [step.name for step in told] == ["sdpa"]


def test_a_compiled_program_is_not_recalled_while_searching():
    def f(x):
        return x.sin() + 1

    x = torch.randn(5)
    compiled = torch.compile(f, backend="regraft")
    torch.testing.assert_close(compiled(x), f(x))
    torch.compiler.reset()
    with search(StepSearch({"kernel": 0})) as found:
        assert torch.equal(torch.compile(f, backend="regraft")(x), f(x))
    assert [step.name for step in found.steps["kernel"]] == ["aten.sin.default", "aten.add.Tensor"]
