import pytest
import torch
from support.engine import X, calls, capture

from regraft.rewrites.editor import Editor, RewriteError
from regraft.rewrites.verifier import verify_graph


def test_a_sound_graph():
    def function(a):
        b = a.view(-1)
        b.add_(torch.rand(12))
        return torch.exp(a).sum(0), torch.split(a, 2)

    verify_graph(capture(function, X, dynamic=True).graph)


def test_order():
    module = capture(lambda a: torch.relu(torch.exp(a)), X)
    exp, relu = calls(module)
    relu.append(exp)
    with pytest.raises(RewriteError, match="relu uses exp before it is computed"):
        verify_graph(module.graph)


@pytest.mark.parametrize("wrong", [X[0], X.double(), X.mT.contiguous().mT], ids=["shape", "dtype", "strides"])
def test_metadata(wrong):
    module = capture(lambda a: torch.relu(torch.exp(a)), X)
    exp = calls(module)[0]
    exp.meta["val"] = exp.meta["val"].fake_mode.from_tensor(wrong)
    with pytest.raises(RewriteError, match=r"exp \(aten.exp\) is recorded as .*, but gives"):
        verify_graph(module.graph)


@pytest.mark.parametrize("training", [False, True])
def test_sizes_that_depend_on_data_are_no_fault(training):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x[x > 0][1:] * 2).sum(), backend="regraft", options={"verify": "structure"})
    x = torch.tensor([1.0, -1.0, 2.0, 3.0], requires_grad=training)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        result = compiled(x)
    torch.testing.assert_close(result.detach(), torch.tensor(10.0))
    if training:
        result.backward()
        assert x.grad.tolist() == [0.0, 0.0, 2.0, 2.0]


@pytest.mark.parametrize("turn", [lambda x: x, lambda x: torch.ops.aten.unsqueeze.default(x, 0)])
def test_metadata_of_views_of_zeros_that_take_no_memory(turn):
    """Forward mode makes such tangents; torch gives tensors that are not fake for views of them."""

    def function(a):
        zeros = turn(torch.ops.aten._efficientzerotensor.default([1, 3]))
        return a.sin() + torch.ops.aten.expand.default(zeros, [3, 3, 3])

    module = capture(function, torch.randn(3, 3))
    (call,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.expand.default)
    editor = Editor(module.graph)
    for sizes in ([3, 1], [1, 1, 3]):
        with editor.at(call):
            made = editor.call(torch.ops.aten.reshape.default, call.args[0], sizes).meta["val"]
        assert made.fake_mode is not None and made.device.type == "cpu" and list(made.shape) == sizes
