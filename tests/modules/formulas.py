"""The ops of the modules in plain operations, and arguments for both."""

import torch

NAMES = ("shared_projection_attention", "full_projection_attention", "inferred_length_attention")
E, H = 12, 3


def normal(*shapes, dtype=torch.float64, requires_grad=False):
    return tuple(torch.randn(shape, dtype=dtype).requires_grad_(requires_grad) for shape in shapes)


def parameters(name, embed=E, heads=H, **options):
    if name == "full_projection_attention":
        return normal(*([(embed, embed), (embed,)] * 4), **options)
    square = (embed // heads, embed // heads)
    return normal(square, square, square, (embed, embed), (embed,), **options)


def inputs(queries=5, keys=7, embed=E, **options):
    """Values, keys and query."""
    return normal((2, keys, embed), (2, keys, embed), (2, queries, embed), **options)


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
