"""Training in several processes: train_language_model_ranks.py EXAMPLES_DIR"""

import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from training_program import (ALONE, LONGEST, PROGRAM, SMALL, ProgramTest, environment, free_port,
                              largest_difference, read_curve)

OPTIONS = ("--dtype", "float64", "--dropout", "0", "--steps", "200")
TIMEOUT = 5  # seconds that a rank waits for another


def has_processes():
    run = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True)
    return "Processes: any number" in run.stdout


class AloneTest(ProgramTest):
    def test_a_build_without_gloo_says_so(self):
        run = subprocess.run([ALONE, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("Processes: one; gloo's headers were absent", run.stdout)
        status, _, errors = self.finish(self.start("out", program=ALONE, size=2, port=free_port()))
        self.assertEqual(status, 1)
        self.assertIn("WORLD_SIZE: expected 1", errors)

    def test_it_trains_as_the_other(self):
        for name, program in (("alone", ALONE), ("other", PROGRAM)):
            self.train(name, "--steps", "10", program=program)
        self.assertEqual(read_curve(self.folder / "alone"), read_curve(self.folder / "other"))


@unittest.skipUnless(has_processes(), "the program was built for one process")
class RanksTest(ProgramTest):
    def start_ranks(self, out, size, *options):
        port = free_port()
        return [self.start(out, "--timeout", str(TIMEOUT), *OPTIONS, *options, rank=rank, size=size, port=port)
                for rank in range(size)]

    def train_ranks(self, out, size, *options):
        for process in self.start_ranks(out, size, *options):
            status, _, errors = self.finish(process)
            self.assertEqual((status, errors), (0, ""))

    def assert_same_curve(self, out, expected):
        curve, other = (read_curve(self.folder / name) for name in (out, expected))
        self.assertLessEqual(largest_difference(curve, other), 1e-12)

    def test_ranks_share_a_batch(self):
        self.train("one", *OPTIONS)
        for size in (2, 4):
            self.train_ranks(f"ranks{size}", size)
            self.assert_same_curve(f"ranks{size}", "one")

    def test_a_killed_rank_ends_the_others_and_all_resume(self):
        self.train("one", *OPTIONS)
        processes = self.start_ranks("out", 2, "--checkpoint-every", "10")
        self.wait_for_step("out", 50, processes[0])
        processes[1].kill()
        begin = time.monotonic()
        status, _, errors = self.finish(processes[0])
        self.assertLess(time.monotonic() - begin, 2 * TIMEOUT)
        self.assertEqual(status, 1)
        self.assertRegex(errors, r"rank 0 of 2: .*(closed|reset)")
        self.train_ranks("out", 2, "--resume")
        self.assert_same_curve("out", "one")

    def test_a_rank_that_hangs_ends_the_others(self):
        processes = self.start_ranks("out", 2)
        self.wait_for_step("out", 20, processes[0])
        processes[1].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        status, _, errors = self.finish(processes[0])
        self.assertLess(time.monotonic() - begin, 3 * TIMEOUT)
        self.assertEqual(status, 1)
        self.assertRegex(errors, r"rank 0 of 2: .*[Tt]imed out")

    def test_an_interrupt_of_one_stops_all(self):
        processes = self.start_ranks("out", 2)
        self.wait_for_step("out", 20, processes[0])
        processes[1].send_signal(signal.SIGINT)
        ends = [self.finish(process) for process in processes]
        self.assertEqual([(status, errors) for status, _, errors in ends], [(130, "")] * 2)
        step = len(read_curve(self.folder / "out"))
        self.assertIn(f"stopped after step {step};", ends[0][1])

    def test_rows_that_cannot_be_shared(self):
        for process in self.start_ranks("out", 2, "--batch", "3"):
            status, _, errors = self.finish(process)
            self.assertEqual(status, 1)
            self.assertIn("--batch: expected a multiple of 2 processes, got 3", errors)

    def test_a_rank_that_never_comes(self):
        process = self.start("out", "--timeout", "2", rank=0, size=2, port=free_port())
        status, _, errors = self.finish(process)
        self.assertEqual(status, 1)
        self.assertRegex(errors, "[Tt]imed out")

    def test_torchrun_starts_all_again(self):
        self.train("one", *OPTIONS)
        command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2",
                   "--max-restarts", "1", "--monitor-interval", "0.2", "--master-addr", "127.0.0.1",
                   "--master-port", str(free_port()), str(PROGRAM), "--out", str(self.folder / "out"),
                   *SMALL, *OPTIONS, "--timeout", str(TIMEOUT), "--checkpoint-every", "10", "--resume"]
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=environment())
        self.addCleanup(self.stop, launcher)
        self.wait_for_step("out", 50, launcher)
        self.kill_child(launcher, rank=1)
        out, errors = launcher.communicate(timeout=LONGEST)
        self.assertEqual(launcher.returncode, 0, errors)
        self.assertRegex(out, r"2 processes with 1 threads, from step \d+0 of ")
        self.assert_same_curve("out", "one")

    def kill_child(self, launcher, rank):
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        for child in children:
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if b"RANK=%d" % rank in variables:
                subprocess.run(["kill", "-KILL", child], check=True)
                return
        self.fail(f"no rank {rank} among {children}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
