"""The programs of examples/ by their manifests, with PyTorch and TensorFlow for CPUs: the same programs and options but for the device,
fewer steps, and this machine's Python in place of the images."""
import copy
import json
import os
import pathlib
import re
import subprocess

from lib.autoscaling import BUSY, QUIET, AutoscalingChecks
from lib.examples import ExamplesChecks, create_programs, submit, templates
from lib.health import CONFIG
from lib.kube import gpu_pod, until
from lib.kubectl import kubectl
from lib.machine_python import CACHE, on_this_machine
from lib.node import DRIVER_ROOT, GPULET_SIM, ROOT

HOLD_MS = 1000
LIMIT_S = 180.0


class WorkloadsChecks:
    def __init__(self, checks, tag):
        self.checks, self.kube = checks, checks.kube
        self.n1, self.n2 = checks.nodes
        self.examples, self.scaling = ExamplesChecks(checks), AutoscalingChecks(checks, tag)

    def run(self):
        return [
            ("the programs, the shared volume and sample data", self.begin),
            ("pipeline.yaml: prepared, trained, evaluated", self.pipeline),
            ("pytorch-multi-gpu.yaml: its GPU breaks, it resumes on the other node", lambda: self.moves(
                "pytorch-multi-gpu", 4, "--steps=1500", "--save-every=50")),
            ("tensorflow-training.yaml: its GPU breaks, it resumes on the other node", lambda: self.moves("tensorflow-training", 1)),
            ("video-analytics.yaml: a clip by its Service", self.video),
            ("inference.yaml: requests by its Service, and its probes", self.inference),
            ("inference.yaml: its autoscaler rises and falls with the load", self.autoscaled),
            ("everything is removed", self.end),
        ]

    # Helpers of the checks.
    def items(self, name, *options):
        items = copy.deepcopy(self.examples.read(name))
        for item in items:
            for _, template, _ in templates(item):
                on_this_machine(template, options)
        return items

    def volume(self, items):
        """The volume: a real NFS export where one is named and the kernel can mount it, else a directory of this machine."""
        volume = next(item for item in items if item["kind"] == "PersistentVolume")["spec"]
        export = os.environ.get("GPULET_NFS")
        if export:
            volume["nfs"]["server"], _, volume["nfs"]["path"] = export.partition(":")
            return
        shared = self.n1.state / "shared"
        shared.mkdir()
        has_nfs = "\tnfs4\n" in pathlib.Path("/proc/filesystems").read_text()
        why = "GPULET_NFS=SERVER:/PATH names no export" if has_nfs else "this kernel has no NFS (/proc/filesystems)"
        print(f"   skipped: the NFS mount: {why}; both nodes share a directory", flush=True)
        del volume["nfs"], volume["mountOptions"]
        volume["hostPath"] = {"path": str(shared)}

    def job(self, name):
        return self.kube.get(f"/apis/batch/v1/namespaces/default/jobs/{name}")

    def until_complete(self, name):
        def complete():
            status = self.job(name).get("status", {})
            states = {condition["type"] for condition in status.get("conditions", []) if condition["status"] == "True"}
            assert "Failed" not in states, f"{status}; {self.log_of(name)}"
            return status if "Complete" in states else None
        return until(f"the Job {name} is complete", complete, LIMIT_S)

    def pods_of(self, app):
        return {name: pod for name, pod in self.kube.pods().items() if pod["metadata"]["labels"].get("app") == app}

    def log_of(self, app):
        return "\n".join(self.kube.log(name)[-3000:] for name in self.pods_of(app))

    def running(self, app, but=()):
        def runs():
            pods = self.pods_of(app)
            assert not any(pod["status"]["phase"] == "Failed" for name, pod in pods.items() if name not in but), self.log_of(app)
            return next(((name, pod) for name, pod in pods.items() if name not in but and pod["status"]["phase"] == "Running"), None)
        return until(f"a Pod of {app} runs", runs, LIMIT_S)

    def ask(self, service, path, body):
        """(status, JSON) of a POST to a Service, from a node."""
        address = self.kube.get(f"/api/v1/namespaces/default/services/{service}")["spec"]["clusterIP"]
        data = self.n1.state / "request"
        data.write_bytes(body)
        said = self.n1.run("curl", "-s", "--max-time", "30", "-w", "\n%{http_code}", "--data-binary", f"@{data}", f"http://{address}{path}")
        answer, _, status = said.rpartition("\n")
        return int(status), json.loads(answer)

    def ready(self, app, count):
        def are_ready():
            conditions = [{c["type"]: c["status"] for c in pod["status"].get("conditions", [])} for pod in self.pods_of(app).values()]
            return len(conditions) == count and all(one.get("Ready") == "True" for one in conditions)
        until(f"{count} Pods of {app} are ready", are_ready, LIMIT_S)

    # The checks.
    def begin(self):
        self.checks.cdi.hooks.mkdir(exist_ok=True)
        for node in self.checks.nodes:
            node.nvml("gpus")
            node.write_config(CONFIG.format(directory=node.state / node.name, hold_ms=HOLD_MS))
            node.start_agent(arguments=["--config-file", node.config])
        for node in self.checks.nodes:
            node.wait_allocatable(self.kube, 8)
        create_programs()
        items = self.items("training-volume")
        self.volume(items)
        submit(items)
        self.until_complete("sample-data")
        self.volume_items = [item for item in items if item["kind"] != "Job"]
        self.examples.take_away([item for item in items if item["kind"] == "Job"])

    def pipeline(self):
        items = self.items("pipeline")
        submit(items)
        self.until_complete("pipeline")
        said = self.log_of("pipeline").splitlines()
        stages = ["pipeline-prepare", "pipeline-train", "pipeline-evaluate"]
        assert said == [f"{stage}: {what}" for stage in stages for what in ("started", "Complete")], said
        times = [self.job(stage)["status"] for stage in stages]
        assert all(one["completionTime"] <= other["startTime"] for one, other in zip(times, times[1:])), times
        print(f"   {self.log_of('pipeline-evaluate').strip()}", flush=True)
        self.examples.take_away(items)

    def moves(self, name, gpus, *options):
        """The Job's Pod is alone able to run on n1, and, once a GPU of it breaks, its successor alone on n2."""
        items = self.items(name, *options)
        self.kube.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": True}})
        submit(items)
        first, pod = self.running(name)
        assert pod["spec"]["nodeName"] == "n1", pod["spec"]["nodeName"]
        self.checks.run_pod("rest", 8 - gpus, "n1")
        self.kube.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": None}})
        follow = subprocess.Popen(["kubectl", "logs", "--follow", first], stdout=subprocess.PIPE, text=True)
        try:
            said = []
            for line in follow.stdout:
                said.append(line)
                if line.startswith("saved step"):
                    break
            broken = self.n1.resources.held()[first][0]
            self.n1.run(GPULET_SIM, "xid", self.n1.gpus[broken]["index"], 79, "--root", DRIVER_ROOT)
            said += follow.stdout.readlines()  # until its container has ended
        finally:
            follow.kill()
            follow.wait()
        ended = re.findall(r"SIGTERM after step (\d+)", "".join(said))
        assert ended and "starts at step 0 " in "".join(said), said
        second, pod = self.running(name, but=(first,))
        assert pod["spec"]["nodeName"] == "n2", pod["spec"]["nodeName"]
        status = self.until_complete(name)
        assert status["succeeded"] == 1 and not status.get("failed"), status
        log = self.kube.log(second)
        resumed = re.search(r"resumes after step (\d+) of (\d+)", log)
        assert resumed and resumed.group(1) == ended[0], f"it ended after step {ended}, then: {log}"
        assert f"saved step {resumed.group(2)} of {resumed.group(2)}" in log, log
        print(f"   {first} on n1 ended after step {ended[0]}, {second} on n2 went on to {resumed.group(2)}", flush=True)
        self.n1.run(GPULET_SIM, "heal", self.n1.gpus[broken]["index"], "--root", DRIVER_ROOT)
        self.kube.delete_pod("rest", grace_s=0)
        self.examples.take_away(items)
        self.n1.wait_allocatable(self.kube, 8)

    def video(self):
        clip = self.n1.state / "clip.mp4"
        subprocess.run(["/usr/bin/python3", ROOT / "tests/workloads/clip.py", clip], check=True, env={**os.environ, "PYTHONPATH": str(CACHE / "video")})
        items = self.items("video-analytics")
        submit(items)
        self.ready("video-analytics", 2)  # its autoscaler's minimum
        for _ in range(4):
            status, answer = self.ask("video-analytics", "/analyze", clip.read_bytes())
            assert status == 200 and answer["frames"] == 50 and answer["scores"] == sorted(answer["scores"]), answer
        assert self.ask("video-analytics", "/analyze", b"no clip")[0] == 400
        self.examples.take_away(items)

    def inference(self):
        for node in self.checks.nodes:
            self.checks.stop_agent_of(node)
        self.scaling.deploy()
        items = self.items("inference")
        scaler = next(item for item in items if item["kind"] == "HorizontalPodAutoscaler")
        scaler["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
        submit(items)
        self.inference_items = items
        self.ready("inference", 1)
        status, answer = self.ask("inference", "/predict", json.dumps({"rows": [[0.0] * 32] * 2}).encode())
        assert status == 200 and len(answer["classes"]) == 2 and answer["step"] == 1000, answer
        assert self.ask("inference", "/predict", b"{}")[0] == 400

    def autoscaled(self):
        self.scaling.until_replicas(3, BUSY)
        self.ready("inference", 3)
        self.scaling.until_replicas(1, QUIET)

    def end(self):
        self.examples.take_away(self.inference_items)
        self.examples.take_away(self.volume_items)
        kubectl("delete", "configmap", "example-programs")
        self.scaling.undeploy()
        self.checks.remove_pods()
