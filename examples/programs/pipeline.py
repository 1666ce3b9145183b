"""Runs the suspended Jobs of this namespace that its arguments name, one after the other, and ends with 1 as soon as one fails.

A stage's Pods, and thereby its GPUs, exist only while the stage runs. Started again, for example after its node was drained, it
goes on with the first stage that is not complete. It needs Python's standard library and a ServiceAccount that may get and patch
these Jobs (pipeline.yaml).
"""
import json
import os
import pathlib
import ssl
import sys
import time
import urllib.request

ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
INTERVAL_S = 2
TIMEOUT_S = 30


def call(name, change=None):
    """Reads the Job, or changes it by a JSON merge patch. Returns the Job."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    namespace = (ACCOUNT / "namespace").read_text()
    request = urllib.request.Request(
        f"https://{host}:{port}/apis/batch/v1/namespaces/{namespace}/jobs/{name}", method="PATCH" if change else "GET",
        data=json.dumps(change).encode() if change else None,
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/merge-patch+json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=ssl.create_default_context(cafile=ACCOUNT / "ca.crt")) as response:
        return json.load(response)


def state_of(job):
    """Complete, Failed, or None while it may still become either."""
    return next((condition["type"] for condition in job.get("status", {}).get("conditions", [])
                 if condition["type"] in ("Complete", "Failed") and condition["status"] == "True"), None)


def run(name):
    """Returns Complete or Failed."""
    job = call(name)
    if not state_of(job) and job["spec"].get("suspend"):
        job = call(name, {"spec": {"suspend": False}})
        print(f"{name}: started", flush=True)
    while not (state := state_of(job)):
        time.sleep(INTERVAL_S)
        try:
            job = call(name)
        except OSError as error:  # the API server restarts, say: the stage goes on without it
            print(f"{name}: {error}", flush=True)
    print(f"{name}: {state}", flush=True)
    return state


if __name__ == "__main__":
    for stage in sys.argv[1:]:
        if run(stage) == "Failed":
            sys.exit(1)
