"""Run transformers' own model tests on ours: `python tests/peer/run.py [--quick] [--workers N] [-k EXPRESSION]`."""

import argparse
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path.home() / ".cache" / "gnomon" / "peer"
SEVERITY = ("passed", "skipped", "failed")


class Outcomes:
    """A plugin of pytest that keeps the outcome of every test, and why it was skipped."""

    def __init__(self) -> None:
        self.outcome: dict[tuple[str, str], str] = {}
        self.reasons: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report) -> None:
        """Note a test, or a part of one; the worst part decides."""
        _, case, test = report.nodeid.split("::")
        known = self.outcome.get((case, test), "passed")
        self.outcome[case, test] = max(known, report.outcome, key=SEVERITY.index)
        if report.skipped:
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")].add(test)

    def write(self) -> None:
        """Print a line a class, and below them a line a reason with the tests that it holds for."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for (case, _), outcome in self.outcome.items():
            counts[case][outcome] += 1
        width = max(map(len, counts), default=0)
        for case, count in counts.items():
            print(f"{case:{width}}  {count['passed']:4} passed {count['failed']:3} failed {count['skipped']:4} skipped")
        print("\nSkipped, by the reason that the test gave:")
        for reason, tests in sorted(self.reasons.items()):
            print(f"- {reason.rstrip('.')}: {', '.join(sorted(tests))}")


def main() -> int:
    """Fetch the tests, run them, print the table; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one class a topology, as a TokenFormer")
    parser.add_argument("--workers", default="0", help="processes that share the tests")
    parser.add_argument("-k", default="", help="pytest's selection by words of a class's or a test's name")
    options = parser.parse_args()
    # Before torch and transformers are imported; the tests' own processes take the path from the environment.
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    from archive import fetch_tests

    paths = [str(fetch_tests(CACHE)), str(HERE), str(HERE.parent)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    import pytest
    from models import QUICK, left_out

    outcomes, suite = Outcomes(), str(HERE / "suite.py")
    arguments = [
        *([f"{suite}::{case}" for case in QUICK] if options.quick else [suite]),
        *("-c", os.devnull, "--rootdir", str(HERE), "--confcutdir", str(HERE), "--import-mode", "importlib"),
        # The peer's tests look at warnings themselves; what they let pass is theirs.
        *("-q", "-p", "no:cacheprovider", "--tb", "short", "-W", "always", "--disable-warnings"),
        *("-o", "python_classes=Gnomon*", "-n", options.workers, "-k", options.k),
    ]
    code = pytest.main(arguments, plugins=[outcomes])
    outcomes.write()
    missing = left_out()
    for name in missing:
        print(f"{name} is not tested: it needs an entry in MODELS of {HERE / 'models.py'}")
    return int(code) or int(bool(missing) and not (options.quick or options.k))


if __name__ == "__main__":
    sys.exit(main())
