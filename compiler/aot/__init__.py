"""Ahead of time: one file that runs without Python, and what loads it.

program.py        what was exported, as a graph for the backend
compile.py        through all stages, to a file
forward.py        the artifact's functions: checks of inputs, the graph (`codegen/cpp_wrapper/`), constants
prelude.py        what these functions call; `runtime_source.py` what all artifacts share, compiled once for a machine
build.py          one shared library of it
artifact.py       the file; `structure.py` nested inputs and results
load.py           the file in Python; `include/regraft_aot.h` in C++
"""
