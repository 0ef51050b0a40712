"""torch.ops.self_attention.attention from Python: op_test.py LIBRARY"""

import os
import subprocess
import sys
import unittest

import torch

LIBRARY = sys.argv.pop(1)
torch.ops.load_library(LIBRARY)
attention = torch.ops.self_attention.attention


def inputs(dtype=torch.float32, requires_grad=False, queries=5, keys=7):
    torch.manual_seed(1)
    return tuple(
        torch.randn(2, length, 3, 8, dtype=torch.float64).to(dtype).transpose(1, 2).detach()
        .requires_grad_(requires_grad)
        for length in (queries, keys, keys)
    )


class Op(unittest.TestCase):
    def test_opcheck(self):
        masks = (None, torch.rand(2, 1, 1, 7) > 0.3, torch.rand(5, 7))
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            for requires_grad in (False, True):
                for mask in masks:
                    with self.subTest(dtype=dtype, requires_grad=requires_grad):
                        torch.library.opcheck(
                            attention, (*inputs(dtype, requires_grad), mask), {"scale": 0.3, "is_causal": True}
                        )

    def test_derivatives_of_every_kind(self):
        tensors = inputs(torch.float64, True)
        mask = torch.rand(2, 1, 1, 7) > 0.3

        def call(query, key, value):
            return attention(query, key, value, mask, scale=0.3)

        self.assertTrue(torch.autograd.gradcheck(call, tensors, check_forward_ad=True, check_batched_grad=True))
        self.assertTrue(torch.autograd.gradgradcheck(call, tensors))

    def test_vmap_of_gradients(self):
        samples = tuple(torch.randn(4, 2, 3, length, 8) for length in (5, 7, 7))

        def loss(query, key, value):
            return attention(query, key, value, scale=0.3).square().sum()

        batched = torch.func.vmap(torch.func.grad(loss))(*samples)
        for i in range(4):
            alone = torch.func.grad(loss)(*(tensor[i] for tensor in samples))
            torch.testing.assert_close(batched[i], alone)

    def test_errors_are_pythons_kinds(self):
        query, key, value = inputs()
        with self.assertRaisesRegex(ValueError, r"\[attention\] mask: expected a shape that broadcasts"):
            attention(query, key, value, torch.ones(2, 7), scale=0.3)
        with self.assertRaisesRegex(TypeError, r"\[attention\] key: expected float32"):
            attention(query, key.double(), value, scale=0.3)

    def test_an_unknown_target_is_refused(self):
        program = (
            "import torch, sys; torch.ops.load_library(sys.argv[1]); x = torch.ones(1, 1, 2, 4); "
            "torch.ops.self_attention.attention(x, x, x, scale=0.5)"
        )
        environment = {**os.environ, "SELF_ATTENTION_CPU_TARGET": "avx9"}
        run = subprocess.run(
            [sys.executable, "-c", program, LIBRARY], env=environment, capture_output=True, text=True
        )
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("[SELF_ATTENTION_CPU_TARGET] name: expected one of", run.stderr)
        environment["SELF_ATTENTION_CPU_TARGET"] = "scalar"
        run = subprocess.run(
            [sys.executable, "-c", program, LIBRARY], env=environment, capture_output=True, text=True
        )
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    unittest.main()
