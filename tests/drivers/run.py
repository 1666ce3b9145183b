#!/usr/bin/python3
"""Runs CDI discovery on real driver libraries of two branches in the layouts of Debian, RHEL, GKE and a driver container.

  tests/drivers/run.py --program BUILD/tests/drivers_test

Ends in `N passed, N failed`. If the packages are not available (fetch.py prints the reason), nothing is counted: the
stub roots of cdi_test cover the layouts.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
NO_DRIVERS = 3
LIMIT_S = 600


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    program = parser.parse_args().program.resolve()
    with tempfile.TemporaryDirectory(prefix="gpulet-drivers-") as roots:
        fetched = subprocess.run([HERE / "fetch.py", roots], capture_output=True, text=True, timeout=LIMIT_S)
        if fetched.returncode == NO_DRIVERS:
            print(f"{fetched.stderr.strip()}\nonly the stub roots of cdi_test are run\n0 passed, 0 failed")
            return 0
        if fetched.returncode != 0:
            print(f"FAIL fetch.py: {fetched.stderr.strip()[-1000:]}\n0 passed, 1 failed")
            return 1
        print(f"drivers {fetched.stdout.strip()}")
        tested = subprocess.run([program, "--gtest_color=no"], capture_output=True, text=True, timeout=LIMIT_S,
                                env={**os.environ, "GPULET_DRIVER_ROOTS": roots})
    passed = len(re.findall(r"^\[       OK \]", tested.stdout, re.MULTILINE))
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (\w+\.\S+?),? ", tested.stdout, re.MULTILINE)))
    if tested.returncode != 0:
        print(tested.stdout[-8000:], tested.stderr[-2000:])
        failed = failed or ["drivers_test"]
    for name in failed:
        print(f"FAIL {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
