"""Run transformers' own model tests on ours: `python tests/peer/run.py [-k WORDS] [--write FILE]`, and see `--help`."""

import argparse
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path.home() / ".cache" / "gnomon" / "peer"
SEVERITY = ("passed", "skipped", "failed")
TAIL = r"(?<!attn)_\d+(_\w+)?$"
"""What tells the runs of a test with several arguments apart."""

PAGE = """# transformers' own model tests on our classes

`make peer-test` fetches the source distribution of the installed transformers ({version} here) and runs its
`ModelTesterMixin` on every public model class, as a TokenFormer and as a Magneto: {classes} classes, {cases} cases.
`GnomonForCausalLM` gets its mixins for training, FSDP and tensor parallelism as well, on processes of the CPU.
This page is written by `python tests/peer/run.py --write docs/peer-tests.md`, on a CPU without optional packages.

| class | passed | skipped | failed |
|---|---:|---:|---:|
{rows}

Every skip has one of these reasons, in the words of the test that gave it; a few are our own, out of
`tests/peer/suite.py`, where the peer's test takes for granted what a model has not.

{reasons}
"""


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

    def counts(self) -> dict[str, Counter[str]]:
        """How many tests of each case had each outcome."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for (case, _), outcome in self.outcome.items():
            counts[case][outcome] += 1
        return counts

    def write(self) -> None:
        """Print a line a class, and below them a line a reason with the tests that it holds for."""
        counts = self.counts()
        width = max(map(len, counts), default=0)
        for case, count in counts.items():
            print(f"{case:{width}}  {count['passed']:4} passed {count['failed']:3} failed {count['skipped']:4} skipped")
        print("\nSkipped, by the reason that the test gave:")
        for reason, tests in sorted(self.reasons.items()):
            print(f"- {reason.rstrip('.')}: {', '.join(sorted(tests))}")

    def document(self, version: str) -> str:
        """The same as a page of Markdown, in which reasons that differ by the name of a class are one."""
        counts = self.counts()
        total = sum(counts.values(), Counter())
        rows = [f"| {case} | {' | '.join(str(count[word]) for word in SEVERITY)} |" for case, count in counts.items()]
        reasons: dict[str, set[str]] = defaultdict(set)
        for reason, tests in self.reasons.items():
            general = re.sub(r"<class '[\w.]*'>|\bGnomon\w+", "the class", reason).strip().rstrip(".")
            reasons[general[0].upper() + general[1:]] |= {f"`{re.sub(TAIL, '', name)}`" for name in tests}
        lines = [f"- {reason}: {', '.join(sorted(tests))}." for reason, tests in sorted(reasons.items())]
        return PAGE.format(
            version=version,
            classes=len({case.split()[0] for case in counts}),
            cases=len(counts),
            rows="\n".join([*rows, f"| all | {' | '.join(str(total[word]) for word in SEVERITY)} |"]),
            reasons="\n".join(lines),
        )


def main() -> int:
    """Fetch the tests, run them, print the table; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one class a topology, as a TokenFormer")
    parser.add_argument("--workers", default="0", help="processes that share the tests")
    parser.add_argument("-k", default="", help="pytest's selection by words of a class's or a test's name")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table as a page of Markdown as well")
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
    if options.write:
        import transformers

        options.write.write_text(outcomes.document(transformers.__version__), encoding="utf-8")
    missing = left_out()
    for name in missing:
        print(f"{name} is not tested: it needs an entry in MODELS of {HERE / 'models.py'}")
    return int(code) or int(bool(missing) and not (options.quick or options.k))


if __name__ == "__main__":
    sys.exit(main())
