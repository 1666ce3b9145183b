"""The Kubernetes API over one persistent connection, as far as the cluster tests use it."""
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.request

ASKED_AGAIN_S = 30

# Prints what the container sees and may open, one line each, then sleeps.
LOOK = """
echo "env $NVIDIA_VISIBLE_DEVICES"
find /dev -name 'nvidia*' | while read -r node; do [ -c "$node" ] && echo "node $node $(stat -c '%t:%T' "$node")"; done
for minor in 0 1 2 3 4 5 6 7; do
  mknod "/tmp/gpu$minor" c 195 "$minor" && echo "open $minor $( (: <"/tmp/gpu$minor") 2>&1)"
done
echo done
trap 'exit 0' TERM; sleep 100000 & wait
"""


class ApiError(Exception):
    def __init__(self, status, reason, message):
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason = status, reason


class Kube:
    """Not thread-safe. Names are in the namespace `default` unless a path says otherwise."""

    def __init__(self, state):
        self.token = (state / "pki" / "tokens").read_text().split(",")[0]
        self.tls = ssl.create_default_context(cafile=str(state / "pki" / "ca.crt"))
        self.connection = None

    def call(self, method, path, body=None, kind="application/json", text=False):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "*/*" if text else "application/json"}
        payload = json.dumps(body) if body is not None else None
        deadline = time.monotonic() + ASKED_AGAIN_S
        while True:
            response, data = self.exchange(method, path, payload, headers)
            # Retries like every API client, for example while a new CRD is being established.
            wait_s = response.getheader("Retry-After")
            if response.status not in (429, 503) or not wait_s or time.monotonic() + float(wait_s) > deadline:
                break
            time.sleep(float(wait_s))
        if response.status >= 400:
            try:
                why = json.loads(data)
            except ValueError:
                why = {"message": data.decode(errors="replace")}
            raise ApiError(response.status, why.get("reason"), why.get("message"))
        return data.decode(errors="replace") if text else json.loads(data)

    def exchange(self, method, path, payload, headers):
        for attempt in (1, 2):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPSConnection("10.77.0.1", context=self.tls, timeout=30)
                self.connection.request(method, path, payload, headers)
                response = self.connection.getresponse()
                return response, response.read()
            except (http.client.HTTPException, OSError):
                self.connection = None  # the server closes idle connections
                if attempt == 2:
                    raise

    def get(self, path):
        return self.call("GET", path)

    def pods(self, namespace="default"):
        """Name → Pod."""
        return {pod["metadata"]["name"]: pod for pod in self.get(f"/api/v1/namespaces/{namespace}/pods")["items"]}

    def pod(self, name):
        return self.get(f"/api/v1/namespaces/default/pods/{name}")

    def create_pod(self, pod):
        return self.call("POST", "/api/v1/namespaces/default/pods", pod)

    def delete_pod(self, name, namespace="default", grace_s=None):
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        return self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", options)

    def log(self, name, container=None):
        query = f"?container={container}" if container else ""
        return self.call("GET", f"/api/v1/namespaces/default/pods/{name}/log{query}", text=True)

    def allocatable(self, node, resource):
        return int(self.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(resource, "0"))

    def patch(self, path, change):
        return self.call("PATCH", path, change, kind="application/strategic-merge-patch+json")

    def events(self, namespace="default"):
        return self.get(f"/api/v1/namespaces/{namespace}/events")["items"]

    def events_about(self, name, kind=None):
        """Some components report about objects without a name."""
        about = {"name": name, **({"kind": kind} if kind else {})}
        return [event for event in self.events() if about.items() <= event["involvedObject"].items()]


class Watch(threading.Thread):
    """Watches the objects of a list; each change has its time.monotonic(). A context manager."""

    def __init__(self, kube, path):
        super().__init__(daemon=True)
        self.seen = []  # (moment, ADDED, MODIFIED or DELETED, object)
        version = kube.get(path)["metadata"]["resourceVersion"]
        self.connection = http.client.HTTPSConnection("10.77.0.1", context=kube.tls)
        self.connection.request("GET", f"{path}?watch=1&resourceVersion={version}", headers={"Authorization": f"Bearer {kube.token}"})
        self.lines = self.connection.getresponse()

    def run(self):
        try:
            for line in self.lines:
                change = json.loads(line)
                self.seen.append((time.monotonic(), change["type"], change["object"]))
        except (http.client.HTTPException, OSError, ValueError):
            pass  # ended

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.join()
        self.connection.close()

    def first(self, what, is_it, limit_s):
        """Returns (moment, object) of the first matching change."""
        return until(what, lambda: next(((moment, thing) for moment, _, thing in list(self.seen) if is_it(thing)), None), limit_s, 0.02)


class Timeout(AssertionError):
    pass


def token_kubeconfig(state, token):
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "it", "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": "https://10.77.0.1", "certificate-authority": str(state / "pki/ca.crt")}}],
        "users": [{"name": "it", "user": {"token": token}}]})


def is_ready(port):
    """Whether the scheduler extender on this port of localhost reports that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def until(what, condition, limit_s=30.0, interval_s=0.1):
    """Returns the first true value of condition(). Raises Timeout with the subject and the last value."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Timeout(f"not within {limit_s:.0f} s: {what} (last seen: {value!r})")
        time.sleep(interval_s)


def gpu_pod(name, gpus, node=None, script="trap 'exit 0' TERM; sleep 100000 & wait", resource="nvidia.com/gpu"):
    """A Pod of one container that runs `script` with `gpus` of a resource and has its own name in $POD."""
    pod = {
        "metadata": {"name": name, "labels": {"test": "gpu"}},
        "spec": {
            "restartPolicy": "Never", "hostNetwork": True, "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": False, "enableServiceLinks": False,
            "containers": [{
                "name": "main", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", script], "env": [{"name": "POD", "value": name}],
                "resources": {"limits": {resource: str(gpus)}} if gpus else {},
            }],
        },
    }
    if node:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod
