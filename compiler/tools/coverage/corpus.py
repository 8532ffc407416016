"""Corpus runs: many models compiled and held against eager, each in a process of its own; one report.

    regraft report --corpus hf --json corpus.json
        hf:albert  ->  FOLDER/hf-albert….json
        hf:bart    ->  FOLDER/hf-bart….json         ->  corpus.json, corpus.html
        ...

A target that was examined before, by the same code and under the same choices, is read instead of run: a run that was
cut off goes on where it stopped. One that cannot be built, compiled or finished in time is part of the report too.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ....rewrites.report.document import Report, ReportError
from ....rewrites.report.entry import Entry
from ...runtime.graph_cache.key import source_digest
from ..targets.hugging_face_inputs import NO_MASK

Progress = Callable[[str, float], None]

_LIBRARIES = ("torch", "transformers")

TIMEOUT = 600.0  # seconds that one target may take

HF = (
    "albert", "bart", "bert", "big_bird", "biogpt", "blenderbot", "blip", "bloom", "camembert", "canine", "clip",
    "codegen", "cohere", "convbert", "convnext", "ctrl", "data2vec-audio", "data2vec-text", "data2vec-vision",
    "deberta-v2", "deit", "dinov2", "distilbert", "dpt", "electra", "ernie", "esm", "falcon", "flaubert", "fsmt",
    "gemma", "gemma2", "gemma3_text", "git", "glm", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss",
    "granite", "hubert", "ibert", "layoutlm", "led", "lilt", "llama", "longformer", "longt5", "m2m_100", "marian",
    "mbart", "megatron-bert", "mistral", "mixtral", "mobilebert", "modernbert", "mpnet", "mpt", "mt5", "nystromformer",
    "olmo", "openai-gpt", "opt", "pegasus", "pegasus_x", "persimmon", "phi", "phi3", "plbart", "pvt", "qwen2",
    "qwen3", "rembert", "resnet", "roberta", "roformer", "segformer", "siglip", "smollm3", "splinter", "squeezebert",
    "stablelm", "starcoder2", "swin", "swinv2", "switch_transformers", "t5", "unispeech", "vilt", "visual_bert", "vit",
    "wav2vec2", "wavlm", "whisper", "xglm", "xlm", "xlm-roberta", "xlnet", "yolos",
)  # fmt: skip
"""Model types of `transformers`: text, vision, audio and several at once, encoders and decoders."""

CORPORA: dict[str, tuple[str, ...]] = {"hf": tuple(f"hf:{name}" for name in HF)}


@dataclass(frozen=True)
class Run:
    """One corpus run.

    Args:
        targets: their names.
        arguments: of `regraft report` for each, e.g. ``["--layers", "2", "--mask"]``.
        folder: where the part of each target is kept.
        jobs: processes side by side.
        timeout: seconds that a target may take.
    """

    targets: tuple[str, ...]
    arguments: tuple[str, ...]
    folder: Path
    jobs: int = 1
    timeout: float = TIMEOUT


@dataclass
class Finished:
    """The outcome of a run: the report, and why targets are missing from it."""

    report: Report
    failed: dict[str, str] = field(default_factory=dict)


def run(corpus: Run, progress: Progress = lambda doing, done: None) -> Finished:
    """Examine what is not there yet, and put all together, in the order of the targets."""
    corpus.folder.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    todo = [target for target in corpus.targets if _known(corpus, target) is None]
    done = len(corpus.targets) - len(todo)
    with ThreadPoolExecutor(corpus.jobs) as pool:
        waiting = {pool.submit(_examine, corpus, target): target for target in todo}
        progress(f"{done} of {len(corpus.targets)} targets were there", done / max(len(corpus.targets), 1))
        for future in as_completed(waiting):
            done += 1
            progress(f"{waiting[future]}, {done} of {len(corpus.targets)}", done / len(corpus.targets))
            if (problem := future.result()) is not None:
                failed[waiting[future]] = problem
    return Finished(Report(list(_entries(corpus))), {t: failed[t] for t in corpus.targets if t in failed})


def _entries(corpus: Run) -> Iterator[Entry]:
    for target in corpus.targets:
        part = _known(corpus, target)
        if part is not None:
            yield from part.entries


def _known(corpus: Run, target: str) -> Report | None:
    """The findings of an earlier run on a target, if they can be read."""
    try:
        return Report.read(_file(corpus, target))
    except (OSError, ReportError, json.JSONDecodeError):
        return None


def _file(corpus: Run, target: str) -> Path:
    """The file of the part of a target: equal choices, code and libraries give equal names."""
    libraries = [version(name) for name in _LIBRARIES if find_spec(name)]
    key = json.dumps([source_digest(), *libraries, target, *corpus.arguments])
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", target)
    return corpus.folder / f"{stem}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def _examine(corpus: Run, target: str) -> str | None:
    """Examine one target, with a mask if it takes one; gives what went wrong where there is no result."""
    problem = _attempt(corpus, target, corpus.arguments)
    if problem is not None and NO_MASK in problem and "--mask" in corpus.arguments:
        return _attempt(corpus, target, tuple(a for a in corpus.arguments if a != "--mask"))
    return problem


def _attempt(corpus: Run, target: str, arguments: tuple[str, ...]) -> str | None:
    """Examine one target in a process of its own."""
    with tempfile.TemporaryDirectory(dir=corpus.folder) as scratch:
        made = Path(scratch) / "part.json"
        paths = ["--json", str(made), "--html", str(Path(scratch) / "part.html")]
        command = [sys.executable, "-m", "regraft", "report", target, *arguments, *paths]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=corpus.timeout, check=False)
        except subprocess.TimeoutExpired:
            return f"not done after {corpus.timeout:.0f} s"
        if not made.exists():
            return _last_line(ended.stderr) or f"exit code {ended.returncode}"
        made.replace(_file(corpus, target))
    return None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1].removeprefix("error:").strip()
