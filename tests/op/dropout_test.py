"""dropout_p of torch.ops.self_attention.attention: dropout_test.py LIBRARY"""

import sys
import unittest

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import vmap

torch.ops.load_library(sys.argv.pop(1))
OPS = torch.ops.self_attention
P = 0.3


def attention(query, key, value, mask=None, seed=1, is_causal=False):
    """Under a seed, and so the same in every call."""
    torch.manual_seed(seed)
    return OPS.attention(query, key, value, mask, scale=0.5, is_causal=is_causal, dropout_p=P)


def inputs(dtype=torch.float32, requires_grad=True, queries=5, keys=7):
    torch.manual_seed(0)
    return [
        torch.randn(2, length, 3, 4, dtype=torch.float64).to(dtype).transpose(1, 2).detach().requires_grad_(requires_grad)
        for length in (queries, keys, keys)
    ]


# The last leaves one query no key.
MASKS = (None, torch.tensor([1, 1, 0, 1, 0, 1, 1]), torch.ones(5, 7).tril(-1))


class Dropout(unittest.TestCase):
    def test_gradients_are_those_of_what_stays(self):
        for mask in MASKS:
            for is_causal in (False, True):

                def call(*tensors):
                    return attention(*tensors, mask, is_causal=is_causal)

                self.assertTrue(gradcheck(call, inputs(torch.float64)))
                self.assertTrue(gradgradcheck(call, inputs(torch.float64), fast_mode=True))

    def test_every_dtype_drops_the_same(self):
        for mask in MASKS:
            for queries in (1, 5):
                used = mask[-queries:] if mask is not None and mask.dim() == 2 else mask
                wide = inputs(torch.float64, queries=queries)
                right = attention(*wide, used)
                exact = torch.autograd.grad(right.square().sum(), wide)
                for dtype, allowed in ((torch.float32, 1e-5), (torch.bfloat16, 0.1), (torch.float16, 0.02)):
                    leaves = inputs(dtype, queries=queries)
                    output = attention(*leaves, used)
                    torch.testing.assert_close(output.double(), right, rtol=allowed, atol=allowed)
                    found = torch.autograd.grad(output.float().square().sum(), leaves)
                    for one, other in zip(found, exact):
                        torch.testing.assert_close(one.double(), other, rtol=allowed, atol=4 * allowed)

    def test_second_derivatives_find_what_was_dropped(self):
        def second(dtype):
            leaves = inputs(dtype)
            (first,) = torch.autograd.grad(attention(*leaves).square().sum(), leaves[0], create_graph=True)
            return torch.autograd.grad(first.square().sum(), leaves)

        for one, other in zip(second(torch.float32), second(torch.float64)):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)

    def test_inference_and_training_drop_the_same(self):
        leaves = inputs()
        with torch.no_grad():
            alone = attention(*leaves)
        self.assertTrue(torch.equal(alone, attention(*leaves)))
        self.assertFalse(torch.equal(alone, attention(*leaves, seed=2)))

    def test_vmap_asks_how_samples_differ(self):
        sample = inputs(requires_grad=False)[0]
        both = torch.stack([sample, sample])

        def call(x):
            return OPS.attention(x, x, x, scale=0.5, dropout_p=P)

        with self.assertRaisesRegex(RuntimeError, "randomness error mode"):
            vmap(call)(both)
        same, other = vmap(call, randomness="same")(both)
        self.assertTrue(torch.equal(same, other))
        same, other = vmap(call, randomness="different")(both)
        self.assertFalse(torch.equal(same, other))

    def test_compiled_code_draws_as_often(self):
        def twice(x):
            options = {"scale": 0.5, "dropout_p": P}
            return OPS.attention(x, x, x, **options), OPS.attention(x, x, x, **options)

        compiled = torch.compile(twice, backend="aot_eager")
        for requires_grad in (False, True):
            x = inputs(requires_grad=requires_grad)[0]
            torch.manual_seed(4)
            expected = twice(x)
            torch.manual_seed(4)
            found = compiled(x)
            self.assertFalse(torch.equal(*found))
            for one, other in zip(found, expected):
                self.assertTrue(torch.equal(one, other))
            if requires_grad:
                gradients = [torch.autograd.grad(sum(y.square().sum() for y in ys), x)[0] for ys in (found, expected)]
                torch.testing.assert_close(*gradients)

    def test_ops_of_the_gradients(self):
        query, key, value = inputs(requires_grad=False)
        options = {"scale": 0.5, "dropout_p": P, "seed": torch.tensor(7)}
        torch.library.opcheck(OPS._attention_with_sums, (query, key, value), options)
        results = OPS._attention_with_sums(query, key, value, **options)
        arguments = (torch.ones_like(results[0]), query, key, value, None, *results)
        torch.library.opcheck(OPS.attention_backward, arguments, options)
        for seed in (None, torch.tensor(7.0), torch.tensor([7])):
            with self.assertRaisesRegex(ValueError, r"\[attention_backward\] seed: expected an int64 without dimensions"):
                OPS.attention_backward(*arguments, **{**options, "seed": seed})

    def test_modules_take_it_last(self):
        x = torch.randn(2, 6, 8)
        weights = [torch.randn(4, 4)] * 3 + [torch.eye(8), torch.zeros(8)]
        for op in (OPS.shared_projection_attention, OPS.inferred_length_attention):
            torch.manual_seed(1)
            dropped = op(x, x, x, None, *weights, 2, dropout_p=1.0)
            self.assertTrue(torch.equal(dropped, torch.zeros(2, 6, 8)))
        with self.assertRaisesRegex(ValueError, r"\[shared_projection_attention\] dropout_p: expected a number from 0 to 1"):
            OPS.shared_projection_attention(x, x, x, None, *weights, 2, dropout_p=1.5)


if __name__ == "__main__":
    unittest.main()
