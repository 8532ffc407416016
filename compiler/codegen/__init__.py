"""Code generation: a lowered graph becomes kernels and a wrapper that calls them."""
