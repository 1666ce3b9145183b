#!/usr/bin/python3
"""A node of eight GPUs starts Pods by claims while its agent is updated again and again.

  tests/cluster/claim_updates.py [--pods 1000] [--kill 0] [--seed N]   ends in `N passed, N failed`

Each update starts the new agent beside the old one, waits until it is ready, and ends the old one by SIGTERM, as a DaemonSet with
maxSurge does. No Pod may fail, no claim may fail to be prepared, and no ResourceSlice may be deleted or written. With --kill N, every
Nth update ends the old agent by SIGKILL: the kubelet's call in that moment fails, and is repeated.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lib.testbed import run_script  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_script(__file__, __doc__, 1, "claim_updates", pods=1000, kill=0, seed=1))
