"""Products of matrices as a template: found with what comes before and after, described, written in C++ and Triton."""
