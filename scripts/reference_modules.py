"""The three attention classes that the C++ modules are equal to, as this project states them.

Shape legend: N batch, Q query length, K key length, E embedding, H heads, d = E // H.

Each class performs, in this order, the torch operations of the public class it stands for, so that
outputs and gradients agree with that class to the bit wherever it runs. Constructors draw their
children in the order of registration: the same seed gives the same weights.
"""

import torch
from torch import nn

# Finite on purpose: a row whose keys are all masked attends to all of them alike, and a real score
# below this number loses to a masked one. float16 cannot hold it, so masks raise there.
MASKED_SCORE = -1e20


def fill_masked(scores, mask):
    """Scores with MASKED_SCORE where mask == 0: -0.0 masks; NaN, 0.3 and -inf keep."""
    return scores if mask is None else scores.masked_fill(mask == 0, MASKED_SCORE)


class _SharedHeads(nn.Module):
    """Parameters and formula of the classes whose heads share one d x d matrix per role."""

    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        self.values = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.keys = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.queries = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.fc_out = nn.Linear(heads * self.head_dim, embed_size)

    def attend(self, values, keys, queries, mask):
        """Attention of inputs split into heads, (N, length, H, d), as (N, Q, H, d)."""
        values = self.values(values)
        keys = self.keys(keys)
        queries = self.queries(queries)
        scores = fill_masked(torch.einsum("nqhd,nkhd->nhqk", queries, keys), mask)
        weights = torch.softmax(scores / self.embed_size**0.5, dim=-1)
        return torch.einsum("nhqk,nkhd->nqhd", weights, values)


class SharedProjectionAttention(_SharedHeads):
    """Document 000: (N, K, E), (N, K, E), (N, Q, E) and a mask for (N, H, Q, K) give (N, Q, E)."""

    def __init__(self, embed_size, heads):
        if embed_size % heads != 0:
            raise ValueError(f"heads: expected a divisor of embed_size={embed_size}, got {heads}")
        super().__init__(embed_size, heads)

    def forward(self, values, keys, query, mask=None):
        batch, length = query.shape[:2]
        values, keys, query = (
            tensor.reshape(batch, tensor.shape[1], self.heads, self.head_dim)
            for tensor in (values, keys, query)
        )
        attended = self.attend(values, keys, query, mask)
        return self.fc_out(attended.reshape(batch, length, self.heads * self.head_dim))


class FullProjectionAttention(nn.Module):
    """Document 001 with separate inputs, a mask, and heads that are split after the projections.

    keys and query both None mean self-attention. With one head this is the original, operation by
    operation; with more, which the original cannot run, the formula is that of
    torch.nn.MultiheadAttention.
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        if embed_dim % num_heads != 0:
            raise ValueError(
                f"num_heads: expected a divisor of embed_dim={embed_dim}, got {num_heads}"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_linear = nn.Linear(embed_dim, embed_dim)
        self.k_linear = nn.Linear(embed_dim, embed_dim)
        self.v_linear = nn.Linear(embed_dim, embed_dim)
        self.output_linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, values, keys=None, query=None, mask=None):
        if (keys is None) != (query is None):
            missing = "keys" if keys is None else "query"
            raise ValueError(f"{missing}: expected a tensor beside the other one, got None")
        value_rows = self._one_head(values)
        # One view in self-attention: the three gradients of the input then add up in the order in
        # which they do in the original.
        key_rows = value_rows if keys is None else self._one_head(keys)
        query_rows = value_rows if query is None else self._one_head(query)

        queries = self._split(self.q_linear(query_rows))
        keys = self._split(self.k_linear(key_rows))
        values = self._split(self.v_linear(value_rows))
        scores = fill_masked(torch.matmul(queries, keys.transpose(-2, -1)), mask)
        weights = torch.softmax(scores / self.head_dim**0.5, dim=-1)
        attended = torch.matmul(weights, values)

        batch, _, length, _ = query_rows.shape
        merged = attended.permute(0, 2, 1, 3).contiguous().view(batch, length, self.embed_dim)
        return self.output_linear(merged)

    def _one_head(self, tensor):
        """(N, length, E) as (N, 1, length, E)."""
        batch, length, _ = tensor.shape
        return tensor.view(batch, length, 1, self.embed_dim).permute(0, 2, 1, 3)

    def _split(self, projected):
        """(N, 1, length, E) as (N, H, length, d)."""
        if self.num_heads == 1:
            return projected
        batch, _, length, _ = projected.shape
        return projected.reshape(batch, length, self.num_heads, self.head_dim).permute(0, 2, 1, 3)


class InferredLengthAttention(_SharedHeads):
    """Document 002: as 000, but every length is inferred by a reshape to (N, -1, H, d).

    N is the query's first size. Where H d is not E, or the keys' and values' batch is not N,
    elements move into the length axis.
    """

    def forward(self, values, keys, queries, mask=None):
        batch = queries.shape[0]
        values, keys, queries = (
            tensor.reshape(batch, -1, self.heads, self.head_dim)
            for tensor in (values, keys, queries)
        )
        attended = self.attend(values, keys, queries, mask)
        return self.fc_out(attended.reshape(batch, -1, self.heads * self.head_dim))
