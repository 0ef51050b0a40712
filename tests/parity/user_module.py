"""A class as a user of the library may have it: other names and style, the same attention.

export_reference.py --variant shared_projection --source tests/parity/user_module.py:CrossAttention
"""

import torch
import torch.nn.functional as F


class FeedForward(torch.nn.Sequential):
    """Another module of the same file, so that the class must be named."""

    def __init__(self, width):
        super().__init__(torch.nn.Linear(width, 4 * width), torch.nn.GELU())


class CrossAttention(torch.nn.Module):
    def __init__(self, width: int, n_heads: int):
        super().__init__()
        if width % n_heads:
            raise ValueError(f"{n_heads} heads do not divide a width of {width}")
        self.width, self.n_heads, self.per_head = width, n_heads, width // n_heads
        for role in ("values", "keys", "queries"):
            setattr(self, role, torch.nn.Linear(self.per_head, self.per_head, bias=False))
        self.fc_out = torch.nn.Linear(width, width)

    def forward(self, context_values, context_keys, x, mask=None):
        batch, length = x.size(0), x.size(1)

        def heads(t):
            return t.reshape(batch, t.size(1), self.n_heads, self.per_head)

        v, k, q = heads(context_values), heads(context_keys), heads(x)
        v, k, q = self.values(v), self.keys(k), self.queries(q)
        logits = torch.einsum("bihc,bjhc->bhij", q, k)
        if mask is not None:
            logits = torch.masked_fill(logits, mask.eq(0), -1e20)
        weights = F.softmax(logits.div(self.width**0.5), dim=-1)
        mixed = torch.einsum("bhij,bjhc->bihc", weights, v)
        return self.fc_out(mixed.reshape(batch, length, self.width))
