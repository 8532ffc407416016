"""CUDA graphs: compiled graphs recorded once and replayed, their memory, and when that is not possible."""
