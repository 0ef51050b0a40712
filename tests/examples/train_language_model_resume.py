"""Training that is cut off goes on as if it had not been: train_language_model_resume.py EXAMPLES_DIR"""

import random
import resource
import signal
import subprocess
import unittest

from training_program import ProgramTest, read_curve

import torch

STEPS = 150
OPTIONS = ("--steps", str(STEPS), "--dropout", "0.1")


def limit_files():
    """Files that may grow to 100 kB, less than a checkpoint of the small model."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


class ResumeTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.sample = self.train("whole", *OPTIONS).split("\n\n")[1]
        self.expected = read_curve(self.folder / "whole")
        self.assertEqual([int(row[0]) for row in self.expected], list(range(1, STEPS + 1)))

    def checkpoint(self, out):
        return torch.load(self.folder / out / "checkpoint.pt")

    def check_end(self, out, printed):
        """Losses, weights, averages and generator as without a break, to the bit."""
        self.assertEqual(read_curve(self.folder / out), self.expected)
        ours, theirs = self.checkpoint(out), self.checkpoint("whole")
        for name in theirs.keys() - {"training.seconds"}:
            self.assertTrue(torch.equal(ours[name], theirs[name]), name)
        self.assertEqual(printed.split("\n\n")[1], self.sample)

    def test_killed_at_any_moment(self):
        draw = random.Random(1)
        step, kills = 0, 0
        while step < STEPS - 30:
            step += draw.randint(10, 30)
            process = self.start("out", *OPTIONS, "--checkpoint-every", "1", "--resume")
            self.wait_for_step("out", step, process)
            process.kill()
            process.wait()
            kills += 1
            self.assertGreaterEqual(self.checkpoint("out")["training.step"].item(), step - 1)
        self.assertGreaterEqual(kills, 4)
        self.check_end("out", self.train("out", *OPTIONS, "--resume"))
        self.assertEqual(sorted(file.name for file in (self.folder / "out").iterdir()), ["checkpoint.pt", "loss.csv"])

    def test_rows_after_the_checkpoint_are_taken_again(self):
        process = self.start("out", *OPTIONS, "--checkpoint-every", "40")
        self.wait_for_step("out", 70, process)
        process.kill()
        process.wait()
        self.assertIn(self.checkpoint("out")["training.step"].item(), (40, 80, 120))
        with open(self.folder / "out" / "loss.csv", "a") as log:
            log.write("14")  # a row that a kill cut off
        self.check_end("out", self.train("out", *OPTIONS, "--resume"))

    def test_interrupts(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            out = number.name
            process = self.start(out, *OPTIONS)
            self.wait_for_step(out, 30, process)
            process.send_signal(number)
            status, printed, errors = self.finish(process)
            self.assertEqual((status, errors), (130, ""))
            step = self.checkpoint(out)["training.step"].item()
            self.assertIn(f"stopped after step {step}; --resume continues", printed)
            self.assertEqual(len(read_curve(self.folder / out)), step)
            self.check_end(out, self.train(out, *OPTIONS, "--resume"))

    def check_full(self, out, **more):
        """A run that cannot write its checkpoint says so, and the old one is as it was."""
        process = self.start(out, *OPTIONS, "--checkpoint-every", "20")
        self.wait_for_step(out, 30, process)
        process.kill()
        process.wait()
        file = self.folder / out / "checkpoint.pt"
        before = file.read_bytes()
        status, _, errors = self.finish(self.start(out, *OPTIONS, "--resume", **more))
        self.assertEqual(status, 1)
        self.assertIn("checkpoint.pt", errors)
        self.assertEqual(file.read_bytes(), before)
        return errors

    def test_a_file_that_must_not_grow(self):
        # Python ignores SIGXFSZ, and so does the program that inherits that: writing fails instead.
        errors = self.check_full("out", preexec_fn=limit_files, restore_signals=False)
        self.assertIn("File too large", errors)
        self.check_end("out", self.train("out", *OPTIONS, "--resume"))

    def test_a_full_disk(self):
        out = self.folder / "out"
        out.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", out],
                                 capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no small file system: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", out], check=True)
        self.assertIn("No space left", self.check_full("out"))
        subprocess.run(["mount", "-o", "remount,size=2m", out], check=True)
        self.check_end("out", self.train("out", *OPTIONS, "--resume"))

    def test_what_cannot_be_continued(self):
        self.train("out", "--steps", "2")
        text = self.folder / "other.txt"
        text.write_text("another text " * 200)
        for options, message in (([], "expected a folder without a checkpoint, or --resume"),
                                 (["--resume", "--text", str(text)], "got one of another text"),
                                 (["--resume", "--layers", "1"], "model.blocks.1"),
                                 (["--resume", "--context", "16"], "model.position.weight"),
                                 (["--resume", "--dtype", "float64"], "expected float64")):
            before = (self.folder / "out" / "checkpoint.pt").read_bytes()
            status, _, errors = self.finish(self.start("out", "--steps", "4", *options))
            self.assertEqual(status, 1)
            self.assertIn(message, errors)
            self.assertEqual((self.folder / "out" / "checkpoint.pt").read_bytes(), before)
        file = self.folder / "out" / "checkpoint.pt"
        file.write_bytes(before[: len(before) // 2])
        status, _, errors = self.finish(self.start("out", "--steps", "4", "--resume"))
        self.assertEqual(status, 1)
        self.assertIn("checkpoint.pt", errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
