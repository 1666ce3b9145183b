"""The cluster page of `gpulet scheduler`, which follows an API server of this file: nodes, Pods, agents, cordons and users."""
import http.server
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import axe_playwright_python
from view import LIMIT_MS, WIDTHS, View

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "src" / "web" / "page"
AXE = (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
FAULT = "XID 79: GPU has fallen off the bus"
MODELS = {"H100": ("NVIDIA H100 80GB HBM3", "hopper", "9.0", 81920), "T4": ("Tesla T4", "turing", "7.5", 16384)}
FIRST_PAINT_MS = 1000
SYNC_S = 120  # until the scheduler has listed 40,000 Pods
MEMORY_LIMIT_MIB = 256  # of the chart's scheduler


def gpu_node(name, gpus=8, model="H100", shares=1, holders=(), **of_gpus):
    """Returns a GpuNode. holders: (Pod, units); of_gpus: fields of single GPUs, as gpu3={"state": "lost"}."""
    title, architecture, compute, memory = MODELS[model]
    units = [{"gpu": i, **({"shares": shares} if shares > 1 else {}), **({"out": shares, "why": of_gpus[f"gpu{i}"]["reason"]} if "reason" in of_gpus.get(f"gpu{i}", {}) else {})}
             for i in range(gpus)]
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {
        "version": 1, "driver": "570.124.06", "cuda": "12.8", "placement": "best-effort", "shared": "distributed",
        "models": [{"name": title, "architecture": architecture, "compute": compute, "memoryMiB": memory}],
        "gpus": [{"uuid": f"GPU-{name}-{i}", "model": 0, "state": "healthy", **of_gpus.get(f"gpu{i}", {})} for i in range(gpus)],
        "resources": [{"name": "nvidia.com/gpu.shared" if shares > 1 else "nvidia.com/gpu", "sharing": "time-slicing" if shares > 1 else "none", "units": units}],
        "holders": [{"pod": pod, "holds": [[0, unit, 1] for unit in on]} for pod, on in holders]}}


def pod(key, gpus=1, node=None, annotations=None):
    namespace, name = key.split("/")
    spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}], **({"nodeName": node} if node else {})}
    return {"metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": "1", "annotations": annotations or {}},
            "spec": spec, "status": {"phase": "Running" if node else "Pending"}}


def agent(node, ready=True):
    return {"metadata": {"namespace": "gpulet", "name": f"agent-{node}", "resourceVersion": "1"},
            "spec": {"nodeName": node, "containers": [{"name": "gpulet", "ports": [{"name": "http", "containerPort": 9400}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}}


# What a request's target has, and the collection that it asks for.
COLLECTIONS = [("/gpunodes", "gpunodes"), ("nominatedNodeName", "nominated"), ("status.phase%3DPending", "pending"),
               ("labelSelector=", "agents"), ("spec.unschedulable", "cordoned"), ("/poddisruptionbudgets", "budgets"),
               ("/api/v1/namespaces?", "namespaces"), ("/api/v1/pods?", "pods")]


class Api(http.server.ThreadingHTTPServer):
    """An API server that lists and watches the collections and knows the users "viewer" and "stranger" by tokens of these names."""
    daemon_threads = True

    def __init__(self, directory):
        super().__init__(("127.0.0.1", 0), Answer)
        self.collections = {name: [] for _, name in COLLECTIONS}
        self.changes, self.changed, self.ended = [], threading.Condition(), False
        key, certificate = directory / "key.pem", directory / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate,
                        "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.server_port}", "certificate-authority": str(certificate)}}],
            "users": [{"name": "u", "user": {"token": "scheduler"}}]}))

    def change(self, collection, kind, thing):
        with self.changed:
            self.changes.append((collection, json.dumps({"type": kind, "object": thing}).encode() + b"\n"))
            self.changed.notify_all()

    def end(self):
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # a connection that the scheduler has closed


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        collection = next((name for part, name in COLLECTIONS if part in self.path), None)
        if collection is None:
            name = urllib.parse.urlsplit(self.path).path.rsplit("/", 1)[-1]
            found = [one for one in self.server.collections["pending"] if one["metadata"]["name"] == name]
            return self.reply(200, found[0]) if found else self.reply(404, {"kind": "Status", "message": "not found"})
        if "watch=" not in self.path:
            return self.reply(200, {"metadata": {"resourceVersion": "7"}, "items": self.server.collections[collection]})
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while True:
            with self.server.changed:
                self.server.changed.wait_for(lambda: self.server.ended or len(self.server.changes) > sent)
                if self.server.ended:
                    return None
                new, sent = self.server.changes[sent:], len(self.server.changes)
            for of, line in new:
                if of == collection:
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = {}
        if self.path.endswith("/tokenreviews"):
            token = body["spec"]["token"]
            status = {"authenticated": token in ("viewer", "stranger"), "user": {"username": token}}
        if self.path.endswith("/subjectaccessreviews"):
            status = {"allowed": body["spec"]["user"] == "viewer" and body["spec"]["nonResourceAttributes"] == {"path": "/cluster", "verb": "get"}}
        self.reply(201, {**body, "status": status})


