#!/usr/bin/python3
"""A day's work of two nodes in minutes: resident memory, descriptors and threads of the agents stay flat.

  tests/cluster/soak.py [--minutes 20] [--seed N]   ends in `N passed, N failed`

The agents run as a process of each node, with their listeners, under the real kubelet, scheduler and API server. A seeded loop runs as
fast as the cluster allows: Pods and jobs start and end, GPUs fail in many ways and recover, configs change and are rejected, kubelets
restart, commands query the agent, metrics are scraped, and browsers open the node page. Each round ends at rest: no Pod, no fault, no
client, and the node as at the start. The usage at rest is compared. The first quarter of the time is a warm-up. Between the medians of
the second and the last quarter:

- descriptors, threads, child processes and the size of all mapped files must be equal;
- anonymous memory, which the node cannot reclaim, may grow by at most 256 KiB. It includes free memory that the allocator keeps, which
  varies in steps of 128 KiB, so a tighter limit is not possible;
- file-backed pages are shown only: code is paged in at its first use, and the node reclaims pages at any time. They cannot exceed the
  mapped size.

In the last half, the used part of the heap may grow by at most 16 KiB per minute, by a line fitted through all rests. Bounded buffers are
full by then: the node page's history from the start on (200 and 100 entries, src/agent/observe/page_json.h), and the events that repeats
may join after ten minutes (src/k8s/event_recorder.h). A faster machine causes more of them, so a run under 20 minutes proves too little.
Only a listener's samples fill for 15 minutes (src/web/router.h): the size of /api/history is subtracted from both. As a check of this
test, leaking 100 bytes at each Allocate and at each change of holders failed after 20 minutes with 400 KiB more anonymous memory.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lib.testbed import run_script  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_script(__file__, __doc__, 2, "soak", minutes=20.0, seed=1))
