"""Autotuning: candidates measured on inputs of the real shapes, and the decisions kept on disk."""
