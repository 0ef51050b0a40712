#!/usr/bin/env python3
"""Compares the attention op's speed with torch's, ONNX Runtime's and OpenVINO's, or the modules'
with that of the Python classes and of what else does their work.

  compare_peers.py                                  every case at 1 and 2 threads
  compare_peers.py --cases causal --threads 1 --csv out.csv --png out.png
  compare_peers.py --modules                        whole modules instead of the op

The same numbers go through all of them in one process, in turns; printed is the median of the
paired ratios, the peer's time by ours: above 1, ours is faster. ONNX Runtime and OpenVINO are
optional: `pip install onnx onnxruntime openvino` (and matplotlib for --png) into the Python that
runs this, which must have the torch that the library was built with. Cases called train-… are
forward and backward, which torch alone has too. Each peer has attention written in several ways, of
which the fastest counts. A result far from float64 is reported and not
timed. Columns: peak, the share of the processor's float32 multiply-adds, for the operations that
cannot be left out; read, the share of the rate at which memory of the same size can be read, for
one query; lost, the share of the time in which a thread waited for a processor, which is left out
at one thread and spoils the row at more. Both limits are loops measured between the runs
(peer_roofline.py). An interrupt ends the run with the rows that there are.

With --modules: original, the Python class; algebra, torch's attention on keys and values that are
not projected; compiled, torch.compile of the class; multihead, torch.nn.MultiheadAttention. By
limit is our time by what the folded operations take at the rate of products in float32, or for one
query by what reading keys and values takes. Cases with -train are a step, forward and backward; where
they are causal, the class has a mask and ours is_causal. The geometric means have goals.

Exit status: 0 measured, 1 our own result is wrong, 2 the request cannot be served.
"""

import argparse
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

try:
    import torch
    import peer_cases
    import peer_module_cases
    import peer_module_report
    import peer_modules
    import peer_report
    import peer_runs
    from peer_roofline import Roofline
    from peer_timing import Timer, fastest, paired_ratios
except ImportError as error:
    print(f"compare_peers: {error}; {sys.executable} needs torch and numpy", file=sys.stderr)
    sys.exit(2)


@dataclass(frozen=True)
class Suite:
    """What is compared: modules of Python with the cases, with the runs and with the report."""

    cases: object  # CASES, make_inputs
    runs: object  # PEERS, load_peers
    report: object  # Row, Table, print_summary, write_csv, write_png
    ours: type
    peak: object  # the rate of arithmetic that a case is held against, of a Roofline

    def description(self, roofline):
        peak = "multiply-adds" if self is OP else "products in float32"
        return f"{peak} and reads, {roofline.description}"

    def limits(self, case, roofline):
        """{name: function that returns the seconds that the limit allows}."""
        if case.queries == 1:
            return {"read": lambda: case.read_bytes / roofline.read_rate(case.read_bytes)}
        return {"peak": lambda: case.flops / self.peak(roofline)}


OP = Suite(peer_cases, peer_runs, peer_report, peer_runs.Ours, Roofline.multiply_add_rate)
MODULES = Suite(
    peer_module_cases,
    peer_modules,
    peer_module_report,
    peer_modules.OurModule,
    Roofline.product_rate,
)


class WrongResult(Exception):
    """Our own result is wrong."""


class Unusable(Exception):
    """What was asked for cannot be done."""


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--library",
        type=Path,
        default=ROOT / "build" / "lib" / "libself_attention.so",
        metavar="FILE",
        help="the built library (build/lib/libself_attention.so)",
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--cases", default="", metavar="TEXT", help="cases whose name holds TEXT")
    parser.add_argument("--modules", action="store_true", help="modules instead of the op")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument(
        "--seconds", type=float, default=4, metavar="S", help="for one case's pairs (4)"
    )
    parser.add_argument("--target", metavar="NAME", help="the op's instruction set, as avx2")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw them; needs matplotlib")
    parser.add_argument("--list", action="store_true", help="print the cases' names and stop")
    options = parser.parse_args(arguments)
    if min(options.threads) < 1:
        parser.error("--threads: expected 1 or more")
    options.suite = MODULES if options.modules else OP
    known = list(options.suite.runs.PEERS)
    options.peers = options.peers or known
    if set(options.peers) - set(known):
        parser.error(f"--peers: expected some of {', '.join(known)}")
    return options


