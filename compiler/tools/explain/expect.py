"""`expect_match`: a test for your own model that fails, with the reason, if a rule no longer matches it.

def test_attention_is_fused():
    regraft.expect_match("sdpa", model, count=12, **inputs)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....rewrites.rule import Rule
from .explain import explain
from .explanation import Explanation


def expect_match(
    rule: Rule | str, model: Callable[..., Any], *args: Any, count: int | None = None, **kwargs: Any
) -> Explanation:
    """Compile `model`, run it on the arguments, and require that `rule` matches it.

    Args:
        rule: a rule or the name of one.
        model: a module or function; it is run once. It is not changed.
        *args: its arguments.
        count: the exact number of matches; None for at least one.
        **kwargs: its keyword arguments.

    Returns:
        The explanation of the rule, for further assertions.

    Raises:
        AssertionError: the number of matches differs; the message lists each near miss with the expected and the found
            value, and the source line.
        OptionError: no rule has that name.
    """
    found = explain(rule, model, *args, **kwargs)
    matched = len(found.matches)
    if matched == count or (count is None and matched):
        return found
    wanted = "at least 1 match" if count is None else f"{count} match{'' if count == 1 else 'es'}"
    raise AssertionError(f"expected {wanted} of {found.rule}, found {matched}\n\n{found}")
