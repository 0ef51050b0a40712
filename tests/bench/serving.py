"""How fast servers answer: requests a second and latencies of archives behind Triton, MLServer and
the host in C++, beside the original class scripted in Python, all served alike:
serving.py --document document_000.py [--shape 8 128 512 8] [--clients 2] [--csv FILE]

The kinds of archive take turns, several times. A request has a batch of its own, so that servers do
not merge them, and a mask that hides a fifth of the keys; in JSON it has one row and a sixteenth of
the length, since text takes seconds otherwise. The clients share the machine. CPU ms is what the
server's processes spent on a request, of which other programs take nothing, in the host with its
clients. The last columns are the original's figures by an archive's: above 1, the archive is better.
Needs what `./scripts/test --all` built and installed.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("scripts", "tests/io", "tests/serving")]

from archives import write_weights
from client import Client, use_modules
from reference_source import load_source
from serving_export import Model, archive_info
from serving_mlserver import MLServer
from serving_process import free_port
from serving_triton import Triton

KINDS = ("original", "portable", "fused")
COLUMNS = ("server", "protocol", "archive", "requests/s", "p50 ms", "p99 ms", "CPU ms", "by rate", "by CPU")
HEADER = "{:9} {:12} {:9}" + " {:>10}" * 6
LINE = "{:9} {:12} {:9}" + " {:10.2f}" * 6


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--document", type=Path, required=True, help="the file of SharedProjectionAttention's original")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--shape", type=int, nargs=4, default=(8, 128, 512, 8), metavar=("N", "L", "E", "H"))
    parser.add_argument("--servers", nargs="+", choices=("triton", "mlserver", "host"),
                        default=("triton", "mlserver", "host"))
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2, help="of a turn")
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def processor_seconds(pid):
    """Of a process and those that it started."""
    spent, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        spent[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(spent.get(member, 0) for member in family)


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.tool = options.build / "bin" / "self-attention"
        self.library = options.build / "lib" / "libself_attention.so"
        self.rows, lengths, embed, heads = options.shape
        torch.manual_seed(0)
        self.module = load_source("shared_projection", str(options.document)).cls(embed, heads)
        self.weights = write_weights(self.module.state_dict(), folder / "weights.safetensors")
        self.tensors = {name: torch.randn(self.rows, lengths, embed) for name in ("values", "keys", "query")}
        self.tensors["mask"] = torch.rand(self.rows, 1, 1, lengths) < 0.8
        few = max(lengths // 16, 1)
        self.small = {name: tensor[:1, ..., :few].contiguous() if name == "mask" else tensor[:1, :few].contiguous()
                      for name, tensor in self.tensors.items()}
        self.results = []

    def model(self, kind):
        ops = "fused" if kind == "fused" else "portable"
        return Model(kind, self.weights, ops=ops, max_batch_size=self.rows)

    def use_original(self, archive):
        """Puts the class itself, scripted, in an archive's place."""
        scripted = torch.jit.script(self.module.eval())
        info = json.dumps(archive_info(archive))
        scripted.save(str(archive), _extra_files={"self_attention.json": info})

    def measure_server(self, kind_of_server):
        server = kind_of_server(self.options.build / "serving", self.folder / kind_of_server.name, self.tool, self.library)
        server.install()
        server.clear()
        for kind in KINDS:
            server.write(self.model(kind))
        self.use_original(next((server.repository / "original").glob("**/model.pt")))
        port, grpc_port = free_port(), free_port()
        process = server.start(port, grpc_port, self.options.threads)
        try:
            process.wait_until_ready()
            for protocol in server.protocols:
                self.measure_protocol(server.name, protocol, (port, grpc_port), process.pid)
        finally:
            process.stop()

    def measure_protocol(self, name, protocol, ports, pid):
        turns = {kind: [] for kind in KINDS}
        spent = dict.fromkeys(KINDS, 0)
        with ThreadPoolExecutor(self.options.clients) as pool:
            for turn in range(self.options.turns + 1):
                for kind in KINDS:
                    before = processor_seconds(pid)
                    end = time.monotonic() + self.options.seconds
                    sent = [pool.submit(self.send, kind, protocol, ports, end)
                            for _ in range(self.options.clients)]
                    latencies = [latency for one in sent for latency in one.result()]
                    if turn > 0:  # the first warms up
                        turns[kind].append(latencies)
                        spent[kind] += processor_seconds(pid) - before
        for kind in KINDS:
            # Closed loops: each client always has one request under way.
            rates = [self.options.clients / statistics.mean(latencies) for latencies in turns[kind]]
            latencies = sorted(latency for turn in turns[kind] for latency in turn)
            p50, p99 = (latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99))
            numbers = (p50, p99, spent[kind] / len(latencies))
            self.add((name, protocol, kind), statistics.median(rates), *(1e3 * number for number in numbers))

    def send(self, kind, protocol, ports, end):
        client = Client(protocol, *ports)
        request = client.prepare(self.small if protocol.endswith("json") else self.tensors)
        latencies = []
        while not latencies or time.monotonic() < end:
            start = time.perf_counter()
            client.send(kind, request)
            latencies.append(time.perf_counter() - start)
        request.finish()
        client.close()
        return latencies

    def add(self, place, rate, p50, p99, spent):
        """A row of the table. `place` is server, protocol and archive; the original comes first."""
        row = dict(zip(COLUMNS, (*place, rate, p50, p99, spent)))
        original = next((other for other in self.results if list(other.values())[:2] == list(place[:2])), row)
        row["by rate"] = rate / original["requests/s"]
        row["by CPU"] = original["CPU ms"] / spent
        self.results.append(row)
        print(LINE.format(*row.values()), flush=True)

    def measure_host(self):
        host = self.options.build / "examples" / "serve" / "serve"
        paths = {}
        for kind in KINDS:
            paths[kind] = self.folder / f"{kind}.pt"
            words = [self.tool, "export", *self.model(kind).words(), "--out", paths[kind]]
            subprocess.run([*map(str, words)], check=True, capture_output=True)
        self.use_original(paths["original"])
        paths["compiled"] = self.folder / "compiled.pt2"
        words = [sys.executable, ROOT / "scripts" / "compile_module.py", "--library", self.library,
                 "--variant", "shared_projection", "--weights", self.weights, "--out", paths["compiled"]]
        subprocess.run([*map(str, words)], check=True, capture_output=True)
        found = {kind: [] for kind in paths}
        length = str(self.options.shape[1])
        for _ in range(self.options.turns):
            for kind, path in paths.items():
                words = [host, "load", path, "--batch", self.rows, "--lengths", length, length, "--requests", 100,
                         "--clients", self.options.clients, "--threads", self.options.threads]
                run = subprocess.run([*map(str, words)], check=True, capture_output=True, text=True)
                found[kind].append(dict(line.split(": ", 1) for line in run.stdout.splitlines()))
        for kind, runs in found.items():
            numbers = (statistics.median(float(run[name]) for run in runs)
                       for name in ("requests a second", "p50 ms", "p99 ms", "CPU ms a request"))
            self.add(("C++ host", "in process", kind), *numbers)


def main():
    options = parse()
    use_modules(MLServer(options.build / "serving", "", None, None).modules)
    print(HEADER.format(*COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        for server in (Triton, MLServer):
            if server.name in options.servers:
                bench.measure_server(server)
        if "host" in options.servers:
            bench.measure_host()
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(bench.results)


if __name__ == "__main__":
    main()
