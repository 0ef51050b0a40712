"""The op's rounding errors against those of the plain formula in the same dtype, both measured with
float64: accuracy_test.py LIBRARY

Errors are pooled over the seeds of a shape, and short queries come in batches: in a single small
case either can be right by luck.
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

torch.ops.load_library(sys.argv.pop(1))
SHAPES, SEEDS = 100, 20
GRADIENT_SHAPES = 50


def formula(query, key, value, keep, scale):
    scores = query @ key.transpose(-1, -2)
    if keep is not None:
        # float16 cannot hold -1e20.
        wide = scores.float() if scores.dtype == torch.float16 else scores
        return torch.softmax(wide.masked_fill(keep == 0, -1e20) * scale, -1).to(scores.dtype) @ value
    return torch.softmax(scores * scale, -1) @ value


def make_shapes(count):
    random.seed(0)
    for i in range(count):
        size = 1 if i % 5 == 0 else random.randint(2, 150)
        keys, head_dim = random.randint(1, 600), random.choice((3, 8, 16, 32, 64, 80, 128))
        yield size, keys, head_dim, 1 + i % 8, i % 3 == 1


def fused(query, key, value, keep, scale):
    return torch.ops.self_attention.attention(query, key, value, keep, scale=scale)


def make_inputs(dtype, shape, seed):
    """Query, key and value, a mask or None, and the scale."""
    queries, keys, head_dim, magnitude, masked = shape
    batch = max(1, 32 // queries)
    torch.manual_seed(seed)
    tensors = [
        (magnitude * torch.randn(batch, 2, length, head_dim)).to(dtype) for length in (queries, keys, keys)
    ]
    keep = torch.rand(1, 1, 1, keys) > 0.3 if masked else None
    return tensors, keep, 1 / math.sqrt(head_dim)


def errors(dtype, shape, seed):
    """The largest errors of the op and of the formula."""
    tensors, *rest = make_inputs(dtype, shape, seed)
    right = formula(*(tensor.double() for tensor in tensors), *rest)
    return (largest_error(function(*tensors, *rest), right) for function in (fused, formula))


def gradient_errors(shape, seed):
    """(the op's largest error, the formula's, the largest gradient) for query, key and value."""
    tensors, *rest = make_inputs(torch.float32, shape, seed)
    cotangent = torch.randn_like(tensors[0])

    def gradients(function, dtype):
        leaves = [tensor.to(dtype).detach().requires_grad_() for tensor in tensors]
        return torch.autograd.grad(function(*leaves, *rest), leaves, cotangent.to(dtype))

    right = gradients(formula, torch.float64)
    ours, formulas = (gradients(function, torch.float32) for function in (fused, formula))
    return [
        (largest_error(a, exact), largest_error(b, exact), exact.abs().max().item())
        for a, b, exact in zip(ours, formulas, right)
    ]


class Accuracy(unittest.TestCase):
    def measure(self, dtype):
        """Ratios of the largest error of a shape, and of every single case."""
        pooled, single = [], []
        for shape in make_shapes(SHAPES):
            pairs = [tuple(errors(dtype, shape, seed)) for seed in range(SEEDS)]
            ours, formulas = (max(column) for column in zip(*pairs))
            pooled.append((ours / max(formulas, 1e-30) if ours > 0 else 0.0, shape))
            single += [a / b for a, b in pairs if b > 0]
        worst = max(pooled)
        print(f"{dtype}: worst shape {worst[0]:.3f} at {worst[1]}, median case {statistics.median(single):.3f}")
        return worst[0], statistics.median(single)

    def test_float32(self):
        worst, median = self.measure(torch.float32)
        self.assertLessEqual(worst, 2.0)
        self.assertLessEqual(median, 1.1)

    def test_sixteen_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            worst, _ = self.measure(dtype)
            self.assertLessEqual(worst, 1.0)

    def test_gradients(self):
        cases = (
            (shape, [gradient_errors(shape, seed) for seed in range(SEEDS)])
            for shape in make_shapes(GRADIENT_SHAPES)
        )
        expect_gradients_near(self, "gradients", cases, factor=4)


if __name__ == "__main__":
    unittest.main()
