"""The options of one compilation, in groups: each field has a default, a type that says what is valid, and a line here.

`Options.parse` is strict: what it does not know it refuses, and says what it does know. Names are dotted
(``"triton.cudagraphs"``) or nested dicts; modes and templates stand for values of others (see `resolve`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .checks import OptionError, OptionGroup, check_kind, hints
from .resolve import built, flat, resolved

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Profit = Literal["measured", "always", "never"]
Verify = Literal["off", "structure", "live"]
NanPolicy = Literal["eager", "safe"]
RngPolicy = Literal["eager", "statistical", "fast"]
Template = Literal["none", "triton", "cpp_wrapper", "cutlass", "aten", "cudagraphs", "max_autotune", "freezing", "tma"]
Kernels = Literal["measured", "library", "generated"]
ProductKernels = Literal["measured", "library", "generated", "cutlass"]
Tma = Literal["measured", "always", "never"]


@dataclass(frozen=True)
class KernelOptions(OptionGroup):
    """The choice of kernels for the heavy operations.

    Args:
        attention: ``"measured"``: the faster of libraries' kernels (cuDNN, FlashAttention, ...) and generated ones;
            ``"library"``: libraries' only; ``"generated"``: on GPUs the fastest generated kernel wherever there is
            one, without measuring what it replaces; on CPUs as ``"measured"``.
        products: the same for matrix products; ``"cutlass"`` adds CUTLASS kernels to what is measured.
        convolutions: the same for convolutions.
    """

    attention: Kernels = "measured"
    products: ProductKernels = "measured"
    convolutions: Kernels = "measured"


@dataclass(frozen=True)
class TritonOptions(OptionGroup):
    """Kernels on GPUs, and how they are launched.

    Args:
        cudagraphs: replay CUDA graphs. Launches of a graph are recorded at its second call with the same sizes, and
            are one from then on. Inputs that are no parameters are copied in; results are the program's own, and no
            later call changes them. What cannot be replayed (tensors on CPUs, writes to inputs, calls that wait for
            data, operators of others) runs as it is, and the record says why.
        cudagraphs_launches: of so many launches or more, an inference graph is captured. A replay copies what the graph
            is given, and small results, which takes longer than one or two launches.
        tma: tiles of products and convolutions that the GPU's own unit copies: among those measured
            (``"measured"``), the only ones wherever operands allow it (``"always"``), or none (``"never"``).
    """

    cudagraphs: bool = False
    cudagraphs_launches: int = 3
    tma: Tma = "measured"


@dataclass(frozen=True)
class CppOptions(OptionGroup):
    """Generated C++.

    Args:
        wrapper: call graphs for CPUs through one generated function in C++ rather than in Python.
    """

    wrapper: bool = False


@dataclass(frozen=True)
class AutotuneOptions(OptionGroup):
    """Measuring candidates.

    Args:
        thorough: ask about whatever kernels can compute, with more tiles and a search around the best, for ten times
            as long.
    """

    thorough: bool = False


@dataclass(frozen=True)
class Options:
    """The options of one `torch.compile(..., backend="regraft")`.

    Args:
        mode: as for `torch.compile`, a set of values (`regraft.list_modes`): ``"reduce-overhead"`` and
            ``"max-autotune"`` replay CUDA graphs where all inputs are on a GPU.
        profit: apply legal matches where measured to pay (``"measured"``), everywhere (``"always"``), or only count
            them (``"never"``).
        verify: ``"structure"`` checks the graph after every rewrite; ``"live"`` also runs both sides of each rewrite
            on the user's inputs and reports the difference. True means ``"structure"``, False ``"off"``.
        rules: names, rules or rule sets to use, in order, as given; None means the default rules.
        nan: ``"eager"`` keeps eager's result for rows that are fully masked or hold infinities (NaN stays NaN);
            ``"safe"`` allows finite ones.
        rng: what random numbers (dropout, rand, randn, ...) a graph draws. All are deterministic under
            `torch.manual_seed`, and each run draws anew.
            ``"statistical"``: kernels compute them from a seed for each call, numbers by Philox 4x32-10, masks of
            dropout and Bernoulli draws by a keyed 32-bit hash (beyond 2**32 elements by Philox); a run takes these
            seeds, one int64 for each call, from eager's generator of the device. Equal distribution, other numbers than
            eager's. The backward draws masks again from their seeds; none is kept.
            ``"fast"``: the same, with the hash for uniform numbers too: elements, calls and runs are independent in all
            tests we know, for the use in training, not for simulation; one call repeats after 2**32 elements.
            ``"eager"``: eager's own numbers, bit for bit and in its order, so that what eager code draws afterwards is
            the same, too; masks are kept for the backward, what would draw others is declined, and graphs that draw
            are not captured as CUDA graphs.
        freezing: for inference: take weights as known while compiling. Batch normalization is folded into them, and
            they are packed as kernels want them. What follows from weights that change later is computed anew;
            writes through ``.data``, which torch does not count, are not seen. Weights of few bits stay as small as
            they are: no product reads a constant with more bytes than the weights behind it.
        debug: keep every stage as text in the records that `regraft.coverage` collects: the graphs, the loop program,
            the fusion log, the kernels and their C++ or Triton.
        strict: raise where our own code fails. By default the failing part is left out, the log names it in three
            lines, its traceback goes to a file, and the report counts it (`Coverage.faults`).
        without: what is left out, by name: rules, passes, templates (``"attention-template"``), operators that stay
            calls of ATen (``"aten.gelu.default"``); or all of a kind: ``"rule"``, ``"pass"``, ``"template"``,
            ``"kernel"``, ``"fusion"``, ``"memory"``, ``"capture"``, ``"cudagraph"``. For going round a fault:
            `regraft bisect` finds it, and says what to leave out.
        template: a configuration template, a set of values with the mode that it implies (`regraft.list_templates`).
            What this machine or program can't do is left out, and the record says why.
        cudagraph_limit: sets of sizes of one graph that are captured; calls with further ones run as they are.
        memory_budget: for training: how much the forward may keep for the backward, as a share of what it keeps by
            default; with less, the backward computes more again (0: all that it can). Pointwise results are computed
            again by default where less is kept then; below 1 products and attentions are, too, the cheapest for their
            memory first (torch's knapsack over operations).
        kernels: what computes attention, products and convolutions.
        triton: kernels on GPUs.
        cpp: generated C++.
        autotune: measuring candidates.
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
    without: tuple[str, ...] = ()
    template: Template = "none"
    cudagraph_limit: int = 8
    memory_budget: float = 1.0
    kernels: KernelOptions = KernelOptions()
    triton: TritonOptions = TritonOptions()
    cpp: CppOptions = CppOptions()
    autotune: AutotuneOptions = AutotuneOptions()

    def __post_init__(self) -> None:
        for name, kind in hints(type(self)).items():
            check_kind(name, getattr(self, name), kind)
        if not isinstance(self.without, tuple) or not all(isinstance(name, str) for name in self.without):
            raise OptionError(f"option 'without' must be a tuple of names, not {self.without!r}")
        if self.rules is not None and not isinstance(self.rules, tuple):
            raise OptionError(f"option 'rules' must be a tuple or None, not {type(self.rules).__name__}")

    @classmethod
    def parse(cls, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
        """The options of one call; `mode` may come in either argument.

        Besides options, ``"overrides"`` holds values that win over everything: explicit overrides > options given
        > template > mode > default.

        Raises:
            OptionError: an unknown option or value, or two different modes.
        """
        if not isinstance(options, Mapping | None):
            raise OptionError(f"options must be a dict of option names to values, not {type(options).__name__}")
        values = resolved(cls, mode, options or {})
        if isinstance(values.get("verify"), bool):
            values["verify"] = "structure" if values["verify"] else "off"
        if "without" in values:
            values["without"] = _names(values["without"])
        if "rules" in values:
            values["rules"] = _rules(values["rules"])
        return built(cls, values)

    def changed(self) -> dict[str, Any]:
        """Values that differ from the defaults, by dotted name."""
        defaults = flat(type(self)())
        return {name: value for name, value in flat(self).items() if value != defaults[name]}

    def key(self) -> str:
        """The options as text for cache keys: equal options give equal text, in every process."""
        rules = None if self.rules is None else [_rule_key(rule) for rule in self.rules]
        values = flat(self) | {"rules": rules}
        return ";".join(f"{name}={value}" for name, value in sorted(values.items()))


def _rules(value: Any) -> tuple[Any, ...] | None:
    """One rule or rule set stands for a tuple of itself; what the items mean is the registry's business."""
    if value is None or isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


def _names(value: Any) -> Any:
    """One name stands for a tuple of itself, a list for one of its items."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else value


def _rule_key(rule: Any) -> str:
    """Rules and rule sets go by their content, so that an edited rule under its old name gives another key."""
    if isinstance(rule, str):
        return rule
    name = getattr(rule, "name", type(rule).__name__)
    return f"{name}@{getattr(rule, 'digest', '')}"
