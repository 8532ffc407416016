"""One process of a group: a script that runs a function of a file, and saves what it gives.

process_of_group.py FILE FUNCTION COUNT ADDRESS FOLDER RANK
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    file, function, count, address, folder, rank = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for `support`
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=int(rank), world_size=int(count))
    try:
        torch.save(runpy.run_path(file)[function](), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
