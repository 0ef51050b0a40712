"""The training program's losses beside those of its twin in Python, and what it refuses:
train_language_model_curve.py EXAMPLES_DIR
"""

import os
import pty
import subprocess
import unittest

from training_program import PROGRAM, SMALL, ProgramTest, environment, largest_difference, losses, read_curve

import torch
import train

ALLOWED = {"float64": 1e-12, "float32": 1e-5}  # relative, at each step


class CurveTest(ProgramTest):
    @staticmethod
    def twin(*options):
        """A Training in Python of the small model."""
        return train.Training(train.parse([*SMALL[: SMALL.index("--sample")], *options]))

    @staticmethod
    def rows_of(training):
        rows = []
        training.run(lambda step, loss, validation, rate, *_: rows.append((step, loss, validation, rate)))
        return rows

    def compare(self, dtype, backends, *options):
        self.train(f"first_{dtype}", "--steps", "0", "--dtype", dtype)
        init = ["--init", str(self.folder / f"first_{dtype}" / "checkpoint.pt")]
        common = ["--steps", "200", "--dtype", dtype, *init, *options]
        expected = self.rows_of(self.twin(*common))
        self.assertLess(expected[-1][1], 0.8 * expected[0][1])  # it learns
        for backend in backends:
            self.train(backend, *common, "--backend", backend)
            curve = read_curve(self.folder / backend)
            self.assertLessEqual(largest_difference(curve, expected), ALLOWED[dtype], backend)
            for row, (step, _, validation, rate) in zip(curve, expected, strict=True):
                self.assertEqual((int(row[0]), float(row[3])), (step, rate))
                self.assertEqual(row[2] == "", validation is None)
                if validation is not None:
                    self.assertLessEqual(abs(float(row[2]) - validation), ALLOWED[dtype] * validation)

    def test_float64(self):
        self.compare("float64", ("auto", "eager"), "--dropout", "0.1")

    def test_float32(self):
        self.compare("float32", ("auto", "eager", "fused"), "--dropout", "0")

    def test_bfloat16_is_near(self):
        self.train("wide", "--steps", "30", "--dropout", "0")
        self.train("narrow", "--steps", "30", "--dropout", "0", "--bf16")
        difference = largest_difference(*(read_curve(self.folder / name) for name in ("narrow", "wide")))
        self.assertGreater(difference, 1e-7)
        self.assertLess(difference, 1e-2)

    def test_python_reads_the_weights_and_writes_them(self):
        self.train("out", "--steps", "30")
        checkpoint = self.folder / "out" / "checkpoint.pt"
        self.assertEqual(torch.load(checkpoint)["training.step"].item(), 30)
        training = self.twin("--dropout", "0", "--init", str(checkpoint))
        self.assertAlmostEqual(training.validate(), float(read_curve(self.folder / "out")[-1][2]), places=5)
        saved = {name: value.clone() for name, value in training.model.state_dict().items()}
        first_loss, _ = training.step(0)
        for prefix in ("", train.PREFIX):
            weights, out = self.folder / "weights.pt", f"from{prefix}"
            torch.save({prefix + name: value for name, value in saved.items()}, weights)
            self.train(out, "--steps", "1", "--dropout", "0", "--init", str(weights))
            self.assertAlmostEqual(losses(read_curve(self.folder / out))[0], first_loss, places=5)


class OutputTest(ProgramTest):
    def test_a_terminal_gets_a_bar_and_a_pipe_lines(self):
        printed = self.train("pipe", "--steps", "60", "--log-every", "20")
        self.assertEqual(printed.count("\nstep "), 4)  # 20, 40, 50 with its validation, 60
        self.assertRegex(printed, r"step 60/60: loss [\d.]+, validation [\d.]+, \d+ tokens/s, 0:00 left")
        reader, writer = pty.openpty()
        command = [PROGRAM, "--out", self.folder / "terminal", *SMALL, "--steps", "60"]
        with subprocess.Popen(command, stdout=writer, env=environment()) as process:
            os.close(writer)
            shown = b""
            while process.poll() is None or shown == b"":
                try:
                    shown += os.read(reader, 4096)
                except OSError:  # the other side is closed
                    break
        os.close(reader)
        self.assertEqual(process.returncode, 0)
        self.assertRegex(shown.decode(), r"\r\x1b\[K\[#+\.+\] 30/60 loss [\d.]+, \d+ tokens/s, \d+:\d\d left")

    def test_the_sample_continues_the_prompt(self):
        printed = [self.train(out, "--steps", "20", "--sample", "30", "--prompt", "The ") for out in "ab"]
        sample = printed[0].split("\n\n", 1)[1]
        self.assertTrue(sample.startswith("The "))
        self.assertEqual(len(sample), 4 + 30 + 1)
        self.assertEqual(sample, printed[1].split("\n\n", 1)[1])

    def test_what_does_not_fit_is_refused(self):
        short = self.folder / "short.txt"
        short.write_text("short")
        weights = self.folder / "weights.pt"
        torch.save({"token.weight": torch.zeros(2, 2)}, weights)
        cases = (  # options, exit status, error
            (["--heads", "3"], 2, "--heads: expected a divisor of --embed 16, got 3"),
            (["--steps", "-1"], 2, "--steps"),
            (["--dropout", "1.5"], 2, "--dropout"),
            (["--backend", "quick"], 2, "--backend"),
            (["--out", ""], 2, "--out: expected a folder, got none"),
            (["--text", str(self.folder / "absent")], 1, "the file cannot be read: No such file"),
            (["--text", str(self.folder)], 1, "the file cannot be read: Is a directory"),
            (["--text", str(short)], 1, "expected at least 1320 bytes"),
            (["--prompt", "\x01"], 1, "got byte 0x01, which it lacks"),
            (["--init", str(weights)], 1, "token.weight: expected float32"),
            (["--init", str(short)], 1, "short.txt"),
            (["--device", "cuda"], 1, "--device cuda: expected a device"),
            (["--backend", "fused", "--dtype", "float64"], 1, "float64"),
            (["--learning-rate", "1000", "--clip", "1000000000", "--steps", "50"], 1, "loss: expected a finite number"),
        )
        for options, expected, message in cases:
            if "cuda" in options and torch.cuda.is_available():
                continue
            with self.subTest(" ".join(options)):
                status, _, errors = self.finish(self.start("out", *options))
                self.assertEqual(status, expected, errors)
                self.assertIn(message, errors)
                self.assertFalse((self.folder / "out" / "checkpoint.pt").exists())

    def test_variables_of_a_launcher_that_do_not_fit(self):
        for variables, message in (({"RANK": "0"}, "expected both or neither"),
                                   ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK: expected a number from 0 to 1, got 2"),
                                   ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE: expected a number"),
                                   ({"RANK": "0", "WORLD_SIZE": "2"}, "expected where rank 0 is, got none")):
            run = subprocess.run([PROGRAM], env={**environment(), **variables}, capture_output=True, text=True)
            self.assertEqual(run.returncode, 1)
            self.assertIn(message, run.stderr)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
