"""The modules' functional forms as torch.ops.self_attention.*: ops_test.py LIBRARY"""

import sys
import unittest

import torch

torch.ops.load_library(sys.argv.pop(1))
OPS = torch.ops.self_attention
E, H, D = 12, 3, 4


def weights(*shapes, dtype=torch.float64, requires_grad=False):
    return tuple(torch.randn(shape, dtype=dtype).requires_grad_(requires_grad) for shape in shapes)


def parameters(name, **options):
    if name == "full_projection_attention":
        return weights(*([(E, E), (E,)] * 4), **options)
    return weights((D, D), (D, D), (D, D), (E, E), (E,), **options)


def inputs(queries=5, keys=7, **options):
    return weights((2, keys, E), (2, keys, E), (2, queries, E), **options)


def formula(name, values, keys, query, mask, *rest):
    """The modules' equations on whole heads, mask with causality in it."""
    *parameters, heads = rest

    def split(x):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    if name == "full_projection_attention":
        q, k, v = (
            split(torch.nn.functional.linear(x, weight, bias))
            for x, weight, bias in zip((query, keys, values), parameters[0:5:2], parameters[1:6:2])
        )
        divisor = q.shape[-1] ** 0.5
    else:
        v, k, q = (split(x) @ weight.T for x, weight in zip((values, keys, query), parameters[:3]))
        divisor = parameters[-1].shape[0] ** 0.5
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e20)
    merged = (torch.softmax(scores / divisor, -1) @ v).transpose(1, 2).flatten(2)
    return torch.nn.functional.linear(merged, parameters[-2], parameters[-1])


class Ops(unittest.TestCase):
    NAMES = ("shared_projection_attention", "full_projection_attention", "inferred_length_attention")

    def setUp(self):
        torch.manual_seed(0)

    def each(self):
        for name in self.NAMES:
            with self.subTest(op=name):
                yield name, getattr(OPS, name)

    def test_they_are_the_equations(self):
        masks = (None, torch.rand(2, 1, 1, 7) > 0.3, torch.rand(5, 7) > 0.5)
        for name, op in self.each():
            for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
                for mask in masks:
                    for is_causal in (False, True):
                        tensors, own = inputs(dtype=dtype), parameters(name, dtype=dtype)
                        keep = torch.ones(5, 7).tril() if is_causal else None
                        if mask is not None:
                            keep = mask if keep is None else keep.logical_and(mask)
                        right = formula(name, *(t.double() for t in tensors), keep,
                                        *(t.double() for t in own), H)
                        with torch.no_grad():
                            result = op(*tensors, mask, *own, H, is_causal)
                        self.assertEqual(result.dtype, dtype)
                        error = (result.double() - right).abs().max().item()
                        self.assertLessEqual(error, tolerance * max(1, right.abs().max().item()))

    def test_self_attention_by_values_alone(self):
        own, x = parameters(self.NAMES[1]), inputs()[0]
        op = OPS.full_projection_attention
        torch.testing.assert_close(op(x, None, None, None, *own, H), op(x, x, x, None, *own, H))

    def test_opcheck(self):
        mask = torch.rand(2, 1, 1, 7) > 0.3
        for name, op in self.each():
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                for requires_grad in (False, True):
                    options = {"dtype": dtype, "requires_grad": requires_grad}
                    torch.library.opcheck(op, (*inputs(**options), mask, *parameters(name, **options), H, True))

    def test_derivatives_of_every_kind(self):
        mask = torch.rand(2, 1, 1, 3) > 0.3
        for name, op in self.each():
            tensors = (*inputs(2, 3, requires_grad=True), *parameters(name, requires_grad=True))

            def call(*all_of_them):
                return op(*all_of_them[:3], mask, *all_of_them[3:], H)

            self.assertTrue(torch.autograd.gradcheck(call, tensors, check_forward_ad=True, fast_mode=True))
            self.assertTrue(torch.autograd.gradgradcheck(call, tensors, fast_mode=True))

    def test_vmap_of_gradients(self):
        for name, op in self.each():
            own = parameters(name, dtype=torch.float32)
            samples = tuple(torch.randn(4, *x.shape) for x in inputs())

            def loss(*tensors):
                return op(*tensors, None, *own, H).square().sum()

            batched = torch.func.vmap(torch.func.grad(loss))(*samples)
            for i in range(4):
                alone = torch.func.grad(loss)(*(tensor[i] for tensor in samples))
                torch.testing.assert_close(batched[i], alone, rtol=1e-4, atol=1e-3)

    def test_transforms_without_gradients(self):
        mask = torch.rand(2, 1, 1, 7) > 0.3
        for name, op in self.each():
            own = parameters(name, dtype=torch.float32)
            samples = tuple(torch.randn(3, *x.shape) for x in inputs())

            def call(*tensors):
                return op(*tensors, mask, *own, H)

            batched = torch.func.vmap(call)(*samples)
            for i in range(3):
                torch.testing.assert_close(batched[i], call(*(tensor[i] for tensor in samples)))
            tensors, tangents = inputs(dtype=torch.float32), inputs(dtype=torch.float32)
            _, forward = torch.func.jvp(call, tensors, tangents)
            gradients = torch.func.vjp(call, *tensors)[1](torch.ones_like(forward))
            along = sum((gradient * tangent).sum() for gradient, tangent in zip(gradients, tangents))
            torch.testing.assert_close(forward.sum(), along, rtol=1e-3, atol=1e-3)

    def test_inference_mode(self):
        for name, op in self.each():
            arguments = (*inputs(dtype=torch.float32), None, *parameters(name, dtype=torch.float32), H)
            with torch.inference_mode():
                result = op(*arguments)
            torch.testing.assert_close(result, op(*arguments))

    def test_autocast_gives_its_dtype(self):
        for name, op in self.each():
            tensors, own = inputs(dtype=torch.float32), parameters(name, dtype=torch.float32)
            for dtype in (torch.bfloat16, torch.float16):
                with torch.autocast("cpu", dtype):
                    self.assertEqual(op(*tensors, None, *own, H).dtype, dtype)

    def test_errors_are_pythons_kinds(self):
        for name, op in self.each():
            tensors, own = inputs(), parameters(name)
            with self.assertRaisesRegex(ValueError, rf"\[{name}\] mask: expected a shape that broadcasts"):
                op(*tensors, torch.ones(2, 7), *own, H)
            with self.assertRaisesRegex(TypeError, rf"\[{name}\] keys: expected float64"):
                op(tensors[0], tensors[1].float(), tensors[2], None, *own, H)


if __name__ == "__main__":
    unittest.main()
