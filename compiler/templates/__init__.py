"""Templates: kernels written once with a hole for what the graph computes in between.

`attention` is softmax(f(q k^T)) v with any pointwise f, `product` f(a b); `gemm` has what both are made of.
"""

from .attention_training import fuse_attention_training
from .attention_triton_fuse import fuse_attention_triton
from .convolution_triton_fuse import fuse_convolution_triton
from .fuse import fuse_attention
from .gemm_fuse import fuse_gemm
from .gemm_triton_fuse import fuse_gemm_triton
from .kernel import TemplateKernel
from .match import match_attention
from .triton_kernel import TritonTemplateKernel

__all__ = [
    "TemplateKernel", "TritonTemplateKernel", "fuse_attention", "fuse_attention_training", "fuse_attention_triton",
    "fuse_convolution_triton", "fuse_gemm", "fuse_gemm_triton", "match_attention",
]  # fmt: skip
