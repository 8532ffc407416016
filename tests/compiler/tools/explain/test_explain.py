"""Explanations: what is equal is told once, what came closest comes first."""

import torch
from support.attentions import plain, qkv

import regraft


class Layers(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = torch.softmax(y @ y.transpose(-2, -1), -1) @ y
        return x


def test_equal_matches_are_told_once():
    text = str(regraft.explain("sdpa", Layers(3), torch.randn(2, 4, 5, 8)))
    assert text.startswith("sdpa: 3 matched, 0 near misses in 1 graph\n  looks for softmax(query @ key_t")
    assert text.count("matched   x 3") == 1 and text.count("test_explain.py") == 1


def test_equal_near_misses_are_told_once():
    def twice(q, k, v):
        return torch.softmax(q @ k.mT, -2) @ v + torch.softmax(q @ k.mT, -2) @ v

    q, k, v = qkv()
    text = str(regraft.explain("sdpa", twice, q, k, v))
    assert "sdpa: 0 matched" in text and "near miss x 2" in text and "test_explain.py" in text


def test_nothing_alike():
    text = str(regraft.explain("gelu_tanh", plain, *qkv()))
    assert "gelu_tanh: 0 matched" in text and "operators-missing" in text
