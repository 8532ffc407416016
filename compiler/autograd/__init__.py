"""Autograd: one joint graph of forward and backward, what of it is kept, and its random draws."""
