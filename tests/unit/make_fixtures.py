"""Writes the files in fixtures/: one of each kind that only Python's PyTorch can make.

    python tests/unit/make_fixtures.py
"""

import collections
import pathlib
import warnings

import torch

FOLDER = pathlib.Path(__file__).parent / "fixtures"


def views():
    base = torch.arange(6.0).reshape(2, 3)
    return collections.OrderedDict(
        base=base,
        transposed=base.t(),
        row=torch.nn.Parameter(base[1]),
        scalar=torch.tensor(7),
    )


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 1, bias=False)
        self.fc.weight.data = torch.tensor([[1.0, 2.0]])

    def forward(self, x):
        return self.fc(x)


def main():
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    model = torch.nn.Linear(2, 1, bias=False)
    torch.save(views(), FOLDER / "views.pt", pickle_protocol=4)
    torch.save(views(), FOLDER / "views_legacy.pt", _use_new_zipfile_serialization=False)
    checkpoint = {
        "model": model.state_dict(),
        "step": 3,
        "loss": [0.5],
        "device": torch.device("cpu"),
    }
    torch.save(checkpoint, FOLDER / "nested_legacy.pt", _use_new_zipfile_serialization=False)
    unsupported = {
        "float8": torch.zeros(2, dtype=torch.float8_e4m3fn),
        "complex": torch.zeros(1, dtype=torch.complex64),
        "kept": torch.ones(1, dtype=torch.bfloat16),
    }
    torch.save(unsupported, FOLDER / "unsupported.pt")
    torch.jit.script(Scripted()).save(FOLDER / "scripted.pt")


if __name__ == "__main__":
    main()
