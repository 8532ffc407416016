"""The replay of one capture as a function of Python, written when it is captured: no loop, and nothing looked up twice.

def replay(args):
    b0.copy_(args[1])
    copy_many(targets, [args[2], args[4]])
    play()
    x0 = result0.clone()
    results = (x0, args[2], kept1.data, x0)
    args.clear()
    return results
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ....rewrites.compat import memory as torch_memory
from .memory import flat, span

Replay = Callable[[list[Any]], tuple[Any, ...]]


class ReplayText:
    """Writes the function, statement by statement.

    Args:
        play: replays the launches.
        buffers: what inputs are copied to before, by position; these are laid out as the buffers are.
    """

    def __init__(self, play: Callable[[], Any], buffers: Mapping[int, torch.Tensor]) -> None:
        self._bound: dict[str, Any] = {"play": play, "copy_many": torch_memory.copy_many}
        self._count = itertools.count()
        self._results: dict[int, str] = {}
        sources = {k: f"args[{k}]{_flattened(x)}" for k, x in buffers.items()}
        targets = {k: flat(x) for k, x in buffers.items()}
        alone, together = torch_memory.in_few_launches({k: x.nbytes for k, x in targets.items()})
        self._lines = [f"{self._name(targets[k])}.copy_({sources[k]})" for k in alone]
        if together:
            many = self._name([targets[k] for k in together])
            self._lines.append(f"copy_many({many}, [{', '.join(sources[k] for k in together)}])")
        self._lines.append("play()")

    def give_input(self, place: int, at: int) -> None:
        """Have a result be an input."""
        self._results[place] = f"args[{at}]"

    def give_seen(self, value: Any, places: Iterable[int]) -> None:
        """Have results be a value: as a tensor of its own, so that it can be told whether it lives."""
        name = self._name(value)
        name = self._made(f"{name}.data") if isinstance(value, torch.Tensor) else name
        self._results.update(dict.fromkeys(places, name))

    def give_clones(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Have results be copies of contiguous tensors, each by a launch."""
        for x, places in places_of(tensors.items()):
            self._results.update(dict.fromkeys(places, self._made(f"{self._name(x)}.clone()")))

    def give_copies(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Have results be copies of tensors that share no memory, in few launches."""
        names: list[str] = []
        once = places_of(tensors.items())
        for x, places in once:
            layout = f"{tuple(x.shape)}, {x.stride()}, {self._name(x.dtype)}"
            names.append(self._made(f"{self._name(torch_memory.empty_strided(x.device))}({layout})"))
            self._results.update(dict.fromkeys(places, names[-1]))
        targets = [f"{name}{_flattened(x)}" for name, (x, _) in zip(names, once, strict=True)]
        sources = [flat(x) for x, _ in once]
        alone, together = torch_memory.in_few_launches({k: x.nbytes for k, x in enumerate(sources)})
        self._lines += [f"{targets[k]}.copy_({self._name(sources[k])})" for k in alone]
        if together:
            many = self._name([sources[k] for k in together])
            self._lines.append(f"copy_many([{', '.join(targets[k] for k in together)}], {many})")

    def give_made(self, make: Callable[[], Mapping[int, torch.Tensor]], keys: Mapping[int, int]) -> None:
        """Have results be what a function makes, by their keys there."""
        made = self._made(f"{self._name(make)}()")
        self._results.update((k, f"{made}[{key}]") for k, key in keys.items())

    def function(self, template: list[Any], noted: Iterable[int], note: Callable[[Any], None]) -> Replay:
        """The function; results that nothing else has been said of are those of the template, and some are noted."""
        whole, results = len(self._results) == len(template), self._results
        if whole:
            self._lines.append(f"results = ({''.join(f'{results[k]}, ' for k in range(len(template)))})")
        else:
            self._lines.append(f"results = {self._name(template)}.copy()")
            self._lines += [f"results[{k}] = {text}" for k, text in results.items()]
        self._lines.append("args.clear()")
        self._lines += [f"{self._name(note)}(results[{k}])" for k in noted]
        self._lines.append("return results" if whole else "return tuple(results)")
        text = "\n    ".join(["def replay(args):", *self._lines])
        exec(compile(text, "<regraft: the replay of a CUDA graph>", "exec"), self._bound)
        return self._bound.pop("replay")  # type: ignore[no-any-return]  # no cycle: its memory is freed with it

    def _name(self, value: Any) -> str:
        name = f"v{next(self._count)}"
        self._bound[name] = value
        return name

    def _made(self, text: str) -> str:
        name = f"x{next(self._count)}"
        self._lines.append(f"{name} = {text}")
        return name


def _flattened(x: torch.Tensor) -> str:
    """What makes a tensor that is laid out like this one a row of all its memory."""
    return "" if x.is_contiguous() else f".as_strided(({span(x)},), (1,))"


def places_of(results: Iterable[tuple[int, Any]]) -> list[tuple[Any, list[int]]]:
    """Each result once, with its positions."""
    found: dict[int, tuple[Any, list[int]]] = {}
    for k, x in results:
        found.setdefault(id(x), (x, []))[1].append(k)
    return list(found.values())
