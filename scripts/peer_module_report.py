"""The table, the goals, the CSV file and the chart of what compare_peers.py --modules measured."""

from dataclasses import dataclass

import peer_report
from peer_module_cases import goals


@dataclass
class Row(peer_report.Row):
    """One case at one thread count."""

    def number(self, what):
        """The peer's time by ours, or the share of the peak; None where it was not measured."""
        return self.of_peak if what == "peak" else self.ratios.get(what)

    @property
    def by_limit(self):
        """Our time by the shortest that arithmetic, or for one query memory, allows."""
        share = self.of_read if self.of_peak is None else self.of_peak
        return None if share is None else 1 / share


class Table(peer_report.Lines):
    """Prints rows as they come."""

    def __init__(self, peers):
        self.peers = peers
        widths = {"case": 34, "threads": 7, "ours": 9}
        widths |= {peer: max(len(peer), 6) for peer in peers}
        self.widths = widths | {"by limit": 8, "lost": 5}

    def row(self, row):
        cells = {
            "case": row.case.name,
            "threads": row.threads,
            "ours": f"{1e6 * row.seconds:.0f} µs",
            "by limit": "" if row.by_limit is None else f"{row.by_limit:.2f}",
            "lost": peer_report.percent(row.lost),
        }
        self.line(cells | peer_report.ratio_cells(row, self.peers))


def print_summary(rows):
    """The geometric means that have a goal, where all of their cases were measured."""
    print("\ngeometric means: the peer's time by ours; peak: our time by the limit")
    peer_report.print_disturbed(rows)
    for threads in sorted({row.threads for row in rows}):
        for goal in goals():
            value = goal.value([row for row in rows if row.threads == threads])
            if value is not None and goal.threads in (None, threads):
                print(f"  {threads} thr., {goal_text(goal, value)}")


def goal_text(goal, value):
    def shown(number):
        return f"{1 / number if goal.what == 'peak' else number:.3g}"

    cases = goal.cases[0].name if len(goal.cases) == 1 else f"{len(goal.cases)} cases"
    text = f"{goal.what}, {cases}: {shown(value)}"
    target = goal.target
    if target is None:
        return text
    return f"{text}, floor {shown(target.floor)}, aim {shown(target.aim)}: {target.verdict(value)}"


def write_csv(path, rows, peers):
    names = ["case", "threads", "seconds", *peer_report.peer_columns(peers)]
    names += ["of_peak", "of_read", "by_limit", "lost"]
    lines = []
    for row in rows:
        by_limit = "" if row.by_limit is None else f"{row.by_limit:.3f}"
        lines.append(peer_report.common_cells(row, peers) | {"by_limit": by_limit})
    peer_report.write_rows(path, names, lines)


def write_png(path, rows, peers):
    peer_report.write_png(path, rows, peers, draw_limits)


def draw_limits(panel, rows):
    """How far from ours the limit is."""
    points = [(i, row.by_limit) for i, row in enumerate(rows) if row.by_limit]
    panel.scatter(*zip(*points), c="black", marker="_", label="ours / limit")
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter("{x:g}")
