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
import time
import traceback

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
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
    passed = failed = 0
    with contextlib.closing(checks(parser.parse_args())) as all_checks:
        for name, check in all_checks:
            started = time.monotonic()
            try:
                why = check()
            except Exception as error:  # one check that breaks is one that failed
                traceback.print_exc(file=sys.stdout)
                why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"FAIL {name}: {why}" if why else f"ok {name}, {time.monotonic() - started:.1f} s", flush=True)
            passed, failed = passed + (not why), failed + bool(why)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
