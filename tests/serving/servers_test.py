"""Archives behind a server, called over its protocols and compared with the Python classes:
servers_test.py SERVER SELF_ATTENTION_BINARY LIBRARY FOLDER [UNITTEST OPTIONS]

SERVER is triton or mlserver; servers are installed into FOLDER. Exit status 77: the package index
did not answer.
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "io")]

from archives import make_class, write_weights
from client import Client, use_modules
from serving_export import Model
from serving_install import PackageError
from serving_mlserver import MLServer
from serving_process import free_port
from serving_triton import Triton

SERVER, TOOL, LIBRARY, FOLDER = sys.argv[1:5]
del sys.argv[1:5]
EMBED, HEADS = 16, 2
SHAPES = ((1, 1, 1), (1, 7, 5), (2, 5, 3), (4, 17, 9), (8, 64, 64))  # N, K, Q
KINDS = ("portable", "fused")
CLIENTS, REQUESTS = 8, 2000
SKIPPED = 77


def draw(shape, seed, masked=True):
    """Three tensors that all differ, and a mask that hides some keys."""
    batch, keys, queries = shape
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(batch, length, EMBED, generator=generator)
               for name, length in (("values", keys), ("keys", keys), ("query", queries))}
    if masked:
        tensors["mask"] = torch.rand(batch, 1, 1, keys, generator=generator) < 0.7
    return tensors


def changed(module):
    """The class with other weights."""
    other = make_class("shared_projection", EMBED, HEADS)
    with torch.no_grad():
        for mine, given in zip(other.parameters(), module.parameters()):
            mine.copy_(-2 * given)
    return other


@torch.no_grad()
def expect(module, tensors):
    return module(*tensors.values())


def close_to(actual, expected):
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=1e-5, atol=1e-6)


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.shared = make_class("shared_projection", EMBED, HEADS)
        cls.full = make_class("full_projection", EMBED, HEADS)
        cls.server = server = make_server(cls.folder / "models")
        server.clear()
        for kind in KINDS:
            server.write(cls.model(kind, cls.shared, ops=kind))
            server.write(cls.model(f"full_{kind}", cls.full, ops=kind, variant="full_projection",
                                   heads=HEADS, mask="none"))
        server.write(cls.model("reloaded", cls.shared))
        cls.port, cls.grpc_port = free_port(), free_port()
        cls.process = server.start(cls.port, cls.grpc_port)
        cls.addClassCleanup(cls.process.stop)
        cls.process.wait_until_ready()

    @classmethod
    def model(cls, name, module, **options):
        weights = write_weights(module.state_dict(), cls.folder / f"{name}.safetensors")
        return Model(name, weights, **options)

    def connect(self, protocol):
        client = Client(protocol, self.port, self.grpc_port)
        self.addCleanup(client.close)
        return client

    def test_outputs_are_those_of_python(self):
        for protocol in self.server.protocols:
            client = self.connect(protocol)
            for kind in KINDS:
                for seed, shape in enumerate(SHAPES):
                    with self.subTest(protocol, kind=kind, shape=shape):
                        tensors = draw(shape, seed)
                        answer = client.infer(kind, tensors)
                        self.assertTrue(close_to(answer, expect(self.shared, tensors)))
                        tensors = draw(shape, seed, masked=False)
                        answer = client.infer(f"full_{kind}", tensors)
                        self.assertTrue(close_to(answer, expect(self.full, tensors)))

    def test_wrong_shapes_get_our_words_and_the_server_stays_up(self):
        good = draw((2, 5, 3), 0)
        wrong = {"values: expected as many positions as keys, K=5, got 4": {"values": good["values"][:, :4].contiguous()},
                 "mask: expected a shape that broadcasts to (N=2, H=2, Q=3, K=5)": {"mask": torch.ones(2, 1, 1, 4, dtype=torch.bool)}}
        for protocol in self.server.protocols:
            client = self.connect(protocol)
            for kind in KINDS:
                for words, change in wrong.items():
                    with self.subTest(protocol, kind=kind, words=words):
                        with self.assertRaises(Exception) as raised:
                            client.infer(kind, {**good, **change})
                        self.assertRegex(str(raised.exception), r"\[(Shared|shared_)")
                        self.assertIn(words, str(raised.exception))
                        self.assertTrue(close_to(client.infer(kind, good), expect(self.shared, good)))
        self.assertTrue(self.process.running())

    def test_what_is_no_request_is_refused_and_the_server_stays_up(self):
        one = {"name": "values", "shape": [1, 2, EMBED], "datatype": "FP32", "data": [1.0] * EMBED}
        url = f"http://127.0.0.1:{self.port}/v2/models/portable/infer"
        for body in (b"no JSON", b"{}", json.dumps({"inputs": [one]}).encode()):
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with self.assertRaises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(request, timeout=60)
            self.assertIn(raised.exception.code // 100, (4, 5))
            raised.exception.close()
        good = draw((1, 2, 2), 0)
        answer = self.connect("http-json").infer("portable", good)
        self.assertTrue(close_to(answer, expect(self.shared, good)))

    def from_all_clients(self, protocol, work):
        """work(client, number) for every number of REQUESTS, on CLIENTS threads."""
        def run(first):
            client = Client(protocol, self.port, self.grpc_port)
            try:
                return sum(work(client, number) for number in range(first, REQUESTS, CLIENTS))
            finally:
                client.close()

        with ThreadPoolExecutor(CLIENTS) as pool:
            return sum(pool.map(run, range(CLIENTS)))

    def test_no_request_is_lost(self):
        cases = [draw((1 + seed % 3, 4 + 4 * (seed % 4), 6), seed) for seed in range(24)]
        expected = [expect(self.shared, tensors) for tensors in cases]

        def work(client, number):
            case = number // CLIENTS % len(cases)  # the clients' shapes meet, and can be one batch
            answer = client.infer(KINDS[number % 2], cases[case])
            return close_to(answer, expected[case])

        protocol = self.server.protocols[1]
        before = self.calls(protocol)
        self.assertEqual(self.from_all_clients(protocol, work), REQUESTS)
        if SERVER == "triton":
            self.assertLess(self.calls(protocol) - before, REQUESTS)  # some were merged

    def calls(self, protocol):
        client = self.connect(protocol)
        return sum(client.calls(kind) for kind in KINDS) if SERVER == "triton" else 0

    def test_a_model_is_reloaded_under_load(self):
        tensors, after = draw((2, 6, 4), 0), changed(self.shared)
        old, new = (expect(module, tensors) for module in (self.shared, after))
        protocol = self.server.protocols[1]
        found, done = {"old": 0, "new": 0, "neither": 0}, threading.Event()
        lock = threading.Lock()

        def send(_):
            client = Client(protocol, self.port, self.grpc_port)
            while not done.is_set():
                answer = client.infer("reloaded", tensors)
                key = "old" if close_to(answer, old) else "new" if close_to(answer, new) else "neither"
                with lock:
                    found[key] += 1
            client.close()

        with ThreadPoolExecutor(CLIENTS) as pool:
            sending = [pool.submit(send, number) for number in range(CLIENTS)]
            try:
                time.sleep(1)
                self.server.write(self.model("reloaded", after))
                client = self.connect(protocol)
                client.reload("reloaded")
                self.assertTrue(close_to(client.infer("reloaded", tensors), new))
                time.sleep(1)
            finally:
                done.set()
            for one in sending:
                one.result()
        self.assertEqual(found["neither"], 0)
        self.assertGreater(found["old"], 0)
        self.assertGreater(found["new"], 0)


class CommandTest(unittest.TestCase):
    """What scripts/serve_triton and serve_mlserver hand over to, once all is built."""

    def start(self, *words):
        command = [sys.executable, str(ROOT / "scripts" / "serving.py"), SERVER, "--folder", FOLDER,
                   "--tool", TOOL, "--library", LIBRARY, *map(str, words)]
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_it_serves_and_its_server_ends_with_it(self):
        port = free_port()
        process = self.start("--port", port, "--mask", "required")
        lines = []
        while not lines or "curl" not in lines[-1]:
            lines.append(process.stdout.readline())
            self.assertTrue(lines[-1], "ended early")
        url, path = lines[-1].split()[-1], lines[-1].split("@")[1].split()[0]
        body, headers = Path(path).read_bytes(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
            output = json.load(answer)["outputs"][0]
        given = [torch.tensor(one["data"]).view(one["shape"]) for one in json.loads(body)["inputs"]]
        expected = make_class("shared_projection")(*given).detach()
        self.assertTrue(close_to(torch.tensor(output["data"]).view(output["shape"]), expected))

        server = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        process.send_signal(signal.SIGKILL)
        end = time.monotonic() + 60
        while running(server) and time.monotonic() < end:
            time.sleep(0.1)
        self.assertFalse(running(server))

    def test_what_cannot_be_served_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for words, said in ((["--port", port], f"[serving] --port: expected a free port, got {port}"),
                                (["--port", free_port(), "--weights", "absent.pt"], "absent.pt")):
                process = self.start(*words)
                _, errors = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 2)
                self.assertIn(said, errors)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def make_server(models):
    return {"triton": Triton, "mlserver": MLServer}[SERVER](FOLDER, models, TOOL, LIBRARY)


def main():
    client = MLServer(FOLDER, FOLDER, TOOL, LIBRARY)
    try:
        make_server(FOLDER).install()
        client.install()
    except PackageError as error:
        print(error, file=sys.stderr)
        return SKIPPED if error.unreachable else 1
    use_modules(client.modules)
    unittest.main()


if __name__ == "__main__":
    sys.exit(main())
