"""The calls of whole modules that compare_peers.py --modules measures, and what is aimed at."""

import math
from dataclasses import dataclass, replace

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
    trains: bool = False  # the gradients of input and parameters as well
    causal: bool = False  # for the Python class a mask (K, K)

    @property
    def name(self):
        letter = {"shared_projection": "shared", "full_projection": "full"}[self.variant]
        sizes = f"n{self.batch}-L{self.keys}-e{self.embed}"
        marks = ["one-query"] if self.queries == 1 else []
        marks += [self.dtype] if self.dtype != "float32" else []
        marks += [mark for mark in ("padding", "causal") if getattr(self, mark)]
        marks += ["train"] if self.trains else []
        return "-".join([letter, sizes, *marks])

    @property
    def head_dim(self):
        return self.embed // self.heads

    @property
    def kept_keys(self):
        return self.keys * 3 // 4 if self.padding else self.keys

    @property
    def flops(self):
        """Those that cannot be left out, in the cheapest order of the products. Of a step: five
        products more for attention's two, and two for every other one."""
        queries, keys = self.batch * self.queries, self.batch * self.kept_keys
        attention = 4 * queries * self.kept_keys * self.embed
        if self.causal:
            attention = attention * (self.queries + 1) // (2 * self.queries)
        projections = self.projection_flops(queries, keys)
        return attention * 7 // 2 + 3 * projections if self.trains else attention + projections

    def projection_flops(self, queries, keys):
        output = 2 * queries * self.embed**2
        if self.variant == "full_projection":
            return 2 * output + 4 * keys * self.embed**2
        by_query = 2 * queries * self.embed * self.head_dim
        by_key = 2 * keys * self.embed * self.head_dim
        # W_q and W_k are made one matrix, or the queries go through both; W_v goes into fc_out, or
        # the weighted sums go through it.
        scores = min(2 * by_query, min(by_query, by_key) + 2 * self.head_dim**3)
        return output + scores + min(by_query, 2 * self.embed**2 * self.head_dim)

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
SHORT_STEP = ModuleCase("shared_projection", 8, 128, 512, 8, queries=128, trains=True)
LONG_STEP = ModuleCase("shared_projection", 2, 1024, 512, 8, queries=1024, trains=True)
CAUSAL_STEP = replace(LONG_STEP, causal=True)
CASES = (*SQUARE, ONE_QUERY, *NARROW, SHORT_STEP, LONG_STEP, CAUSAL_STEP)


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
        Goal("original", (SHORT_STEP,), Target(1.15, 1.35)),
        Goal("original", (LONG_STEP,), Target(2, 2.6)),
        Goal("original", (CAUSAL_STEP,), Target(3.5, 5)),
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
    grad_output: torch.Tensor | None  # where the case trains

    @property
    def parameters(self):
        return list(self.module.parameters())

    @property
    def is_self_attention(self):
        return self.query is self.values

    def step(self, output, leaves=None):
        """Where the case trains, the output with the gradients of input and parameters, or of such
        leaves; else the output, (N, Q, E)."""
        if not self.case.trains:
            return output
        leaves = leaves or (self.values, *self.parameters)
        return output, *torch.autograd.grad(output, leaves, self.grad_output.to(output.dtype))

    def expected(self):
        """The result in float64, as one list of numbers where the case trains."""
        exact = CLASSES[self.case.variant](self.case.embed, self.case.heads).double()
        exact.load_state_dict(self.module.state_dict())
        values = self.values.detach().double().requires_grad_(self.case.trains)
        query = values if self.is_self_attention else self.query.double()
        output = exact(values, values, query, self.mask)
        return flat(self.step(output, (values, *exact.parameters())))


def flat(results):
    """A tensor as it is, several as one list of numbers."""
    if isinstance(results, torch.Tensor):
        return results
    return torch.cat([tensor.detach().flatten() for tensor in results])


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
    if case.causal:
        mask = torch.ones(case.queries, case.keys).tril()
    values = draw(case.keys).requires_grad_(case.trains)
    query = values if case.queries == case.keys else draw(case.queries)
    grad_output = draw(case.queries) if case.trains else None
    return ModuleInputs(case, module.train(case.trains), values, query, mask, grad_output)
