"""The modules' functional forms as torch.ops.self_attention.*: ops_test.py LIBRARY"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import torch
from derivatives import OpsSeen
from formulas import H, NAMES, formula, inputs, parameters

torch.ops.load_library(sys.argv.pop(1))
OPS = torch.ops.self_attention


class Ops(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def each(self):
        for name in NAMES:
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
        own, x = parameters(NAMES[1]), inputs()[0]
        op = OPS.full_projection_attention
        torch.testing.assert_close(op(x, None, None, None, *own, H), op(x, x, x, None, *own, H))

    def test_opcheck(self):
        mask = torch.rand(2, 1, 1, 7) > 0.3
        for name, op in self.each():
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                for requires_grad in (False, True):
                    options = {"dtype": dtype, "requires_grad": requires_grad}
                    torch.library.opcheck(op, (*inputs(**options), mask, *parameters(name, **options), H, True))

    def test_inference_mode(self):
        for name, op in self.each():
            arguments = (*inputs(dtype=torch.float32), None, *parameters(name, dtype=torch.float32), H)
            with torch.inference_mode():
                result = op(*arguments)
            torch.testing.assert_close(result, op(*arguments))

    def test_results_of_frozen_modules_are_tensors_as_any(self):
        for name, op in self.each():
            tensors = (*inputs(dtype=torch.float32), None, *parameters(name, dtype=torch.float32))
            for records in (True, False):
                with torch.set_grad_enabled(records):
                    result = op(*tensors, H)
                self.assertFalse(result.requires_grad or result.is_inference())
                result.requires_grad_().square().sum().backward()
                torch.testing.assert_close(result.grad, 2 * result.detach())
                version = result._version
                result.detach().zero_()
                self.assertEqual(result._version, version + 1)
            # Of all of them one is trained.
            for i in [i for i, tensor in enumerate(tensors) if tensor is not None]:
                leaf = tensors[i].clone().requires_grad_()
                self.assertTrue(op(*tensors[:i], leaf, *tensors[i + 1:], H).requires_grad)

    def test_modes_and_traces_see_the_products_of_aten(self):
        for name, op in self.each():
            values, keys, query = inputs(64, 64, 128, dtype=torch.float32)
            own = parameters(name, 128, 1, dtype=torch.float32)
            with torch.no_grad():
                with OpsSeen() as seen:
                    op(values, keys, query, None, *own, 1)
                self.assertIn("aten::addmm", seen.names)
                self.assertNotIn("mkldnn::_linear_pointwise", seen.names)
                call = lambda *tensors: op(*tensors, None, *own, 1)  # noqa: E731
                traced = torch.jit.trace(call, (values, keys, query), check_trace=False)
            self.assertNotIn("mkldnn", str(traced.graph))

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
