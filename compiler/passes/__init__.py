"""Passes over whole graphs, one a file: constant folding, common subexpressions, layouts, alignment."""
