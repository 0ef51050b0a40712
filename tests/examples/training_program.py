"""What the tests of the training program share: running it on a small model, reading its curves."""

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "examples" / "train_language_model"), str(TESTS / "support")]

from folder_test import FolderTest

EXAMPLES = Path(sys.argv[1])
del sys.argv[1]
PROGRAM = EXAMPLES / "train_language_model" / "train_language_model"
ALONE = EXAMPLES / "train_alone"
SMALL = ("--embed 16 --heads 2 --layers 2 --context 32 --batch 4 --warmup 10 --threads 1 "
         "--validate-every 50 --sample 20").split()
LONGEST = 120  # seconds that a run may take on a busy machine
COLUMNS = ("step", "loss", "validation_loss", "learning_rate")  # those that do not tell time


def environment(rank=0, size=1, port=0):
    """This process's, as a launcher would set it for a rank."""
    variables = {name: value for name, value in os.environ.items()
                 if not re.match(r"RANK|WORLD_SIZE|LOCAL_RANK|MASTER_|TORCHELASTIC", name)}
    variables["OMP_WAIT_POLICY"] = "passive"
    if size > 1:
        variables.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return variables


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def read_curve(folder):
    with open(folder / "loss.csv", newline="") as file:
        return [tuple(row[name] for name in COLUMNS) for row in csv.DictReader(file)]


def losses(curve):
    return [float(row[1]) for row in curve]


def largest_difference(curve, expected):
    """Of the losses, relative, over all steps."""
    return max(abs(one - other) / other for one, other in zip(losses(curve), losses(expected), strict=True))


class ProgramTest(FolderTest):
    def start(self, out, *options, program=PROGRAM, rank=0, size=1, port=0, **more):
        """The running program, which ends with the test at the latest."""
        command = [str(program), "--out", str(self.folder / out), *SMALL, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment(rank, size, port), **more)
        self.addCleanup(self.stop, process)
        return process

    @staticmethod
    def stop(process):
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def finish(self, process):
        """(exit status, what it printed, its errors)"""
        out, errors = process.communicate(timeout=LONGEST)
        return process.returncode, out, errors

    def train(self, out, *options, **more):
        """Runs to the end, and returns what was printed."""
        status, printed, errors = self.finish(self.start(out, *options, **more))
        self.assertEqual((status, errors), (0, ""))
        return printed

    def wait_for_step(self, out, step, process):
        """Until the log has that step."""
        log, end = self.folder / out / "loss.csv", time.monotonic() + LONGEST
        while not log.exists() or log.read_bytes().count(b"\n") <= step:
            self.assertIsNone(process.poll(), "ended before the step")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)
