"""Counts what ctest ran: python count_results.py DIR

DIR holds ctest.xml (ctest --output-junit) and, for each GoogleTest program, NAME.xml with its
single tests. A program counts by its tests, any other ctest entry as one. Prints what failed or was
skipped and, last, `N passed, N failed`; exits 1 when something failed or nothing ran.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(folder):
    passed, failed, skipped = [], [], []
    for entry in ElementTree.parse(folder / "ctest.xml").getroot().iter("testcase"):
        name = entry.get("name")
        ran = entry.find("failure") is None and entry.get("status") == "run"
        details = folder / f"{name}.xml"
        if details.exists():
            for test in ElementTree.parse(details).getroot().iter("testcase"):
                full = f"{test.get('classname')}.{test.get('name')}"
                if test.find("failure") is not None:
                    failed.append(full)
                elif test.find("skipped") is not None:
                    skipped.append(f"{full}: {test.find('skipped').get('message', '')}")
                else:
                    passed.append(full)
            if not ran and not failed:
                failed.append(f"{name}: ended before its last test")
        elif entry.find("skipped") is not None:
            skipped.append(name)
        else:
            (passed if ran else failed).append(name)
    for title, names in (("skipped", skipped), ("failed", failed)):
        for name in names:
            print(f"{title}: {' '.join(name.split())}")
    counts = f"{len(passed)} passed, {len(failed)} failed"
    print(counts + (f", {len(skipped)} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
