"""`gpulet scheduler` under attack: it must live within its memory limit, and serve kube-scheduler meanwhile."""
import contextlib
import http.server
import json
import os
import pathlib
import re
import ssl
import subprocess
import threading

import client
from outcome import between, same

NODES = 5_000
NODE_BYTES = 11_800  # of a whole Node, so that all are 59 MB
LIMIT_MB = 200       # the chart's limit is 256 MiB
GPU = {"model": 0, "numa": 0, "state": "healthy"}
GPU_NODE = {"version": 1, "driver": "570.124.06", "cuda": "12.8", "placement": "best-effort", "shared": "distributed",
            "models": [{"name": "NVIDIA H100 80GB HBM3", "architecture": "hopper", "compute": "9.0", "memoryMiB": 81559}],
            "gpus": [{"uuid": f"GPU-{i}", **GPU} for i in range(8)], "links": {"classes": ["SYS+NVS18"], "pairs": "A" * 28},
            "resources": [{"name": "nvidia.com/gpu", "sharing": "none", "units": [{"gpu": i} for i in range(8)]}]}
POD = {"metadata": {"namespace": "team", "name": "train", "uid": "u"},
       "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}


def node_names():
    return [f"gpu-node-{i}.cluster.example" for i in range(NODES)]


class ApiServer(http.server.ThreadingHTTPServer):
    """Lists 5,000 GpuNodes, and no Pod and no namespace; watches end when it does. Keeps the paths of single objects."""

    daemon_threads = True

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            path = self.path.split("?")[0]
            if "watch=true" in self.path:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.server.ended.wait()
                return
            if not path.endswith(("/gpunodes", "/pods", "/namespaces", "/poddisruptionbudgets")):
                self.server.asked.append(self.path)
            items = [{"metadata": {"name": name}, "spec": GPU_NODE} for name in node_names()] if path.endswith("/gpunodes") else []
            body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def __init__(self, directory, certificate):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.asked, self.ended = [], threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.server_port}", "certificate-authority": str(certificate[0])}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self):
        self.ended.set()
        self.shutdown()
        self.server_close()


