"""Indices: polynomials over loop variables and sizes, their bounds and divisions.

`index.py`, `bounds.py` and `division.py` define each other: a division is simplified by bounds, bounds are computed
with arithmetic, and arithmetic divides. So `index.py` imports the two others inside functions.
"""
