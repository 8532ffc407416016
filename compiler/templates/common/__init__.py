"""Parts of all templates: formulas, calls of kernels, baselines, measurements, the GPU."""
