#!/usr/bin/python3
"""Thirty Pods with memory limits on eight time-sliced GPUs: what the audit costs, and what it does in a storm.

  tests/cluster/memory_audit.py [--rounds 60] [--seed N]   ends in `N passed, N failed`

Cost: CPU time and anonymous memory of the agent in a minute at rest, with `gpulet.fraction.onExceeded` `none` and then `kill`. Storm:
each round one Pod takes 1 MiB more than its limit, and a new Pod replaces it. Its process must end within two seconds, and no other
Pod's.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lib.testbed import run_script  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_script(__file__, __doc__, 1, "memory_audit", rounds=60, seed=1))
