"""A compiled program on its way to the cache: what is known of its graphs, until all of them are compiled.

In training that is when the backward is compiled, perhaps at its first run.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from ....rewrites.compat.autograd import (
    StepFacts,
    calls_plainly,
    returned_inputs,
    step_facts,
    versions_written,
    writes_inputs,
)
from ....rewrites.record import GraphRecord
from ...autograd.plain_steps import form_of
from ...codegen.wrapper.wrapper import Wrapper
from .entry import CachedProgram, save
from .training import TrainingStep

Places = tuple[tuple[int, int], ...]
"""Of results, and of the inputs that they are."""


class Unsaved:
    """Notes the graphs of one compilation, and saves them where they run without AOTAutograd and without fallbacks.

    Args:
        inputs: how many the program has.
        training: whether there is a backward.
        static: the positions of inputs whose addresses do not change, by kind of captured graph.
    """

    def __init__(self, inputs: int, training: bool, static: Mapping[str, frozenset[int]]) -> None:
        self.key: str | None = None  # under which to save the program, once and at all
        self.shared = False  # whether inputs share memory
        self.returned: Places = ()  # results that are inputs, which the graph does not give
        self.barred = False  # whether results are restored, or a rule has put in an operator that the key does not know
        self.held: tuple[str, ...] = ()  # tensors of the graph's own, which AOTAutograd gives it before its inputs
        self._inputs, self._training, self._static = inputs, training, static
        self._plain: tuple[Wrapper, tuple[int, ...], Places] | None = None  # of inference: also what it writes, returns
        self._forward: tuple[Wrapper, StepFacts] | None = None
        self._step: TrainingStep | None = None

    def hold(self, program: torch.nn.Module, written: torch.nn.Module) -> None:
        """Remember the tensors that a program holds, in AOTAutograd's order, if Dynamo's graph has them, too."""
        kinds = program.named_parameters(remove_duplicate=False), program.named_buffers(remove_duplicate=False)
        held = {name: value for kind in kinds for name, value in kind}
        own = dict([*written.named_parameters(remove_duplicate=False), *written.named_buffers(remove_duplicate=False)])
        self.held = tuple(held)
        self.barred |= any(own.get(name) is not value for name, value in held.items())

    def note_inference(self, graph_module: fx.GraphModule, wrapper: Wrapper) -> None:
        """Remember the wrapper of an inference graph, if it runs without AOTAutograd."""
        if calls_plainly() and self._takes_inputs(graph_module):
            self._plain = wrapper, versions_written(), returned_inputs()

    def note_step(self, graph_module: fx.GraphModule, kind: str, wrapper: Wrapper, record: GraphRecord) -> None:
        """Remember what a training step needs to run without AOTAutograd, if it can; save it with its backward."""
        results = graph_module.graph.output_node().args[0]
        if kind == "forward" and isinstance(results, (tuple, list)):
            facts = step_facts(len(results))
            self._step = None
            self._forward = None if facts is None or not self._takes_inputs(graph_module) else (wrapper, facts)
        elif kind == "backward" and self._forward is not None:
            forward, facts = self._forward
            form = form_of(facts, graph_module.graph, len(self.held) + self._inputs)
            captured = kind in self._static
            self._step = None if form is None else TrainingStep(forward.parts, wrapper.parts, form, captured)
            self.save(record)

    def forget_step(self) -> None:
        """A training step has parts that cannot be stored."""
        self._forward = self._step = None

    def save(self, record: GraphRecord) -> None:
        """Save the program, if all of its graphs are known and may be stored."""
        key = self.key
        if key is None or (self._training and self._step is None):
            return
        self.key = None
        told = all(f.stage in ("configuration", "cudagraphs", "wrapper") and not f.fault for f in record.fallbacks)
        if not told or self.barred:
            return
        returned = tuple((k, len(self.held) + place) for k, place in self.returned)
        if self._step is not None:
            static = self._static.get("forward")
            save(key, CachedProgram(record.name, None, record, static, self._step, (), returned, self.held))
        elif self._plain is not None and not self._training:
            (wrapper, written, given), static = self._plain, self._static.get("inference")
            parts, returned = wrapper.parts, (*given, *returned)
            save(key, CachedProgram(wrapper.name, parts, record, static, None, written, returned, self.held))

    def _takes_inputs(self, graph_module: fx.GraphModule) -> bool:
        """Whether the graph's inputs are the tensors that the program holds, and its inputs.

        AOTAutograd makes one tensor of inputs that share memory where one of them is written to.
        """
        if self.shared and writes_inputs():
            return False
        return len(graph_module.graph.find_nodes(op="placeholder")) == len(self.held) + self._inputs