def choose_cases(suite, text):
    cases = [case for case in suite.cases.CASES if text in case.name]
    if not cases:
        raise Unusable(f"--cases {text}: no case has that text in its name; see --list")
    return cases


def load_library(options):
    if options.target:
        # Read at the first call of the op.
        os.environ["SELF_ATTENTION_CPU_TARGET"] = options.target
    if options.png:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise Unusable(f"--png: {error}; pip install matplotlib") from None
    try:
        torch.ops.load_library(str(options.library))
    except OSError as error:
        raise Unusable(f"--library {options.library}: {error}; ./scripts/setup builds it") from None


def usable_runs(peer, inputs, expected, threads):
    """({form: run} that agree with float64, {form: why not} of the others)."""
    good, refused = {}, {}
    for form, run in peer.runs(inputs, threads).items():
        if isinstance(run, Exception):
            refused[form] = " ".join(str(run).split())[:200]
            continue
        error = run.error(expected)
        if error <= peer_runs.TOLERANCES[inputs.case.dtype]:
            good[form] = run
        else:
            refused[form] = f"wrong by {error:.1e}"
    return good, refused


def peer_timers(peers, inputs, expected, row):
    """The fastest form of each peer, by name; what was left out goes to standard error."""
    timers = {}
    for name, peer in peers.items():
        good, refused = usable_runs(peer, inputs, expected, row.threads)
        for form, reason in refused.items():
            print(f"{inputs.case.name}: {name} {form} left out: {reason}", file=sys.stderr)
        if refused and not good:
            row.forms[name] = "left out"
        if not good:
            continue
        form = fastest({form: run.call for form, run in good.items()}, row.threads)
        row.forms[name] = form
        timers[name] = Timer(good[form].call, row.threads)
    return timers


def measure(suite, case, peers, roofline, seconds):
    threads = roofline.threads
    torch.set_num_threads(threads)
    inputs = suite.cases.make_inputs(case)
    expected = inputs.expected()
    good, refused = usable_runs(suite.ours(), inputs, expected, threads)
    if refused:
        raise WrongResult(f"{case.name}, {threads} threads: our result is {refused['attention']}")
    row = suite.report.Row(case, threads)
    timers = peer_timers(peers, inputs, expected, row)
    others = {name: timer.sample for name, timer in timers.items()}
    others |= suite.limits(case, roofline)
    ours = Timer(good["attention"].call, threads)
    row.ratios, row.seconds = paired_ratios(ours, others, seconds)
    lost = [share for timer in (ours, *timers.values()) for share in timer.lost]
    row.lost = statistics.median(lost)
    row.of_read = row.ratios.pop("read", None)
    row.of_peak = row.ratios.pop("peak", None)
    return row


def print_setting(options, peers, absent, roofline):
    present = [f"{name} {peer.version}".rstrip() for name, peer in peers.items()]
    print(f"compared with: {', '.join(present) or 'nothing'}")
    for name, reason in absent.items():
        print(f"absent: {name} ({reason})")
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"instructions: op {options.target or 'the fastest'}, torch {capability}")
    print(f"limits: {options.suite.description(roofline)}")
    print(f"load average: {load_average()}\n", flush=True)


def load_average():
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def measure_all(options, cases, peers, rooflines, rows):
    """Fills `rows`, and prints each as it comes."""
    table = options.suite.report.Table(list(peers))
    table.header()
    for roofline in rooflines:
        for case in cases:
            with torch.inference_mode(not case.trains):
                rows.append(measure(options.suite, case, peers, roofline, options.seconds))
            table.row(rows[-1])


def compare(options):
    suite = options.suite
    cases = choose_cases(suite, options.cases)
    if options.list:
        print("\n".join(case.name for case in cases))
        return
    load_library(options)
    peers, absent = suite.runs.load_peers(options.peers)
    rooflines = [Roofline(threads) for threads in options.threads]
    print_setting(options, peers, absent, rooflines[0])
    rows = []
    try:
        measure_all(options, cases, peers, rooflines, rows)
    except KeyboardInterrupt:
        print("interrupted")
    suite.report.print_summary(rows)
    print(f"load average: {load_average()}")
    if options.csv:
        suite.report.write_csv(options.csv, rows, list(peers))
    if options.png:
        suite.report.write_png(options.png, rows, list(peers))


def main(arguments):
    options = parse_arguments(arguments)
    try:
        compare(options)
    except WrongResult as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 1
    except (Unusable, OSError) as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
