"""`expect_match`: passes where a rule matches as often as said, and otherwise says why not."""

import pytest
import torch
from support.attentions import plain, qkv

import regraft


def twice(q, k, v):
    return plain(q, k, v) + plain(q, k, v + 1)


def test_at_least_one_is_enough():
    assert len(regraft.expect_match("sdpa", twice, *qkv()).matches) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_fails(count):
    with pytest.raises(AssertionError, match=rf"expected {count} match(es)? of sdpa, found 2"):
        regraft.expect_match("sdpa", twice, *qkv(), count=count)


def test_the_message_says_why_not():
    q, k, v = qkv()
    with pytest.raises(AssertionError, match="expected at least 1 match of sdpa, found 0") as failure:
        regraft.expect_match("sdpa", lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -2) @ v, q, k, v)
    assert "near miss" in str(failure.value) and "test_expect.py" in str(failure.value)


def test_none_can_be_expected():
    assert not regraft.expect_match("sdpa", lambda x: x + 1, torch.ones(3), count=0).matches


def test_an_unknown_rule_is_named():
    with pytest.raises(regraft.OptionError, match="no_such_rule"):
        regraft.expect_match("no_such_rule", plain, *qkv())
