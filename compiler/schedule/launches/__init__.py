"""The launches of kernels on GPUs: what programs enumerate, how large tiles are, how many warps a program has."""
