"""Models that tests compile ahead of time."""

from typing import Any

import torch


class Mixed(torch.nn.Module):
    """Numbers, nested inputs and results, buffers that are written, results that are inputs or weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, k: int, *, extra: dict[str, torch.Tensor]) -> Any:
        self.count.add_(1)
        with torch.no_grad():
            doubled = x * 2
        y = torch.relu(self.linear(x)) + self.count * k + extra["a"]
        told = {"x": x, "k": k, "rows": x.shape[0], "view": x.view(-1), "none": None, "weight": self.linear.weight}
        return {"y": y, **told}, self.norm(doubled)


def mixed_inputs(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(rows, 4), 2), {"extra": {"a": torch.randn(rows, 4)}}


def convolutional() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip


def bert() -> torch.nn.Module:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes)).eval()


def bert_inputs(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(rows, tokens, dtype=torch.int64)
    mask[:, tokens // 2 + 1 :] = 0
    return {"input_ids": torch.randint(0, 100, (rows, tokens)), "attention_mask": mask}
