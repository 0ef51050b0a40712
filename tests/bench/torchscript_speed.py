"""How fast archives are, called in turns with what they are compared with:
torchscript_speed.py TORCHSCRIPT_PROBE DOCUMENTS [THREADS]
torchscript_speed.py TORCHSCRIPT_PROBE --fused MODULE_CALLS [THREADS]

Portable ones beside the public classes scripted in Python: prints the median of the paired ratios,
above 1 where the archive is faster, with their quartiles, and the microseconds of the first three
calls of a new archive.

Fused ones, called from C++ and from Python, there as archive(...) and as archive.forward(...),
beside the module in C++: prints the median of the paired ratios, the archive's time by the
module's, and of their differences. Either may be 3 % or 5 microseconds. Every turn begins with a
call that is not timed. MODULE_CALLS is build/lib/libmodule_calls.so.
"""

import argparse
import ctypes
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "io"))

import torch
from archives import export_all, job, same_bits, write_weights

import reference_modules
from reference_source import load_source
from reference_spec import VARIANTS

# Short turns, many of them: a busy machine then disturbs few.
PAIRS, SECONDS = 1500, 0.0003
LONGEST = 8  # seconds of all turns of a pair
# At least, in a turn: malloc gives TorchScript's results one of two places, which must both be warm.
FUSED_CALLS = 6
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
MOST_SHARE, MOST_SECONDS = 0.03, 5e-6
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def seconds(module, tensors, calls):
    start = time.perf_counter()
    for _ in range(calls):
        module(*tensors)
    return (time.perf_counter() - start) / calls


def paired_times(one, other, least=1):
    """Seconds of both, functions of a number of calls, which of them first changing each time."""
    calls = max(least, int(SECONDS / one(3)))
    end = time.perf_counter() + LONGEST
    for index in range(PAIRS):
        if time.perf_counter() > end:
            return
        if index % 2:
            yield one(calls), other(calls)
        else:
            second = other(calls)
            yield one(calls), second


def label_of(variant, shape, freeze):
    sizes = " ".join(f"{name}{size}" for name, size in zip("nqkeh", shape))
    return f"{variant} {'frozen' if freeze else 'plain'} {sizes}"


def draw(shape, mask, inputs):
    batch, queries, keys, embed, _ = shape
    lengths = (keys,) if inputs == "single" else (keys, keys, queries)
    tensors = [torch.randn(batch, length, embed) for length in lengths]
    return tensors + ([torch.rand(batch, 1, 1, keys) > 0.2] if mask == "required" else [])


def export(probe, folder, state, *words):
    """The archive's path and the weights'."""
    weights = write_weights(state, folder / "weights.safetensors")
    answers = export_all(probe, [job(words[0], weights, folder / "ours.pt", *words[1:])])
    assert answers == ["ok"], answers
    return folder / "ours.pt", weights


def measure_portable(options, folder, form, shape, freeze):
    variant, document, mask, inputs = form
    batch, queries, keys, embed, heads = shape
    if inputs == "single":
        heads, queries = 1, keys  # all that the original runs
    shape = batch, queries, keys, embed, heads
    torch.manual_seed(0)
    source = load_source(variant, f"{options.documents}/document_{document}.py")
    scripted = torch.jit.script(source.cls(embed, heads))
    archive, _ = export(options.probe, folder, scripted.state_dict(), variant, embed, heads, mask,
                        inputs, freeze)
    scripted = torch.jit.freeze(scripted.eval()) if freeze else scripted
    scripted.save(folder / "original.pt")
    ours, original = (torch.jit.load(path) for path in (archive, folder / "original.pt"))
    tensors = draw(shape, mask, inputs)
    first = [seconds(ours, tensors, 1) * 1e6 for _ in range(3)]
    for _ in range(5):
        assert same_bits(ours(*tensors), original(*tensors))
    pairs = list(paired_times(*(lambda calls, module=module: seconds(module, tensors, calls)
                                for module in (original, ours))))
    low, middle, high = statistics.quantiles([theirs / taken for theirs, taken in pairs], n=4)
    taken = statistics.median(taken for _, taken in pairs) * 1e6
    print(f"{label_of(variant, shape, freeze):52} {middle:6.3f} ({low:.3f} to {high:.3f})  "
          f"{taken:9.1f} us  first calls {', '.join(f'{t:.0f}' for t in first)} us", flush=True)


def measure_fused(options, folder, form, shape, freeze):
    variant, _, mask, inputs = form
    batch, queries, keys, embed, heads = shape
    shape = batch, keys if inputs == "single" else queries, keys, embed, heads
    torch.manual_seed(0)
    module = getattr(reference_modules, VARIANTS[variant].class_name)(embed, heads)
    archive, weights = export(options.probe, folder, module.state_dict(), variant, embed, heads,
                              mask, inputs, freeze, "fused")
    script, tensors = torch.jit.load(archive), draw(shape, mask, inputs)
    places = [t.data_ptr() for t in tensors if t.is_floating_point()]
    places += [None] * (3 - len(places)) + [tensors[-1].data_ptr() if mask == "required" else None]
    library = options.library
    calls = ctypes.c_void_p(library.open_calls(
        variant.encode(), str(weights).encode(), str(archive).encode(),
        (ctypes.c_int64 * 5)(*shape), (ctypes.c_void_p * 4)(*places)))
    in_module, in_archive = (lambda count, kind=kind: library.time_calls(calls, kind, count)
                             for kind in (False, True))

    def from_python(module, count):
        module(*tensors)
        return seconds(module, tensors, count)

    others = {"C++": in_archive, "Python": partial(from_python, script),
              "forward": partial(from_python, script.forward)}
    for call in (in_module, *others.values()):
        call(5)
    for caller, other in others.items():
        pairs = list(paired_times(in_module, other, least=FUSED_CALLS))
        ratio = statistics.median(taken / base for base, taken in pairs)
        more = statistics.median(taken - base for base, taken in pairs)
        base = statistics.median(base for base, _ in pairs)
        fits = ratio <= 1 + MOST_SHARE or more <= MOST_SECONDS
        print(f"{label_of(variant, shape, freeze):52} {caller:7} {ratio:6.3f} {more * 1e6:+7.1f} us of "
              f"{base * 1e6:9.1f} us  {'within' if fits else 'BEYOND'}", flush=True)


def keep_memory():
    """Makes malloc give nothing back to the system: which call has to fetch it again is chance."""
    libc = ctypes.CDLL(None)
    for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        libc.mallopt(parameter, 1 << 30)


def load_calls(path):
    library = ctypes.CDLL(path)
    library.open_calls.restype = ctypes.c_void_p
    library.time_calls.restype = ctypes.c_double
    library.time_calls.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_int]
    return library


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("documents", metavar="DOCUMENTS or MODULE_CALLS")
    parser.add_argument("threads", type=int, nargs="?", default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()
    measure = measure_fused if options.fused else measure_portable
    if options.fused:
        options.library = load_calls(options.documents)
        print(f"{options.threads} threads: archive / module in C++, by who calls the archive")
    else:
        print(f"{options.threads} threads: original / ours (quartiles), ours")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for form in FORMS:
            for shape in SHAPES:
                for freeze in (False, True):
                    measure(options, Path(folder), form, shape, freeze)


if __name__ == "__main__":
    main()
