"""The engine of rewrites: pattern language, matcher, guards, rules, driver, verifier, coverage.

It knows `torch.fx` graphs, but neither which patterns exist nor how code is generated.
"""
