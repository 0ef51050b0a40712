"""Random calls of the attention op: each gives the right result, or a typed error that tells why.

Usage: random_calls_test.py LIBRARY [CALLS] [SEED]

Shapes, strides (also zero and overlapping), dtypes, masks of every broadcast shape and layout, lengths,
scales, causality, dropout, gradients of all inputs or some, one tensor for several inputs, and numbers
in masked keys that are not finite are drawn at random, a tenth of the calls with something that does not fit.
"""

import math
import random
import sys

import torch

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
MASK_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex128,
)  # fmt: skip
# Of results, which are means of numbers of about 1, and of gradients, which are sums.
ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-12}
ALLOWED_GRADIENT = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2, torch.float64: 1e-11}


def formula(query, key, value, mask, scale, is_causal, dropout_p):
    """The op's definition in float64. Dropped weights are the op's own, which is a formula there."""
    if dropout_p > 0:
        return torch.ops.self_attention.attention(
            query, key, value, mask, scale=scale, is_causal=is_causal, dropout_p=dropout_p
        )
    scores = query @ key.mT
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if is_causal:
        keep = keep.tril()
    if mask is not None:
        keep = keep & (mask != 0)
    return (scores.masked_fill(~keep, -1e20) * scale).softmax(-1) @ value


def strided(draw, shape, dtype):
    """Numbers of that shape, in memory in one of several ways."""
    way = draw.randrange(7)
    if way == 0:  # any order of the axes
        order = draw.sample(range(4), 4)
        base = torch.randn([shape[axis] for axis in order])
        return base.permute([order.index(axis) for axis in range(4)]).to(dtype, memory_format=torch.preserve_format)
    if way == 1:  # gaps
        axis, step = draw.randrange(4), draw.randint(2, 3)
        roomy = [size * step if a == axis else size for a, size in enumerate(shape)]
        start = draw.randrange(step)
        index = [slice(None)] * 4
        index[axis] = slice(start, None, step)
        return torch.randn(roomy).to(dtype)[tuple(index)]
    if way == 2:  # one number, row or head for many
        axes = draw.sample(range(4), draw.randint(1, 3))
        base = [1 if axis in axes and size > 0 else size for axis, size in enumerate(shape)]
        return torch.randn(base).to(dtype).expand(shape)
    if way == 3 and all(shape):  # rows that overlap
        strides = [draw.randint(0, 5) for _ in shape]
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides)) + 1
        return torch.randn(reach).to(dtype).as_strided(shape, strides)
    if way == 4:  # with the negative bit
        return torch._neg_view(torch.randn(shape).to(dtype))
    if way == 5:  # as modules give them
        return torch.randn(shape[0], shape[2], shape[1], shape[3]).to(dtype).transpose(1, 2)
    return torch.randn(shape).to(dtype)


def random_mask(draw, scores):
    """A mask that broadcasts to the scores, or None."""
    if draw.random() < 0.3:
        return None
    if draw.random() < 0.2:  # of lengths
        lengths = torch.tensor([draw.randint(0, scores[3]) for _ in range(scores[0])])
        return torch.arange(scores[3]) < lengths.view(-1, 1, 1, 1)
    rank = draw.randint(0, 4)
    shape = [size if draw.random() < 0.6 else 1 for size in scores[4 - rank :]]
    mask = torch.rand(shape) < draw.choice((0.0, 0.3, 0.9, 1.0))
    mask = mask.to(draw.choice(MASK_DTYPES))
    if mask.is_floating_point():
        mask = torch.where(torch.rand(shape) < 0.2, mask * float("nan"), mask) if draw.random() < 0.3 else -mask
    elif mask.is_complex():
        mask = mask * 1j
    way = draw.randrange(6)
    if way == 0 and rank > 1:
        return mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    if way == 1 and rank > 0:  # gaps
        return torch.stack([mask, torch.ones_like(mask)], -1)[..., 0]
    return mask.expand(scores) if way == 2 else mask


