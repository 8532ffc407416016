"""Calls that stay calls of ATen, each with a reason.

`KEPT` lists the operators that are not lowered on purpose; `REASONS` explains the code that every call left in the
graph carries.
"""

from __future__ import annotations

REASONS: dict[str, str] = {
    "library": "a tuned library does this: matrix products, convolutions",
    "algorithm": "not a loop nest: sorting, selection, FFT, linear algebra",
    "data-dependent": "the sizes of the result depend on the data",
    "random": "draws from eager's generator, in eager's order",
    "no-lowering": "no lowering and no decomposition",
    "decomposition": "the decomposition holds an operator that is not lowered",
    "dtype": "a dtype that kernels do not compute in: complex, quantized, 8-bit floats, wide unsigned integers",
    "refused": "eager has no kernel for the dtype, and raises when it is called",
    "device": "a device without code generator, or tensors of different devices",
    "layout": "a sparse tensor, a nested tensor, or a subclass with its own idea of operators",
    "symbolic": "sizes beyond polynomials with floor division, remainder, minimum and maximum; numbers known when run",
    "arguments": "an argument that the lowering does not cover",
    "view": "a view that is not an index map of its base, or one of memory that is written to later",
    "mutation": "writes to an argument in place",
    "opaque": "not an operator of ATen: a kernel, a higher-order operator, a Python function",
    "order": "adds up in no fixed order on a GPU, where deterministic algorithms are asked for",
    "special": "a special function that is more than a formula",
    "unsupported": "the device's code generator has no instruction for it, or no machine code came of it",
    "failed": "a fault in its lowering",
    "metadata": "the lowered result would not have the metadata that tracing promised",
}

_LIBRARY = """
    mm bmm addmm _addmm_activation addbmm baddbmm addmv addr mv dot vdot linear linear_backward convolution
    convolution_backward
"""
_ATTENTION = """
    scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward _flash_attention_forward _flash_attention_backward
    _efficient_attention_forward _efficient_attention_backward
"""
_RECURRENT = "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward _thnn_fused_lstm_cell"
_SORTING = "kthvalue median nanmedian mode msort searchsorted bucketize histc histogram bincount"
_FFT = "_fft_r2c _fft_c2r _fft_c2c stft istft"
_LINALG = """
    cholesky cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_eigh linalg_eigvals
    linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu
    linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular lu_unpack
    ormqr triangular_solve _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd
"""
_DATA_DEPENDENT = """
    nonzero masked_select unique unique_consecutive _unique _unique2 unique_dim unique_consecutive _local_scalar_dense
    repeat_interleave.Tensor equal is_nonzero nonzero_static
"""
_RANDOM = """
    bernoulli binomial multinomial normal poisson rand rand_like randint randint_like randn randn_like randperm
    native_dropout rrelu_with_noise rrelu_with_noise_functional normal_functional _fused_dropout exponential
    cauchy log_normal geometric uniform _standard_gamma _sample_dirichlet random
"""

_SPECIAL = """
    i0 igamma igammac polygamma mvlgamma special_airy_ai special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
    special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_erfcx special_hermite_polynomial_h
    special_hermite_polynomial_he special_i0e special_i1 special_i1e special_laguerre_polynomial_l
    special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0
    special_zeta gcd lcm frexp
"""
_ALGORITHMS = """
    _cdist_forward _cdist_backward _pdist_forward _pdist_backward _trilinear segment_reduce _segment_reduce_backward
    _ctc_loss _ctc_loss_backward ctc_loss _histogramdd_bin_edges _histogramdd_bin_cts _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors _embedding_bag _embedding_bag_forward_only _embedding_bag_backward
    embedding_renorm fractional_max_pool2d fractional_max_pool3d fractional_max_pool2d_backward
    fractional_max_pool3d_backward _upsample_bilinear2d_aa _upsample_bicubic2d_aa masked_scatter hash_tensor
"""


def _kept(names: str, code: str, why: str) -> dict[str, tuple[str, str]]:
    return {f"aten.{name}": (code, why) for name in names.split()}


# Operator (or overload) -> (code, why).
KEPT: dict[str, tuple[str, str]] = {
    **_kept(_LIBRARY, "library", "matrix products and convolutions: oneDNN, MKL, cuBLAS and cuDNN, or a template"),
    **_kept(_ATTENTION, "library", "attention kernels of their own"),
    **_kept(_RECURRENT, "library", "recurrent networks run in one call"),
    **_kept(_SORTING, "algorithm", "needs sorting, selection or counting"),
    **_kept(_FFT, "algorithm", "Fourier transforms, on complex numbers"),
    **_kept(_LINALG, "algorithm", "linear algebra: LAPACK, cuSOLVER"),
    **_kept(_SPECIAL, "special", "no formula of elementary functions"),
    **_kept(_ALGORITHMS, "algorithm", "loops whose bounds or order depend on data, or a kernel of its own"),
    **_kept(_DATA_DEPENDENT, "data-dependent", "how many elements come out is known when run"),
    **_kept(_RANDOM, "random", "the same numbers as eager, from the same generator"),
}


def kept(name: str) -> tuple[str, str] | None:
    """``(code, why)`` where an operator, ``"aten.sort.stable"``, stays a call on purpose."""
    packet = ".".join(name.split(".")[:2])
    if packet.startswith("mkldnn."):
        return "library", "oneDNN's own operators: products and convolutions with epilogues"
    return KEPT.get(name) or KEPT.get(packet)


def calls_library(name: str) -> bool:
    """Whether an operator stays a call because a tuned library computes it: products, convolutions, attention."""
    found = kept(name)
    return found is not None and found[0] == "library"
