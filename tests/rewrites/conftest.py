"""Rules that a test declares are gone after it."""

import pytest

from regraft.rewrites import rule


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch):
    monkeypatch.setattr(rule, "_declared", dict(rule._declared))
