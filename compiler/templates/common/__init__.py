"""What templates share: formulas, calls of kernels, baselines, measurements, the GPU."""
