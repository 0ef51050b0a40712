"""Derivatives of the modules' ops of every kind: derivatives_test.py LIBRARY"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import derivatives
import torch
from formulas import E, H, NAMES, formula, inputs, parameters

torch.ops.load_library(sys.argv.pop(1))
OPS = torch.ops.self_attention


def make_masks(queries, keys, heads):
    """{name: (mask, is_causal)}; the last two leave one query of the second item no key."""
    uneven = torch.rand(2, 1, queries, keys) > 0.4
    uneven[1, 0, 1] = False
    return {
        "none": (None, False),
        "padding": (torch.arange(keys) < torch.tensor([1, keys - 1]).view(2, 1, 1, 1), False),
        "causal mask": (torch.ones(queries, keys).tril(), False),
        "a head": (torch.rand(2, heads, queries, keys) > 0.4, False),
        "is_causal": (None, True),
        "a row of nothing": (uneven, False),
        "both": (uneven, True),
    }


def op(name, heads, mask, is_causal):
    """Of the inputs and the parameters."""
    return lambda *tensors: getattr(OPS, name)(*tensors[:3], mask, *tensors[3:], heads, is_causal)


def plain(name, heads, mask, is_causal):
    def call(*tensors):
        keep = torch.ones(tensors[2].shape[1], tensors[1].shape[1], dtype=torch.bool)
        keep = keep.tril() if is_causal else keep
        keep = keep if mask is None else keep.logical_and(mask)
        return formula(name, *tensors[:3], keep, *tensors[3:], heads)

    return call


def arguments(name, queries=5, keys=7, embed=E, heads=H):
    """The inputs and the parameters, which leave numbers about as large as they come."""
    return [*inputs(queries, keys, embed), *((2 / embed) ** 0.5 * x for x in parameters(name, embed, heads))]


class Derivatives(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_against_differences_R57(self):
        for name in NAMES:
            for mask, options in make_masks(2, 3, 2).items():
                with self.subTest(op=name, mask=mask):
                    tensors = derivatives.leaves((*inputs(2, 3, 4), *parameters(name, 4, 2)))
                    call = op(name, 2, *options)
                    self.assertTrue(torch.autograd.gradcheck(call, tensors))
                    # Along random directions; by every element it takes minutes.
                    self.assertTrue(torch.autograd.gradgradcheck(call, tensors, fast_mode=True))

    def check(self, kind, name, options, dtype, choices, heads=H, **sizes):
        """Against the equations in float64, by the chosen of the inputs and parameters."""
        tensors = [x.to(dtype) for x in arguments(name, heads=heads, **sizes)]
        wide = [x.double() for x in tensors]
        largest = 0
        for chosen in choices(len(tensors)):
            right = kind(*derivatives.by_some(plain(name, heads, *options), wide, chosen))
            results = kind(*derivatives.by_some(op(name, heads, *options), tensors, chosen))
            self.assertEqual({result.dtype for result in results}, {dtype})
            largest = max(largest, derivatives.largest(right))
            with self.subTest(kind.__name__, op=name, dtype=dtype, chosen=chosen):
                scale = derivatives.largest(right)
                # The result does not depend on a bias of the keys: all that is left is rounding.
                scale = scale if scale > 1e-9 * largest else largest
                error = derivatives.difference(results, right)
                self.assertLess(error, scale * (1e-5 if dtype == torch.float32 else 0.1))

    def test_beside_the_equations(self):
        options = make_masks(5, 7, H)["both"]
        for name in NAMES:
            for kind in derivatives.RECORDED + derivatives.TRANSFORMED:
                choices = derivatives.all_and_each
                if kind is derivatives.hessian:  # slow
                    choices = derivatives.all_of
                self.check(kind, name, options, torch.float32, choices)
                self.check(kind, name, options, torch.bfloat16, choices)

    def test_large_products_beside_the_equations(self):
        sizes = {"queries": 64, "keys": 66, "embed": 128, "heads": 1}
        options = make_masks(64, 66, 1)["both"]
        for name in NAMES:
            for kind in derivatives.RECORDED + derivatives.TRANSFORMED:
                if kind is not derivatives.hessian:  # slow
                    self.check(kind, name, options, torch.float32, derivatives.all_of, **sizes)

    def test_forward_mode_where_nothing_is_recorded(self):
        options = make_masks(5, 7, H)["both"]
        for name in NAMES:
            tensors = [x.float() for x in arguments(name)]
            for chosen in derivatives.all_and_each(len(tensors)):
                some = derivatives.by_some(op(name, H, *options), tensors, chosen)
                right = derivatives.jvp(*some)
                with torch.no_grad(), self.subTest(op=name, chosen=chosen):
                    torch.testing.assert_close(derivatives.forward_mode(*some), right)

    def test_every_mask_beside_the_equations(self):
        for name in NAMES:
            for options in make_masks(5, 7, H).values():
                for kind in (derivatives.second_derivatives, derivatives.jvp, derivatives.vmap_of_gradients):
                    self.check(kind, name, options, torch.float32, derivatives.all_of)

    def test_rows_of_nothing_leave_gradients_finite_R64(self):
        mask = torch.ones(2, 1, 1, 3)
        mask[1] = 0
        for name in NAMES:
            for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
                x = torch.randn(2, 3, 8).to(dtype)
                own = derivatives.leaves(x.to(dtype) for x in parameters(name, 8, 2))
                op(name, 2, mask, False)(x, x, x, *own)[0].sum().backward()
                for parameter in own:
                    self.assertTrue(parameter.grad.isfinite().all())

    def test_second_derivatives_under_a_causal_mask_R66(self):
        tensors = derivatives.leaves((*(x[:1] for x in inputs(3, 3, 4)), *parameters(NAMES[0], 4, 2)))
        for options in ((torch.ones(3, 3).tril(), False), (None, True)):
            self.assertTrue(torch.autograd.gradgradcheck(op(NAMES[0], 2, *options), tensors))

    def test_forward_mode_and_gradients_of_samples_R67(self):
        for name in NAMES:
            for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
                own = [x.to(dtype) for x in parameters(name, 4, 2)]
                call = op(name, 2, torch.ones(3, 3).tril(), False)
                samples = torch.randn(5, 1, 3, 4).to(dtype)
                (tangent,) = derivatives.forward_mode(lambda x: call(x, x, x, *own), [samples[0]])
                direction = derivatives.directions([samples[0]])[0].double()
                step, wide = 1e-6, [x.double() for x in own]
                ends = (
                    call(*[samples[0].double() + sign * step * direction] * 3, *wide) for sign in (1, -1)
                )
                right = (next(ends) - next(ends)) / (2 * step)
                scale = right.abs().max().item()
                torch.testing.assert_close(
                    tangent.double(), right, rtol=0, atol=scale * max(tolerance, 1e-8)
                )

                gradient = torch.func.grad(lambda x: call(x, x, x, *own).square().sum())
                mapped = torch.func.vmap(gradient)(samples)
                self.assertEqual(mapped.shape, (5, 1, 3, 4))
                for sample, result in zip(samples, mapped):
                    alone = gradient(sample)
                    scale = alone.abs().max().item()
                    torch.testing.assert_close(result, alone, rtol=0, atol=tolerance * scale)


if __name__ == "__main__":
    unittest.main(verbosity=2)
