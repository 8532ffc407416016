"""Warm starts: a graph that was compiled before, in this process or another, is loaded rather than compiled.

Dynamo's graph, its inputs, options, rules, machine  ->  key  ->  generated wrapper, kernels, record

key.py     everything a compilation depends on, as one hash; or why there is none
store.py   entries on disk: written aside and renamed into place, checked when read, discarded when damaged
entry.py   what is kept of one compilation, and how it runs again
"""
