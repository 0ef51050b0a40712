"""Writes the seeds of the fuzz targets: corpus/safetensors for that target, all of corpus for the
other.

    python tests/fuzz/make_corpus.py
"""

import collections
import io
import pathlib
import zipfile

import torch
from safetensors.torch import save

FOLDER = pathlib.Path(__file__).parent / "corpus"


def saved(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def pickle_of(archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as entries:
        return entries.read("archive/data.pkl")


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2, bias=False)

    def forward(self, x):
        return self.fc(x)


def main():
    base = torch.arange(6.0).reshape(2, 3)
    state = collections.OrderedDict(a=base, b=base.t(), c=torch.nn.Parameter(base[1]))
    checkpoint = {
        "model": {"w": base},
        "step": 2**40,
        "seen": {1, 2},
        "text": "a",
        "none": (None, True, 0.5, b"bytes", [2**80]),
        "dtype": torch.float16,
        "float8": torch.zeros(2, dtype=torch.float8_e4m3fn),
    }
    scripted = io.BytesIO()
    torch.jit.save(torch.jit.script(Scripted()), scripted)
    seeds = {
        "state.pt": saved(state),
        "legacy.pt": saved({"model": state, "step": 1}, _use_new_zipfile_serialization=False),
        "scripted.pt": scripted.getvalue(),
        "state.pkl": pickle_of(saved(state)),
        "safetensors/two": save({"a": base, "b": torch.ones(1, dtype=torch.int8)}, {"k": "v"}),
        "safetensors/odd": save(
            {
                "\"\\µ": torch.empty(0, 2**40),
                "scalar": torch.tensor(True),
                "unsupported": torch.zeros(2, dtype=torch.float8_e4m3fn),
            }
        ),
    }
    for protocol in range(1, 6):
        seeds[f"checkpoint{protocol}.pkl"] = pickle_of(saved(checkpoint, pickle_protocol=protocol))
    (FOLDER / "safetensors").mkdir(parents=True, exist_ok=True)
    for name, content in seeds.items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
