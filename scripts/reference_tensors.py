"""Tensors from their descriptions in reference_spec.py, drawn from one generator per case."""

import zlib

import torch

# Standard deviation of a projected feature, and of the biases: the softmax is far from flat, and
# float16 is far from its largest number.
WEIGHT_GAIN = 1.5
BIAS_GAIN = 0.5


def generator_for(seed, text):
    """A generator of its own for each text, so that adding a case leaves the others as they are.

    The seed and the text go into 32 bits because torch's CPU generator reads no more.
    """
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{text}".encode()))


def dtype_of(name):
    return getattr(torch, name)


def arrange(tensor, layout):
    """The tensor under other strides; expanded repeats what is at index 0 of the first two axes."""
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "sliced":
        return tensor.repeat_interleave(2, dim=-1)[..., ::2]
    if layout == "expanded":
        return tensor[:1, :1].contiguous().expand(tensor.shape)
    axes = (0, 1) if layout == "transposed_batch" else (-1, -2)
    return tensor.transpose(*axes).contiguous().transpose(*axes)


def make_input(spec, dtype, generator):
    """The tensor of an Input; dtype is the case's."""
    if spec.dtype is not None:
        dtype = spec.dtype
    numbers = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
    if not dtype_of(dtype).is_floating_point:
        numbers = numbers * 3
    numbers = numbers.to(dtype_of(dtype))
    if spec.first is not None:
        numbers.view(-1)[0] = spec.first
    return arrange(numbers, spec.layout)


def kept_entries(spec, generator):
    """Where a Mask keeps, as bool."""
    shape = spec.shape
    if spec.pattern in ("everything", "nothing") or 0 in shape:
        return torch.full(shape, spec.pattern != "nothing")
    if spec.pattern == "causal":
        return torch.ones(shape, dtype=torch.bool).tril(spec.diagonal)
    if spec.pattern == "padding":
        lengths = torch.randint(1, shape[-1] + 1, (*shape[:-1], 1), generator=generator)
        return torch.arange(shape[-1]) < lengths
    if spec.pattern in ("first", "last"):
        keeps = torch.ones(shape, dtype=torch.bool)
        keeps[..., 0 if spec.pattern == "first" else -1] = False
        return keeps
    # random, rows: each row keeps about 6 of 10 keys, at least one of them by a drawn position.
    keeps = torch.rand(shape, generator=generator) < 0.6
    one = torch.randint(shape[-1], (*shape[:-1], 1), generator=generator)
    keeps = keeps.scatter(-1, one, True)
    if spec.pattern == "rows":
        keeps[..., ::2, :] = False
    return keeps


def make_mask(spec, generator):
    """The tensor of a Mask: the numbers of spec.keeps and spec.drops, each taken in turn."""
    keeps = kept_entries(spec, generator)
    mask = torch.empty(spec.shape, dtype=dtype_of(spec.dtype))
    for where, numbers in ((keeps, spec.keeps), (~keeps, spec.drops)):
        turns = torch.arange(int(where.sum())) % len(numbers)
        mask[where] = torch.tensor(numbers, dtype=torch.float64)[turns].to(mask.dtype)
    return arrange(mask, spec.layout)


def make_parameters(case, generator):
    """State dict of the case's module, in its dtype."""
    parameters = {}
    for name, shape in case.variant.parameter_shapes(case.embed, case.heads).items():
        is_weight = len(shape) == 2
        if case.identity_weights:
            numbers = torch.eye(*shape) if is_weight else torch.zeros(shape)
        else:
            gain = WEIGHT_GAIN / shape[-1] ** 0.5 if is_weight else BIAS_GAIN
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * gain
        parameters[name] = numbers.to(dtype_of(case.dtype))
    return parameters