def hide_numbers(call):
    """Numbers that are not finite in keys that no query keeps: they vanish."""
    if call.mask is None or call.mask.dim() != 4 or call.mask.size(2) != 1 or call.mask.size(3) != call.key.size(2):
        return
    hidden = (call.mask == 0).transpose(2, 3)
    odd = torch.tensor([math.nan, math.inf, -math.inf], dtype=call.dtype)[torch.randint(3, call.key.shape)]
    # A query that keeps no key sees none of their scores either.
    call.key = torch.where(hidden, odd, call.key)


class Call:
    def __init__(self, draw):
        self.draw = draw
        self.dtype = draw.choice(DTYPES)
        batch, heads = draw.choice((0, 1, 1, 2, 3)), draw.choice((1, 1, 2, 3, 4))
        # Long ones are rare, since they take most of the time.
        is_long = draw.random() < 0.05
        queries = draw.randint(1, 200) if is_long else draw.choice((0, 1, 1, 2, 3, 4, 5, draw.randint(1, 30)))
        keys = draw.randint(200, 600) if is_long else draw.choice((0, 1, 2, 3, draw.randint(1, 40)))
        depth, width = (draw.choice((1, 2, 3, 8, 16, 17, 31, 32, 64)) for _ in range(2))
        self.query = strided(draw, (batch, heads, queries, depth), self.dtype)
        self.key = strided(draw, (batch, heads, keys, depth), self.dtype)
        self.value = strided(draw, (batch, heads, keys, width), self.dtype)
        self.mask = random_mask(draw, (batch, heads, queries, keys))
        self.scale = draw.choice((1.0, 0.3, 1 / math.sqrt(depth), 1e-3, 1e-12, 1e-18))
        self.is_causal = draw.random() < 0.3
        self.dropout_p = draw.choice((0.0, 0.0, 0.0, 0.2, 1.0))
        self.trains = draw.random() < 0.4
        self.wanted = draw.choice((7, 7, 7, 1, 2, 3, 4, 5, 6))  # of query, key and value, a bit each
        if depth == width and draw.random() < 0.3:
            self.value = self.key
            if queries == keys:
                self.query = self.key
        if not self.trains and draw.random() < 0.3:
            hide_numbers(self)
        # What does not fit, if anything.
        self.fault = draw.choice(FAULTS) if draw.random() < 0.1 else None
        if self.fault is not None:
            self.fault(self, draw)

    def run(self):
        torch.manual_seed(5)
        return torch.ops.self_attention.attention(
            self.query, self.key, self.value, self.mask,
            scale=self.scale, is_causal=self.is_causal, dropout_p=self.dropout_p,
        )  # fmt: skip

    def check(self):
        inputs = [self.query, self.key, self.value]
        if self.trains:
            inputs = [x.detach().requires_grad_(bool(self.wanted >> i & 1)) for i, x in enumerate(inputs)]
            self.query, self.key, self.value = inputs
        output = self.run()
        wide = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
        torch.manual_seed(5)
        right = formula(*wide, self.mask, self.scale, self.is_causal, self.dropout_p)
        self.compare("output", output, right, ALLOWED)
        if not self.trains:
            return
        cotangent = strided(self.draw, output.shape, self.dtype)
        names = [name for i, name in enumerate(("query", "key", "value")) if self.wanted >> i & 1]
        found = torch.autograd.grad(output, [x for x in inputs if x.requires_grad], cotangent)
        exact = torch.autograd.grad(right, [x for x in wide if x.requires_grad], cotangent.double())
        for name, one, other in zip(names, found, exact):
            # A score's gradient is a difference of products, which may be near zero.
            size = max(1, self.scale * self.query.size(3))
            if self.dtype in (torch.bfloat16, torch.float16):
                # One of them is of the rounded result: each value's column and each position adds to the error.
                size *= max(1, math.sqrt(self.value.size(3) * max(self.query.size(2), self.key.size(2))) / 6)
            if 0 in (*self.value.stride(), *cotangent.stride()) and one.numel() > 0 and cotangent.numel() > 0:
                # Numbers that are shared are rounded alike, which adds up.
                largest = [x.detach().abs().max().item() for x in (cotangent, *wide) if x.numel() > 0]
                size = max(size, self.scale * self.value.size(3) * math.prod(sorted(largest)[-3:]) / 30)
            self.compare(f"gradient of {name}", one, other, ALLOWED_GRADIENT, size)

    def compare(self, name, actual, right, allowed, size=1):
        if actual.shape != right.shape or actual.dtype != self.dtype:
            raise AssertionError(f"{name}: {actual.dtype} {tuple(actual.shape)} instead of {tuple(right.shape)}")
        if right.numel() == 0:
            return
        error = (actual.double() - right).abs().max().item()
        limit = allowed[self.dtype] * (size + right.abs().max().item())
        if not error <= limit:
            raise AssertionError(f"{name}: off by {error:.3g}, allowed {limit:.3g}")

    def __str__(self):
        tensors = [f"{tuple(t.shape)} {t.stride()} {t.dtype}" for t in (self.query, self.key, self.value)]
        mask = None if self.mask is None else f"{tuple(self.mask.shape)} {self.mask.dtype}"
        fault = self.fault and self.fault.__name__
        return (
            f"query, key, value {tensors}, mask {mask}, scale {self.scale}, causal {self.is_causal}, "
            f"dropout {self.dropout_p}, trains {self.trains and self.wanted}, fault {fault}"
        )


