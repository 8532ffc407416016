"""Convolutions as a template on GPUs: products of windows, and sums of single channels."""
