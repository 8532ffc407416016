"""What cancels in half precision, and a gradient that is a sum of rounded numbers."""

import torch
import torch.nn.functional as F

DEVICE = "cpu"
HOW = {"dynamic": False, "grad": True, "mode": "", "autocast": "", "capture": False, "options": {"profit": "never"}}
CALLS = 1


def given(call):
    torch.manual_seed(494)
    torch.randn((1, 8))
    x0 = torch.randn((2, 8, 2)).to(torch.float16)[1:].requires_grad_()
    x1 = torch.randn(()).requires_grad_()
    x2 = torch.randn(2, 1, 17, 16).to(torch.bfloat16)
    return [x0, x1, x2]


def program(x0, x1, x2):
    return F.cosine_similarity(x0, x0, dim=-1), x2.mT + x1
