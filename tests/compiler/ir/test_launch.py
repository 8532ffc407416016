"""Launches as part of a kernel: printed, checked, and part of what makes kernels equal."""

import pickle
from dataclasses import replace

import pytest
import torch
from support.lowering import trace

from regraft.compiler.ir.canonical import canonical, sized
from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.launch import Blocks, Launch
from regraft.compiler.ir.printer import kernel_text, launch_text
from regraft.compiler.ir.verify import verify_kernel
from regraft.compiler.ir.verify_launch import launch_findings
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, schedule

S = torch.empty
I, J, K = Var("i", 8), Var("j", 512), Var("k", 64)  # noqa: E741


def scheduled(function, *inputs, target=GPU):
    return schedule(lower(trace(function, *inputs), strict=True).program, target=target).kernels


def softmax(x):
    return x.softmax(-1)


def transposed(x):
    return x.mT.contiguous()


def planned(launch):
    """A transposition over the loops i and j of 8 images with this launch."""
    (kernel,) = scheduled(transposed, torch.empty(8, 512, 64))
    (own,) = kernel.launches
    loops = dict(zip("ijk", sorted(own.loops, key=lambda var: var.name), strict=True))

    def of(variables):
        return tuple(loops[var.name] for var in variables)

    blocks = replace(launch.blocks, rows=of(launch.blocks.rows), columns=of(launch.blocks.columns))
    return replace(kernel, launches=(Launch(of(launch.outer), blocks),))


LEGAL = Launch((I,), Blocks((K,), (J,), 64, 64, 8))


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        (LEGAL, "launch of 64 (k) x 64 (j) for each i, 8 warps"),
        (Launch((), Blocks((I, J), (), 4, 256, 1)), "launch of 4 (i, j) x 256 (inside), 1 warp"),
        (Launch((), Blocks((), (I,), 1, 1024, 4)), "launch of 1024 (i), 4 warps"),
        (Launch((), Blocks((), (), 1, 4096, 16)), "launch of 1 (inside) x 4096 (inside), 16 warps"),
    ],
)
def test_as_text(launch, text):
    assert launch_text(launch) == text


def test_kernels_for_gpus_show_their_launches():
    (kernel,) = scheduled(softmax, torch.empty(128, 768))
    (launch,) = kernel.launches
    assert f"\n    {launch_text(launch)}\n    for i0 < 128 parallel:\n" in kernel_text(kernel)
    assert all(not kernel.launches for kernel in scheduled(softmax, torch.empty(128, 768), target=CPU))


def test_parts_of_a_kernel_have_their_own():
    (kernel,) = scheduled(lambda *xs: [x.exp() for x in xs], *(torch.empty(n) for n in (10, 700, 30000)))
    assert len(kernel.parts) == 3 and not kernel.launches
    assert len({part.launches[0].blocks.column_block for part in kernel.parts}) == 1  # their programs run together
    assert kernel_text(kernel).count("    launch of ") == 3
    assert kernel.shared == ((2, 1, 0),) and kernel_text(kernel).count(", in launch 0:") == 3  # most programs first
    assert not verify_kernel(kernel)


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (((0, 1, 3),), "there is no part 3, which shares a launch"),
        (((0, 1), (1, 2)), "part 1 is in 2 launches"),
    ],
)
def test_launches_that_parts_cannot_share_are_refused(shared, message):
    (kernel,) = scheduled(lambda *xs: [x.exp() for x in xs], *(torch.empty(n) for n in (10, 700, 30000)))
    (found,) = launch_findings(replace(kernel, shared=shared))
    assert found.message == message
    bare = tuple(replace(part, launches=()) for part in kernel.parts)
    assert [fault.message for fault in launch_findings(replace(kernel, parts=bare))] == [
        f"part {k} shares a launch and has 0" for k in (2, 1, 0)
    ]


def test_equal_kernels_have_equal_launches():
    one, other = (scheduled(softmax, torch.empty(128, 768))[0] for _ in range(2))
    assert canonical(one) == canonical(other)
    (launch,) = one.launches
    fewer = replace(one, launches=(replace(launch, blocks=replace(launch.blocks, warps=2 * launch.blocks.warps)),))
    assert canonical(fewer) != canonical(one) and hash(canonical(one)) == hash(canonical(other))


def test_launches_survive_a_file():
    for function, *inputs in ((softmax, torch.empty(128, 768)), (lambda x, y: (x.exp(), y.exp()), S(10), S(700))):
        (kernel,) = scheduled(function, *inputs)
        again = pickle.loads(pickle.dumps(kernel))
        assert again == kernel and kernel_text(again) == kernel_text(kernel)


def test_launches_go_along_with_the_number_of_iterations():
    (kernel,) = scheduled(torch.exp, torch.empty(3000))
    made, count = sized(kernel)
    (launch,) = made.launches
    assert count == 3000 and str(launch.loops[0].extent) == "n" and not list(launch_findings(made))


def test_what_schedules_make_is_legal():
    assert not verify_kernel(planned(LEGAL))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (replace(LEGAL, outer=()), "no program has iterations of i0"),
        (replace(LEGAL, outer=(I, J)), "i1 is 2 times among the loops of programs"),
        (replace(LEGAL, blocks=replace(LEGAL.blocks, row_block=48)), "48 rows are no power of two"),
        (replace(LEGAL, blocks=replace(LEGAL.blocks, column_block=0)), "0 columns are no power of two"),
        (replace(LEGAL, blocks=replace(LEGAL.blocks, warps=3)), "3 warps are no power of two"),
        (replace(LEGAL, blocks=replace(LEGAL.blocks, warps=64)), "a program has 2048 threads, more than 1024"),
        (Launch((I, J), Blocks((), (K,), 1, 1 << 21, 8)), "a tile has 2097152 elements, more than 1048576"),
        (replace(LEGAL, blocks=Blocks((K,), (J,), 256, 256, 8)), "a tile has 262144 bytes"),
        (Launch((I, J), Blocks((), (K,), 2, 64, 8)), "a block has 2 rows, of no loop"),
    ],
)
def test_illegal_launches_are_refused(launch, message):
    found = [fault for fault in verify_kernel(planned(launch)) if fault.code == "launch"]
    assert len(found) == 1 and message in found[0].message


def test_launches_that_no_statement_has_are_refused():
    kernel = planned(LEGAL)
    (found,) = launch_findings(replace(kernel, launches=2 * kernel.launches))
    assert found.message == "has 2 launches for 1 statements"
    (folding,) = scheduled(softmax, torch.empty(128, 768))
    (launch,) = folding.launches
    own = Launch((), Blocks((), launch.loops, 1, 64, 4))
    (found,) = launch_findings(replace(folding, launches=(own,)))
    assert "loops inside of programs need them" in found.message
    other = Launch((), Blocks((Var("other", 3),), (), 1, 64, 4))
    messages = [fault.message for fault in launch_findings(replace(folding, launches=(other,)))]
    assert messages == ["no program has iterations of i0", "other is no parallel loop around the statement"]
