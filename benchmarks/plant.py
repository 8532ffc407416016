"""Rules planted into random programs: every instance must match, almost-instances must stay right, refused ones alone.

    python benchmarks/plant.py --programs 2000 --seed 0
    python benchmarks/plant.py --programs 1 --seed 4711 --text
    python benchmarks/plant.py --programs 200 --rules sdpa,rms_norm --out plant.json
    python benchmarks/plant.py --programs 2000 --device cuda --budget 60

Program number n comes from seed n. Three in ten are trained, three in ten have symbolic sizes, a third
is bfloat16. Each is captured, rewritten by every stage with the default rules, every legal
match applied, and held against eager.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
import typer
from rich.console import Console
from rich.progress import track
from support.planting import draw, judge
from support.triton_kernels import device_lost

from regraft.patterns import default_rules

torch.set_num_threads(1)
FAULTS = ("missed", "wrong", "replaced", "raised")


def chosen(names: str) -> list[Any]:
    """The rules of these names, separated by commas; all where there are none."""
    known = {rule.name: rule for rule in default_rules()}
    unknown = [name for name in names.split(",") if name and name not in known]
    if unknown:
        raise typer.BadParameter(f"no rule {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",") if name] or list(known.values())


def main(
    programs: int = 200,
    seed: int = 0,
    rules: Annotated[str, typer.Option(help="Names of rules to plant, separated by commas; default: all.")] = "",
    device: Annotated[str, typer.Option(help="Where the programs run: cpu or cuda.")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds after which no further program is begun.")] = 1e9,
    text: Annotated[bool, typer.Option("--text", help="Print every program, not only those that fail.")] = False,
    out: Annotated[str, typer.Option(help="Write the summary as JSON.")] = "",
) -> None:
    """Run `programs` of them; exits with 1 where one is missed, wrong, replaced against a refusal, or raises."""
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise typer.BadParameter(f"no device {device!r} here")
    usable, counts, planted = chosen(rules), Counter[str](), Counter[str]()
    failed: dict[int, str] = {}
    start = time.perf_counter()
    for number in track(range(seed, seed + programs), "planting", console=Console(stderr=True)):
        if time.perf_counter() > start + budget:
            break
        planting = draw(number, usable, device)
        verdict = judge(planting)
        if reason := device_lost(device):
            raise SystemExit(f"program {number} breaks the device: {reason}\n{draw(number, usable)}")
        counts[f"{planting.kind} {verdict.how}"] += 1
        planted.update(plant.rule.name for plant in planting.plants)
        if text or verdict.how in FAULTS:
            print(f"--- {verdict.how}: {verdict.told}\n{planting}", flush=True)
        if verdict.how in FAULTS:
            failed[number] = f"{verdict.how}: {verdict.told}"
    summary = {
        "programs": programs, "seed": seed, "counts": dict(sorted(counts.items())), "plants": dict(planted),
        "failed": failed, "seconds": round(time.perf_counter() - start),
    }  # fmt: skip
    print(json.dumps(summary, indent=1))
    if out:
        Path(out).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
