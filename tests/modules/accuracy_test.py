"""The modules' rounding errors against those of the plain operations in the same dtype, both measured
with float64: accuracy_test.py LIBRARY [SHAPES SEEDS]

Errors are pooled over the seeds of a shape: in a single small case either can be right by luck.
"""

import math
import random
import statistics
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import torch
from rounding_errors import expect_gradients_near, largest_error
from torch.nn.functional import linear

torch.ops.load_library(sys.argv[1])
SHAPES, SEEDS = (int(n) for n in (sys.argv[2:4] or (40, 5)))
del sys.argv[1:]
OPS = torch.ops.self_attention


def shared_projection(values, keys, query, mask, v_weight, k_weight, q_weight, out_weight, out_bias, heads):
    values, keys, query = (x.unflatten(-1, (heads, -1)) for x in (values, keys, query))
    values, keys, query = linear(values, v_weight), linear(keys, k_weight), linear(query, q_weight)
    scores = torch.einsum("nqhd,nkhd->nhqk", query, keys)
    weights = softmax(scores, mask, out_bias.numel() ** 0.5)
    return linear(torch.einsum("nhqk,nkhd->nqhd", weights, values).flatten(2), out_weight, out_bias)


def full_projection(values, keys, query, mask, *parameters):
    *parameters, heads = parameters
    query, keys, values = (
        linear(x, *parameters[2 * i : 2 * i + 2]).unflatten(-1, (heads, -1)).transpose(1, 2)
        for i, x in enumerate((query, keys, values))
    )
    weights = softmax(query @ keys.transpose(-1, -2), mask, query.shape[-1] ** 0.5)
    return linear((weights @ values).transpose(1, 2).flatten(2), *parameters[6:])


def softmax(scores, mask, divisor):
    if mask is None:
        return torch.softmax(scores / divisor, -1)
    # float16 cannot hold -1e20.
    wide = scores.float() if scores.dtype == torch.float16 else scores
    return torch.softmax(wide.masked_fill(mask == 0, -1e20) / divisor, -1).to(scores.dtype)


MODULES = {
    "shared_projection": (shared_projection, OPS.shared_projection_attention),
    "full_projection": (full_projection, OPS.full_projection_attention),
    "inferred_length": (shared_projection, OPS.inferred_length_attention),
}


def make_shapes(count):
    random.seed(0)
    for i in range(count):
        queries = 1 if i % 5 == 0 else random.randint(2, 150)
        keys, head_dim = random.randint(1, 400), random.choice((4, 8, 16, 32, 64))
        heads = random.choice((1, 2, 4, 8))
        yield queries, keys, heads, head_dim, 1 + i % 8, 1 + i % 4, i % 3 == 1


def make_call(name, dtype, shape, seed):
    """Inputs, a mask or None, parameters and the number of heads."""
    queries, keys, heads, head_dim, weight_scale, input_scale, masked = shape
    torch.manual_seed(seed)
    embed, batch = heads * head_dim, max(1, 32 // queries)
    inputs = [
        (input_scale * torch.randn(batch, length, embed)).to(dtype) for length in (keys, keys, queries)
    ]
    full = name == "full_projection"
    sizes = [(embed, embed), (embed,)] * 4 if full else [(head_dim, head_dim)] * 3 + [(embed, embed), (embed,)]
    # As nn.Linear starts, times the scale.
    parameters = [
        (weight_scale * (2 * torch.rand(size) - 1) / math.sqrt(size[-1])).to(dtype) for size in sizes
    ]
    mask = torch.rand(1, 1, 1, keys) > 0.3 if masked else None
    return inputs, mask, parameters, heads


def errors(name, dtype, shape, seed):
    """The largest errors of the op and of the plain operations."""
    formula, op = MODULES[name]
    inputs, mask, parameters, heads = make_call(name, dtype, shape, seed)
    right = formula(*(x.double() for x in inputs), mask, *(p.double() for p in parameters), heads)
    with torch.no_grad():
        results = op(*inputs, mask, *parameters, heads), formula(*inputs, mask, *parameters, heads)
    return (largest_error(result, right) for result in results)


def gradient_errors(name, shape, seed):
    """(the op's largest error, the formula's, the largest gradient) of every input and parameter."""
    formula, op = MODULES[name]
    inputs, mask, parameters, heads = make_call(name, torch.float32, shape, seed)
    cotangent = torch.randn_like(inputs[2])

    def gradients(function, dtype):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in (*inputs, *parameters)]
        output = function(*leaves[:3], mask, *leaves[3:], heads)
        return torch.autograd.grad(output, leaves, cotangent.to(dtype))

    right = gradients(formula, torch.float64)
    ours, formulas = (gradients(function, torch.float32) for function in (op, formula))
    return [
        (largest_error(a, exact), largest_error(b, exact), exact.abs().max().item())
        for a, b, exact in zip(ours, formulas, right)
    ]


class Accuracy(unittest.TestCase):
    def measure(self, name, dtype):
        """Ratios of the largest error of a shape, sorted, and the median of every single case's."""
        pooled, single = [], []
        for shape in make_shapes(SHAPES):
            pairs = [tuple(errors(name, dtype, shape, seed)) for seed in range(SEEDS)]
            ours, formulas = (max(column) for column in zip(*pairs))
            pooled.append((ours / max(formulas, 1e-30), shape))
            single += [a / b for a, b in pairs if b > 0]
        pooled.sort()
        median = statistics.median(single)
        print(f"{name} {dtype}: worst {pooled[-1]}, 95 % {pooled[int(0.95 * len(pooled))][0]:.2f}, median {median:.3f}")
        return [ratio for ratio, _ in pooled], median

    def test_float32(self):
        for name in MODULES:
            with self.subTest(name):
                ratios, median = self.measure(name, torch.float32)
                self.assertLessEqual(ratios[-1], 4.0)
                self.assertLessEqual(ratios[int(0.95 * len(ratios)) - 1], 2.0)
                self.assertLessEqual(median, 1.1)

    def test_gradients(self):
        # The third module's gradients are the first one's.
        for name in ("shared_projection", "full_projection"):
            with self.subTest(name):
                cases = (
                    (shape, [gradient_errors(name, shape, seed) for seed in range(SEEDS)])
                    for shape in make_shapes(SHAPES)
                )
                expect_gradients_near(self, f"{name} gradients", cases, factor=6)

    def test_sixteen_bits(self):
        for name in MODULES:
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(name, dtype=dtype):
                    ratios, _ = self.measure(name, dtype)
                    self.assertLessEqual(ratios[-1], 1.0)


if __name__ == "__main__":
    unittest.main()
