#!/usr/bin/python3
"""A node of eight GPUs goes from the device plugin to claims and back, under a stream of Pods that ask for `nvidia.com/gpu`.

  tests/cluster/claim_switch.py [--pods 500] [--seed N]   ends in `N passed, N failed`

The Pods are unchanged: whatever offers the GPUs serves them (DeviceClass with an extendedResourceName). The agent is killed in the
middle of each move, agent and kubelet restart before, between and after, and the API server is away for a minute. Every running
container is looked at the whole time: no GPU may be in two of them. No Pod may fail, but those that the kubelet has to admit while the
agent is away, which it rejects for every device plugin, and those whose container it was starting when it ended itself: both are
counted apart.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lib.testbed import run_script  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_script(__file__, __doc__, 1, "claim_switch", pods=500, seed=1))
