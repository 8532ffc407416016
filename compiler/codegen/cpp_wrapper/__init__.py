"""A compiled graph as a function of C++: the twin of `wrapper/` for the same graph and memory plan.

emit.py        the graph's statements
operators.py   calls of ATen
numbers.py     sizes
tables.py      what statements refer to, and for whom they are written: artifacts (`compiler/aot/`) or this process
vocabulary.py  the words that statements consist of
prelude.py     the words in this process, without torch's headers
runtime_source.py  the extension module behind them; `runtime_python.py` its part that handles Python
graph.py       the function of a graph in this process; `python_call.py` what it leaves to Python
load.py        compiled and bound, as a callable
"""
