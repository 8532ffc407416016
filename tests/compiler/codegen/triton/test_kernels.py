"""Loop shapes as Triton kernels: interpreted against eager, and compiled for GPUs."""

import pytest

pytest.importorskip("triton")

from support.triton_kernels import compiles, interpreted_agrees

from ..cpp.test_kernels import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_eagers(name):
    function, *inputs = PROGRAMS[name]
    for source in interpreted_agrees(function, *inputs):
        assert compiles(source)
