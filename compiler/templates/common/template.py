"""The protocol of templates: what the pass over a graph (`template_pass` on GPUs, `cpu_pass` on CPUs) asks of each.

    match(node)             ->  the computation, with the nodes that a kernel would replace | a Reason | None
    description(found)      ->  the computation without the nodes of this graph: layers that are alike have the same
    candidates(described)   ->  configurations of a kernel, the one to take without measurements first
    estimate(found)         ->  why no kernel can be faster, without measurements | None
    source(described, one)  ->  the kernel of a configuration

Methods below these have defaults, which a template overrides where it differs. Templates for GPUs have more of them:
many configurations are ranked, compiled side by side, and measured within a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import fx

from ....rewrites.profit import Decision
from ....rewrites.reason import Reason
from ....rewrites.splice import Original
from .baseline import Baseline
from .questions import CANNOT_COMPILE
from .records import decided
from .replacing import Copies, replace_by_call
from .task import GraphTask, Task


class CandidateKernel(Protocol):
    """One kernel, or several that are measured as one."""

    @property
    def name(self) -> str:
        """The name, unique to the source."""

    def build(self) -> Any:
        """Compile the kernel and load it."""

    def __call__(self, *tensors: Any) -> Any:
        """The results."""


class Computation(Protocol):
    """A computation that was found in a graph."""

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The nodes that the kernel reads."""

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that the kernel replaces, in graph order."""

    @property
    def output(self) -> fx.Node:
        """The node whose value the kernel returns first."""


@dataclass(frozen=True)
class ComparedProgram:
    """The program that the kernels of one computation compete with, and how both are measured.

    Args:
        nodes: the nodes of the program, by which questions are told apart.
        inputs: the nodes whose values are arguments of the program and of the kernels.
        baseline: the program; of GPUs a `Baseline`, whose kernels are compiled ahead.
        tells: more by which questions are told apart.
        adapted: a kernel as a function of `inputs`.
        excluded: why the program must not run, empty if it may; asked only if there is a question.
        arrange: computes inputs that depend on others; see `Question`. Made only if there is a question.
        cold, precision: see `Question`.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    baseline: Callable[..., Any]
    tells: tuple[str, ...] = ()
    adapted: Callable[[Any], Callable[..., Any]] = lambda kernel: kernel
    excluded: Callable[[], str] = lambda: ""
    arrange: Callable[[], Callable[[Sequence[Any]], None] | None] = lambda: None
    cold: bool = False
    precision: float | None = None


class Template:
    """One kind of kernels in one graph; subclasses define the five functions of the protocol.

    Args:
        task: the graph, and how.
    """

    rule: ClassVar[str]
    family: ClassVar[str]
    size: ClassVar[int] = 2  # operations of the smallest match
    dtype_code: ClassVar[str] = "epilogue-dtype"  # of a refusal of a formula's dtype
    errors: ClassVar[tuple[type[Exception], ...]]  # of `source` and of compilation

    def __init__(self, task: GraphTask) -> None:
        self.task = task
        self.copies = Copies()

    # -- the protocol ---------------------------------------------------------------------------------------------

    def match(self, node: fx.Node) -> Any | Reason | None:
        """The computation (`Computation`) whose root is `node`, why it is nearly one, or None."""
        raise NotImplementedError

    def description(self, found: Any) -> Hashable:
        """The computation as kernels are written for it."""
        raise NotImplementedError

    def candidates(self, described: Any) -> Sequence[Any]:
        """The configurations to measure; their names are unlike each other."""
        raise NotImplementedError

    def estimate(self, found: Any) -> str | None:  # noqa: ARG002
        """Why a kernel cannot be faster, by an estimate; None if it may be."""
        return None

    def source(self, described: Any, config: Any) -> Any:
        """The `CandidateKernel` of a configuration.

        Raises:
            one of `errors`: there is no such kernel.
        """
        raise NotImplementedError

    # -- what most templates have alike -----------------------------------------------------------------------------

    def considers(self, found: Any) -> bool:  # noqa: ARG002
        """Whether to ask at all; if not, nothing is recorded: libraries compute this well."""
        return True

    def variants(self, found: Any, node: fx.Node) -> Iterator[Any]:  # noqa: ARG002
        """The ways to compute a match that are tried, one after the other."""
        yield found

    def compared(self, found: Any) -> ComparedProgram:
        """The program that kernels compete with: the nodes that they replace."""
        baseline = Original(found.nodes, found.inputs, [found.output])
        return ComparedProgram(tuple(found.nodes), tuple(found.inputs), baseline)

    def place(self, found: Any) -> fx.Node | str:
        """The node before which the kernel may be called, or why there is none."""
        return found.output

    def replace(self, found: Any, kernel: Any, place: fx.Node) -> None:
        """Put the call of a kernel into the graph."""
        inputs = self.copies.of_all(found.inputs, kernel.inputs)
        replace_by_call(self.task.graph, found, inputs, kernel, place, self.rule)

    def record(self, found: Any, decision: Decision) -> None:
        """Record a decision."""
        match = decided(self.rule, self.family, found.nodes, found.output, decision)
        (self.task.record.declined if decision.chosen is None else self.task.record.applied).append(match)


class GpuTemplate(Template):
    """One kind of kernels in one graph of a GPU.

    Args:
        task: the graph, and how.
    """

    option: ClassVar[str]  # of `kernels`: what decides that it is asked
    name: ClassVar[str]  # of its pass, where its faults are contained
    in_training: ClassVar[bool] = True  # whether it is asked in forward and backward graphs
    comes_first: ClassVar[bool] = False  # whether others leave the nodes to it that it may replace
    errors: ClassVar[tuple[type[Exception], ...]] = CANNOT_COMPILE
    most_kinds: ClassVar[int | None] = None  # descriptions that are measured in a graph by default; None: all
    seconds: float  # of all measurements of a graph
    task: Task

    def __init__(self, task: Task) -> None:
        super().__init__(task)

    def compared(self, found: Any) -> ComparedProgram:
        """The nodes that kernels replace, compiled."""
        baseline = Baseline(found.nodes, found.inputs, [found.output])
        return ComparedProgram(tuple(found.nodes), tuple(found.inputs), baseline)

    # -- many of them in one graph ------------------------------------------------------------------------------------

    def work(self, described: Any) -> int:  # noqa: ARG002
        """The amount by which descriptions are ranked if there are too many to measure."""
        return 1

    def is_worth(self, described: Any, work: int) -> bool:  # noqa: ARG002
        """Whether the work of all that have a description justifies compiling a kernel."""
        return True

    def most_worth(self, ranked: list[Any]) -> list[Any]:
        """Those that are measured, of descriptions in the order of their work."""
        return ranked[: self.most_kinds]

    def around(self, described: Any, config: Any) -> Sequence[Any]:  # noqa: ARG002
        """Configurations that differ little from the fastest: they are measured, too, if time does not matter."""
        return ()

    def seconds_for(self, described: Any) -> float:  # noqa: ARG002
        """The least time for all measurements of a graph in which computations with this description are measured."""
        return 0.0

    def reconsidered(
        self,
        found: Any,  # noqa: ARG002
        described: Any,  # noqa: ARG002
        decision: Decision,
        kernels: Mapping[str, Any],  # noqa: ARG002
    ) -> Decision:
        """The decision in view of what else was decided in this graph."""
        return decision

    def finish(self) -> None:
        """Called after the last decision."""
