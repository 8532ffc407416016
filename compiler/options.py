"""Options of one compilation: one frozen, typed object, and the few environment variables, read here and nowhere else.

`Options.parse` is strict: what it does not know it refuses, and says what it does know. Environment variables:

    REGRAFT_CACHE_DIR      where measured decisions, compiled kernels and compiled graphs are kept
                           (default: $XDG_CACHE_HOME/regraft or ~/.cache/regraft)
    REGRAFT_DISABLE_CACHE  1 keeps them for this process only
    CXX                    the C++ compiler (default: g++, clang++ or c++, the first that is there)
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Profit = Literal["measured", "always", "never"]
Verify = Literal["off", "structure", "live"]
NanPolicy = Literal["eager", "safe"]
RngPolicy = Literal["eager", "statistical", "fast"]
Template = Literal["none", "cudagraphs"]

_FALSE = ("", "0", "false", "no", "off")


class OptionError(ValueError):
    """An unknown option, mode or value; the message lists the valid ones."""


@dataclass(frozen=True)
class Options:
    """What one `torch.compile(..., backend="regraft")` was asked for.

    Args:
        mode: as for `torch.compile`: ``"reduce-overhead"`` and ``"max-autotune"`` replay CUDA graphs where all inputs
            are on a GPU.
        profit: apply legal matches where measured to pay (``"measured"``), everywhere (``"always"``), or only count
            them (``"never"``).
        verify: ``"structure"`` checks the graph after every rewrite; ``"live"`` also runs both sides of each rewrite
            on the user's inputs and reports the difference. True means ``"structure"``, False ``"off"``.
        rules: names, rules or rule sets to use, in order, as given; None means the default rules.
        nan: ``"eager"`` keeps eager's result for fully masked rows (NaN stays NaN); ``"safe"`` allows finite ones.
        rng: what random numbers (dropout, rand, randn, ...) a graph draws. All are deterministic under
            `torch.manual_seed`, and each run draws anew.
            ``"statistical"``: kernels compute them by Philox 4x32-10 from a seed for each call; a run takes these
            seeds, one int64 for each call, from eager's generator of the device. Equal distribution, other numbers than
            eager's. The backward draws masks again from their seeds; none is kept.
            ``"fast"``: the same, with a keyed 32-bit hash in place of Philox for dropout, Bernoulli and uniform
            numbers: elements, calls and runs are independent in all tests we know, for the use in training, not for
            simulation; one call repeats after 2**32 elements.
            ``"eager"``: eager's own numbers, bit for bit and in its order, so that what eager code draws afterwards is
            the same, too; masks are kept for the backward, what would draw others is declined, and graphs that draw
            are not captured as CUDA graphs.
        freezing: for inference: take weights as known while compiling. Batch normalization is folded into them, and
            they are packed as kernels want them. Where weights change later, what follows from them is computed anew;
            writes through ``.data``, which torch does not count, are not seen.
        debug: keep every stage as text in the records that `regraft.coverage` collects: the graphs, the loop program,
            the fusion log, the kernels and their C++ or Triton.
        strict: raise where our own code fails. By default the failing part is left out, the log names it in three
            lines, its traceback goes to a file, and the report counts it (`Coverage.faults`).
        template: ``"cudagraphs"`` replays CUDA graphs in every mode. Launches of a graph are recorded at its second
            call with the same sizes, and are one from then on. Inputs that are no parameters are copied in;
            results are the program's own, and no later call changes them. What cannot be replayed (tensors on CPUs,
            writes to inputs, calls that wait for data, operators of others) runs as it is, and the record says why.
        cudagraph_limit: sets of sizes of one graph that are captured; calls with further ones run as they are.
    """

    mode: Mode = "default"
    profit: Profit = "measured"
    verify: Verify = "off"
    rules: tuple[Any, ...] | None = None
    nan: NanPolicy = "eager"
    rng: RngPolicy = "statistical"
    freezing: bool = False
    debug: bool = False
    strict: bool = False
    template: Template = "none"
    cudagraph_limit: int = 8

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            _check_kind(name, getattr(self, name), kind)
        if self.rules is not None and not isinstance(self.rules, tuple):
            raise OptionError(f"option 'rules' must be a tuple or None, not {type(self.rules).__name__}")
        limit = self.cudagraph_limit
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise OptionError(f"option 'cudagraph_limit' must be a positive integer, not {limit!r}")

    @property
    def cudagraphs(self) -> bool:
        """Whether CUDA graphs are asked for."""
        return self.template == "cudagraphs" or self.mode in ("reduce-overhead", "max-autotune")

    @classmethod
    def parse(cls, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
        """The options of one call; `mode` may come in either argument.

        Raises:
            OptionError: an unknown option or value, or two different modes.
        """
        if not isinstance(options, Mapping | None):
            raise OptionError(f"options must be a dict of option names to values, not {type(options).__name__}")
        given = dict(options or {})
        _check_names(given, cls)
        if mode is not None and given.setdefault("mode", mode) != mode:
            raise OptionError(f"mode={mode!r} contradicts options={{'mode': {given['mode']!r}}}: give one of them")
        if isinstance(given.get("verify"), bool):
            given["verify"] = "structure" if given["verify"] else "off"
        if "rules" in given:
            given["rules"] = _rules(given["rules"])
        return cls(**given)

    def key(self) -> str:
        """The options as text for cache keys: equal options give equal text, in every process."""
        rules = None if self.rules is None else [_rule_key(rule) for rule in self.rules]
        values = {f.name: getattr(self, f.name) for f in fields(self)} | {"rules": rules}
        return ";".join(f"{name}={value}" for name, value in sorted(values.items()))


def cache_dir() -> Path | None:
    """Where things are kept on disk, or None where the environment turns that off."""
    if os.environ.get("REGRAFT_DISABLE_CACHE", "").strip().lower() not in _FALSE:
        return None
    given = os.environ.get("REGRAFT_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "regraft"


def compiler_setting() -> str | None:
    """The C++ compiler that the environment names, if it does."""
    return os.environ.get("CXX", "").strip() or None


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Options of a few words have one of these, those that are switched on and off are bools."""
    if get_origin(kind) is Literal:
        _check_choice(name, value, get_args(kind))
    if kind is bool and not isinstance(value, bool):
        raise OptionError(f"option {name!r} must be True or False, not {value!r}")


def _check_names(given: Mapping[str, Any], options: type[Options]) -> None:
    valid = tuple(f.name for f in fields(options))
    for name in given:
        if name not in valid:
            raise OptionError(f"unknown option {name!r}{_suggestion(name, valid)}; valid options: {', '.join(valid)}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if isinstance(value, str) and value in choices:
        return
    kind = "mode" if name == "mode" else f"value for option {name!r}:"
    raise OptionError(f"unknown {kind} {value!r}{_suggestion(value, choices)}; valid: {', '.join(choices)}")


def _suggestion(value: Any, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(value), list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _rules(value: Any) -> tuple[Any, ...] | None:
    """One rule or rule set stands for a tuple of itself; what the items mean is the registry's business."""
    if value is None or isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


def _rule_key(rule: Any) -> str:
    """Rules and rule sets go by their content, so that an edited rule under its old name gives another key."""
    if isinstance(rule, str):
        return rule
    name = getattr(rule, "name", type(rule).__name__)
    return f"{name}@{getattr(rule, 'digest', '')}"
