"""The cases that compare_peers.py measures, what is aimed at in each, and their numbers.

`self-attention bench` has the same cases under the same names (src/tools/bench/bench_cases.cpp).
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Target:
    """What a number must reach, and what it should."""

    floor: float
    aim: float

    def verdict(self, value):
        return "aim" if value >= self.aim else "floor" if value >= self.floor else "below"


# Ours against the fastest of the peers, in every case.
BEST = Target(1.0, 1.2)
# Of the rate at which memory can be read, for one query whose keys do not fit in a cache: an aim
# without a floor.
READ_AIM = Target(0, 0.8)


@dataclass(frozen=True)
class Case:
    """One call of attention. Tensors lie in memory as modules give them: (N, L, H, d)."""

    name: str
    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    dtype: str = "float32"
    causal: bool = False
    padding: bool = False  # a bool mask (N, 1, 1, K) that leaves out the last quarter of the keys
    trains: bool = False  # the gradients of query, key and value as well
    against_torch: Target | None = None
    of_peak: Target | None = None  # at one thread
    of_read: Target | None = None

    @property
    def kept_keys(self):
        return self.keys * 3 // 4 if self.padding else self.keys

    @property
    def flops(self):
        """Those of the two products that cannot be left out, and of the gradients' five."""
        pairs = self.queries * self.kept_keys
        if self.causal:
            pairs = self.queries * (self.queries + 1) // 2
        products = 7 if self.trains else 2
        return 2 * products * self.batch * self.heads * self.head_dim * pairs

    @property
    def read_bytes(self):
        """Of keys and values."""
        size = getattr(torch, self.dtype).itemsize
        return 2 * self.batch * self.heads * self.keys * self.head_dim * size


def square(name, batch, heads, length, head_dim, target, **more):
    return Case(name, batch, heads, length, length, head_dim, against_torch=target, **more)


def one_query(keys, batch, floor, of_read=None):
    return Case(
        f"one-query-K{keys}", batch, 8, 1, keys, 64, against_torch=Target(floor, 2), of_read=of_read
    )


LARGE = Target(1.15, 1.3)
TRAINING = Target(1.15, 1.35)
CAUSAL_TRAINING = Target(1.5, 2)
CASES = (
    square("d64-L512", 1, 8, 512, 64, LARGE, of_peak=Target(0.75, 0.83)),
    square("d64-L2048", 1, 8, 2048, 64, LARGE),
    square("d128-L512", 1, 8, 512, 128, LARGE, of_peak=Target(0.82, 0.89)),
    square("d128-L2048", 1, 8, 2048, 128, LARGE),
    square("d32-L512", 1, 16, 512, 32, None, of_peak=Target(0.62, 0.70)),
    square("d32-L256", 1, 16, 256, 32, Target(1.25, 1.4)),
    square("d16-L256", 1, 16, 256, 16, Target(1.3, 1.5)),
    square("L97", 8, 8, 97, 64, Target(1.4, 1.8)),
    square("L257", 2, 8, 257, 64, Target(1.2, 1.4)),
    square("L513", 1, 8, 513, 64, Target(1.2, 1.35)),
    square("causal-L512", 1, 8, 512, 64, Target(1.8, 2.4), causal=True),
    square("causal-L2048", 1, 8, 2048, 64, Target(1.3, 1.5), causal=True),
    square("L128", 8, 8, 128, 64, Target(1.3, 1.7)),
    square("L64", 8, 8, 64, 64, Target(1.4, 1.8)),
    square("L32", 8, 8, 32, 64, Target(1.6, 2.2)),
    square("L9", 32, 8, 9, 32, Target(2.5, 5)),
    square("padding-L512", 2, 8, 512, 64, Target(1.4, 1.65), padding=True),
    square("float16-L512", 1, 8, 512, 64, Target(2, 2.6), dtype="float16"),
    square("bfloat16-L512", 1, 8, 512, 64, Target(1.1, 1.3), dtype="bfloat16"),
    one_query(512, 8, 1.3),
    one_query(4096, 1, 1.3),
    one_query(8192, 4, 1.5, of_read=READ_AIM),
    square("train-L128", 8, 8, 128, 64, TRAINING, trains=True),
    square("train-L512", 1, 8, 512, 64, TRAINING, trains=True),
    square("train-L2048", 1, 8, 2048, 64, TRAINING, trains=True),
    square("train-causal-L512", 1, 8, 512, 64, CAUSAL_TRAINING, causal=True, trains=True),
    square("train-causal-L2048", 1, 8, 2048, 64, CAUSAL_TRAINING, causal=True, trains=True),
)


def computes_natively(dtype):
    """Whether the processor has arithmetic of a dtype of 16 bits, which torch then uses."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n")[0].split())
    except (OSError, IndexError):
        return False
    native = {"float16": {"avx512_fp16", "amx_fp16"}, "bfloat16": {"avx512_bf16", "amx_bf16"}}
    return bool(flags & native[dtype])


def against_torch(case):
    """The case's target against torch, or None. Those of 16 bits hold for a processor without."""
    if case.dtype != "float32" and computes_natively(case.dtype):
        return None
    return case.against_torch


@dataclass(frozen=True)
class Inputs:
    """A case's numbers; query, key and value seen as (N, H, L, d)."""

    case: Case
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    grad_output: torch.Tensor | None  # where the case trains

    @property
    def scale(self):
        return 1 / math.sqrt(self.case.head_dim)

    def results(self, output, inputs=None):
        """What a run is judged by: the output, (N, H, Q, d), or where the case trains that and the
        gradients of `inputs` (query, key and value) as one list of numbers."""
        if not self.case.trains:
            return output
        inputs = inputs or (self.query, self.key, self.value)
        gradients = torch.autograd.grad(output, inputs, self.grad_output.to(output.dtype))
        return torch.cat([tensor.detach().flatten() for tensor in (output, *gradients)])

    def expected(self):
        """The results in float64."""
        inputs = [
            tensor.detach().double().requires_grad_(self.case.trains)
            for tensor in (self.query, self.key, self.value)
        ]
        return self.results(self.formula(*inputs), inputs)

    def formula(self, query, key, value):
        scores = query @ key.mT * self.scale
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask, -math.inf)
        if self.case.causal:
            above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(above, -math.inf)
        return scores.softmax(-1) @ value


def make_inputs(case):
    generator = torch.Generator().manual_seed(0)

    def draw(length):
        shape = (case.batch, length, case.heads, case.head_dim)
        numbers = torch.randn(shape, generator=generator).to(getattr(torch, case.dtype))
        return numbers.transpose(1, 2).requires_grad_(case.trains)

    mask = None
    if case.padding:
        kept = torch.arange(case.keys) < case.kept_keys
        mask = kept.view(1, 1, 1, -1).repeat(case.batch, 1, 1, 1)
    query, key, value = draw(case.queries), draw(case.keys), draw(case.keys)
    grad_output = draw(case.queries).detach() if case.trains else None
    return Inputs(case, query, key, value, mask, grad_output)
