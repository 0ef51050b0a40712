"""What the tests of exported archives share: exporting through the probe, running an archive."""

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))


def job(variant, weights, out, embed=None, heads=None, mask="required", inputs="separate",
        freeze=False):
    """The command line of one `self-attention export`."""
    words = ["--variant", variant, "--weights", str(weights), "--out", str(out)]
    words += ["--mask", mask, "--inputs", inputs]
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


def same_bits(actual, expected):
    """Same shape, dtype and numbers, any NaN being equal to any NaN, 0.0 being unlike -0.0."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    nan = torch.isnan(expected)
    signs = torch.equal(torch.signbit(actual[~nan]), torch.signbit(expected[~nan]))
    return signs and bool(((actual == expected) | (nan & torch.isnan(actual))).all())
