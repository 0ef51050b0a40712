"""The table, the CSV file and the chart of what compare_peers.py measured."""

import csv
from dataclasses import dataclass, field

from peer_cases import BEST, Case, against_torch
from peer_timing import QUIET


@dataclass
class Row:
    """One case at one thread count. Ratios are the peer's time by ours."""

    case: Case
    threads: int
    seconds: float = 0.0
    ratios: dict = field(default_factory=dict)  # of the peers that ran, by name
    forms: dict = field(default_factory=dict)  # what ran of each peer, or why it did not
    of_peak: float | None = None
    of_read: float | None = None
    lost: float = 0.0  # share of the samples' time in which a thread waited for a processor

    @property
    def disturbed(self):
        """Whether others held the machine up in a way that the ratios cannot be cleared of."""
        return self.threads > 1 and self.lost > QUIET

    @property
    def best(self):
        """The fastest peer's name, or None."""
        return min(self.ratios, key=self.ratios.get, default=None)

    def torch_target(self):
        return against_torch(self.case) if "torch" in self.ratios else None

    def verdicts(self):
        """(what, value, target, verdict) of each number that has a target."""
        checks = [("torch", self.ratios.get("torch"), self.torch_target())]
        if len(self.ratios) > 1:
            checks.append(("best", self.ratios[self.best], BEST))
        if self.threads == 1:
            checks.append(("peak", self.of_peak, self.case.of_peak))
        checks.append(("read", self.of_read, self.case.of_read))
        return [
            (what, value, target, target.verdict(value))
            for what, value, target in checks
            if value is not None and target is not None
        ]

    def below(self):
        return [what for what, _, _, verdict in self.verdicts() if verdict == "below"]


def ratio_cells(row, peers):
    return {peer: f"{row.ratios[peer]:.2f}" if peer in row.ratios else "-" for peer in peers}


def percent(share):
    return "" if share is None else f"{100 * share:.0f} %"


class Lines:
    """Prints cells under one another; `widths` maps the columns' names to their widths."""

    def header(self):
        self.line({name: name for name in self.widths})

    def line(self, cells):
        first, *others = self.widths.items()
        parts = [f"{cells[first[0]]:<{first[1]}}"]
        parts += [f"{cells[name]:>{width}}" for name, width in others]
        print("  ".join(parts).rstrip(), flush=True)


class Table(Lines):
    """Prints rows as they come."""

    def __init__(self, peers):
        self.peers = peers
        widths = {"case": 16, "threads": 7, "ours": 9}
        widths |= {peer: max(len(peer), 6) for peer in peers}
        widths |= {"best": 17, "floor": 5, "aim": 5, "met": 5, "vs best": 7, "peak": 5, "read": 5}
        widths |= {"lost": 5, "below": 5}
        self.widths = widths

    def row(self, row):
        verdicts = {what: verdict for what, _, _, verdict in row.verdicts()}
        target = row.torch_target()
        best = row.best
        cells = {
            "case": row.case.name,
            "threads": row.threads,
            "ours": f"{1e6 * row.seconds:.0f} µs",
            "best": f"{best} {row.ratios[best]:.2f}" if best else "",
            "floor": f"{target.floor:g}" if target else "",
            "aim": f"{target.aim:g}" if target else "",
            "met": verdicts.get("torch", ""),
            "vs best": verdicts.get("best", ""),
            "peak": percent(row.of_peak),
            "read": percent(row.of_read),
            "lost": percent(row.lost),
            "below": " ".join(row.below()),
        }
        self.line(cells | ratio_cells(row, self.peers))


def print_summary(rows):
    """How many targets are met, and those that are not."""
    checks = [(row, *verdict) for row in rows for verdict in row.verdicts()]
    below = [check for check in checks if check[-1] == "below"]
    aims = sum(check[-1] == "aim" for check in checks)
    print(f"\n{len(checks)} targets: {aims} aims met, {len(below)} below their floor")
    print_disturbed(rows)
    for row, what, value, target, _ in below:
        print(
            f"  {row.case.name}, {row.threads} thr., {what}: {value:.2f}, floor {target.floor:g}"
        )


def print_disturbed(rows):
    disturbed = sum(row.disturbed for row in rows)
    if disturbed:
        print(f"{disturbed} rows say little: threads waited for a processor (lost)")


def peer_columns(peers):
    return [f"{kind}_{peer}" for peer in peers for kind in ("ratio", "form")]


def common_cells(row, peers):
    """Those that every CSV file has."""
    cells = {
        "case": row.case.name,
        "threads": row.threads,
        "seconds": f"{row.seconds:.4g}",
        "of_peak": "" if row.of_peak is None else f"{row.of_peak:.3f}",
        "of_read": "" if row.of_read is None else f"{row.of_read:.3f}",
        "lost": f"{row.lost:.3f}",
    }
    for peer in peers:
        cells[f"form_{peer}"] = row.forms.get(peer, "")
        if peer in row.ratios:
            cells[f"ratio_{peer}"] = f"{row.ratios[peer]:.3f}"
    return cells


def write_rows(path, names, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def write_csv(path, rows, peers):
    names = ["case", "threads", "seconds", *peer_columns(peers)]
    names += ["best_peer", "best_ratio", "floor", "aim", "of_peak", "of_read", "lost", "below"]
    lines = []
    for row in rows:
        best = row.best
        target = row.torch_target()
        cells = {
            "best_peer": best or "",
            "best_ratio": f"{row.ratios[best]:.3f}" if best else "",
            "below": " ".join(row.below()),
        }
        if target:
            cells |= {"floor": target.floor, "aim": target.aim}
        lines.append(common_cells(row, peers) | cells)
    write_rows(path, names, lines)


def draw_targets(panel, rows):
    """Floor and aim against torch as marks."""
    for mark, label in (("floor", "floor against torch"), ("aim", "aim against torch")):
        points = [(i, row.torch_target()) for i, row in enumerate(rows) if row.torch_target()]
        heights = [getattr(target, mark) for _, target in points]
        style = "v" if mark == "floor" else "*"
        panel.scatter([i for i, _ in points], heights, c="black", marker=style, label=label)


def write_png(path, rows, peers, draw_marks=draw_targets):
    """Bars of the ratios by case, one panel a thread count, and marks on them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = sorted({row.threads for row in rows})
    figure, panels = pyplot.subplots(len(counts), 1, figsize=(14, 5 * len(counts)), squeeze=False)
    for panel, threads in zip(panels[:, 0], counts):
        shown = [row for row in rows if row.threads == threads]
        width = 0.8 / max(len(peers), 1)
        for index, peer in enumerate(peers):
            places = [place + (index - (len(peers) - 1) / 2) * width for place in range(len(shown))]
            panel.bar(places, [row.ratios.get(peer, 0) for row in shown], width, label=peer)
        draw_marks(panel, shown)
        panel.axhline(1, color="grey", linewidth=1)
        names = [row.case.name for row in shown]
        panel.set_xticks(range(len(shown)), names, rotation=40, ha="right")
        panel.set_ylabel("time of the peer / ours")
        panel.set_title(f"{threads} {'thread' if threads == 1 else 'threads'}")
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