class Scheduler:
    """The extender, synced with such an API server."""

    def __init__(self, programs, directory, stack):
        self.programs, self.directory, self.stack = programs, directory, stack
        self.process, self.port, self.api = None, 0, None

    def start(self):
        """Where it does not run: at the beginning, and after an attack that ended it."""
        if self.process and self.process.poll() is None:
            return
        if self.api is None:
            self.api = ApiServer(self.directory, client.make_certificate(self.directory, "api"))
            self.stack.callback(self.api.end)
        self.process = subprocess.Popen([self.programs / "gpulet", "scheduler", "--listen", "127.0.0.1:0", "--log-format", "json"], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"], "KUBECONFIG": str(self.api.kubeconfig)})
        self.stack.callback(self.stop)
        for line in self.process.stderr:
            entry = json.loads(line)
            if entry["message"] == "serving kube-scheduler":
                self.port = entry["port"]
            if entry["message"] == "cluster state synced":
                return
        raise RuntimeError(f"gpulet scheduler ended with {self.process.wait()}")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def post(self, body, path="/filter", **options):
        return client.exchange(self.port, path, method="POST", body=body, **options)

    def peak_mb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e6

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    def check_alive(self):
        same(self.process.poll(), None, "the scheduler's exit status")
        same(client.exchange(self.port, "/healthz")[0], 200, "/healthz")


def whole_nodes(pod):
    """What kube-scheduler sends without nodeCacheCapable: 59 MB."""
    filler = {"annotations": {"filler": "x" * (NODE_BYTES - 120)}}
    return json.dumps({"Pod": pod, "Nodes": {"items": [{"metadata": {"name": name, **filler}} for name in node_names()]}}).encode()


def nested():
    """Where a text of 195 KiB can be nested: (name, body)."""
    deep = "[" * 100_000 + "]" * 100_000
    objects = '{"a":' * 30_000 + "1" + "}" * 30_000
    pod, names = json.dumps(POD), '"NodeNames":["gpu-node-0.cluster.example"]'
    item = '{"metadata":{"name":"gpu-node-0.cluster.example"},"x":%s}'
    yield "beside what is read", '{"Pod":%s,%s,"x":%s}' % (pod, names, deep)
    yield "objects beside what is read", '{"Pod":%s,%s,"x":%s}' % (pod, names, objects)
    yield "in a Node", '{"Pod":%s,"Nodes":{"items":[%s]}}' % (pod, item % deep)
    yield "in the Pod", '{"Pod":%s,%s}' % (pod[:-1] + ',"x":%s}' % deep, names)
    yield "unfinished", '{"Pod":%s,"x":%s' % (pod, "[" * 195_000)


def checks(programs, directory, stack):
    scheduler = Scheduler(programs, directory, stack)

    def refuses(body):
        scheduler.start()
        for path in ("/filter", "/prioritize"):
            status, why = scheduler.post(body.encode(), path)
            same(status, 400, f"status of {path}")
            if "deeper" not in why.decode():
                return f"no reason: {why[:200]}"
            scheduler.check_alive()
        return None
    for name, body in nested():
        yield f"scheduler: refuses nesting {name}", lambda body=body: refuses(body)

    def stays_out_of_paths(query):
        scheduler.start()
        same(client.exchange(scheduler.port, "/explain?" + query)[0], 400, f"status of {query}")
        same(scheduler.api.asked, [], "paths asked of the API server")
    for query in ("namespace=..&pod=x", "namespace=team&pod=..", "namespace=team&pod=.", "namespace=team&pod=a..b", "namespace=te.am&pod=a",
                  "namespace=team&pod=-a", "namespace=team&pod=A", "namespace=team&pod=..%2F..%2Fnodes", "namespace=team&pod=" + "a" * 254):
        yield f"scheduler: no path is made of {query[:40]}", lambda query=query: stays_out_of_paths(query)

    def serves_whole_nodes(pod, passing):
        scheduler.start()
        body = whole_nodes(pod)
        scheduler.forget_peak()
        status, answer = scheduler.post(body)
        same(status, 200, "status")
        same(len(json.loads(answer)["Nodes"]["items"]), passing, "nodes that pass")
        between(scheduler.peak_mb(), 1, LIMIT_MB, "peak of resident memory in MB")
    # Without devices all nodes pass, and the response is as large as the request.
    for name, pod, passing in (("of a Pod", POD, 100), ("of a Pod without GPUs", {"metadata": {"namespace": "a", "name": "b"}}, NODES)):
        yield f"scheduler: serves 5,000 whole Nodes {name}, 59 MB", lambda pod=pod, passing=passing: serves_whole_nodes(pod, passing)

    def holds_bodies(text, size, finished):
        """Eight clients send such bodies; meanwhile whole Nodes are served."""
        scheduler.start()
        scheduler.forget_peak()
        block = (text * (1 + (1 << 20) // len(text))).encode()[:1 << 20]
        head = client.request_text("/filter", f"Content-Length: {size + (0 if finished else 1)}", method="POST")
        with contextlib.ExitStack() as clients:
            streams = [clients.enter_context(client.connect(scheduler.port)) for _ in range(8)]
            for stream in streams:
                with contextlib.suppress(OSError):  # dropped for another
                    stream.sendall(head)
                    for begin in range(0, size, len(block)):
                        stream.sendall(block[:size - begin])
            same(scheduler.post(whole_nodes(POD))[0], 200, "status for kube-scheduler")
        scheduler.check_alive()
        between(scheduler.peak_mb(), 1, LIMIT_MB, "peak of resident memory in MB")
    for name, text, size, finished in (("8 unfinished bodies of 30 MiB", "x", 30 << 20, False), ("8 unfinished bodies of 59 MiB", "x", 59 << 20, False),
                                       ("8 bodies of 59 MiB of brackets", "[", 59 << 20, True), ("8 bodies of 59 MiB of values", "[],", 59 << 20, True)):
        yield f"scheduler: holds {name}", lambda text=text, size=size, finished=finished: holds_bodies(text, size, finished)

    def unread_responses():
        """Eight clients send whole Nodes and do not read the response."""
        scheduler.start()
        scheduler.forget_peak()
        request = client.request_text("/filter", method="POST", body=whole_nodes({"metadata": {"namespace": "a", "name": "b"}}))
        with contextlib.ExitStack() as clients:
            for _ in range(8):
                stream = clients.enter_context(client.connect(scheduler.port))
                stream.sendall(request)
                same(stream.recv(8), b"HTTP/1.1", "the begin of the response")
            same(scheduler.post(whole_nodes(POD))[0], 200, "status for kube-scheduler")
        scheduler.check_alive()
        between(scheduler.peak_mb(), 1, LIMIT_MB, "peak of resident memory in MB")
    yield "scheduler: holds 8 responses of 59 MB that nobody reads", unread_responses
