"""Templates: kernels written once with a hole for what the graph computes in between.

`attention` is softmax(f(q k^T)) v with any pointwise f, `gemm` f(a b), `convolution` the same of windows of images. In
each, `description` says what a kernel computes, and `match` finds it in graphs. `triton_fuse` is a template for GPUs:
one pass asks all of them the same (`common.template_pass`, run by `fuse_on_gpu`). `fuse` is a pass for CPUs.
"""

from .attention.fuse import fuse_attention
from .attention.match import match_attention
from .attention.training.fuse import fuse_attention_training
from .common.cpp_call import TemplateKernel
from .common.triton_call import TritonTemplateKernel
from .convolution.cpp_fuse import direct_rivals, fuse_direct_convolutions
from .gemm.fuse import fuse_gemm
from .gpu_passes import fuse_on_gpu

__all__ = [
    "TemplateKernel", "TritonTemplateKernel", "direct_rivals", "fuse_attention", "fuse_attention_training",
    "fuse_direct_convolutions", "fuse_gemm", "fuse_on_gpu", "match_attention",
]  # fmt: skip
