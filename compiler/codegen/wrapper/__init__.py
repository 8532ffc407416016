"""The wrapper: the generated Python function that allocates buffers and calls kernels and ATen."""
