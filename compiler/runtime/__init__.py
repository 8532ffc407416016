"""The run time beside generated code: CUDA graphs, the cache of compiled graphs, stack and garbage collector."""
