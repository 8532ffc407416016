"""Ten models in normal form: `golden/model_texts.txt`."""

import pytest
import torch
from support.golden import with_pinned_torch
from support.normal import normalized
from torch import fx

from regraft.compiler.capture import capture
from regraft.compiler.tools.targets.load import load
from regraft.compiler.tools.targets.target import Choices
from regraft.rewrites.functional import functionalize_temporaries
from regraft.rewrites.graph import op_name

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.activations")  # what it imports is not to be imported within a test

MODELS = ["bert", "gpt2", "llama", "t5", "vit", "swin", "resnet", "mpt", "gemma2", "whisper"]


@with_pinned_torch
@pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="other versions write models in other ways"
)
def test_normal_forms_of_models(golden):
    """One layer of each, tiny, line by line."""
    golden.check({name: lines_of(name) for name in MODELS})


def lines_of(name):
    """The captured program in normal form, a line for each call that something reads."""
    found = load(f"hf:{name}", Choices(layers=1, tiny=True, seq=12))
    lines = []

    def backend(module, inputs):
        captured = capture(module, inputs).graph_module
        functionalize_temporaries(captured.graph)
        graph = normalized(captured).graph
        numbers = {node: number for number, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            if node.op == "call_function" and (node.users or op_name(node).endswith("_")):
                args = fx.map_arg((node.args, node.kwargs), lambda n: f"%{numbers[n]}")
                shown = ", ".join([*map(str, args[0]), *(f"{key}={value}" for key, value in args[1].items())])
                lines.append(f"%{numbers[node]} = {op_name(node).removeprefix('aten.')}({shown})".replace("'%", "%"))
        return module

    with torch.no_grad():
        torch.compile(found.model, backend=backend)(*found.args, **found.kwargs)
    return "\n".join(lines).replace("'", "")
