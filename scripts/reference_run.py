"""Running one reference case: its tensors by role, and its entry in the manifest."""

import warnings
import zlib
from dataclasses import dataclass

import torch
from reference_source import SourceError, describe
from reference_tensors import dtype_of, generator_for, make_input, make_mask, make_parameters


@dataclass(frozen=True)
class Numbers:
    """What goes into a case, rounded to its dtype."""

    parameters: dict
    inputs: dict
    mask: torch.Tensor | None

    def by_role(self):
        roles = {f"input.{name}": tensor for name, tensor in self.inputs.items()}
        if self.mask is not None:
            roles["mask"] = self.mask
        return roles | {f"parameter.{name}": tensor for name, tensor in self.parameters.items()}

    def in_float64(self):
        """The same numbers as float64."""
        wider = [
            {name: tensor.double() for name, tensor in group.items()}
            for group in (self.parameters, self.inputs)
        ]
        return Numbers(*wider, self.mask)


@dataclass(frozen=True)
class Record:
    """A finished case: the manifest's entry, and the tensors it lists."""

    case: object
    entry: dict
    tensors: dict


def draw(case, generator):
    """The case's numbers. A case without inputs is a constructor that must refuse: it has none."""
    parameters = make_parameters(case, generator) if case.inputs else {}
    inputs = {name: make_input(spec, case.dtype, generator) for name, spec in case.inputs.items()}
    mask = None if case.mask is None else make_mask(case.mask, generator)
    return Numbers(parameters, inputs, mask)


def forward(source, case, numbers):
    """The output, and the leaves that gradients are asked of by name."""
    module = source.cls(case.embed, case.heads).eval()
    if not case.inputs:
        return None, {}
    dtype = next(iter(numbers.parameters.values())).dtype
    module.to(dtype).load_state_dict(numbers.parameters)
    inputs = {name: tensor.detach() for name, tensor in numbers.inputs.items()}
    for tensor in inputs.values():
        tensor.requires_grad_(tensor.is_floating_point())
    tensors = {argument: inputs[name] for argument, name in source.arguments(case).items()}
    output = source.call(module, tensors, numbers.mask)
    return output, inputs | dict(module.named_parameters())


def results(output, leaves, cotangent):
    """The output, and the gradients of sum(output * cotangent) that exist, by role."""
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    gradients = torch.autograd.grad(output, list(leaves.values()), cotangent, allow_unused=True)
    found = {"output": output}
    for name, gradient in zip(leaves, gradients):
        if gradient is not None:
            found[f"gradient.{name}"] = gradient
    return found


def in_float64(found):
    return {f"float64.{role}": tensor for role, tensor in found.items()}


def draw_cotangent(output, case, generator):
    numbers = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return numbers.to(dtype_of(case.dtype))


def run_equal(source, case, numbers, generator):
    """What the class returns, and the same in float64, which lower precision is judged by."""
    output, leaves = forward(source, case, numbers)
    cotangent = draw_cotangent(output, case, generator)
    found = {"cotangent": cotangent} | results(output, leaves, cotangent)
    if case.dtype != "float64":
        exact = forward(source, case, numbers.in_float64())
        found |= in_float64(results(*exact, cotangent.double()))
    return found


def run_departing(oracle, case, numbers, generator):
    """The project's own formula in float64 of the case's numbers."""
    output, leaves = forward(oracle, case, numbers.in_float64())
    cotangent = draw_cotangent(output, case, generator)
    found = results(output, leaves, cotangent.double())
    return {"cotangent": cotangent} | in_float64(found)


def run_owed(source, oracle, case, numbers, generator):
    """(what is owed, the results) as entries of the manifest and tensors by role."""
    rule = None if case.refused else source.departure(case)
    if rule is not None:
        return {"owes": "departs", "rule": rule}, run_departing(oracle, case, numbers, generator)
    owed = {"owes": "refuse", "words": list(case.words)} if case.refused else {"owes": "equal"}
    # For a class that draws numbers of its own.
    torch.default_generator.manual_seed(generator.initial_seed())
    try:
        if not case.refused:
            return owed, run_equal(source, case, numbers, generator)
        if source.can_call(case):
            forward(source, case, numbers)
    except SourceError:
        raise
    except Exception as error:
        owed["source_error"] = describe(error)
    return owed, {}


def evaluate(case, source, oracle, seed):
    """Runs a case. What the class raises becomes source_error; SourceError passes."""
    generator = generator_for(seed, case.name)
    numbers = draw(case, generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        owed, found = run_owed(source, oracle, case, numbers, generator)
    return record(case, owed, source.arguments(case), numbers.by_role() | found)


def record(case, owed, arguments, tensors):
    entry = {
        "name": case.name,
        "variant": case.variant.name,
        "dtype": case.dtype,
        "mask_kind": case.kind,
        "embed": case.embed,
        "heads": case.heads,
        **owed,
        "file": f"{case.variant.name}.safetensors",
        "arguments": arguments,
        "tensors": {role: describe_tensor(tensor) for role, tensor in tensors.items()},
    }
    # Copies in row-major order: the tensors may be views of one another.
    copies = {
        role: tensor.detach().clone(memory_format=torch.contiguous_format)
        for role, tensor in tensors.items()
    }
    return Record(case, entry, copies)


def describe_tensor(tensor):
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "crc32": f"{zlib.crc32(raw):08x}",
    }
