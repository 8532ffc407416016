"""Rules that a test declares are gone after it."""

import pytest

from regraft.patterns import default_rules
from regraft.rewrites import rule


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch):
    default_rules()  # declared by the first who asks, once: not gone after that test
    monkeypatch.setattr(rule, "_declared", dict(rule._declared))
