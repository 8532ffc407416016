"""Indices: polynomials over loop variables and sizes, their bounds, divisions and ranges."""
