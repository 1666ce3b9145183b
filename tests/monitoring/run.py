#!/usr/bin/python3
"""deploy/prometheus, deploy/grafana and deploy/autoscaling: statically, and in Debian's Prometheus on two agents.

  tests/monitoring/run.py [--only static|live] [--bin out/bin]     ends in `N passed, N failed`

static: promtool's checks and unit tests, names, dashboards. live: two nodes with the simulated driver; its faults make every
alert fire and resolve, and every query of the dashboards has data.
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
    """(name, check) pairs; a check returns or raises its error."""
    tool = CACHE / "bin" / "promtool"
    tool = tool if tool.exists() else shutil.which("promtool")
    if arguments.only != "live":
        import static_checks
        for name, check in static_checks.CHECKS.items():
            yield name, lambda check=check: check(tool)
    if arguments.only != "static":
        import live
        yield from live.checks(arguments.bin, CACHE, tool)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["static", "live"])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    # Stop all processes also if the tests are interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.closing(checks(parser.parse_args())) as all_checks:
        return outcome.report_checks(all_checks)


if __name__ == "__main__":
    sys.exit(main())
