"""Whole exports against the library, bit for bit: whole_parity.py SELF_ATTENTION_BINARY

Exports here and runs here, so bits are demanded of the eager backend; the others are compared with
the float64 results. The project's classes, a user's class, and the public classes under three seeds
where their files are at hand (SELF_ATTENTION_DOCUMENTS).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from export_support import DOCUMENTS, ROOT

VARIANTS = ("shared_projection", "full_projection", "inferred_length")


def exports():
    """(name, options of export_reference.py) of each export to check."""
    yield "project", []
    user_class = ROOT / "tests/parity/user_module.py"
    yield "user", ["--variant", VARIANTS[0], "--source", f"{user_class}:CrossAttention"]
    if not (DOCUMENTS / "document_000.py").exists():
        print(f"skipped: the public classes: no document_000.py in {DOCUMENTS}")
        return
    for seed in (0, 1, 2):
        for index, variant in enumerate(VARIANTS):
            source = DOCUMENTS / f"document_00{index}.py"
            options = ["--variant", variant, "--source", str(source), "--seed", str(seed)]
            yield f"{variant}-seed{seed}", options


def bits_were_compared(report):
    """Every "equal" case was judged by its bits and by nothing weaker."""
    rules = {case["rule"] for case in report["cases"] if case["owes"] == "equal"}
    return rules == {"bit-equal"}


def other_backends_pass(binary, folder):
    """The fused kernel rounds in its own way: the command compares it with the float64 results."""
    for backend in ("auto", "fused"):
        command = [binary, "parity", folder, "--backend", backend]
        run = subprocess.run(command, capture_output=True, text=True)
        print(f"  {backend}: {run.stdout.splitlines()[-1] if run.stdout else run.stderr}")
        if run.returncode != 0:
            print(run.stdout)
            return False
    return True


def check(binary, folder, options):
    subprocess.run([sys.executable, ROOT / "scripts/export_reference.py", "--out", folder, *options],
                   check=True, stdout=subprocess.DEVNULL)
    report = folder / "report.json"
    run = subprocess.run([binary, "parity", folder, "--json", report], capture_output=True, text=True)
    print(run.stdout.splitlines()[-1] if run.stdout else run.stderr)
    if run.returncode != 0:
        print(run.stdout, run.stderr)
        return False
    return bits_were_compared(json.loads(report.read_text())) and other_backends_pass(binary, folder)


def main(binary):
    failed = []
    for name, options in exports():
        print(f"{name}: ", end="", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if not check(binary, Path(folder), options):
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all bit-equal on the eager backend, and the others pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
