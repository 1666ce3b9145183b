#!/usr/bin/python3
"""A node of eight GPUs reboots again and again under eight Pods of a ReplicaSet.

  tests/cluster/reboots.py [--rounds 50] [--seed N]   ends in `N passed, N failed`

Every process ends, and kubelet and agent start in either order, up to four seconds apart. Where the kubelet is first, it rejects the
Pods that it had (UnexpectedAdmissionError), and the agent deletes them (`gpulet.faults.deleteRejectedPods`). After each reboot every
replica must run with a GPU of its own, and no rejected Pod may be left.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lib.testbed import run_script  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_script(__file__, __doc__, 1, "reboots", rounds=50, seed=1))
