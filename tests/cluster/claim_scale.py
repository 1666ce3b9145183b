#!/usr/bin/python3
"""Measures claims at scale: the real API server and kube-scheduler, nodes by kwok, each with the ResourceSlices of a real node of 8 H100.

  tests/cluster/claim_scale.py [--nodes 5000] [--pods 1000]

For our slices and for NVIDIA's layout of the same GPUs (bench/allocator_bench.py), each in a cluster of its own: what the API server
keeps and sends (objects, bytes of a list as JSON and as protobuf, which kubelets and the scheduler ask for, and of the change that a
taint on one GPU of every hundredth node is to a watch), and Pods per second from the first to the last that is bound. A Pod has one
claim for 1, 2, 4 or 8 GPUs, seeded; with our slices a claim for two or four asks for the best set. No GPU may be in two claims.
With 2,500 nodes our half took six minutes on two CPUs.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "bench"), str(ROOT / "tests" / "judges")]
import scale  # noqa: E402
from allocator_bench import nvidia_layout  # noqa: E402
from lib.kube import Kube, Watch, gpu_pod, until  # noqa: E402
from lib.kube_scheduler import configuration  # noqa: E402
from lib.testbed import kwok_cluster  # noqa: E402
from slices import CLASSES, PAIR, QUAD, claim  # noqa: E402

API = "/apis/resource.k8s.io/v1"
SLICES, DEVICE_CLASSES = f"{API}/resourceslices", f"{API}/deviceclasses"
CLAIMS, PODS = f"{API}/namespaces/default/resourceclaims", "/api/v1/namespaces/default/pods"
LAYOUTS = ("ours", "NVIDIA's")
BEST = {2: PAIR, 4: QUAD}
TAINTED = 100  # one node of so many
PROTOBUF = "application/vnd.kubernetes.protobuf"


def slices_of_a_node(state):
    """As `gpulet dra slices` prints them for a node of 8 H100."""
    root = state / "driver"
    subprocess.run([scale.BIN / "gpulet-sim", "up", "hgx-h100", "--root", root, "--no-device-nodes"], check=True, stdout=subprocess.DEVNULL)
    config = state / "claims.yaml"
    config.write_text("version: v1\ngpulet:\n  dra: {enabled: true}\n")
    try:
        printed = subprocess.run([scale.BIN / "gpulet", "dra", "slices", f"--config-file={config}", "-o", "json"], check=True, capture_output=True,
                                 text=True, env={**os.environ, "NODE_NAME": "kwok-0", "NVIDIA_DRIVER_ROOT": str(root), "DRIVER_ROOT_CTR_PATH": str(root)}).stdout
    finally:
        subprocess.run([scale.BIN / "gpulet-sim", "down", "--root", root], check=True, stdout=subprocess.DEVNULL)
    return json.loads(printed)["items"]


def named(slice_, node, number):
    spec = {**slice_["spec"], "nodeName": node, "pool": {**slice_["spec"]["pool"], "name": node}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-{number}"}, "spec": spec}


def listed_bytes(kube, accept):
    """Of all ResourceSlices, in pages."""
    total, after = 0, ""
    while True:
        response, data = kube.exchange("GET", f"{SLICES}?limit=500{after}", None, {"Authorization": f"Bearer {kube.token}", "Accept": accept})
        if response.status != 200:
            raise AssertionError(f"a list was answered {response.status}: {data[:200]!r}")
        total += len(data)
        # The token is asked for as JSON: protobuf is only weighed.
        page = json.loads(data) if accept != PROTOBUF else kube.get(f"{SLICES}?limit=500{after}")
        token = page["metadata"].get("continue")
        if not token:
            return total
        after = f"&continue={token}"


class ClaimScale(scale.Scale):
    def __init__(self, state, options):
        super().__init__(state, argparse.Namespace(nodes=[options.nodes], pods=options.pods, limited=False))
        self.ours = options.layout == LAYOUTS[0]
        self.layout = options.layout

    def publish(self):
        """One node's slices for every node."""
        slices = slices_of_a_node(self.state)
        if not self.ours:
            slices = nvidia_layout(slices)
        for one in CLASSES:
            self.kube.call("POST", DEVICE_CLASSES, {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **one})

        def write(body):
            return lambda kube: kube.call("POST", SLICES, body)
        scale.in_parallel(self.state, [write(named(one, f"kwok-{node}", number)) for node in range(self.nodes) for number, one in enumerate(slices)])
        return len(slices)

    def taint_some(self):
        """Returns the bytes of the changes in a watch."""
        tainted = range(0, self.nodes, TAINTED)
        with Watch(self.kube, SLICES) as watch:
            for node in tainted:
                one = self.kube.get(f"{SLICES}/kwok-{node}-0")
                one["spec"]["devices"][0]["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
                self.kube.call("PUT", f"{SLICES}/kwok-{node}-0", one)
            until("the watch has the changes", lambda: len(watch.seen) >= len(tainted), 60, 0.05)
            return sum(len(json.dumps(thing, separators=(",", ":"))) for _, _, thing in watch.seen)

    def create_pods(self, prefix):
        dice = random.Random(scale.SEED)
        sizes = dice.choices([size for size, _ in scale.SIZES], [weight for _, weight in scale.SIZES], k=self.pods)

        def write(name, size):
            asked = claim(count=size, match=BEST.get(size) if self.ours else None)
            body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": asked["spec"]}
            pod = gpu_pod(name, 0)
            pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
            pod["spec"].update(tolerations=[{"operator": "Exists"}], resourceClaims=[{"name": "gpus", "resourceClaimName": name}])

            def create(kube):
                kube.call("POST", CLAIMS, body)
                kube.call("POST", PODS, pod)
            return create
        scale.in_parallel(self.state, [write(f"{prefix}-{number}", size) for number, size in enumerate(sizes)])

    def check_allocations(self):
        held = collections.Counter()
        for found in self.kube.get(CLAIMS)["items"]:
            results = found["status"]["allocation"]["devices"]["results"]
            held.update((one["pool"], one["device"]) for one in results)
            if len(results) != found["spec"]["devices"]["requests"][0]["exactly"]["count"]:
                raise AssertionError(f"{found['metadata']['name']} has {len(results)} GPUs")
        twice = [device for device, count in held.items() if count > 1]
        if twice:
            raise AssertionError(f"in two claims: {twice[:5]}")

    def run(self):
        os.kill(int((self.state / "pid" / "cp-kube-scheduler").read_text()), 15)
        begin = time.monotonic()
        slices = self.publish()
        written = time.monotonic() - begin
        stored, compact = listed_bytes(self.kube, "application/json"), listed_bytes(self.kube, PROTOBUF)
        changed = self.taint_some()
        rate = self.schedule("claims", extended=False)
        self.check_allocations()
        return {"layout": self.layout, "nodes": self.nodes, "Pods": self.pods, "slices of a node": slices, "s to write all": round(written, 1),
                "MiB of a list, JSON": round(stored / 2**20, 1), "MiB of a list, protobuf": round(compact / 2**20, 1),
                f"KiB to a watch, {self.nodes // TAINTED} GPUs tainted": round(changed / 1024, 1), "Pods/s": round(rate, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--layout", choices=LAYOUTS, help=argparse.SUPPRESS)
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measured = ClaimScale(options.inside, options)
        try:
            print(json.dumps(measured.run()), flush=True)
        finally:
            measured.close()
        return 0
    for layout in LAYOUTS:
        with kwok_cluster(options.nodes, scale.GPUS) as made:
            done = made.run(HERE / "claim_scale.py", "--nodes", str(options.nodes), "--pods", str(options.pods), "--layout", layout,
                            stdout=subprocess.PIPE, text=True)
        done.check_returncode()
        for key, value in json.loads(done.stdout.splitlines()[-1]).items():
            print(f"{key:36} {value}", flush=True)
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
