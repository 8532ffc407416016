"""Templates: kernels written once with a hole for what the graph computes in between.

`attention` is softmax(f(q k^T)) v with any pointwise f, `product` f(a b); `gemm` has what both are made of.
"""

from .fuse import fuse_attention
from .gemm_fuse import fuse_gemm
from .kernel import TemplateKernel
from .match import match_attention

__all__ = ["TemplateKernel", "fuse_attention", "fuse_gemm", "match_attention"]
