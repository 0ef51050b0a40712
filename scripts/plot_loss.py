#!/usr/bin/env python3
"""Draws the loss of training runs, from the CSVs of the training program or its twin in Python.

  plot_loss.py language_model/loss.csv                       writes loss.png
  plot_loss.py ours=out/loss.csv python=twin.csv --png both.png

A word before = names the curve. The validation loss is dashed. --smooth N draws the mean of the last
N steps over the paler curve of all; --seconds has time below instead of steps. Needs matplotlib.

Exit status: 0 drawn, 2 a file or matplotlib cannot be used.
"""

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Curve:
    """Columns of a CSV."""

    name: str
    steps: list
    seconds: list
    losses: list
    validation: list  # pairs of a place in the others and a loss


def read_curve(argument):
    name, _, path = argument.rpartition("=")
    curve = Curve(name or path, [], [], [], [])
    try:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                if row["validation_loss"]:
                    curve.validation.append((len(curve.steps), float(row["validation_loss"])))
                curve.steps.append(int(row["step"]))
                curve.seconds.append(float(row["seconds"]))
                curve.losses.append(float(row["loss"]))
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(fail(f"{path}: cannot be read: {error}"))
    except (KeyError, TypeError, ValueError) as error:
        sys.exit(fail(f"{path}: expected columns step, loss, validation_loss and seconds of numbers, "
                      f"got {type(error).__name__}: {error}"))
    if not curve.steps:
        sys.exit(fail(f"{path}: expected a row for each step, got none"))
    return curve


def fail(message):
    print(f"plot_loss: {message}", file=sys.stderr)
    return 2


def smoothed(values, width):
    """The mean of each value and those before it, `width` of them or as many as there are."""
    total, means = 0.0, []
    for index, value in enumerate(values):
        total += value - (values[index - width] if index >= width else 0.0)
        means.append(total / min(index + 1, width))
    return means


def draw(curves, options, pyplot):
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for number, curve in enumerate(curves):
        color = f"C{number}"
        places = curve.seconds if options.seconds else curve.steps
        if options.smooth > 1:
            axes.plot(places, curve.losses, color=color, alpha=0.25, linewidth=0.8)
        axes.plot(places, smoothed(curve.losses, options.smooth), color=color, linewidth=1.2, label=curve.name)
        if curve.validation:
            axes.plot([places[place] for place, _ in curve.validation], [loss for _, loss in curve.validation],
                      color=color, linestyle="--", marker="o", markersize=3, label=f"{curve.name}, validation")
    axes.set_xlabel("seconds" if options.seconds else "step")
    axes.set_ylabel("loss, nats a character")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(options.png, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="+", metavar="[NAME=]CSV")
    parser.add_argument("--png", type=Path, default="loss.png", help="the picture, loss.png")
    parser.add_argument("--smooth", type=int, default=1, metavar="N", help="steps of a mean, 1")
    parser.add_argument("--seconds", action="store_true", help="time below instead of steps")
    options = parser.parse_args()
    if options.smooth < 1:
        parser.error(f"--smooth: expected at least 1, got {options.smooth}")
    curves = [read_curve(argument) for argument in options.curves]
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        return fail(f"{error}; run: {sys.executable} -m pip install matplotlib")
    try:
        draw(curves, options, pyplot)
    except (OSError, ValueError) as error:
        return fail(f"{options.png}: cannot be written: {error}")
    print(f"wrote {options.png}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
