import pytest

import regraft
from regraft.compiler.options import OptionError
from regraft.compiler.options.rules import resolve_rules


def test_rules_resolve_in_order_without_doubles():
    names = [rule.name for rule in resolve_rules(("linear", "default"))]
    assert names[0] == "linear" and sorted(names) == sorted(rule.name for rule in regraft.default_rules())


@pytest.mark.parametrize(("name", "close"), [("defalt", "default"), ("silluu", "silu")])
def test_a_name_that_is_close_to_one_is_suggested(name, close):
    with pytest.raises(OptionError, match=f"did you mean '{close}'"):
        resolve_rules((name,))
