"""Calls that eager refuses for sizes, or dtypes, are refused where nobody reads what they give."""

import pytest
import torch
import torch.nn.functional as F

import regraft

CALLS = {  # and inputs of which eager takes the first
    "cut": (lambda x: F.pad(x, (0, 0, 2, -1)), (3, 2), (0, 2)),
    "cut, then added": (lambda x: F.pad(x, (-2, 5)).zero_(), (3, 4), (3, 1)),
    "median": (lambda x: x.median(0), (3, 4), (0, 4)),
    "largest of all": (lambda x: x.max(), (3, 4), (0, 4)),
    "drawn": (lambda x: torch.multinomial(x.abs() + 1, 3), (2, 4), (2, 2)),
    "resampled": (lambda x: F.interpolate(x[None], scale_factor=0.5), (3, 4), (3, 1)),
    "pooled": (lambda x: F.adaptive_avg_pool2d(x[None], 2), (3, 4), (3, 0)),
}


@pytest.mark.parametrize("read", ["nothing", "sizes"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_nobody_reads(name, read):
    call, taken, refused = CALLS[name]
    torch._dynamo.reset()

    def program(x):
        made = call(x)
        return x.mT, [t.shape for t in (made if isinstance(made, tuple) else (made,))] if read == "sizes" else None

    run = torch.compile(program, backend="regraft", options={"strict": True})
    assert torch.equal(run(x := torch.ones(taken))[0], x.mT)
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        program(torch.ones(refused))
    with regraft.coverage() as cov, pytest.raises(type(theirs.value)):
        run(torch.ones(refused))
    assert {f.code for f in cov.fallbacks} <= {"refused-by-eager", "resampled-to-nothing"}


@pytest.mark.parametrize("call", [F.celu, F.gelu, lambda x: x.lerp(x, 0.5)])
def test_dtypes_that_nobody_reads(call):
    torch._dynamo.reset()

    def program(x):
        call(x)
        return x.mT

    with pytest.raises(RuntimeError):
        program(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(RuntimeError):
        torch.compile(program, backend="regraft")(torch.ones(2, 3, dtype=torch.int64))
