"""Which code generator a graph gets, by its devices; without a GPU: fake tensors, a driver that runs nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.autograd.seed_dropout import seed_calls
from regraft.compiler.codegen import cpp, triton
from regraft.compiler.codegen import generate as codegen
from regraft.compiler.codegen.cpp.build import CppKernel as OnCpu
from regraft.compiler.codegen.generate import NotGeneratedError, generate_kernels
from regraft.compiler.codegen.kernel_call import KernelCall, TemplateCall
from regraft.compiler.codegen.triton import TritonMissing, UnsupportedKernels
from regraft.compiler.codegen.triton.build import TritonKernel as OnCuda
from regraft.compiler.codegen.wrapper.wrapper import generate

from ...support.fake_cuda import with_fake_driver


@pytest.fixture(autouse=True)
def driver(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "devices"))
    return with_fake_driver(monkeypatch)


def graph_of(function, *devices, shape=(64, 48)):
    """The functional graph of a function of one tensor a device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(shape, device=device) for device in devices]
        return make_fx(torch.func.functionalize(function))(*inputs)


def runs(graph):
    return [node.target.run for node in graph.nodes if isinstance(node.target, KernelCall)]


def test_graphs_on_cuda_become_triton():
    made = generate_kernels(graph_of(lambda x: (x.relu().sum(1) + 1,), "cuda"), "inference", verify=True)
    assert made.code.kernels and all(isinstance(run, OnCuda) for run in runs(made.graph))
    texts = made.texts()
    assert "tl.load" in texts["triton"] and "c++" not in texts


def test_graphs_on_cpus_become_cpp():
    made = generate_kernels(graph_of(lambda x: (x.relu().sum(1) + 1,), "cpu"), "inference", verify=True)
    assert made.code.kernels and all(isinstance(run, OnCpu) for run in runs(made.graph))
    assert "c++" in made.texts() and "triton" not in made.texts()


def test_of_a_mixed_graph_each_kernel_runs_where_its_memory_is():
    def function(x, y):
        return x.exp(), y.exp(), x + torch.ops.aten._to_copy.default(y, device=torch.device("cuda", 0))

    module = graph_of(function, "cuda", "cpu")
    made = generate_kernels(module, "inference", verify=True)
    assert {type(run) for run in runs(made.graph)} == {OnCpu, OnCuda}
    assert [call.code for call in made.code.kept] == ["device"]


def test_numbers_on_the_cpu_stay_with_calls():
    with FakeTensorMode():
        x, s = torch.empty(8, 4, device="cuda"), torch.empty(())
        module = make_fx(lambda x, s: ((x * s).exp(),))(x, s)
    made = generate_kernels(module, "inference")
    assert [call.code for call in made.code.kept] == ["device"] and len(runs(made.graph)) == 1


def test_other_devices_are_refused():
    with pytest.raises(NotGeneratedError) as refused:
        generate_kernels(graph_of(lambda x: (x + 1,), "meta"), "inference")
    assert refused.value.reason.code == "device" and "meta" in str(refused.value)


def test_amd_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.0")
    with pytest.raises(NotGeneratedError, match="AMD"):
        generate_kernels(graph_of(lambda x: (x + 1,), "cuda"), "inference")


def test_without_triton_the_graph_runs_by_calls(monkeypatch, caplog):
    def missing(kernels):
        raise TritonMissing("no Triton: the package 'triton' is not installed")

    monkeypatch.setattr(triton, "build", missing)
    codegen.warn_once.cache_clear()
    for _ in range(2):
        with pytest.raises(NotGeneratedError) as refused:
            generate_kernels(graph_of(lambda x: (x + 1,), "cuda"), "inference")
        assert refused.value.reason.code == "no-triton"
    assert len([r for r in caplog.records if "not installed" in r.getMessage()]) == 1


def test_what_triton_cannot_compute_stays_a_call():
    def function(x):
        index = torch.zeros(64, 48, dtype=torch.int64, device=x.device)
        return x.scatter_reduce(0, index, x.sin(), "prod"), x.sum(0)

    made = generate_kernels(graph_of(function, "cuda"), "inference", verify=True)
    kept = {call.operator: (call.code, call.message) for call in made.code.kept}
    assert kept["aten.scatter_reduce.two"] == ("unsupported", "there is no atomic 'mul' of torch.float32 on GPUs")
    assert made.code.kernels


def test_a_refusal_that_does_not_end_is_a_reason(monkeypatch):
    def refuse(kernels):
        raise UnsupportedKernels({kernel.name: "no" for kernel in kernels})

    monkeypatch.setattr(triton, "build", refuse)
    made = generate_kernels(graph_of(lambda x: (x.relu().sum(1) + 1,), "cuda"), "inference")
    assert made.code.kernels == 0 and {call.code for call in made.code.kept} == {"unsupported"}


def test_wrappers_allocate_on_the_device():
    module = graph_of(lambda x: ((x + 1).sum(0),), "cuda")
    module.graph = generate_kernels(module, "inference").graph
    assert "empty_strided_cuda" in generate(module, name="made").source


def test_what_is_drawn_on_cuda_is_seeded_there():
    module = graph_of(lambda x: (torch.ops.aten.native_dropout(x, 0.1, True)[0],), "cuda")
    assert sum(seed_calls(module).values()) == 1
    seeds = next(node for node in module.graph.nodes if "seeds" in str(node.target))
    assert seeds.meta["val"].device.type == "cuda"
    made = generate_kernels(module, "inference", verify=True)
    assert made.code.kernels == 1 and all(isinstance(run, OnCuda) for run in runs(made.graph))


def test_seeds_of_two_devices_are_drawn_apart():
    def function(x, y):
        return torch.ops.aten.native_dropout(x, 0.1, True)[0], torch.ops.aten.native_dropout(y, 0.1, True)[0]

    module = graph_of(function, "cuda", "cpu")
    assert sum(seed_calls(module).values()) == 2
    seeds = [node for node in module.graph.nodes if "seeds" in str(node.target)]
    assert [node.meta["val"].device.type for node in seeds] == ["cuda", "cpu"]


def test_builders_are_there():
    assert cpp.can_build() and triton.can_build()


class Early(TemplateCall):
    """A product that begins early, in name."""

    template, __name__, early = "test", "early", True

    def __call__(self, *tensors):
        return torch.mm(*tensors)


def test_kernels_beside_calls_that_begin_early_do_so_too():
    def function(x):
        return ((x.relu() @ x.t()).sin().sum(1),)

    for template in (False, True):
        module = graph_of(function, "cuda")
        (mm,) = (node for node in module.graph.nodes if node.target is torch.ops.aten.mm.default)
        mm.target = Early() if template else mm.target
        kernels = generate_kernels(module, "inference").schedule.kernels
        assert [kernel.early for kernel in kernels] == [False, template], kernels
