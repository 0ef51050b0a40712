"""Derivatives of every kind of a function of tensors, for holding one function's against another's.

A kind is called with a function and the tensors to differentiate it by, and returns tensors.
"""

import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils._python_dispatch import TorchDispatchMode


class OpsSeen(TorchDispatchMode):
    """The names of the ops that autograd leaves to the backends while it is entered."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.add(op.name())
        return op(*args, **(kwargs or {}))


def normal(shape, dtype, seed):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def directions(tensors):
    return tuple(normal(x.shape, x.dtype, 100 + i) for i, x in enumerate(tensors))


def leaves(tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def loss_of(function):
    return lambda *tensors: function(*tensors).square().sum()


def tangents(duals):
    pairs = map(forward_ad.unpack_dual, duals)
    return [torch.zeros_like(x) if tangent is None else tangent.detach() for x, tangent in pairs]


def gradients(function, tensors):
    tensors = leaves(tensors)
    return torch.autograd.grad(loss_of(function)(*tensors), tensors)


def second_derivatives(function, tensors):
    tensors = leaves(tensors)
    first = torch.autograd.grad(loss_of(function)(*tensors), tensors, create_graph=True)
    along = sum((x * direction).sum() for x, direction in zip(first, directions(tensors)))
    return torch.autograd.grad(along, tensors)


def batched_gradients(function, tensors):
    tensors = leaves(tensors)
    output = function(*tensors)
    incoming = normal((3, *output.shape), output.dtype, 0)
    return torch.autograd.grad(output, tensors, incoming, is_grads_batched=True)


def gradients_along_an_incoming_tangent(function, tensors):
    tensors = leaves(tensors)
    output = function(*tensors)
    with forward_ad.dual_level():
        incoming = forward_ad.make_dual(output.detach(), *directions([output]))
        return tangents(torch.autograd.grad(output, tensors, incoming))


def jvp_of_recorded_gradients(function, tensors, **options):
    tensors = leaves(tensors)
    output = function(*tensors)

    def backward(incoming):
        return torch.autograd.grad(output, tensors, incoming, retain_graph=True, **options)

    return [x.detach() for x in torch.func.jvp(backward, (output.detach(),), directions([output]))[1]]


def jvp_of_recorded_gradients_that_are_recorded(function, tensors):
    return jvp_of_recorded_gradients(function, tensors, create_graph=True)


def forward_mode(function, tensors):
    with forward_ad.dual_level():
        return tangents([function(*map(forward_ad.make_dual, tensors, directions(tensors)))])


def forward_over_reverse(function, tensors):
    with forward_ad.dual_level():
        duals = list(map(forward_ad.make_dual, leaves(tensors), directions(tensors)))
        return tangents(torch.autograd.grad(loss_of(function)(*duals), duals, create_graph=True))


def jvp(function, tensors):
    return [torch.func.jvp(function, tuple(tensors), directions(tensors))[1]]


def samples(tensors):
    """Two of each: the tensor, and its numbers in another order."""
    return [torch.stack([x, x.flip(0)]) for x in tensors]


def vmap(function, tensors):
    return [torch.func.vmap(function)(*samples(tensors))]


def vmap_of_gradients(function, tensors):
    one = torch.func.grad(loss_of(function), tuple(range(len(tensors))))
    return torch.func.vmap(one)(*samples(tensors))


def gradients_of_vmap(function, tensors):
    return gradients(torch.func.vmap(function), samples(tensors))


def hessian(function, tensors):
    """By the first of the tensors."""
    return [torch.func.hessian(loss_of(function))(*tensors)]


# Whether their function is called where autograd alone records it, so that it may be fused.
RECORDED = (
    gradients,
    second_derivatives,
    batched_gradients,
    gradients_along_an_incoming_tangent,
    jvp_of_recorded_gradients,
    jvp_of_recorded_gradients_that_are_recorded,
)
TRANSFORMED = (
    forward_mode,
    forward_over_reverse,
    jvp,
    vmap,
    vmap_of_gradients,
    gradients_of_vmap,
    hessian,
)


def by_some(function, tensors, chosen):
    """The function of the chosen tensors, by index, and those."""

    def partial(*some):
        every = list(tensors)
        for index, tensor in zip(chosen, some):
            every[index] = tensor
        return function(*every)

    return partial, [tensors[index] for index in chosen]


def all_of(count):
    return [tuple(range(count))]


def all_and_each(count):
    """Choices: all together, and each alone."""
    return all_of(count) + [(index,) for index in range(count)]


def largest(tensors):
    return max((x.abs().max().item() for x in tensors), default=0.0)


def difference(results, expected):
    """The largest difference; infinite where a result is not finite."""
    error = largest([result.double() - right for result, right in zip(results, expected, strict=True)])
    return error if error == error else float("inf")
