"""`kubectl gpulet` against an API server of these tests: each command with each -o, and what kubectl's users type."""
import contextlib
import http.server
import json
import re
import ssl
import subprocess
import threading
import time
import urllib.parse

import schemas
import yaml

LIMIT_S = 20
MODEL = {"name": "NVIDIA H100 80GB HBM3", "architecture": "hopper", "compute": "9.0", "memoryMiB": 81920}
LOST = "XID 79: GPU has fallen off the bus"
GPU_NODES = "/apis/gpulet.io/v1alpha1/gpunodes"
# Command line, schema, exit code.
COMMANDS = (
    ("list", "kubectl-gpus", 0),
    ("list gpu-1 -n team-a", "kubectl-gpus", 0),
    ("health", "kubectl-gpus", 3),
    ("health -l pool=train", "kubectl-gpus", 0),
    ("top --sort-by busy", "kubectl-gpus", 0),
    ("doctor", "doctor", 1),
    # Computed here.
    ("explain lost --service=", "explain", 0),
    ("explain fits --service=", "explain", 0),
    ("explain large --service=", "explain", 0),
    ("explain claim/wide", "explain-claim", 0),
    ("explain claim/waits", "explain-claim", 0),
)
SCHEMAS = {f"{schema}.schema.json" for _, schema, _ in COMMANDS}


def gpu_node(name, gpus, held=(), shares=1, lost=()):
    """`held`: Pods by the index of the GPU of which each holds a share."""
    units = [{"gpu": gpu, "shares": shares, "out": shares if gpu in lost else 0, "why": LOST if gpu in lost else ""} for gpu in range(gpus)]
    return {"metadata": {"name": name, "resourceVersion": "7"}, "spec": {
        "version": 1, "driver": "570.124.06", "cuda": "12.8", "models": [MODEL],
        "gpus": [{"uuid": f"GPU-{name}-{gpu}", "model": 0, "busy": 10 * gpu, "state": "lost" if gpu in lost else "healthy",
                  "reason": LOST if gpu in lost else ""} for gpu in range(gpus)],
        "resources": [{"name": "nvidia.com/gpu", "sharing": "none" if shares == 1 else "time-slicing", "units": units}],
        "holders": [{"pod": pod, "holds": [[0, gpu, 1]]} for pod, gpu in held]}}


def ready(name, **fields):
    return {"metadata": {"name": name, **fields.pop("metadata", {})}, **fields,
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **fields.pop("status", {})}}


def node_object(name, gpus):
    count = {"nvidia.com/gpu": str(gpus)}
    return ready(name, status={"capacity": count, "allocatable": count})


def agent_pod(name):
    return ready(f"agent-{name}", metadata={"namespace": "gpulet"}, spec={"nodeName": name, "containers": [{"image": "gpulet:1"}]})


def asking_pod(name, count, annotations=None, cores=None, **spec):
    limits = {"nvidia.com/gpu": str(count), **({"nvidia.com/gpucores": str(cores)} if cores else {})}
    return {"metadata": {"namespace": "team-a", "name": name, "uid": name, "annotations": annotations or {}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], **spec}}


GPU_NODE_OBJECTS = (gpu_node("gpu-0", 2, [("team-a/train", 0), ("team-a/lost", 1)], lost=[1]),
                    gpu_node("gpu-1", 1, [("team-a/web", 0), ("team-b/api", 0)], shares=4))
LISTS = {
    GPU_NODES: GPU_NODE_OBJECTS,
    "/api/v1/nodes": (node_object("gpu-0", 1), node_object("gpu-1", 4)),
    "/api/v1/pods": (agent_pod("gpu-0"), agent_pod("gpu-1"), asking_pod("lost", 1, nodeName="gpu-0")),
    "/api/v1/namespaces": (),
    "/apis/policy/v1/poddisruptionbudgets": (),
}
# "lost" is on a GPU that is lost. The other two are on no node: one fits, and nothing enforces its nvidia.com/gpucores; one fits
# nowhere and has an annotation that is ignored.
ASKING_PODS = {f"/api/v1/namespaces/team-a/pods/{pod['metadata']['name']}": pod
               for pod in (asking_pod("fits", 1, cores=30), asking_pod("large", 5, {"gpulet.io/gpu-memory": "lots"}))}
RESOURCE_API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"


def claim(name, count, selector="", **status):
    """For `count` GPUs of the class gpu.nvidia.com."""
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count, **({"selectors": [{"cel": {"expression": selector}}]} if selector else {})}
    return {"metadata": {"namespace": "team-a", "name": name, "uid": f"uid-{name}"}, "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
            "status": status}


