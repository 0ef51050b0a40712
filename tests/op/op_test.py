"""torch.ops.self_attention.attention from Python: op_test.py LIBRARY"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
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

    def test_opcheck_of_the_gradients(self):
        with_sums, backward = torch.ops.self_attention._attention_with_sums, torch.ops.self_attention.attention_backward
        options = {"scale": 0.3, "is_causal": True}
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for mask in (None, torch.rand(2, 1, 1, 7) > 0.3):
                with self.subTest(dtype=dtype):
                    tensors = (*inputs(dtype), mask)
                    torch.library.opcheck(with_sums, tensors, options)
                    results = with_sums(*tensors, **options)
                    gradient = torch.randn_like(results[0])
                    torch.library.opcheck(backward, (gradient, *tensors, *results), options)
                    some = backward(gradient, *tensors, *results, **options, output_mask=[False, True, False])
                    self.assertIsNone(some[0])
                    whole = backward(gradient, *tensors, *results, **options)
                    self.assertTrue(torch.equal(some[1], whole[1]))
                    arguments = (gradient, *tensors, *results)
                    torch.library.opcheck(backward, arguments, {**options, "output_mask": [True, False, True]})
                    spread = [torch.stack([x, torch.zeros_like(x)], -1)[..., 0] for x in arguments[-2:]]
                    for one, other in zip(backward(*arguments[:-2], *spread, **options), whole):
                        self.assertTrue(torch.equal(one, other))

    def test_backward_refuses_what_does_not_fit(self):
        query, key, value = inputs()
        results = torch.ops.self_attention._attention_with_sums(query, key, value, scale=0.3)

        def backward(gradient, *results, query=query):
            torch.ops.self_attention.attention_backward(gradient, query, key, value, None, *results, scale=0.3)

        output, maxima, sums = results
        for error, words, arguments in (
            (ValueError, r"grad_output: expected shape \(2, 3, 5, 8\), got \(2, 3, 5, 7\)", (output[..., :7], *results)),
            (ValueError, r"row_sums: expected shape \(2, 3, 5\), got \(2, 3, 4\)", (output, output, maxima, sums[..., :4])),
            (TypeError, r"row_maxima: expected float32, got float64", (output, output, maxima.double(), sums)),
            (TypeError, r"output: expected float32, got bfloat16", (output, output.bfloat16(), maxima, sums)),
        ):
            with self.assertRaisesRegex(error, r"\[attention_backward\] " + words):
                backward(*arguments)
        with self.assertRaisesRegex(ValueError, "query: expected what the fused kernel can run"):
            torch.ops.self_attention._attention_with_sums(*inputs(torch.float64), scale=0.3)

    def test_errors_are_pythons_kinds(self):
        query, key, value = inputs()
        with self.assertRaisesRegex(ValueError, r"\[attention\] mask: expected a shape that broadcasts"):
            attention(query, key, value, torch.ones(2, 7), scale=0.3)
        with self.assertRaisesRegex(TypeError, r"\[attention\] key: expected float32"):
            attention(query, key.double(), value, scale=0.3)

    def test_transforms_refuse_in_the_same_words(self):
        query, key, value = inputs()

        def call(query):
            return torch.ops.self_attention.attention(query, key[..., :7], value, scale=0.3)

        for transformed in (
            lambda: torch.func.jvp(call, (query,), (query,)),
            lambda: torch.func.grad(lambda query: call(query).sum())(query),
            lambda: torch.vmap(call)(query.unsqueeze(0)),
        ):
            with self.assertRaisesRegex(ValueError, r"\[attention\] key: expected shape"):
                transformed()

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

    def test_a_second_copy_of_the_library_leaves_the_ops_to_the_first(self):
        program = (
            "import torch, sys; x = torch.ones(1, 1, 2, 4)\n"
            "for library in sys.argv[1:]: torch.ops.load_library(library)\n"
            "print(torch.ops.self_attention.attention(x, x, x, scale=0.5).sum().item())"
        )
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(LIBRARY, os.path.join(folder, "copy.so"))
            for libraries in ((LIBRARY, copy), (copy, LIBRARY)):
                run = subprocess.run([sys.executable, "-c", program, *libraries], capture_output=True, text=True)
                self.assertEqual((run.returncode, run.stdout), (0, "8.0\n"), run.stderr)
                first, second = (re.escape(os.path.realpath(library)) for library in libraries)
                self.assertRegex(run.stderr, f"{second}: expected one copy of this library.*registered at {first}, ")


if __name__ == "__main__":
    unittest.main()
