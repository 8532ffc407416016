"""Templates: kernels written once with a hole for what the graph computes in between.

`attention` is softmax(f(q k^T)) v with any pointwise f; `gemm` the micro-kernel under it.
"""

from .fuse import fuse_attention
from .kernel import TemplateKernel
from .match import match_attention

__all__ = ["TemplateKernel", "fuse_attention", "match_attention"]
