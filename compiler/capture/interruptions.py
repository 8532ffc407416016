"""Records recompilations and graph breaks, with advice.

details["recompiled"]    a guard that failed, its condition, and advice
details["graph_break"]   a call that Dynamo could not trace, its place, and advice
"""

from __future__ import annotations

import re
from typing import Any

from torch import fx

from ...rewrites.compat.dynamo import graph_break, recompile_reason
from ...rewrites.record import GraphRecord

_SIZE = "sizes that change: compile with dynamic=True, or torch._dynamo.mark_dynamic(tensor, dim)"
_ADVICE = (
    (r"size mismatch|stride mismatch", _SIZE),
    (r"\.size\(\)\[\d+\]|2 <= |< 2|!= [01]\b", "sizes 0 and 1 are compiled apart: pad them, or keep them out"),
    (r"requires_grad|GLOBAL_STATE|grad_mode|autocast", "gradients, modes and autocast alike in all calls"),
    (r"dtype|device|dispatch key|type mismatch", "inputs of one dtype, device and type for all calls"),
    (r"___check_type_id", "a Python value of one type for all calls, or a tensor"),
    (r"___check_obj_id|\bis \b", "an object that changes between calls: pass what differs as tensors"),
    (r"==", "a Python value that changes between calls: pass it as a tensor"),
)
_BREAKS = (
    (r"\.item|data-dependent|Data-dependent|tolist|nonzero", "torch._dynamo.config.capture_scalar_outputs and "
     "capture_dynamic_output_shape_ops keep such values in the graph"),
    (r"print|logging|warnings", "leave output out of the program, or hide it by torch.compiler.is_compiling()"),
    (r"torch\.compiler\.disable|torch\._dynamo\.disable|graph_break\(", "the program asks for it"),
    (r"branch|jump|if ", "torch.where or torch.cond in place of a Python branch on a tensor"),
)  # fmt: skip


def note_interruptions(record: GraphRecord, gm: fx.GraphModule) -> None:
    """Record why a graph is compiled again, and why it ends where it does."""
    again = " ".join(recompile_reason().partition("User stack trace")[0].split())
    if again:
        record.details["recompiled"] = {"why": again[:500], "avoid": _advice(again, _ADVICE)}
    why, frames = graph_break(gm)
    if why:
        first = next((line.strip() for line in why.splitlines() if line.strip()), "")
        explained = re.search(r"Explanation:\s*(.*)", why)
        text = f"{first}: {explained[1]}" if explained and explained[1] not in first else first
        record.details["graph_break"] = {"why": text[:500], "at": _place(frames), "avoid": _advice(why, _BREAKS)}


def _advice(text: str, table: tuple[tuple[str, str], ...]) -> str:
    return next((advice for pattern, advice in table if re.search(pattern, text)), "")


def _place(frames: list[Any]) -> str:
    """The user's source line, ``folder/file.py:3 in function: code``."""
    if not frames:
        return ""
    frame = frames[-1]
    file = "/".join(frame.filename.split("/")[-2:])
    return f"{file}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"