def allocated(device, pod):
    """The status of a claim that holds the device of gpu-0 for the Pod."""
    return {"allocation": {"devices": {"results": [{"request": "gpus", "driver": DRIVER, "pool": "gpu-0", "device": device}]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]}


# "wide" fits nowhere; "waits" is on gpu-0, whose agent cannot prepare it.
CLAIMS = (claim("wide", 2, "device.attributes['gpu.nvidia.com'].uuid.matches('GPU-.*')"), claim("waits", 1, **allocated("gpu-0", "web")))
SLICES = ({"metadata": {"name": "gpu-0-slice"}, "spec": {
    "driver": DRIVER, "nodeName": "gpu-0", "pool": {"name": "gpu-0", "generation": 1, "resourceSliceCount": 1},
    "devices": [{"name": name, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{name}"}}} for name in ("gpu-0", "gpu-1")]}},)
CLASS = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}}
FAILURE = {"metadata": {"name": "failure"}, "reason": "FailedPrepareDynamicResources", "message": "the GPU is held by another claim",
           "lastTimestamp": "2026-01-01T00:00:00Z"}
LISTS.update({f"{RESOURCE_API}/resourceslices": SLICES, f"{RESOURCE_API}/resourceclaims": CLAIMS, "/api/v1/namespaces/team-a/events": (FAILURE,)})
OBJECTS = {**ASKING_PODS, f"{RESOURCE_API}/deviceclasses/{DRIVER}": CLASS,
           **{f"{RESOURCE_API}/namespaces/team-a/resourceclaims/{one['metadata']['name']}": one for one in CLAIMS}}
EXPLAIN = "/api/v1/namespaces/gpulet/services/gpulet-scheduler:9410/proxy/explain"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path in LISTS and "watch" in query:
            return self.send_changes(url.path)
        status, text = 404, json.dumps({"kind": "Status", "message": "no such thing"})
        if url.path in LISTS:
            items, selector = LISTS[url.path], query.get("fieldSelector", "")
            if selector.startswith("metadata.name="):
                items = [one for one in items if selector == f"metadata.name={one['metadata']['name']}"]
            elif selector.startswith("spec.nodeName=,"):
                items = ()
            if query.get("labelSelector") == "pool=train":
                items = items[1:]
            status, text = 200, json.dumps({"metadata": {"resourceVersion": "7"}, "items": items})
        elif url.path in OBJECTS:
            status, text = 200, json.dumps(OBJECTS[url.path])
        elif url.path == EXPLAIN:
            status, text = 200, f"{query['namespace']}/{query['pod']} fits on gpu-1\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        with contextlib.suppress(OSError):
            self.end_headers()
            self.wfile.write(text.encode())

    def send_changes(self, path):
        """Of GpuNodes: gpu-1 loses a Pod. The watch stays open until the client has gone."""
        changed = gpu_node("gpu-1", 1, [("team-a/web", 0)], shares=4)
        changed["metadata"]["resourceVersion"] = "8"
        event = json.dumps({"type": "MODIFIED", "object": changed}).encode() + b"\n"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        with contextlib.suppress(OSError):
            self.end_headers()
            if path == GPU_NODES:
                time.sleep(1)  # until the table is printed
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.rfile.read(1)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def api_server(directory):
    """Yields a kubeconfig of it."""
    key, certificate = directory / "api.key", directory / "api.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = directory / "kubeconfig"
    config.write_text(yaml.safe_dump({
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "team-a"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"https://127.0.0.1:{server.server_port}",
                                                  "certificate-authority": str(certificate)}}],
        "users": [{"name": "me", "user": {"token": "t"}}]}))
    try:
        yield config
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Plugin:
    """The API server runs from the first call to the end of the process."""

    def __init__(self, node):
        self.node, self.config, self.ends = node, None, contextlib.ExitStack()

    def run(self, line, code=0):
        if self.config is None:
            self.config = self.ends.enter_context(api_server(self.node.directory))
        done = self.node.run(["kubectl-gpulet", *line.split()], KUBECONFIG=str(self.config))
        if done.returncode != code:
            raise AssertionError(f"exit code {done.returncode}, not {code}: {done.stdout[-300:]}{done.stderr[-300:]}")
        return done


def check_documents(plugin, line, schema, code):
    found = json.loads(plugin.run(f"{line} -o json", code).stdout)
    again = yaml.load(plugin.run(f"{line} -o yaml", code).stdout, Loader=yaml.CSafeLoader)
    return f"JSON and YAML differ: {found} and {again}" if found != again else schemas.validate(schema, found)


def check_table(plugin, line, code):
    default, table, wide = (plugin.run(f"{line} {form}", code).stdout for form in ("", "-o table", "-o wide"))
    if default != table:
        return "-o table is not the default"
    bare = plugin.run(f"{line} --no-headers", code).stdout
    if re.search(r"^NODE +GPU|GPUs? on ", bare, re.MULTILINE):
        return f"--no-headers prints headings: {bare!r}"
    return None if len(wide) >= len(table) else "-o wide shows less"


def check_watch(plugin):
    plugin.run("list")
    process = subprocess.Popen([plugin.node.programs / "kubectl-gpulet", "list", "-w"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               env={**plugin.node.environment, "KUBECONFIG": str(plugin.config)}, text=True)
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    lines = [process.stdout.readline() for _ in range(5)]
    limit.cancel()
    process.kill()
    process.wait()
    process.stdout.close()
    wanted = r"NODE .*\ngpu-0 .*\ngpu-0 .*\ngpu-1 .* 2/4 .*\ngpu-1 +0 .* 1/4 +healthy +team-a/web\n"
    return None if re.fullmatch(wanted, "".join(lines)) else f"{lines}"


def check_names(plugin):
    found = [plugin.run(line, code).stdout for line, code in (("list -o name", 0), ("health -o name", 3), ("list -n team-b -o name", 0))]
    return None if found == ["node/gpu-0\nnode/gpu-1\n", "node/gpu-0\n", "node/gpu-1\n"] else f"{found}"


def check_explain(plugin):
    found = plugin.run("explain pod/train").stdout + plugin.run("explain web -n team-b").stdout
    return None if found == "team-a/train fits on gpu-1\nteam-b/web fits on gpu-1\n" else f"{found!r}"


def check_explanations(plugin):
    """Each member of the document has a value in one of the examples: else the schema's test says little of it."""
    empty = []
    for kind in ("explain", "explain-claim"):
        found = [json.loads(plugin.run(f"{line} -o json").stdout) for line, schema, _ in COMMANDS if schema == kind]
        properties = schemas.load_schema(kind)["properties"]
        empty += [f"{kind} {name}" for name in properties if not any(one[name] for one in found)]
        members = set().union(*(node for one in found for node in one["nodes"]))
        empty += sorted(set(properties["nodes"]["items"]["properties"]) - members)
    return f"no example has {', '.join(empty)}" if empty else None


def check_merged(plugin):
    """The cluster and its authority, relative to their file, in one file; the rest in another; a third has the same names."""
    plugin.run("list")
    whole = yaml.safe_load(plugin.config.read_text())
    cluster = {"server": whole["clusters"][0]["cluster"]["server"], "certificate-authority": "api.crt"}
    parts = {"clusters": {"clusters": [{"name": "here", "cluster": cluster}]},
             "contexts": {key: whole[key] for key in ("current-context", "contexts", "users")},
             "others": {"current-context": "none", "clusters": [{"name": "here", "cluster": {"server": "https://192.0.2.1"}}]}}
    paths = {name: plugin.node.directory / f"{name}.kubeconfig" for name in (*parts, "none", "broken")}
    for name, part in parts.items():
        paths[name].write_text(yaml.safe_dump(part))
    paths["broken"].write_text("clusters: [")

    def run(*names):
        done = plugin.node.run(["kubectl-gpulet", "list", "-o", "name"], KUBECONFIG=":".join(str(paths[name]) for name in names))
        return done.stdout + done.stderr
    found = run("none", "clusters", "contexts", "others")
    if found != "node/gpu-0\nnode/gpu-1\n":
        return f"{found!r}"
    found = run("clusters", "contexts", "broken")
    return None if found.startswith(f"kubectl gpulet list: {paths['broken']}:1:") else f"{found!r}"


def check_completion(node):
    done = node.run(["kubectl_complete-gpulet", "list", "--all"])
    lines = done.stdout.splitlines()
    return None if len(lines) == 2 and lines[0].startswith("--all-namespaces\t") and lines[1] == ":4" else f"{lines}"


def check_help(node, command):
    shown = node.run(["kubectl-gpulet", *command.split(), "--help"])
    lines = shown.stdout.splitlines()
    if shown.returncode or "Examples:" not in lines:
        return f"exit code {shown.returncode}: {shown.stderr}{shown.stdout}"
    end = lines.index("", lines.index("Examples:"))
    broad = [text for text in [*lines[:lines.index("Examples:")], *lines[end:]] if len(text) > 80]
    return f"wider than 80 columns: {broad[0]!r}" if broad else None


def checks(node):
    plugin = Plugin(node)
    for line, schema, code in COMMANDS:
        yield f"kubectl gpulet {line} as documents", lambda line=line, schema=schema, code=code: check_documents(
            plugin, line, schema, code)
        yield f"kubectl gpulet {line} as a table", lambda line=line, code=code: check_table(plugin, line, code)
    yield "watch", lambda: check_watch(plugin)
    yield "names", lambda: check_names(plugin)
    yield "explain", lambda: check_explain(plugin)
    yield "explanations", lambda: check_explanations(plugin)
    yield "several kubeconfigs", lambda: check_merged(plugin)
    yield "completion", lambda: check_completion(node)
    for command in ("", *sorted({line.split()[0] for line, _, _ in COMMANDS})):
        yield f"kubectl gpulet {command} --help", lambda command=command: check_help(node, command)
    yield "the API server ends", plugin.ends.close
