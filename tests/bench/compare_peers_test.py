"""Tests of scripts/compare_peers.py, without optional peers and without judging a time.

Arguments: the library, the self-attention command.
"""

import contextlib
import csv
import dataclasses
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
# As if they were not installed.
sys.modules["onnxruntime"] = sys.modules["openvino"] = None

import compare_peers  # isort: skip
import peer_module_cases
import peer_module_report
import peer_modules
import peer_timing
import torch
from peer_cases import CASES, Target, make_inputs
from peer_report import Row
from peer_roofline import Roofline
from peer_runs import Ours, Run, Torch

LIBRARY = COMMAND = None


def compare(*arguments):
    """(exit status, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    words = ["--library", LIBRARY, "--seconds", "0.01", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = compare_peers.main([str(word) for word in words])
        except SystemExit as error:  # argparse's
            status = error.code
    return status, out.getvalue(), err.getvalue()


def case_named(name):
    return next(case for case in CASES if case.name == name)


class ComparePeersTest(unittest.TestCase):
    def test_the_cases_are_those_of_the_command(self):
        command = [COMMAND, "bench", "--list"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertEqual(listed.split(), [case.name for case in CASES])
        self.assertEqual(compare("--list")[1], listed)

    def test_measures_without_optional_peers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "out.csv")
            status, out, err = compare("--cases", "L9", "--threads", "1", "--csv", path)
            self.assertEqual((status, err), (0, ""))
            rows = list(csv.DictReader(path.read_text().splitlines()))
        self.assertRegex(out, "absent: onnxruntime .*pip install")
        self.assertRegex(out, "absent: openvino .*pip install")
        self.assertIn("targets: ", out)
        self.assertEqual([row["case"] for row in rows], ["L97", "L9"])
        for row in rows:
            self.assertGreater(float(row["seconds"]), 0)
            self.assertGreater(float(row["ratio_torch"]), 0)
            self.assertGreater(float(row["of_peak"]), 0)

    def test_refuses_what_it_cannot_serve(self):
        for words, arguments in {
            "no case has that text": ["--cases", "no-such-case"],
            "scripts/setup builds it": ["--library", "/no/such/library.so"],
            "expected 1 or more": ["--threads", "0"],
        }.items():
            with self.subTest(words):
                status, out, err = compare(*arguments)
                self.assertEqual((status, out), (2, ""))
                self.assertIn(words, err)

    def test_a_wrong_peer_is_reported_and_not_timed(self):
        wrong = {"doubled": Run(lambda: torch.zeros(32, 8, 9, 32)), "raising": RuntimeError("no")}
        with mock.patch.object(Torch, "runs", lambda *_: wrong):
            status, out, err = compare("--cases", "L9", "--threads", "1")
        self.assertEqual(status, 0)
        self.assertIn("torch doubled left out: wrong by", err)
        self.assertIn("torch raising left out: no", err)
        self.assertRegex(out, r"L9 +1 +\d+ µs +- ")

    def test_a_wrong_result_of_ours_fails(self):
        wrong = {"attention": Run(lambda: torch.full((32, 8, 9, 32), float("nan")))}
        with mock.patch.object(Ours, "runs", lambda *_: wrong):
            status, _, err = compare("--cases", "L9", "--threads", "1")
        self.assertEqual(status, 1)
        self.assertIn("our result is wrong by inf", err)

    def test_every_case_is_computed_alike_by_torch(self):
        for case in CASES:
            if case.queries > 513:
                continue
            with self.subTest(case.name):
                inputs = make_inputs(case)
                for peer in (Torch(), Ours()):
                    good, refused = compare_peers.usable_runs(peer, inputs, inputs.expected(), 1)
                    self.assertEqual((len(good), refused), (1, {}))


class ModulesTest(unittest.TestCase):
    def test_measures_modules(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "out.csv")
            status, out, err = compare("--modules", "--cases", "n32-L9", "--threads", "1", "--csv", path,
                                       "--peers", "original", "algebra", "multihead")
            self.assertEqual((status, err), (0, ""))
            rows = {row["case"]: row for row in csv.DictReader(path.read_text().splitlines())}
        self.assertEqual(len(rows), 4)
        for name, row in rows.items():
            owed = {"original", "algebra"} if "shared" in name else {"original", "multihead"}
            timed = {peer for peer in ("original", "algebra", "multihead") if row[f"ratio_{peer}"]}
            self.assertEqual(timed, owed)
            self.assertGreater(float(row["by_limit"]), 0.5)
        self.assertIn("shared-n32-L9-e256-padding", out)

    def test_other_peers_are_refused(self):
        status, _, err = compare("--modules", "--peers", "openvino")
        self.assertEqual(status, 2)
        self.assertIn("--peers: expected some of original, algebra, compiled, multihead", err)

    def test_a_class_that_does_not_compile_is_left_out(self):
        case = dataclasses.replace(peer_module_cases.CASES[0], batch=1)
        inputs = peer_module_cases.make_inputs(case)
        row = peer_module_report.Row(case, 1)
        err = io.StringIO()
        with mock.patch("torch.compile", side_effect=RuntimeError("no compiler")), contextlib.redirect_stderr(err):
            timers = compare_peers.peer_timers({"compiled": peer_modules.Compiled()}, inputs, None, row)
        self.assertEqual((timers, row.forms), ({}, {"compiled": "left out"}))
        self.assertIn("left out: no compiler", err.getvalue())

    def test_operations_are_those_of_the_cheapest_order(self):
        case = peer_module_cases.ModuleCase("shared_projection", 1, 1024, 512, 8, queries=1024)
        attention, linear, head = 4 * 1024 * 1024 * 512, 2 * 1024 * 512 * 512, 2 * 1024 * 512 * 64
        self.assertEqual(case.flops, attention + linear + head + 2 * 64**3 + 2 * 512 * 512 * 64)
        one = dataclasses.replace(case, queries=1)
        self.assertEqual(one.flops, (attention + linear) // 1024 + 3 * 2 * 512 * 64)
        padded = dataclasses.replace(case, variant="full_projection", padding=True)
        self.assertEqual(padded.flops, attention * 3 // 4 + 2 * linear + 2 * linear * 3 // 4)

    def test_steps_give_the_gradients_of_the_class(self):
        for step in (peer_module_cases.LONG_STEP, peer_module_cases.CAUSAL_STEP):
            case = dataclasses.replace(step, batch=2, keys=30, queries=30, embed=32, heads=4)
            inputs = peer_module_cases.make_inputs(case)
            expected = inputs.expected()
            # The output, of the input's size, the input's gradient and those of all parameters.
            sizes = [tensor.numel() for tensor in (inputs.values, inputs.values, *inputs.parameters)]
            self.assertEqual(expected.shape, (sum(sizes),))
            for peer in (peer_modules.OurModule(), peer_modules.Original()):
                good, refused = compare_peers.usable_runs(peer, inputs, expected, 1)
                self.assertEqual((len(good), refused), (1, {}))

    def test_operations_of_a_step(self):
        step = peer_module_cases.LONG_STEP
        forward = dataclasses.replace(step, trains=False)
        attention = 4 * 2 * 1024 * 1024 * 512
        projections = forward.flops - attention
        self.assertEqual(step.flops, attention * 7 // 2 + 3 * projections)
        self.assertEqual(dataclasses.replace(forward, causal=True).flops,
                         attention * 1025 // 2048 + projections)

    def test_goals_are_geometric_means_over_all_of_their_cases(self):
        first, second = peer_module_cases.CASES[:2]
        goal = peer_module_cases.Goal("original", (first, second), Target(2, 4))
        rows = [peer_module_report.Row(first, 1, ratios={"original": 2.0})]
        self.assertIsNone(goal.value(rows))
        rows.append(peer_module_report.Row(second, 1, ratios={"original": 8.0}, of_peak=0.5))
        self.assertAlmostEqual(goal.value(rows), 4)
        self.assertEqual(peer_module_report.goal_text(goal, goal.value(rows)),
                         "original, 2 cases: 4, floor 2, aim 4: aim")
        peak = peer_module_cases.Goal("peak", (second,), Target(1 / 1.45, 1 / 1.2))
        self.assertEqual(peer_module_report.goal_text(peak, peak.value(rows)),
                         f"peak, {second.name}: 2, floor 1.45, aim 1.2: below")


class TimingTest(unittest.TestCase):
    def test_ratios_are_those_of_what_is_timed(self):
        ours = mock.Mock(sample=lambda: 2.0)
        ratios, seconds = peer_timing.paired_ratios(ours, {"slow": lambda: 3.0}, 0)
        self.assertEqual((ratios, seconds), ({"slow": 1.5}, 2.0))

    def test_a_disturbed_sample_is_taken_again(self):
        timer = peer_timing.Timer(lambda: None, 2)
        samples = iter([(9.0, 0.5), (4.0, 0.0), (1.0, 0.0)])
        with mock.patch.object(timer, "sample_once", lambda: next(samples)):
            self.assertEqual(timer.sample(), 4.0)

    def test_the_roofline_is_finite_with_and_without_a_compiler(self):
        for loops in (None, Roofline(1).loops):
            roofline = Roofline(2)
            roofline.loops = loops
            for rate in (roofline.multiply_add_rate(), roofline.read_rate(1 << 20)):
                self.assertTrue(1e7 < rate < 1e15, rate)


class TargetTest(unittest.TestCase):
    def test_verdicts(self):
        target = Target(1.2, 1.5)
        self.assertEqual([target.verdict(x) for x in (1.1, 1.2, 1.5)], ["below", "floor", "aim"])
        row = Row(case_named("d64-L512"), 1, ratios={"torch": 2.0, "openvino": 0.9}, of_peak=0.5)
        self.assertEqual(row.best, "openvino")
        self.assertEqual(row.below(), ["best", "peak"])
        row.threads = 2  # shares of peak have targets at one thread
        self.assertEqual(row.below(), ["best"])


if __name__ == "__main__":
    LIBRARY, COMMAND = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
