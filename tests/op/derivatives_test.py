"""Derivatives of torch.ops.self_attention.attention of every kind: derivatives_test.py LIBRARY"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import derivatives
import torch

torch.ops.load_library(sys.argv.pop(1))
attention = torch.ops.self_attention.attention
SCALE = 0.3
WITH_SUMS, BACKWARD = "self_attention::_attention_with_sums", "self_attention::attention_backward"

def make_masks(heads=3, queries=5, keys=7):
    """{name: (mask, is_causal)}; the last two leave one query of the second item no key."""
    torch.manual_seed(0)
    uneven = torch.rand(2, 1, queries, keys) > 0.4
    uneven[1, 0, 2] = False
    return {
        "none": (None, False),
        "padding": (torch.arange(keys) < torch.tensor([2, keys - 1]).view(2, 1, 1, 1), False),
        "causal mask": (torch.ones(queries, keys).tril(), False),
        "a head": (torch.rand(2, heads, queries, keys) > 0.4, False),
        "is_causal": (None, True),
        "a row of nothing": (uneven, False),
        "both": (uneven, True),
    }


MASKS = make_masks()


def inputs(dtype, heads=3, queries=5, keys=7, size=8):
    """In memory laid out as projections are."""
    shapes = [(2, queries, heads, size), (2, keys, heads, size), (2, keys, heads, size - 1)]
    return [derivatives.normal(shape, dtype, seed).transpose(1, 2) for seed, shape in enumerate(shapes)]


def op(mask, is_causal):
    return lambda query, key, value: attention(query, key, value, mask, scale=SCALE, is_causal=is_causal)


def formula(mask, is_causal):
    keep = torch.ones(2, 3, 5, 7, dtype=torch.bool)
    if mask is not None:
        keep = keep & (mask != 0)
    if is_causal:
        keep = keep.tril()

    def call(query, key, value):
        scores = (query @ key.mT).masked_fill(~keep, -1e20)
        return torch.softmax(scores * SCALE, -1) @ value

    return call


class Derivatives(unittest.TestCase):
    def test_against_differences_R57(self):
        for name, options in make_masks(2, 3, 4).items():
            with self.subTest(name):
                tensors = derivatives.leaves(inputs(torch.float64, 2, 3, 4, 3))
                checks = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
                self.assertTrue(torch.autograd.gradcheck(op(*options), tensors, **checks))
                # Along random directions; by every element it takes minutes.
                checks = {"check_batched_grad": True, "fast_mode": True}
                self.assertTrue(torch.autograd.gradgradcheck(op(*options), tensors, **checks))

    def check(self, kind, options, dtype, bound):
        """Against the formula in float64, by all inputs and by each alone. Returns the ops seen."""
        seen = []
        for chosen in derivatives.all_and_each(3):
            tensors = inputs(dtype)
            right = kind(*derivatives.by_some(formula(*options), [x.double() for x in tensors], chosen))
            with derivatives.OpsSeen() as ops:
                results = kind(*derivatives.by_some(op(*options), tensors, chosen))
            self.assertEqual({result.dtype for result in results}, {dtype})
            with self.subTest(kind.__name__, dtype=dtype, chosen=chosen):
                error = derivatives.difference(results, right)
                self.assertLess(error, bound * derivatives.largest(right))
            seen.append(ops.names)
        return seen

    def test_beside_the_fused_forward(self):
        for dtype, bound in ((torch.float32, 3e-6), (torch.bfloat16, 3e-2)):
            for mask in ("none", "padding", "a head", "both"):
                for kind in derivatives.RECORDED:
                    for ops in self.check(kind, MASKS[mask], dtype, bound):
                        self.assertIn(WITH_SUMS, ops)
                        if kind in (derivatives.gradients, derivatives.batched_gradients):
                            self.assertIn(BACKWARD, ops)

    def test_under_transforms(self):
        for dtype, bound in ((torch.float32, 3e-6), (torch.bfloat16, 0.1)):
            for mask in ("none", "padding", "a head", "both"):
                for kind in derivatives.TRANSFORMED:
                    if kind is derivatives.hessian and mask != "both":
                        continue  # slow
                    for ops in self.check(kind, MASKS[mask], dtype, bound):
                        self.assertNotIn(WITH_SUMS, ops)

    def test_a_call_after_a_vmap_is_fused(self):
        call = op(None, False)
        tensors = inputs(torch.float32)
        derivatives.vmap(call, tensors)
        with derivatives.OpsSeen() as seen:
            derivatives.gradients(call, tensors)
        self.assertLessEqual({WITH_SUMS, BACKWARD}, seen.names)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
            call(*tensors)
        names = {event.name for event in profile.events()}
        self.assertIn("self_attention::attention", names)
        self.assertFalse({"aten::softmax", "aten::_softmax", "aten::matmul"} & names, names)

    def test_a_mask_is_mapped_too(self):
        tensors = inputs(torch.float32)
        uneven = MASKS["both"][0]
        masks = torch.stack([uneven, ~uneven])
        mapped = torch.func.vmap(lambda mask: op(mask, True)(*tensors))(masks)
        for mask, result in zip(masks, mapped):
            torch.testing.assert_close(result, op(mask, True)(*tensors))

    def test_a_row_of_nothing_leaves_gradients_finite_R64(self):
        mask = torch.ones(2, 1, 1, 7)
        mask[1] = 0
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            tensors = derivatives.leaves(inputs(dtype))
            op(mask, False)(*tensors)[0].sum().backward()
            for tensor in tensors:
                self.assertTrue(tensor.grad.isfinite().all())
                self.assertTrue(tensor.grad[0].any())
                self.assertFalse(tensor.grad[1].any())

    def test_second_derivatives_under_a_causal_mask_R66(self):
        tensors = [x[:1] for x in inputs(torch.float64, 2, 3, 3, 2)]
        for options in ((torch.ones(3, 3).tril(), False), (None, True)):
            self.assertTrue(torch.autograd.gradgradcheck(op(*options), derivatives.leaves(tensors)))

    def test_forward_mode_and_gradients_of_samples_R67(self):
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            causal = torch.ones(3, 3).tril()
            call = op(causal, False)
            x = derivatives.normal((5, 1, 2, 3, 2), dtype, 1)
            (tangent,) = derivatives.forward_mode(lambda x: call(x, x, x), [x[0]])
            direction = derivatives.directions([x[0]])[0].double()
            exact, step = x[0].double(), 1e-6
            ends = [call(*[exact + sign * step * direction] * 3) for sign in (1, -1)]
            torch.testing.assert_close(tangent.double(), (ends[0] - ends[1]) / (2 * step), rtol=0, atol=max(tolerance, 1e-8))

            gradient = torch.func.grad(lambda x: call(x, x, x).square().sum())
            mapped = torch.func.vmap(gradient)(x)
            self.assertEqual(mapped.shape, x.shape)
            for sample, result in zip(x, mapped):
                torch.testing.assert_close(result, gradient(sample), rtol=0, atol=tolerance)


if __name__ == "__main__":
    unittest.main(verbosity=2)
