"""How fast archives are beside the public classes scripted in Python:
torchscript_speed.py TORCHSCRIPT_PROBE DOCUMENTS [THREADS]

Both are saved, loaded and called in turn, which of them first changing each time; a ratio above 1
means that the archive is faster. Prints the median of the paired ratios, with their quartiles, and
the microseconds of the first three calls of a new archive.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "io"))

import torch
from archives import export_all, job, same_bits, write_weights

from reference_source import load_source

# Short turns, many of them: a busy machine then disturbs few.
PAIRS, SECONDS = 1500, 0.0003
# N, Q, K, E, H
SHAPES = (
    (1, 4, 4, 8, 2), (2, 10, 10, 256, 8), (1, 1, 512, 256, 8), (8, 64, 64, 256, 8),
    (4, 128, 128, 512, 8),
)
FORMS = (  # variant, document, mask, inputs
    ("shared_projection", "000", "required", "separate"),
    ("inferred_length", "002", "required", "separate"),
    ("full_projection", "001", "none", "single"),
)


def seconds(module, tensors, calls):
    start = time.perf_counter()
    for _ in range(calls):
        module(*tensors)
    return (time.perf_counter() - start) / calls


def measure(probe, folder, form, documents, shape, freeze):
    variant, document, mask, inputs = form
    batch, queries, keys, embed, heads = shape
    if inputs == "single":
        heads, queries = 1, keys  # all that the original runs
    torch.manual_seed(0)
    scripted = torch.jit.script(load_source(variant, f"{documents}/document_{document}.py").cls(embed, heads))
    weights = write_weights(scripted.state_dict(), folder / "weights")
    answers = export_all(probe, [job(variant, weights, folder / "ours.pt", embed, heads, mask, inputs, freeze)])
    assert answers == ["ok"], answers
    scripted = torch.jit.freeze(scripted.eval()) if freeze else scripted
    scripted.save(folder / "original.pt")
    ours, original = (torch.jit.load(folder / name) for name in ("ours.pt", "original.pt"))
    lengths = (keys,) if inputs == "single" else (keys, keys, queries)
    tensors = [torch.randn(batch, length, embed) for length in lengths]
    if mask == "required":
        tensors.append((torch.rand(batch, 1, 1, keys) > 0.2))
    first = [seconds(ours, tensors, 1) * 1e6 for _ in range(3)]
    for _ in range(5):
        assert same_bits(ours(*tensors), original(*tensors))
    calls = max(1, int(SECONDS / seconds(original, tensors, 3)))
    ratios, times = [], []
    for index in range(PAIRS):
        pair = (original, ours) if index % 2 else (ours, original)
        taken = {id(module): seconds(module, tensors, calls) for module in pair}
        times.append(taken[id(ours)])
        ratios.append(taken[id(original)] / taken[id(ours)])
    low, middle, high = statistics.quantiles(ratios, n=4)
    label = f"{variant} {'frozen' if freeze else 'plain'} n{batch} q{queries} k{keys} e{embed} h{heads}"
    print(f"{label:52} {middle:6.3f} ({low:.3f} to {high:.3f})  {statistics.median(times) * 1e6:9.1f} us  "
          f"first calls {', '.join(f'{t:.0f}' for t in first)} us", flush=True)


def main(probe, documents, threads="1"):
    torch.set_num_threads(int(threads))
    print(f"{threads} threads: original / ours (quartiles), ours")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for form in FORMS:
            for shape in SHAPES:
                for freeze in (False, True):
                    measure(probe, Path(folder), form, documents, shape, freeze)


if __name__ == "__main__":
    main(*sys.argv[1:])