class ClusterView(View):
    def open(self):
        self.page.goto(self.url)
        self.page.wait_for_selector("#link[data-link=live]")
        return self

    def row(self, node):
        return self.page.locator(f".row[data-node='{node}']")

    def rows(self):
        return self.page.evaluate("[...document.querySelectorAll('.row[data-node]')].map((row) => row.dataset.node)")


class Cluster:
    """`gpulet scheduler` with its page, and five nodes: whole GPUs, a fault, shares, a silent agent and another model."""

    def __init__(self, browser, programs):
        self.browser, self.programs, self.views, self.process = browser, programs, [], None
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="gpulet-cluster-page."))
        self.api = Api(self.directory)
        threading.Thread(target=self.api.serve_forever, daemon=True).start()
        busy = {f"gpu{i}": {"busy": 90, "memory": 50} for i in range(4)}
        self.api.collections.update(
            gpunodes=[gpu_node("a1", holders=[("team-a/train-0", [0, 1, 2, 3])], **busy),
                      gpu_node("a2", holders=[("team-a/train-1", [0, 4, 1, 5])], gpu6={"state": "lost", "reason": FAULT}),
                      gpu_node("b1", gpus=2, shares=4, holders=[("team-b/web-0", [0]), ("team-b/web-1", [0])]),
                      gpu_node("b2", gpus=4), gpu_node("c1", gpus=1, model="T4")],
            pods=[pod("team-a/train-0", 4, "a1"), pod("team-a/train-1", 4, "a2")],
            pending=[pod("team-b/big", 16), pod("team-c/linked", 4, annotations={"gpulet.io/gpu-links": "NV"})],
            agents=[agent("a1"), agent("a2"), agent("b1"), agent("b2", ready=False), agent("c1")], cordoned=[{"metadata": {"name": "c1"}}])
        for name in ("web-0", "web-1"):
            shared = pod(f"team-b/{name}", 1, "b1")
            shared["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu.shared": "1"}
            self.api.collections["pods"].append(shared)

    def start(self, access="none"):
        self.process = subprocess.Popen(
            [self.programs / "gpulet", "scheduler", "--listen", "127.0.0.1:0", "--page-address", "127.0.0.1:0", "--page-auth", access, "--shutdown-seconds", "0"],
            env={**os.environ, "KUBECONFIG": str(self.api.kubeconfig)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            port = re.search(r"serving the cluster page.* port=(\d+)", line)
            if port:
                break
        else:
            raise AssertionError("the scheduler serves no page")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.url = f"http{'' if access == 'none' else 's'}://127.0.0.1:{port[1]}/"
        deadline = time.monotonic() + SYNC_S
        while not self.has_document():
            assert time.monotonic() < deadline, "the scheduler has not listed the cluster"
            time.sleep(0.05)
        return self

    def has_document(self):
        request = urllib.request.Request(f"{self.url}api/cluster", headers={"Authorization": "Bearer viewer"})
        try:
            return urllib.request.urlopen(request, timeout=30, context=ssl._create_unverified_context()).status == 200
        except urllib.error.HTTPError as error:
            assert error.code == 503, error
            return False

    def memory_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def view(self, width=1440, **options):
        if self.process is None:
            self.start()
        self.views.append(ClusterView(self.browser, self.url, width, **options))
        return self.views[-1].open()

    def close(self):
        try:
            for view in self.views:
                view.close()
        finally:
            if self.process:
                self.process.terminate()
                self.process.wait(timeout=20)
            self.api.end()
            shutil.rmtree(self.directory, ignore_errors=True)


def screenshot(browser, programs, directory):
    """The page for the documentation: 60 nodes with load, a fault, shares, a cordon, and two Pods that wait."""
    cluster, nodes, pods, agents = Cluster(browser, programs), [], [], []
    for i in range(60):
        name, shared = f"gpu-node-{i:02}", i % 10 == 9
        held = [[j] for j in range(0 if i % 7 == 3 else 8)] if shared else [list(range(8 if i % 3 == 0 else 4))] if i % 7 != 3 else []
        of_gpus = {f"gpu{j}": {"busy": (i * 37 + j * 11) % 60 + 40, "memory": (i * 17) % 50 + 30} for holder in held for j in holder}
        if i in (17, 42):
            of_gpus["gpu6"] = {"state": "lost", "reason": FAULT}
        holders = [(f"team-{'abcd'[i % 4]}/{'web' if shared else 'train'}-{i}-{k}", gpus) for k, gpus in enumerate(held)]
        nodes.append(gpu_node(name, shares=4 if shared else 1, holders=holders, **of_gpus))
        pods += [pod(key, len(gpus), name) for key, gpus in holders]
        agents.append(agent(name, ready=i != 30))
    cluster.api.collections.update(gpunodes=nodes, pods=pods, agents=agents, cordoned=[{"metadata": {"name": "gpu-node-05"}}])
    view = cluster.view(color_scheme="light")
    view.page.set_viewport_size({"width": 1440, "height": 1150})
    view.page.screenshot(path=directory / "cluster-page-1440.png", scale="css")
    cluster.close()


CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


@check
def the_cluster_at_a_glance(cluster):
    view = cluster.view()
    totals = view.page.locator("#totals").inner_text().split("\n")
    shown = dict(zip(totals[::2], totals[1::2]))
    assert [shown[name] for name in ("Nodes", "GPUs", "Not healthy", "Pods", "Not reporting", "Waiting Pods")] == ["5", "23", "1", "4", "1", "2"], shown
    assert view.rows() == ["a1", "a2", "b1", "b2", "c1"]
    assert "NVIDIA H100 80GB HBM3" in view.row("a1").inner_text() and "45 %" in view.row("a1").inner_text(), view.row("a1").inner_text()
    assert "lost" in view.row("a2").inner_text() and "node cordoned" in view.row("c1").inner_text()
    faults = view.page.locator("#faults").inner_text()
    assert f"GPU 6: {FAULT}" in faults and "c1 · node cordoned" in faults, faults
    assert view.page.evaluate("document.getElementById('map').toDataURL().length") > 500
    # A node with its Pods, and its page.
    view.row("a1").locator("button").click()
    detail = view.page.locator("#detail").inner_text()
    assert "team-a/train-0" in detail and "GPU 0, GPU 1, GPU 2, GPU 3" in detail and "160.0 GiB" in detail and "driver 570.124.06" in detail, detail
    assert view.page.locator("#node-page").get_attribute("href") == "http://10.0.0.1:9400/"
    view.row("b1").locator("button").click()
    view.waits("() => document.getElementById('detail').innerText.includes('2 of 4 shares')")
    assert "shared GPU" in view.page.locator("#detail").inner_text()
    # Pods by namespace.
    team = view.page.locator("details[data-namespace=team-a]")
    assert "Pods: 2, GPUs: 8, use: 45 %" in team.inner_text(), team.inner_text()
    team.locator("summary").click()
    view.waits("() => document.querySelector('details[data-namespace=team-a]').innerText.includes('4 nvidia.com/gpu')")


@check
def filters_by_text_namespace_model_and_health(cluster):
    view = cluster.view()
    page = view.page
    for field, value, expected in [("#find", "train-1", ["a2"]), ("#find", "fallen off", ["a2"]), ("#find", "WEB-1", ["b1"]), ("#find", "", None)]:
        page.fill(field, value)
        assert expected is None or view.rows() == expected, (value, view.rows())
    for field, value, expected in [("#namespace", "team-b", ["b1"]), ("#model", "Tesla T4", ["c1"]), ("#health", "lost", ["a2"]),
                                   ("#health", "node cordoned", ["c1"]), ("#health", "agent not reporting", ["b2"])]:
        page.select_option(field, label=value)
        assert view.rows() == expected, (value, view.rows())
        if field == "#namespace":
            assert page.locator("#pending").inner_text().startswith("team-b/big") and "team-c" not in page.locator("#pending").inner_text()
        page.select_option(field, "")
    assert len(view.rows()) == 5 and "5 of 5 nodes" in page.locator("#node-count").inner_text()


@check
def waiting_pods_have_the_reason_of_explain(cluster):
    view = cluster.view()
    text = view.page.locator("#pending").inner_text()
    assert "team-b/big · 16 nvidia.com/gpu" in text and "a2: 4/8 held, 1 lost (XID 79), 3 free of 16 requested" in text, text
    assert "4 nvidia.com/gpu, linked by NV" in text and "but no 4 linked by NV" in text, text
    view.page.get_by_role("button", name="Explain team-b/big").click()
    view.waits("() => document.querySelector('#pending pre')?.innerText.includes('Fits on no node.')", LIMIT_MS)
    assert "no node has 16 of nvidia.com/gpu: the largest has 8" in view.page.locator("#pending pre").inner_text()


@check
def a_silent_node_is_dimmed_and_changes_come(cluster):
    view = cluster.view()
    assert "silent" in view.row("b2").get_attribute("class") and "not reporting" in view.row("b2").inner_text()
    assert "silent" not in view.row("a1").get_attribute("class")
    cluster.api.change("agents", "MODIFIED", agent("a1", ready=False))
    cluster.api.change("agents", "MODIFIED", agent("b2"))
    cluster.api.change("pending", "DELETED", pod("team-b/big", 16))
    view.waits("() => document.querySelector('.row[data-node=a1]').classList.contains('silent')", LIMIT_MS)
    assert "silent" not in view.row("b2").get_attribute("class")
    view.waits("() => !document.getElementById('pending').innerText.includes('team-b/big')", LIMIT_MS)


@check
def the_pods_of_an_open_namespace_have_the_newest_use(cluster):
    view = cluster.view()
    team = view.page.locator("details[data-namespace=team-a]")
    team.locator("summary").click()
    view.waits("() => document.querySelector('details[data-namespace=team-a]').innerText.includes('160.0 GiB')")
    # The same use, so the summary stays as it is.
    busy = {f"gpu{i}": {"busy": 90, "memory": 25} for i in range(4)}
    cluster.api.change("gpunodes", "MODIFIED", gpu_node("a1", holders=[("team-a/train-0", [0, 1, 2, 3])], **busy))
    view.waits("() => document.querySelector('details[data-namespace=team-a]').innerText.includes('80.0 GiB')", LIMIT_MS)


@check
def an_answer_that_breaks_off_is_asked_for_again(cluster):
    view = cluster.view()
    view.page.evaluate("""() => {
      const whole = Response.prototype.json;
      Response.prototype.json = () => { Response.prototype.json = whole; return Promise.reject(new TypeError('network error')); };
    }""")
    cluster.api.change("pending", "DELETED", pod("team-b/big", 16))
    view.waits("() => document.getElementById('link').innerText.startsWith('Connection lost')", LIMIT_MS)
    view.waits("() => !document.getElementById('pending').innerText.includes('team-b/big')", LIMIT_MS)
    view.waits("() => document.getElementById('link').dataset.link === 'live'")


@check
def only_permitted_users_see_it(cluster):
    cluster.start("token")
    view = ClusterView(cluster.browser, cluster.url, ignore_https_errors=True)
    cluster.views.append(view)
    view.page.goto(cluster.url)
    for token, answer in (("", "This page needs a token"), ("forged", "the bearer token is invalid"), ("stranger", 'User "stranger" may not get')):
        if token:
            view.page.fill("#token", token)
            view.page.keyboard.press("Enter")
        view.waits("(text) => document.getElementById('refusal').innerText.includes(text)", LIMIT_MS, answer)
        assert view.page.locator("#cluster").is_hidden()
    view.page.fill("#token", "viewer")
    view.page.keyboard.press("Enter")
    view.waits("() => document.querySelectorAll('.row[data-node]').length === 5", LIMIT_MS)
    assert view.page.locator("#sign-in").is_hidden()
    view.page.reload()
    view.waits("() => document.querySelectorAll('.row[data-node]').length === 5", LIMIT_MS)
    assert view.wrong and all(re.search(r"status of 40[13]", text) for text in view.wrong), view.wrong
    view.wrong.clear()


@check
def texts_of_pods_are_only_texts(cluster):
    evil = "<img src=x onerror=alert(1)>"
    cluster.api.collections["gpunodes"][1]["spec"]["gpus"][6]["reason"] = evil
    view = cluster.view()
    view.page.on("dialog", lambda _: view.wrong.append("a dialog"))
    view.row("a2").locator("button").click()
    view.waits("(text) => document.getElementById('detail').innerText.includes(text)", argument=evil)
    assert view.page.locator("main img, main script").count() == 0


@check
def the_cluster_page_in_chinese(cluster):
    words = {**json.loads((PAGE / "chinese.json").read_text()), **json.loads((PAGE / "cluster-chinese.json").read_text())}
    script = (PAGE / "cluster.js").read_text()
    html = re.sub(r"<(noscript|title|footer)\b.*?</\1>", "", (PAGE / "cluster.html").read_text(), flags=re.DOTALL)
    said = set(re.findall(r"say\('([^']+)'", script)) | {text.strip() for pair in re.findall(r">([^<>]+)<|aria-label=\"([^\"]+)\"", html) for text in pair if text.strip()}
    missing = sorted(text for text in said if text not in words)
    assert not missing, f"cluster-chinese.json lacks {missing}"
    for text, translated in words.items():
        assert sorted(re.findall(r"\{\d\}", text)) == sorted(re.findall(r"\{\d\}", translated)), text
    view = cluster.view(locale="zh-CN")
    assert view.page.evaluate("document.documentElement.lang") == "zh-CN"
    view.row("a1").locator("button").click()
    view.page.locator("summary").first.click()
    lines = [line.strip() for line in view.page.locator("body").inner_text().splitlines()]
    left = sorted(text for text, translated in words.items() if translated != text and text in lines)
    assert not left, f"in English: {left}"
    assert {"等待 GPU 的 Pod", "故障与 cordon", "按命名空间的 Pod", "碎片化"} <= set(lines), lines


@check
def axe_finds_nothing_in_the_cluster_page(cluster):
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            view = cluster.view(width, color_scheme=scheme, bypass_csp=True)
            view.row("a1").locator("button").click()
            view.page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
            view.page.evaluate(AXE)
            found = view.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            reported = [f"{item['id']}: {item['help']} ({item['nodes'][0]['html'][:120]}; {len(item['nodes'])}×)" for item in found]
            assert not reported, f"{width} {scheme}: {reported}"
            wide = view.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{wide} pixels wide on {width}"


@check
def five_thousand_nodes(cluster):
    names = [f"gpu-node-{i:04}" for i in range(5000)]
    cluster.api.collections.update(
        gpunodes=[gpu_node(name, holders=[(f"team-{i % 40}/train-{i}-{gpu}", [gpu]) for gpu in range(8)], gpu0={"busy": i % 100}) for i, name in enumerate(names)],
        pods=[pod(f"team-{i % 40}/train-{i}-{gpu}", 1, name) for i, name in enumerate(names) for gpu in range(8)],
        agents=[agent(name) for name in names], cordoned=[])
    view = cluster.view()
    view.waits("() => document.getElementById('node-count').innerText.startsWith('5000 of 5000')", LIMIT_MS)
    memory = cluster.memory_mib()
    first = view.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    draw = view.page.evaluate("() => { const begun = performance.now(); takeCluster(cluster); return performance.now() - begun; }")
    print(f"   5,000 nodes: first paint after {first:.0f} ms, the whole page drawn in {draw:.0f} ms; the scheduler has {memory:.0f} MiB resident", flush=True)
    assert memory <= MEMORY_LIMIT_MIB
    assert first <= FIRST_PAINT_MS and draw <= FIRST_PAINT_MS, (first, draw)
    assert view.page.evaluate("document.querySelectorAll('*').length") < 3000, "it has an element for each node"
    view.page.evaluate("document.getElementById('nodes').scrollTop = 1e9")
    view.waits("() => [...document.querySelectorAll('.row[data-node]')].at(-1).dataset.node === 'gpu-node-4999'", LIMIT_MS)
    view.page.fill("#find", "train-4321-3")
    view.waits("() => document.querySelectorAll('.row[data-node]').length === 1", LIMIT_MS)
    assert view.rows() == ["gpu-node-4321"]
