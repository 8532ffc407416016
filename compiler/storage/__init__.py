"""The cache on disk: whose it is, what is believed of it, how large it may become, and how it travels.

    decisions/   measured decisions: JSON, which can't run code; may be shared by users
    graphs/      compiled graphs: pickles, sealed
    code/        compiled C++: libraries, sealed        triton/   machine code for GPUs, sealed
    keys/        the key of the seals, for its owner alone
    faults/      tracebacks

folder.py     folders that belong to this user and that nobody else may write
seal.py       what this user's regraft wrote: nothing else is unpickled or loaded
files.py      files that are there as a whole or not at all
space.py      how much there is; least recently used entries go where it becomes too much
bundle.py     all of it as one file, for another machine of the same kind
artifacts.py  the same for `torch.compiler.save_cache_artifacts`
"""
