#!/usr/bin/python3
"""Tests gpulet on a real Kubernetes of two nodes: n1 is an HGX H100, n2 an L40S server with two NUMA nodes.

  tests/cluster/run.py [--keep] [--only RUN...]   ends in `N passed, N failed`; --keep leaves the cluster up (its directory is
                                                  printed) and ends after the first run that fails

The runs, in this order:

  process      the agent as a process of each node
  partition    n1's GPUs shared and partitioned in every way by the config
  labels       MIG layouts and configs selected by Node labels
  power        power limits of GPUs
  rights       the agent without each of its permissions in turn
  startup      no Pod before the GPUs of a new node; Pods that were rejected
  health       GPU faults under a Deployment, on both nodes
  cdi          containers that get their GPUs by CDI
  dra          GPUs by claims of Dynamic Resource Allocation
  examples     the example workloads
  scheduling   `gpulet scheduler` as an extender of kube-scheduler
  access       the chart's rights on the node: device nodes, MIG, capabilities; and its NetworkPolicy, enforced
  chart        the agents as the chart installs them from the image
  tutorial     docs/getting-started.md, command by command
  autoscaling  a HorizontalPodAutoscaler on GPU metrics
  operands     the GPU operator's Pods with gpulet's image

Only on request:

   daily-peak   the autoscaler with the forecast and without, for two days that take five minutes (`make daily-peak`)
   operators    Kubeflow's and Prometheus' operators with their examples and monitors (`make operators`): building them takes
                minutes the first time
   workloads    the examples' programs with PyTorch and TensorFlow for CPUs (`make workloads`): these are large.
                GPULET_NFS=SERVER:/PATH is an export for their volume, where the kernel has NFS

Each check is one function. A run stops at its first failure, because later checks depend on it, and reports how many were not
reached (they fail too). The runs after it get a new cluster, because nobody knows what it has left in the old one.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from lib.testbed import CACHE, TESTBED, environment  # noqa: E402

ROOT = HERE.parent.parent
STEPS_AS_PROCESS = 1000
STEPS_WITH_CHART = 100
RUNS = ("process", "partition", "labels", "power", "rights", "startup", "health", "cdi", "dra", "examples", "scheduling", "access", "chart", "tutorial",
        "autoscaling", "operands", "daily-peak", "operators", "workloads")
ON_REQUEST = ("daily-peak", "operators", "workloads")
IMAGES = ["0.1.0-test1", "0.1.0-test2"]
TALLY = "tally.json"  # in the cluster's directory


def outer(keep, only):
    """Builds what is missing and makes the runs, in one cluster as long as they pass."""
    runs = [run for run in RUNS if run in (only or set(RUNS) - set(ON_REQUEST))]
    env = environment()
    subprocess.run([TESTBED, "build", "helm", "kube-router", *[run for run in runs if run == "operators"]], check=True, env=env)
    passed = failed = 0
    while runs:
        result = in_a_cluster(keep, runs, env)
        passed, failed, runs = passed + result["passed"], failed + result["failed"], runs[result["runs"]:]
        if keep:
            break
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def in_a_cluster(keep, runs, env):
    """Starts a cluster, and makes the runs inside its network up to the first that fails. Returns its tally."""
    state = pathlib.Path(tempfile.mkdtemp(prefix="gpulet-cluster-"))
    env = {**env, "TB_STATE": str(state), "TB_NUMA_2": "2", "TB_KUBELET_CONFIG_2": "topologyManagerPolicy: restricted",
           "TB_KUBELET_CONFIG": "syncFrequency: 5s",  # how soon a changed ConfigMap is in a Pod
           "TB_RUNTIME": str(state / "nvidia-container-runtime"),  # of the run `operands`
           "TB_CONTROLLER_FLAGS": "--horizontal-pod-autoscaler-sync-period=1s"}
    try:
        started = time.monotonic()
        subprocess.run([TESTBED, "up", "2"], check=True, env=env, stdout=subprocess.DEVNULL)
        print(f"cluster up in {time.monotonic() - started:.1f} s: {state}", flush=True)
        subprocess.run([TESTBED, "cp", CACHE / "venv" / "bin" / "python", HERE / "run.py", "--inside", state, "--only", *runs], env=env, check=True)
        return json.loads((state / TALLY).read_text())
    finally:
        if not keep:
            subprocess.run([TESTBED, "down"], env=env)


def inside(state, only):
    """Makes the runs up to the first that fails. TALLY gets the counts of checks and of the runs that were made."""
    from lib.checks import Checks
    from lib.kube import Kube
    from lib.node import Node
    kube = Kube(state)
    nodes = [Node(state, 1, "hgx-h100"), Node(state, 2, "l40s")]
    # An administrator has marked one node; the other has no label, and the agent finds its GPUs there by itself.
    kube.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
    tally = {"passed": 0, "failed": 0, "runs": 0}
    for label, run in Checks(kube, nodes, ROOT).runs(IMAGES, STEPS_AS_PROCESS, STEPS_WITH_CHART):
        assert label in RUNS, label
        if tally["failed"]:
            break
        if label not in only:
            continue
        for node in nodes:
            if label != "process" and not node.gpus:  # the run `process`, where the driver comes up late, was not asked for
                node.driver_up()
        tally["runs"] += 1
        broken = None
        for name, check in run:
            started = time.monotonic()
            try:
                if broken:
                    raise AssertionError(f"not reached: {broken} failed before")
                check()
            except Exception as error:
                tally["failed"] += 1
                broken = broken or name
                if broken == name:
                    traceback.print_exc(file=sys.stdout)
                    show_cluster(state, kube)
                    show_logs(state, label)
                print(f"FAIL {label}: {name}: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
            else:
                tally["passed"] += 1
                print(f"ok {label}: {name}, {time.monotonic() - started:.1f} s", flush=True)
        for node in nodes:
            node.end()
            left = "" if broken else undo_partitions(node)
            if left:
                tally["failed"] += 1
                print(f"FAIL {label}: leftovers: {left}", flush=True)
    (state / TALLY).write_text(json.dumps(tally))


def undo_partitions(node):
    """The next run expects whole GPUs. Returns what this one has left."""
    try:
        left = node.partitioned() if node.gpus else []
        for index in left:
            node.change_mig("whole", index)
    except Exception as error:
        return f"{node.name}: {error}"
    return f"MIG devices on the GPUs {left} of {node.name}" if left else ""


def show_cluster(state, kube):
    """Why a Pod may not run: programs of the cluster that have ended, the nodes' conditions and taints, and the Pods that do not."""
    for file in sorted((state / "pid").iterdir()):
        if not pathlib.Path(f"/proc/{file.read_text().strip()}").exists():
            print(f"--- {file.name} has ended:\n" + "\n".join((state / "log" / file.name).read_text(errors="replace").splitlines()[-15:]))
    try:
        for node in kube.get("/api/v1/nodes")["items"]:
            conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", [])}
            print(f"--- {node['metadata']['name']}: {conditions}, taints {node['spec'].get('taints', [])}, {node['status'].get('allocatable')}")
        for pod in kube.get("/api/v1/pods")["items"]:
            status = pod["status"]
            if status.get("phase") != "Running":
                waiting = [one.get("state") for one in status.get("containerStatuses", [])]
                refused = [one.get("message") for one in status.get("conditions", []) if one["status"] == "False"]
                print(f"--- {pod['metadata']['name']} on {pod['spec'].get('nodeName')}: {status.get('phase')} {status.get('reason')}: {refused} {waiting}")
    except Exception as error:
        print(f"--- the API server does not answer: {error}")


def show_logs(state, label):
    """The last lines of the agents, as processes and as containers."""
    for log in sorted([*(state / "log").glob("*-agent"), *state.glob("n*/var/log/pods/gpu*_*/*/*.log")]):
        print(f"--- {label}: {log.relative_to(state)}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave the cluster up, and print its directory")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=[], metavar="RUN", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside, options.only)
    else:
        sys.exit(outer(options.keep, options.only))
