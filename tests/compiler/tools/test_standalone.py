import itertools
import subprocess
import sys

import pytest
import torch
from support.versions import OLD_TORCH
from torch import nn

from regraft.compiler.tools.standalone import NotStandaloneError, standalone
from regraft.compiler.tools.targets.load import module_at


def close(a, b):
    return torch.allclose(a, b, atol=1e-5)


def perceptron(x, w, b):
    return torch.softmax(nn.functional.gelu(nn.functional.linear(x, w, b)), -1), x.argmax(0)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4.0, -1) @ v + torch.tensor([1.0, 2.0]).repeat(8)


PROGRAMS = {
    "products": (perceptron, [(5, 8), (16, 8), (16,)]),
    "a template and a constant": (attention, [(1, 2, 16, 16)] * 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_module_gives_eagers_results(name, tmp_path):
    function, sizes = PROGRAMS[name]
    torch.manual_seed(0)
    given = [torch.randn(size) for size in sizes]
    (path,) = standalone(function, given, {}, tmp_path, options={"profit": "always"})
    module = module_at(str(path))
    expected = function(*given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    shapes = [x.shape for x in module.inputs()]
    orders = [order for order in itertools.permutations(given) if [x.shape for x in order] == shapes]
    agrees = [all(map(close, module.call(list(order)), expected)) for order in orders]
    assert agrees.count(True) == 1  # inputs come in the order of the graph


def test_a_module_runs_without_regraft(tmp_path):
    paths = standalone(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (torch.randn(2, 4),), {}, tmp_path, train=True)
    assert [path.name for path in paths] == ["graph-0-0-forward.py", "graph-0-0-backward.py"]
    told = """if 1:
        import sys, runpy
        for path in sys.argv[1:]:
            runpy.run_path(path, run_name='__main__')
            print("done", 'regraft' in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", told, *map(str, paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    forward, backward, _ = done.stdout.split("done False\n")
    assert "tensor(" in forward and "tensor(" in backward


def test_what_only_regraft_has_is_told(tmp_path):
    x = torch.randn(4, 4, requires_grad=True)
    with pytest.raises(NotStandaloneError, match="rng='eager'"):
        standalone(nn.Dropout(0.5), (x,), {}, tmp_path, train=True)


def test_a_module_of_symbolic_sizes_takes_others(tmp_path):
    (path,) = standalone(lambda x: x.softmax(0) * x.shape[0], (torch.randn(6, 4),), {}, tmp_path, dynamic=True)
    module = module_at(str(path))
    sizes, tensors = [x for x in module.inputs() if isinstance(x, int)], [torch.randn(9, 3)]
    results = [module.call([*order, *tensors])[0] for order in itertools.permutations((9, 3))]
    assert sorted(sizes) == [4, 6] and any(close(y, tensors[0].softmax(0) * 9) for y in results)


def test_a_factorization_that_may_fail_is_written(tmp_path):
    (path,) = standalone(lambda x: torch.linalg.inv(x).sin(), (torch.eye(4) * 2,), {}, tmp_path)
    module = module_at(str(path))
    tokens = [] if OLD_TORCH else [torch.empty(0)]  # they order the checks
    assert close(module.call([*tokens, torch.eye(4) * 2])[-1], torch.linalg.inv(torch.eye(4) * 2).sin())
    with pytest.raises(RuntimeError, match="singular"):
        module.call([*tokens, torch.zeros(4, 4)])


def test_a_program_of_which_nothing_is_compiled_is_told(tmp_path):
    with pytest.raises(NotStandaloneError, match="nothing is compiled"):
        standalone(torch.compiler.disable(torch.sin), (torch.randn(3),), {}, tmp_path)
