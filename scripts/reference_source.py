"""A Python class as the source of reference numbers: loading it, and learning what it can run."""

import importlib.machinery
import importlib.util
import inspect
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import reference_modules
import torch
from reference_spec import VARIANTS
from torch import nn

MODULE_NAME = "_self_attention_reference_source"
DEFAULT_CLASS = "SelfAttention"


class SourceError(Exception):
    """A class file that cannot be used; the message says why and what to do."""


def describe(error):
    """An exception in one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200].rstrip(": ")


@dataclass(frozen=True)
class Source:
    """A class and how its forward takes its arguments, all passed by position.

    takes_keys: forward(values, keys, query, ...), not forward(x, ...). optional_keys: without keys
    and query it is self-attention. takes_mask: a mask comes last. many_heads: runs beyond one.
    """

    variant: object
    cls: type
    file: str
    takes_keys: bool
    optional_keys: bool
    takes_mask: bool
    many_heads: bool

    def departure(self, case):
        """The rule by which the library has a result where this class has none, or None."""
        document = self.variant.document
        if case.heads > 1 and not self.many_heads:
            return f"{document} beyond one head"
        if case.mask is not None and not self.takes_mask:
            return f"{document} with a mask"
        if not self.takes_keys and len(case.arguments) > 1:
            return f"{document} with separate inputs"
        if case.mask is not None and case.dtype == "float16":
            return "float16 with a mask"
        return None

    def arguments(self, case):
        """The case's arguments, spelled out for a class that needs all three."""
        if len(case.arguments) > 1 or case.refused or self.optional_keys or not self.takes_keys:
            return case.arguments
        (name,) = case.inputs
        return dict.fromkeys(self.variant.arguments, name)

    def can_call(self, case):
        """Whether forward has a place for each of the case's arguments."""
        return self.takes_keys or not set(case.arguments) - {"values"}

    def call(self, module, tensors, mask):
        """forward of argument -> tensor and a mask."""
        names = self.variant.arguments if self.takes_keys else ("values",)
        positional = [tensors.get(name) for name in names]
        if self.takes_mask:
            positional.append(mask)
        output = module(*positional)
        if not isinstance(output, torch.Tensor):
            raise SourceError(
                f"{self.file}: {self.cls.__name__}: forward returned {type(output).__name__}, "
                "expected one tensor; wrap it in a class that returns the output alone"
            )
        return output


def our_source(variant_name):
    """The project's own statement of a variant."""
    cls = getattr(reference_modules, VARIANTS[variant_name].class_name)
    return inspect_class(VARIANTS[variant_name], cls, "reference_modules.py")


def load_source(variant_name, text):
    """The class that --source FILE[:CLASS] names."""
    path, _, name = text.rpartition(":")
    if Path(text).exists() or not path or not name.isidentifier():
        path, name = text, None
    cls = pick_class(load_module(path), path, name)
    return inspect_class(VARIANTS[variant_name], cls, Path(path).name)


def load_module(path):
    """The file as a module under a private name, with its folder on the import path meanwhile."""
    if not Path(path).is_file():
        raise SourceError(f"{path}: no such file; --source takes FILE or FILE:CLASS")
    loader = importlib.machinery.SourceFileLoader(MODULE_NAME, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(MODULE_NAME, loader))
    sys.modules[MODULE_NAME] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SourceError(
            f"{path}: running it raised {describe(error)}; a class file must run by itself"
        ) from error
    finally:
        sys.path.pop(0)
    return module


def pick_class(module, path, name):
    """The class of that name; without one SelfAttention, else the file's only nn.Module."""
    own = [
        member.__name__
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, nn.Module)
        and member.__module__ == MODULE_NAME
    ]
    wanted = name or DEFAULT_CLASS
    if name is None and not hasattr(module, wanted) and len(own) == 1:
        wanted = own[0]
    cls = getattr(module, wanted, None)
    if isinstance(cls, type) and issubclass(cls, nn.Module):
        return cls
    there = ", ".join(own) or "none"
    raise SourceError(
        f"{path}: no torch.nn.Module class {wanted}; its classes: {there}; "
        f"name one as --source {path}:CLASS"
    )


def inspect_class(variant, cls, file):
    """What the class can run, from forward's signature and one trial module of two heads."""
    where = f"{file}: {cls.__name__}"
    takes_keys, optional_keys, takes_mask = read_signature(variant, where, cls.forward)
    source = Source(variant, cls, file, takes_keys, optional_keys, takes_mask, many_heads=True)
    module = trial_module(variant, where, cls)
    tensors = dict.fromkeys(variant.arguments, torch.ones(1, 3, 8))
    try:
        with torch.no_grad():
            source.call(module, tensors, None)
    except SourceError:
        raise
    except Exception:
        # Only 001 has a rule for it; elsewhere the cases themselves record that the class raised.
        return replace(source, many_heads=variant.document != "001")
    return source


def read_signature(variant, where, forward):
    """(takes_keys, optional_keys, takes_mask) of forward(values, keys, query[, mask]), or, for 001,
    of forward(x[, mask])."""
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True, False, True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    alone = len(positional) == 1 or (len(positional) > 1 and "mask" in positional[1].name)
    known = positional[: 2 if alone else 4]
    required = [
        parameter.name
        for parameter in parameters
        if parameter not in known
        and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_KEYWORD
    ]
    fits = variant.document == "001" if alone else len(positional) > 2
    if required or not fits:
        expected = f"(values, keys, {variant.query_argument}[, mask])"
        if variant.document == "001":
            expected += " or (x[, mask])"
        raise SourceError(
            f"{where}: forward is called with {expected} by position, but its signature is "
            f"{inspect.signature(forward)}; wrap it in a class that has one of these"
        )
    optional_keys = not alone and all(p.default is None for p in positional[1:3])
    return not alone, optional_keys, len(known) == (2 if alone else 4)


def trial_module(variant, where, cls):
    """A module of embed 8 and two heads whose state dict is the variant's, or SourceError."""
    try:
        module = cls(8, 2)
    except Exception as error:
        raise SourceError(
            f"{where}: its constructor is called with ({variant.embed_argument}, "
            f"{variant.heads_argument}) by position, and for (8, 2) it raised {describe(error)}"
        ) from error
    expected = variant.parameter_shapes(8, 2)
    found = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    wrong = [f"missing {name} {shape}" for name, shape in expected.items() if name not in found]
    wrong += [f"unexpected {name} {shape}" for name, shape in found.items() if name not in expected]
    wrong += [
        f"{name} is {found[name]} instead of {shape}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if wrong:
        raise SourceError(
            f"{where}: for (8, 2) its state dict is not that of {variant.name}: "
            f"{', '.join(wrong)}; rename its layers, or choose another --variant"
        )
    return module
