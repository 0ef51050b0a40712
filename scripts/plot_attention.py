#!/usr/bin/env python3
"""Draws attention weights, as forward_with_weights() gives them, one panel a head.

  plot_attention.py maps.safetensors                           writes maps.png
  plot_attention.py maps.pt --tensor layer0 --item 1 --heads 0 3 --mean --png out.png
  plot_attention.py maps.pt --labels "the cat sat"             names for queries and keys
  plot_attention.py maps.pt --query-labels @words.txt          one name a line

FILE holds tensors by name, as save_state_dict() and safetensors write them, or is a torch.save of
one tensor or of a dict of them. Weights are (N, H, Q, K), (N, Q, K) or (Q, K): batch, heads,
queries, keys; --axes HQK reads three axes as the heads of one item. Queries are the rows of a
panel and keys its columns; all panels have the same scale; what is not a number is drawn red. In
those of long sequences a cell stands for several weights and shows the largest.

Needs torch and safetensors, and matplotlib: python -m pip install matplotlib
Exit status: 0 drawn, 2 the request cannot be served.
"""

import argparse
import io
import math
import sys
from pathlib import Path

try:
    import torch
    from atomic_file import write_atomically
    from safetensors import SafetensorError, safe_open
except ImportError as error:
    print(f"plot_attention: {error}; {sys.executable} needs torch and safetensors", file=sys.stderr)
    sys.exit(2)

AXES = ("NHQK", "NQK", "HQK", "QK")
# What a number of axes means where --axes does not say.
USUAL_AXES = {4: "NHQK", 3: "NQK", 2: "QK"}
NAMED = {"--labels": "queries and keys", "--query-labels": "queries", "--key-labels": "keys"}
MOST_LISTED = 10
# Of 16-bit weights near one.
ROUNDING = 0.01

# Inches: of a row or column with a name, and of a panel's and the figure's sides.
NAMED_LINE = 0.16
LEAST_PANEL, MOST_PANEL, MOST_NAMED_PANEL, MOST_FIGURE = 2.6, 4, 9, 60
POINTS = 8  # of the names
MOST_CELLS = 300  # a side that a panel can show


class Unusable(Exception):
    """What was asked for cannot be done."""


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help=".safetensors, .pt or .pth")
    parser.add_argument("--tensor", metavar="NAME", help="which tensor, where FILE has several")
    parser.add_argument("--axes", choices=AXES, help="what the axes are")
    parser.add_argument("--item", type=int, default=0, metavar="N", help="of the batch (0)")
    parser.add_argument("--heads", type=int, nargs="+", metavar="H", help="these alone, from 0")
    parser.add_argument("--mean", action="store_true", help="add their mean over all heads")
    for option, what in NAMED.items():
        words = f"names of {what}: words, or @FILE with one a line"
        parser.add_argument(option, metavar="TOKENS", help=words)
    parser.add_argument("--png", type=Path, metavar="FILE", help="what to write (FILE's name .png)")
    options = parser.parse_args(arguments)
    options.png = options.png or options.file.with_suffix(".png")
    if options.png.suffix != ".png":
        parser.error(f"--png: expected a name that ends in .png, got {options.png}")
    return options


def chosen_name(names, wanted, path):
    """`wanted`, or the only one."""
    listed = ", ".join(map(repr, names[:MOST_LISTED])) or "which has none"
    more = ", …" if len(names) > MOST_LISTED else ""
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted not in names:
        got = "none" if wanted is None else repr(wanted)
        raise Unusable(f"--tensor: expected one of those in {path}, {listed}{more}; got {got}")
    return wanted


def read_torch(path, name):
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise Unusable(f"cannot read {path}: {reason}") from error
    if isinstance(loaded, torch.Tensor):
        if name is not None:
            raise Unusable(f"--tensor: {path} holds one tensor, without a name")
        return loaded
    if not isinstance(loaded, dict):
        kind = type(loaded).__name__
        raise Unusable(f"{path}: expected a tensor or a dict of tensors, got {kind}")
    tensors = {key: value for key, value in loaded.items() if isinstance(value, torch.Tensor)}
    return tensors[chosen_name(list(tensors), name, path)]


def read_tensor(path, name):
    """The file's tensor of that name, or its only one."""
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, "pt") as file:
                return file.get_tensor(chosen_name(list(file.keys()), name, path))
        except SafetensorError as error:
            raise Unusable(f"cannot read {path}: {error}") from error
    if path.suffix not in (".pt", ".pth"):
        raise Unusable(f"{path}: expected a name that ends in .safetensors, .pt or .pth")
    return read_torch(path, name)


def of_one_item(weights, options):
    """The weights as (H, Q, K), or (1, Q, K) without heads; whether there are heads."""
    shape = tuple(weights.shape)
    axes = options.axes or USUAL_AXES.get(weights.dim())
    if axes is None or len(axes) != weights.dim() or not weights.numel():
        wanted = f"({', '.join(axes)})" if options.axes else "(N, H, Q, K), (N, Q, K) or (Q, K)"
        raise Unusable(f"weights: expected shape {wanted} with no axis of 0, got {shape}")
    if not weights.is_floating_point() or weights.layout != torch.strided:
        got = f"{weights.dtype}, {weights.layout}"
        raise Unusable(f"weights: expected dense floating numbers, got {got}")
    if "N" in axes:
        if not 0 <= options.item < shape[0]:
            raise Unusable(f"--item: expected 0 to {shape[0] - 1}, got {options.item}")
        weights = weights[options.item]
    elif options.item:
        raise Unusable(f"--item: expected 0 for {axes} without a batch, got {options.item}")
    return (weights, True) if "H" in axes else (weights.unsqueeze(0), False)


