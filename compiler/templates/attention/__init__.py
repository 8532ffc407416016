"""Attention as a template, `softmax(f(q k^T)) v`: found in graphs, described, written in C++ and Triton."""
