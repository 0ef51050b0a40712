"""What the tests of exported archives share: exporting through the probe, running an archive."""

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]

import reference_modules
from reference_spec import VARIANTS

FORMS = [(name, "separate") for name in VARIANTS] + [("full_projection", "single")]


def make_class(variant, embed=8, heads=2, dtype=torch.float32):
    torch.manual_seed(0)
    cls = getattr(reference_modules, VARIANTS[variant].class_name)
    return cls(embed, heads).to(dtype)


def make_inputs(inputs="separate", dtype=torch.float32):
    """Tensors that all differ, of different lengths where a forward takes more than one."""
    torch.manual_seed(1)
    lengths = (5,) if inputs == "single" else (5, 5, 3)
    return [torch.randn(2, length, 8).to(dtype) for length in lengths]


MASK = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 1, 1]]).view(2, 1, 1, 5)


def job(variant, weights, out, embed=None, heads=None, mask="required", inputs="separate",
        freeze=False, ops="portable"):
    """The command line of one `self-attention export`."""
    words = ["--variant", variant, "--weights", str(weights), "--out", str(out)]
    words += ["--mask", mask, "--inputs", inputs, "--ops", ops]
    words += ["--embed", str(embed)] if embed else []
    words += ["--heads", str(heads)] if heads else []
    return words + (["--freeze"] if freeze else [])


def export_all(probe, jobs):
    """Runs the jobs in one process; a line for each, "ok" or the error."""
    lines = "".join("\t".join(words) + "\n" for words in jobs)
    run = subprocess.run([probe], input=lines, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def write_weights(parameters, path):
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in parameters.items()},
              path)
    return path


def export_forms(test, probe, forms, **more):
    """For each (variant, form) the class and the file of its archive, in the test's folder."""
    jobs, made = [], []
    for index, (variant, form) in enumerate(forms):
        module, out = make_class(variant), test.folder / f"archive{index}.pt"
        weights = write_weights(module.state_dict(), test.folder / f"{variant}.safetensors")
        jobs.append(job(variant, weights, out, 8, 2, **more, **form))
        made.append((module, out))
    test.assertEqual(export_all(probe, jobs), ["ok"] * len(jobs))
    return made


def same_bits(actual, expected):
    """Same shape, dtype and numbers, any NaN being equal to any NaN, 0.0 being unlike -0.0."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    nan = torch.isnan(expected)
    signs = torch.equal(torch.signbit(actual[~nan]), torch.signbit(expected[~nan]))
    return signs and bool(((actual == expected) | (nan & torch.isnan(actual))).all())


def run_program(runner, archive, tensors, output):
    """archive_runner.cpp with these inputs, expecting that output."""

    class Holder(torch.nn.Module):
        def forward(self):
            return 0

    holder = Holder()
    for index, tensor in enumerate(tensors):
        holder.register_buffer(f"input_{index}", tensor)
    holder.register_buffer("output", output.detach())
    path = archive.with_name("tensors.pt")
    torch.jit.script(holder).save(path)
    return subprocess.run([runner, archive, path], capture_output=True, text=True)
