#!/usr/bin/env python3
"""Exports what the Python classes return, as tensors that `self-attention parity` compares with.

  export_reference.py --out DIR                                    the project's own three classes
  export_reference.py --out DIR --variant shared_projection --source my_model.py:CrossAttention

DIR gets manifest.json and one safetensors file a variant. A class file is run as Python code.
Exit status: 0 done, 1 the reference itself is wrong, 2 the request cannot be served.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

# Read when torch loads. Thousands of small operators leave OpenMP's threads waiting, and threads
# that wait by spinning make the export ten times slower on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

try:
    import reference_cases
    import reference_multihead
    import safetensors.torch
    import torch
    from atomic_file import write_atomically
    from reference_run import evaluate
    from reference_source import SourceError, load_source, our_source
    from reference_spec import DTYPES, VARIANTS
except ImportError as error:
    print(
        f"export_reference: {error}; {sys.executable} needs torch, numpy and safetensors: "
        "python -m pip install torch numpy safetensors",
        file=sys.stderr,
    )
    sys.exit(2)

MANIFEST = "manifest.json"
MOST_WARNED = 10


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="made if need be")
    parser.add_argument("--variant", choices=(*VARIANTS, "all"), default="all")
    parser.add_argument(
        "--source",
        metavar="FILE[:CLASS]",
        help="a class of your own with one variant's constructor, forward and parameter names "
        "(CLASS: SelfAttention, or the only torch.nn.Module in FILE)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all numbers (0)")
    parser.add_argument(
        "--snapshot", action="store_true", help="few small cases, for use on other machines"
    )
    parser.add_argument("--filter", default="", metavar="TEXT", help="cases whose name holds TEXT")
    options = parser.parse_args(arguments)
    if options.source and options.variant == "all":
        parser.error(f"--source needs the --variant that its class is: {', '.join(VARIANTS)}")
    return options


def choose_cases(variant_name, options):
    cases = reference_cases.grid(variant_name)
    if options.snapshot:
        cases = reference_cases.snapshot(cases)
    return [case for case in cases if options.filter in case.name]


def evaluate_all(sources, options):
    """Records of every chosen case, in the order of the grid."""
    records = []
    for variant_name, source in sources.items():
        oracle = our_source(variant_name)
        cases = choose_cases(variant_name, options)
        records += [evaluate(case, source, oracle, options.seed) for case in cases]
    if not records:
        raise SourceError(f"no case's name holds {options.filter!r}; see --filter")
    return records


def check_multihead(records):
    """Compares our 001 with torch.nn.MultiheadAttention; whether it agrees."""
    compared = {
        record.case.name: reference_multihead.largest_difference(record)
        for record in records
        if record.case.variant.document == "001" and reference_multihead.comparable(record)
    }
    if not compared:
        return True
    worst = max(compared, key=compared.get)
    print(
        f"full_projection and torch.nn.MultiheadAttention: {len(compared)} cases, largest "
        f"difference {compared[worst]:.1e}, allowed {reference_multihead.TOLERANCE:.0e} ({worst})"
    )
    return compared[worst] <= reference_multihead.TOLERANCE


def environment():
    """What decides the last bits of a result."""
    return {
        "torch_version": torch.__version__,
        "torch_config": torch.__config__.show(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_model": cpu_model(),
        "threads": torch.get_num_threads(),
    }


def cpu_model():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    models = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(models, "").strip()


def manifest_text(sources, options, records):
    """The manifest, one case a line: short, and a changed case is a changed line."""
    head = {
        "format": "self-attention-reference",
        "format_version": 1,
        "snapshot": options.snapshot,
        **environment(),
        "seed": options.seed,
        "sources": {
            name: {"file": source.file, "class": source.cls.__name__}
            for name, source in sources.items()
        },
    }
    lines = ",\n  ".join(json.dumps(record.entry) for record in records)
    return f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n  {lines}\n ]\n}}\n'


def write_reference(sources, options, records):
    """Tensors, then the manifest: a directory with a manifest is whole. Returns its size."""
    tensors = {}
    for record in records:
        stored = tensors.setdefault(record.entry["file"], {})
        for role, tensor in record.tensors.items():
            stored[f"{record.case.name}/{role}"] = tensor
    files = {name: safetensors.torch.save(stored) for name, stored in tensors.items()}
    files[MANIFEST] = manifest_text(sources, options, records).encode()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / MANIFEST).unlink(missing_ok=True)
    for name, data in files.items():
        write_atomically(options.out / name, data)
    return sum(map(len, files.values()))


def print_summary(sources, records):
    for variant_name, source in sources.items():
        entries = [record.entry for record in records if record.case.variant.name == variant_name]
        print(f"{variant_name}: {len(entries)} cases of {source.cls.__name__} in {source.file}")
        counts = Counter((entry["owes"], entry["dtype"]) for entry in entries)
        for owes in ("equal", "departs", "refuse"):
            row = [f"{dtype} {counts[owes, dtype]}" for dtype in DTYPES if counts[owes, dtype]]
            if row:
                print(f"  {owes:8}{', '.join(row)}")
    raised = [
        record.entry
        for record in records
        if record.entry["owes"] == "equal" and "source_error" in record.entry
    ]
    if raised:
        print(f"warning: the class raised in {len(raised)} cases that owe a result, such as")
    for entry in raised[:MOST_WARNED]:
        print(f"  {entry['name']}: {entry['source_error']}")


def export(options):
    """Runs the export; the exit status."""
    names = list(VARIANTS) if options.variant == "all" else [options.variant]
    if options.source:
        sources = {name: load_source(name, options.source) for name in names}
    else:
        sources = {name: our_source(name) for name in names}
    records = evaluate_all(sources, options)
    if not options.source and not check_multihead(records):
        print("export_reference: nothing written: that difference is too large", file=sys.stderr)
        return 1
    size = write_reference(sources, options, records)
    print_summary(sources, records)
    print(f"{options.out}: {size / 2**20:.1f} MiB")
    return 0


def main(arguments=None):
    options = parse_arguments(arguments)
    try:
        return export(options)
    except SourceError as error:
        print(f"export_reference: {error}", file=sys.stderr)
    except OSError as error:
        print(
            f"export_reference: cannot write {options.out}: {error}; choose another --out",
            file=sys.stderr,
        )
    return 2


if __name__ == "__main__":
    sys.exit(main())
