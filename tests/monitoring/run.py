#!/usr/bin/python3
"""deploy/prometheus, deploy/grafana and deploy/autoscaling: as they stand, and in Debian's Prometheus on two agents.

  tests/monitoring/run.py [--only standing|live] [--bin out/bin]     ends in `N passed, N failed`

standing: promtool's checks and unit tests, names, dashboards. live: two nodes with the simulated driver, whose faults let every
alert fire and resolve; every query of the dashboards has data.
"""
import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import sys

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import outcome  # noqa: E402

CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet")


def checks(arguments):
    """(name, check) each; a check returns what is wrong, or raises."""
    tool = CACHE / "bin" / "promtool"
    tool = tool if tool.exists() else shutil.which("promtool")
    if arguments.only != "live":
        import standing
        for name, check in standing.CHECKS.items():
            yield name, lambda check=check: check(tool)
    if arguments.only != "standing":
        import live
        yield from live.checks(arguments.bin, CACHE, tool)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["standing", "live"])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    # What was started ends also where the tests are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.closing(checks(parser.parse_args())) as all_checks:
        return outcome.tell(all_checks)


if __name__ == "__main__":
    sys.exit(main())
