"""The calls of whole modules that compare_peers.py --modules measures, and what is aimed at."""

import math
from dataclasses import dataclass

import reference_modules
import torch
from peer_cases import Target, computes_natively

CLASSES = {
    "shared_projection": reference_modules.SharedProjectionAttention,
    "full_projection": reference_modules.FullProjectionAttention,
}


@dataclass(frozen=True)
class ModuleCase:
    """One forward: self-attention of a sequence, or one query on it where `queries` is 1."""

    variant: str
    batch: int
    keys: int
    embed: int
    heads: int
    queries: int
    dtype: str = "float32"
    padding: bool = False  # a bool mask (N, 1, 1, K) that leaves out the last quarter of the keys

    @property
    def name(self):
        letter = {"shared_projection": "shared", "full_projection": "full"}[self.variant]
        sizes = f"n{self.batch}-L{self.keys}-e{self.embed}"
        marks = ["one-query"] if self.queries == 1 else []
        marks += [self.dtype] if self.dtype != "float32" else []
        marks += ["padding"] if self.padding else []
        return "-".join([letter, sizes, *marks])

    @property
    def head_dim(self):
        return self.embed // self.heads

    @property
    def kept_keys(self):
        return self.keys * 3 // 4 if self.padding else self.keys

    @property
    def flops(self):
        """Those that cannot be left out, in the cheapest order of the products."""
        queries, keys = self.batch * self.queries, self.batch * self.kept_keys
        attention = 4 * queries * self.kept_keys * self.embed
        output = 2 * queries * self.embed**2
        if self.variant == "full_projection":
            return attention + 2 * output + 4 * keys * self.embed**2
        by_query = 2 * queries * self.embed * self.head_dim
        by_key = 2 * keys * self.embed * self.head_dim
        # W_q and W_k are made one matrix, or the queries go through both; W_v goes into fc_out, or
        # the weighted sums go through it.
        scores = min(2 * by_query, min(by_query, by_key) + 2 * self.head_dim**3)
        return attention + output + scores + min(by_query, 2 * self.embed**2 * self.head_dim)

    @property
    def read_bytes(self):
        """Of keys and values."""
        size = getattr(torch, self.dtype).itemsize
        return 2 * self.batch * self.keys * self.embed * size


SHAPES = (  # N, L, E, H
    (32, 9, 256, 8), (1, 128, 512, 8), (8, 128, 512, 8), (1, 1024, 512, 8), (2, 2048, 512, 8),
    (4, 512, 1024, 16),
)  # fmt: skip
SQUARE = tuple(
    ModuleCase(variant, *shape, queries=shape[1], padding=padding)
    for variant in CLASSES
    for shape in SHAPES
    for padding in (False, True)
)
ONE_QUERY = ModuleCase("shared_projection", 8, 2048, 1024, 16, queries=1)
NARROW = tuple(
    ModuleCase("shared_projection", batch, length, 512, 8, queries=length, dtype=dtype)
    for batch, length in ((1, 128), (2, 1024))
    for dtype in ("bfloat16", "float16")
)
CASES = (*SQUARE, ONE_QUERY, *NARROW)


@dataclass(frozen=True)
class Goal:
    """What the geometric mean over some cases must reach. `what` is a peer, whose time by ours is
    meant, or "peak", the share of what the processor's matrix products reach."""

    what: str
    cases: tuple
    target: Target | None  # None where the number alone is of interest
    threads: int | None = None  # any number

    def value(self, rows):
        """The mean over the rows at one thread count, or None where one of the cases is missing."""
        found = {row.case: row.number(self.what) for row in rows}
        values = [found.get(case) for case in self.cases]
        if None in values:
            return None
        return math.exp(sum(map(math.log, values)) / len(values))


def goals():
    """Those that hold for this processor."""
    shared, full = (tuple(c for c in SQUARE if c.variant == variant) for variant in CLASSES)
    found = [
        Goal("original", shared, Target(2.1, 2.6), threads=1),
        Goal("original", shared, Target(2.6, 3.5), threads=2),
        Goal("peak", shared, Target(1 / 1.45, 1 / 1.2)),
        Goal("algebra", shared, None),
        Goal("compiled", shared, Target(1.5, 2)),
        Goal("multihead", full, Target(1.5, 2)),
        Goal("original", (ONE_QUERY,), Target(20, 40)),
    ]
    found += [
        Goal("original", (case,), Target(12, 25))
        for case in NARROW
        if not computes_natively(case.dtype)
    ]
    return found


@dataclass(frozen=True)
class ModuleInputs:
    """A case's module, of the Python class, and the tensors of its call."""

    case: ModuleCase
    module: torch.nn.Module
    values: torch.Tensor
    query: torch.Tensor
    mask: torch.Tensor | None

    @property
    def parameters(self):
        return list(self.module.parameters())

    @property
    def is_self_attention(self):
        return self.query is self.values

    def expected(self):
        """The result in float64, (N, Q, E)."""
        exact = CLASSES[self.case.variant](self.case.embed, self.case.heads).double()
        exact.load_state_dict(self.module.state_dict())
        values = self.values.double()
        query = values if self.is_self_attention else self.query.double()
        return exact(values, values, query, self.mask)


def make_inputs(case):
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, case.dtype)

    def draw(length):
        return torch.randn((case.batch, length, case.embed), generator=generator).to(dtype)

    torch.manual_seed(0)
    module = CLASSES[case.variant](case.embed, case.heads).to(dtype).eval()
    mask = None
    if case.padding:
        kept = torch.arange(case.keys) < case.kept_keys
        mask = kept.view(1, 1, 1, -1).repeat(case.batch, 1, 1, 1)
    values = draw(case.keys)
    query = values if case.queries == case.keys else draw(case.queries)
    return ModuleInputs(case, module, values, query, mask)
