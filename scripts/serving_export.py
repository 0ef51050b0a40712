"""The models that a server gets: weights made into archives by `self-attention export`."""

import json
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from serving_process import ServingError

VARIANTS = ("shared_projection", "full_projection", "inferred_length")


@dataclass(frozen=True)
class Model:
    """What `self-attention export` is asked for."""

    name: str
    weights: Path
    variant: str = "shared_projection"
    ops: str = "fused"
    mask: str = "required"
    heads: int = 0  # told by the weights
    max_batch_size: int = 64

    def words(self):
        words = ["--variant", self.variant, "--weights", self.weights, "--ops", self.ops,
                 "--mask", self.mask, "--max-batch-size", self.max_batch_size]
        return [*map(str, words), *(["--heads", str(self.heads)] if self.heads else [])]


def export(tool, model, *destination):
    """Runs the command with --out FILE or --triton FOLDER; what it says of the module."""
    words = [str(tool), "export", *model.words(), *map(str, destination)]
    run = subprocess.run(words, capture_output=True, text=True)
    if run.returncode != 0:
        raise ServingError(run.stderr.strip() or f"[serving] export: exit status {run.returncode}")
    return run.stdout


def archive_info(path):
    """What an archive says of itself."""
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/self_attention.json"))
        return json.loads(archive.read(name))
