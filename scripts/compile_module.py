#!/usr/bin/env python3
"""Compiles weights with AOTInductor into a package that C++ loads and runs without Python.

  compile_module.py --library build/lib/libself_attention.so --variant shared_projection \\
    --weights from_python.pt --out model.pt2

Batch and lengths stay open; the mask, where there is one, is bool and (N, 1, 1, K). The package
calls the library's op, which must be loaded before it: tests/examples/serve is a program that
does, and that gives it other weights. It is made for the torch and the processor that it is
compiled with.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from compiled_modules import CLASSES


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libself_attention.so")
    parser.add_argument("--variant", required=True, choices=CLASSES)
    parser.add_argument("--weights", type=Path, required=True,
                        help="a state dict, of torch.save or in safetensors")
    parser.add_argument("--heads", type=int, help="told by weights but full_projection's")
    parser.add_argument("--mask", choices=("required", "none"), default="required")
    parser.add_argument("--out", type=Path, required=True, help="the package to write, *.pt2")
    return parser.parse_args()


def read_weights(path):
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def make_module(variant, state, heads):
    """The module with these weights, whose shapes tell its sizes."""
    output = "output_linear" if variant == "full_projection" else "fc_out"
    embed = state[f"{output}.bias"].shape[0]
    if variant != "full_projection":
        heads = heads or embed // state["values.weight"].shape[0]
    if not heads:
        raise ValueError("--heads: expected a number for full_projection, got none")
    module = CLASSES[variant](embed, heads).to(state[f"{output}.bias"].dtype)
    module.load_state_dict(state)
    return module.eval(), embed


def export(module, embed, masked):
    """The exported program, with batch and both lengths open."""
    # Sizes above 1, which torch.export would take for fixed, and unlike one another.
    batch, keys, queries = 2, 5, 3
    dtype = next(module.parameters()).dtype
    tensors = [torch.randn(batch, length, embed).to(dtype) for length in (keys, keys, queries)]
    n, k, q = (torch.export.Dim(name) for name in ("batch", "keys", "queries"))
    shapes = [{0: n, 1: k}, {0: n, 1: k}, {0: n, 1: q}]
    if masked:
        tensors.append(torch.ones(batch, 1, 1, keys, dtype=torch.bool))
        shapes.append({0: n, 3: k})
    with torch.no_grad():
        return torch.export.export(module, tuple(tensors), dynamic_shapes=tuple(shapes))


def compile_package(program, metadata, path):
    """The file appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unfinished = Path(folder) / "model.pt2"
        options = {
            "aot_inductor.metadata": {name: str(value) for name, value in metadata.items()},
            "cpp.dynamic_threads": True,  # those of who runs it, not of who compiles it
        }
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(unfinished), inductor_configs=options)
        os.replace(unfinished, path)


def main():
    options = parse()
    try:
        torch.ops.load_library(options.library)
        module, embed = make_module(options.variant, read_weights(options.weights), options.heads)
        program = export(module, embed, options.mask == "required")
        metadata = {"variant": options.variant, "embed": embed, "heads": module.heads,
                    "mask": options.mask}
        compile_package(program, metadata, options.out.absolute())
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        print(f"error: [compile_module] {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