def wrong_scale(call, draw):
    call.scale = draw.choice((0.0, -1.0, math.nan, math.inf))


def wrong_dropout(call, draw):
    call.dropout_p = draw.choice((-0.1, 1.5, math.nan))


def wrong_rank(call, _draw):
    call.key = call.key[0] if call.key.size(0) else call.key.flatten()


def wrong_length(call, _draw):
    call.value = torch.cat([call.value, call.value[:, :, :1], call.value.new_zeros(*call.value.shape[:2], 2, call.value.size(3))], 2)


def wrong_head_dim(call, _draw):
    call.key = torch.cat([call.key, call.key[..., :1]], -1)


def wrong_batch(call, _draw):
    call.query = torch.cat([call.query, torch.zeros_like(call.query), call.query.new_zeros(1, *call.query.shape[1:])])


def wrong_dtype(call, draw):
    other = draw.choice([t for t in (torch.float64, torch.float32, torch.int64, torch.bool) if t != call.dtype])
    call.value = call.value.to(other)
    call.trains = False


def wrong_mask(call, _draw):
    call.mask = torch.ones(call.query.size(2) + 2, call.key.size(2) + 2)


def wrong_mask_rank(call, _draw):
    call.mask = torch.ones(1, 1, 1, 1, 1)


def integers(call, _draw):
    call.query, call.key, call.value = (x.to(torch.int64) for x in (call.query, call.key, call.value))


def complex_numbers(call, _draw):
    call.query, call.key, call.value = (x.to(torch.complex64) for x in (call.query, call.key, call.value))


FAULTS = (
    wrong_scale, wrong_dropout, wrong_rank, wrong_length, wrong_head_dim, wrong_batch, wrong_dtype, wrong_mask,
    wrong_mask_rank, integers, complex_numbers,
)  # fmt: skip


def check_call(seed):
    """Raises AssertionError, with the call, where it is neither right nor refused as it should be."""
    torch.manual_seed(seed)
    call = Call(random.Random(seed))
    try:
        if call.fault is None:
            call.check()
            return False
        try:
            call.run()
        except (ValueError, TypeError) as error:
            if not str(error).startswith("[attention] ") or "expected" not in str(error):
                raise AssertionError(f"an error without who, what and why: {error}") from None
            return True
        raise AssertionError("was not refused")
    except Exception as error:
        raise AssertionError(f"call {seed}: {type(error).__name__}: {error}\n  {call}") from error


def main(library, calls=1500, first=0):
    torch.ops.load_library(library)
    torch.set_num_threads(2)
    refused = sum(check_call(seed) for seed in range(int(first), int(first) + int(calls)))
    print(f"{calls} calls: {refused} refused, the others right")


if __name__ == "__main__":
    main(*sys.argv[1:])