def maps_of(weights, options):
    """{title: (Q, K)} of what is asked for."""
    item, has_heads = of_one_item(weights, options)
    item = item.detach().float()
    low, high = item.nan_to_num(0).min().item(), item.nan_to_num(0).max().item()
    if low < 0 or high > 1 + ROUNDING:
        raise Unusable(f"weights: expected numbers from 0 to 1, got some from {low:g} to {high:g}")
    if not has_heads:
        if options.heads or options.mean:
            raise Unusable(
                "--heads, --mean: expected weights with an axis of heads, "
                f"got {tuple(weights.shape)}; --axes HQK reads the first of three as that"
            )
        return {"": item[0]}
    heads = options.heads or range(len(item))
    for head in heads:
        if not 0 <= head < len(item):
            raise Unusable(f"--heads: expected 0 to {len(item) - 1}, got {head}")
    maps = {f"head {head}": item[head] for head in heads}
    return maps | ({f"mean of {len(item)} heads": item.mean(0)} if options.mean else {})


def shrunk(matrix):
    """At most MOST_CELLS a side, the largest weight of several in each: a mean would hide it."""
    sizes = [min(size, MOST_CELLS) for size in matrix.shape]
    return torch.nn.functional.adaptive_max_pool2d(matrix[None], sizes)[0]


def read_labels(option, text, count):
    """The names that an option gives, `count` of them; None without the option."""
    if text is None:
        return None
    if text.startswith("@"):
        try:
            labels = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise Unusable(f"{option}: expected UTF-8 in {text[1:]}, got {error}") from error
    else:
        labels = text.split()
    if len(labels) != count:
        raise Unusable(f"{option}: expected {count} names, got {len(labels)}")
    return labels


def labels_of(options, shape):
    """Names of the queries and of the keys, None for numbers."""
    queries = read_labels("--labels", options.labels, shape[0])
    keys = read_labels("--labels", options.labels, shape[1])
    return (
        read_labels("--query-labels", options.query_labels, shape[0]) or queries,
        read_labels("--key-labels", options.key_labels, shape[1]) or keys,
    )


def side(count, labels, columns):
    """Inches of a panel with so many rows or columns."""
    most = MOST_NAMED_PANEL if labels else MOST_PANEL
    return min(max(count * NAMED_LINE, LEAST_PANEL), most, MOST_FIGURE / columns)


def name_lines(axis, labels, inches):
    """Names along an axis, as many as there is room for."""
    if labels is None:
        return
    step = math.ceil(len(labels) * NAMED_LINE / inches)
    places = range(0, len(labels), step)
    # A "$" in a name is no formula.
    axis.set_ticks(places, [labels[i] for i in places], fontsize=POINTS, parse_math=False)


def draw(maps, query_labels, key_labels):
    """The picture's bytes, as PNG."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    queries, keys = next(iter(maps.values())).shape
    columns = math.ceil(math.sqrt(len(maps)))
    lines = math.ceil(len(maps) / columns)
    width, height = side(keys, key_labels, columns), side(queries, query_labels, columns)
    figure = Figure(figsize=(columns * width + 1, lines * height + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    colours = colormaps["viridis"].with_extremes(bad="red")
    highest = max(matrix.nan_to_num(0).max().item() for matrix in maps.values())
    style = {"aspect": "auto", "interpolation": "nearest", "cmap": colours}
    style |= {"vmin": 0, "vmax": highest, "extent": (-0.5, keys - 0.5, queries - 0.5, -0.5)}
    for panel in panels.flat[len(maps) :]:
        panel.set_visible(False)
    for panel, (title, matrix) in zip(panels.flat, maps.items()):
        image = panel.imshow(shrunk(matrix).numpy(), **style)
        panel.set_title(title, fontsize=POINTS + 2)
        name_lines(panel.yaxis, query_labels, height)
        name_lines(panel.xaxis, key_labels, width)
        panel.tick_params(axis="x", labelrotation=90 if key_labels else 0)
    figure.supxlabel("key")
    figure.supylabel("query")
    figure.colorbar(image, ax=panels, label="weight")
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=100)
    return png.getvalue()


def plot(options):
    maps = maps_of(read_tensor(options.file, options.tensor), options)
    shape = tuple(next(iter(maps.values())).shape)
    labels = labels_of(options, shape)
    try:
        png = draw(maps, *labels)
    except ImportError as error:
        command = f"{sys.executable} -m pip install matplotlib"
        raise Unusable(f"{error}; drawing needs it: {command}") from error
    write_atomically(options.png, png)
    print(f"{options.png}: {len(maps)} of {shape[0]} queries and {shape[1]} keys")


def main(arguments=None):
    options = parse_arguments(arguments)
    try:
        plot(options)
    except (Unusable, OSError) as error:
        print(f"plot_attention: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
