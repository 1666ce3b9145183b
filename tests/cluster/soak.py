#!/usr/bin/python3
"""A day's work of two nodes in minutes: resident memory, descriptors and threads of the agents stay flat.

  tests/cluster/soak.py [--minutes 20] [--seed N]   ends in `N passed, N failed`

The agents run as a process of each node, their listeners beside them, under the real kubelet, scheduler and API server. A seeded loop, as
fast as the cluster allows: Pods and jobs come and go, GPUs break in many ways and heal, configs change and are refused, kubelets restart,
the programs of the command line ask, metrics are scraped, and browsers look at the node page. Each round ends at rest: no Pod, no fault,
no visitor, and the node as at the start; what is measured there is compared. The first quarter of the time is a warm-up; between the
medians of the second and of the last:

- descriptors, threads, child processes and the size of all files that are mapped must be equal;
- anonymous memory, which is what the program asked for and nobody can take back, no more than 256 KiB higher. It is measured with what
  the allocator keeps between two blocks: that comes and goes in steps of 128 KiB, and more exactly it cannot be judged;
- pages of files come in as code runs for the first time, and the node takes them back as it likes: they are shown, and can be no more
  than is mapped.

In the last half what is in use of the heap, free blocks left out, may rise by no more than 16 KiB a minute, by a line fitted through all
rests. What fills up by design is full by then: the lines of the node page's past are from the start on (200 and 100,
src/agent/observe/page_json.h), and the events that a repeat may join after ten minutes (src/k8s/event_recorder.h), though more of them come as the
machine is faster, so that less than 20 minutes judge too little. Only a listener's samples for the lines of the page fill for
15 minutes (src/web/router.h): as many bytes as /api/history has are left out of both. With 100 bytes that were never freed at each
Allocate and at each change of who holds what, 20 minutes ended in a failure: 400 KiB more anonymous memory.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
TESTBED = HERE / "testbed" / "tb"
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        sys.path.insert(0, str(HERE))
        from lib.soak import inside  # has what only the virtual environment has
        return inside(options.inside, options.minutes, options.seed)
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:{CACHE / 'go' / 'bin'}:/usr/local/go/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([TESTBED, "build"], check=True, env=env)
    state = pathlib.Path(tempfile.mkdtemp(prefix="gpulet-soak-"))
    env["TB_STATE"] = str(state)
    try:
        subprocess.run([TESTBED, "up", "2"], check=True, env=env, stdout=subprocess.DEVNULL)
        return subprocess.run([TESTBED, "cp", CACHE / "venv" / "bin" / "python", HERE / "soak.py", "--inside", state,
                               "--minutes", str(options.minutes), "--seed", str(options.seed)], env=env, check=False).returncode
    finally:
        subprocess.run([TESTBED, "down"], env=env, check=False)


if __name__ == "__main__":
    sys.exit(main())
