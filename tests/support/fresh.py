"""Fresh processes that need not import torch again: forked from one that has the compiler, which has done nothing yet.

(done,) = run_fresh([[script, "argument"]], cwd=folder, environment={"REGRAFT_CACHE_DIR": str(folder)})
done.code, done.output, done.errors

Code that is compiled is kept for all runs as tests keep it (`support.caches`), but where they name another cache.

Not for what is about imports, or about variables that torch reads while it is imported (`TORCH_LOGS`): a test of such
starts Python anew.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """A process that has ended: its exit code, below zero for a signal, and what it printed."""

    code: int
    output: str
    errors: str


def run_fresh(
    commands: Sequence[Sequence[str | Path]],
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    code_of_all_runs: bool = False,
) -> list[Done]:
    """Run scripts with their arguments side by side, each as the main module of a process of its own.

    Args:
        commands: a script and its arguments for each process.
        cwd: the folder they run in; this process's if None.
        environment: variables besides this process's.
        code_of_all_runs: the compiled code of all runs is used with a cache that the environment names, too.
    """
    from regraft.compiler.codegen.cpp import compiler

    from . import caches

    variables = {**os.environ, **(environment or {})}
    cache = None if code_of_all_runs else variables.get("REGRAFT_CACHE_DIR", "")
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "commands": [[str(part) for part in command] for command in commands],
            "cwd": str(cwd or Path.cwd()),
            "environment": variables,
            "code": caches.code_of_all_runs(cache),
            "flags": compiler.FLAGS,
            "folder": folder,
        }
        codes = _server().ask(request)
        texts = [[Path(folder, f"{i}.{kind}").read_text() for kind in ("out", "err")] for i in range(len(codes))]
    return [Done(code, *both) for code, both in zip(codes, texts, strict=True)]


class _Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self._process.communicate)

    def ask(self, request: dict[str, Any]) -> list[int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve() -> list[str]:
    """Fork for every request until there are no more; in the processes of their own: the command to run."""
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for i, command in enumerate(request["commands"]):
            child = os.fork()
            if child == 0:
                _become(request, i)
                return command
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)
    return []


def _become(request: dict[str, Any], i: int) -> None:
    """Take the folder, the variables and the files of the i-th process."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for stream, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(request["folder"], f"{i}.{kind}"), os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _take_code(request["code"], request["flags"])


def _take_code(folders: Mapping[str, str], flags: Sequence[str]) -> None:
    """Compiled code lies in these folders, whichever the cache is, and is made with the flags of these tests."""
    from regraft.compiler.codegen import code_cache_dir
    from regraft.compiler.codegen.cpp import compiler
    from regraft.compiler.storage import seal

    own_folder = code_cache_dir.own_folder
    for module in (code_cache_dir, seal):
        module.own_folder = lambda kind: Path(folders[kind]) if kind in folders else own_folder(kind)  # type: ignore[attr-defined]
    compiler.FLAGS = tuple(flags)


def _warm_up() -> None:
    """Torch has compiled: half a second of each process. Not with a GPU: who asks for it leaves it to no fork."""
    import torch

    if not Path("/dev/nvidia0").exists():
        # Before 2.13 torch refuses gradients where the process that was forked has had some.
        trains = torch.torch_version.TorchVersion(torch.__version__) >= (2, 13)
        for x in (torch.ones(2), torch.ones(2, requires_grad=trains)):
            torch.compile(lambda x: (x.sin() @ x).exp(), backend="aot_eager")(x)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


def _main() -> None:
    import torch
    import torch._dynamo.repro.after_dynamo  # imports what the first compilation of a process imports
    import torch._functorch.partitioners

    import regraft.compiler.backend
    import regraft.patterns

    regraft.patterns.default_rules()
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    _warm_up()
    gc.collect()
    gc.freeze()  # the collectors of the processes need not look at what all of them share
    command = _serve()
    if command:
        sys.argv = command
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _main()
