"""Functions as text: all that they read is in it, whether it comes from a file or not."""

from __future__ import annotations

import functools

import torch

from regraft.rewrites.source_text import source_text

MODULE = """
FACTOR = 2.0

def helper(x):
    return x * FACTOR if x.dim() else replacement(x, x)

def replacement(x, y):
    return [helper(z) for z in (torch.relu(x + y) * 5,)][0]
"""


def of_module(text):
    """The text of a function that calls others of its module, as an edited file in another process."""
    names = {"torch": torch}
    exec(text, names)
    return source_text(names["replacement"])


def test_what_a_function_reads_of_its_module():
    assert of_module(MODULE) == of_module(MODULE)
    edited = [MODULE.replace("2.0", "3.0"), MODULE.replace("x *", "x +"), MODULE.replace("* 5", "* 6")]
    assert len({of_module(text) for text in (MODULE, *edited)}) == 4


def test_closures_and_partial_arguments():
    def of(n):
        def scaled(x, m):
            return x * n * m if m else scaled(x, 1)

        return scaled

    texts = {source_text(functools.partial(of(n), m=m)) for n in (1, 2) for m in (1, 2)}
    assert len(texts) == 4 and source_text(of(1)) == source_text(of(1))
