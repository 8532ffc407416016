"""Backends to compare with eager, and their times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ....rewrites.report.timing import spread

EAGER = "eager"


@dataclass
class Contestant:
    """One way to run the target.

    Args:
        backend: as for `torch.compile`, or ``"eager"``.
        mode: as for `torch.compile`; "" for eager.
        seconds: median of a call.
        samples: seconds of each timed call.
        cold_seconds: the first call, compilation included; `regraft bench` empties all caches on disk before it.
        error: relative error in the 2-norm against eager, of the worst output or of all gradients together; None where
            values cannot be compared.
        peak_bytes: most memory allocated on the GPU during a call, beyond what was allocated before the first one; None
            without a GPU.
        failed: why it was not timed, or "".
        options: of the backend.
        values: of the options that were in force, by dotted name, where they differ from the defaults; empty where
            no options were given.
        dynamic: as for `torch.compile`.
        not_applied: what of these did not apply to this program on this machine, and why.
    """

    backend: str
    mode: str
    seconds: float = 0.0
    samples: list[float] = field(default_factory=list)
    cold_seconds: float = 0.0
    error: float | None = None
    peak_bytes: int | None = None
    failed: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    not_applied: list[str] = field(default_factory=list)
    dynamic: bool | None = None

    @property
    def spread(self) -> float | None:
        """How much the calls differ: half the distance between their quartiles over the median."""
        return spread(self.samples)

    @property
    def name(self) -> str:
        """``"regraft max-autotune"``; the default mode is not named."""
        if "template" in self.options:
            return f"{self.backend} {self.options['template']}"
        return self.backend if self.mode in ("", "default") else f"{self.backend} {self.mode}"


@dataclass(frozen=True)
class Times:
    """The backends' times; JSON of `schema`, version `version`, by `to_json`.

    Attributes:
        name: of what was run.
        contestants: eager first.
        environment: versions and devices.
    """

    schema: ClassVar[str]
    version: ClassVar[int] = 1

    name: str
    contestants: Sequence[Contestant]
    environment: dict[str, str]

    def speed(self, contestant: Contestant) -> float | None:
        """How many times as fast as eager; None where one of them was not timed."""
        eager = next((c for c in self.contestants if c.backend == EAGER), None)
        if eager is None or not eager.seconds or not contestant.seconds:
            return None
        return eager.seconds / contestant.seconds

    def to_json(self) -> dict[str, Any]:
        """All fields as data, and of a contestant its `name`, `speed` and `spread`, too."""
        rows = [asdict(c) | {"name": c.name, "speed": self.speed(c), "spread": c.spread} for c in self.contestants]
        return {"schema": self.schema, "version": self.version} | asdict(self) | {"contestants": rows}

    def write(self, path: Path) -> Path:
        """Write the JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        return path


def contestants(backends: Sequence[str], modes: Sequence[str]) -> list[Contestant]:
    """Eager, then each backend in each mode."""
    compiled = [Contestant(backend, mode) for backend in backends if backend != EAGER for mode in modes]
    return [Contestant(EAGER, ""), *compiled]
