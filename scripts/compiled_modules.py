"""Twins of the Python classes for torch.export: their parameters, and attention as the library's op.

torch.ops.load_library("libself_attention.so") comes first. What is around the op is left to the
compiler. As the op, they take a mask of any dtype that broadcasts to (N, H, Q, K), or None.
"""

import torch
from torch import nn


def attend(values, keys, query, mask, scale):
    """(N, K, H, d), (N, K, H, d) and (N, Q, H, d) to (N, Q, H * d)."""
    heads_first = (tensor.transpose(1, 2) for tensor in (query, keys, values))
    output = torch.ops.self_attention.attention(*heads_first, mask, scale=scale)
    return output.transpose(1, 2).flatten(2)


class SharedProjectionAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        if heads < 1 or embed_size % heads != 0:
            raise ValueError(f"heads: expected a divisor of embed={embed_size}, got {heads}")
        self.heads, self.scale = heads, embed_size**-0.5
        head_dim = embed_size // heads
        for name in ("values", "keys", "queries"):
            self.add_module(name, nn.Linear(head_dim, head_dim, bias=False))
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        rows = (tensor.unflatten(2, (self.heads, -1)) for tensor in (values, keys, query))
        layers = (self.values, self.keys, self.queries)
        projected = (layer(tensor) for layer, tensor in zip(layers, rows))
        return self.fc_out(attend(*projected, mask, self.scale))


class InferredLengthAttention(SharedProjectionAttention):
    """Where the heads divide the embedding, which leaves no length to infer."""

    def forward(self, values, keys, queries, mask=None):
        return super().forward(values, keys, queries, mask)


class FullProjectionAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads != 0:
            raise ValueError(f"heads: expected a divisor of embed={embed_dim}, got {num_heads}")
        self.heads, self.scale = num_heads, (embed_dim // num_heads) ** -0.5
        for name in ("q_linear", "k_linear", "v_linear", "output_linear"):
            self.add_module(name, nn.Linear(embed_dim, embed_dim))

    def forward(self, values, keys, query, mask=None):
        layers = (self.v_linear, self.k_linear, self.q_linear)
        projected = (layer(tensor).unflatten(2, (self.heads, -1))
                     for layer, tensor in zip(layers, (values, keys, query)))
        return self.output_linear(attend(*projected, mask, self.scale))


CLASSES = {
    "shared_projection": SharedProjectionAttention,
    "full_projection": FullProjectionAttention,
    "inferred_length": InferredLengthAttention,
}
