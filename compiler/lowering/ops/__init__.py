"""Lowerings of operators, one file a family; importing `operators` registers them all."""
