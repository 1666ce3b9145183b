"""Debian's Prometheus with its own directory and port; this program is its Alertmanager."""
import datetime
import http.server
import json
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

START_LIMIT_S = 30


class Alerts:
    """Receives alerts: an Alertmanager with one API call."""

    def __init__(self):
        self.changed = threading.Condition()
        self.known = {}  # labels → (firing, annotations)
        self.fired = {}  # since forget(): labels → annotations
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, alerts):
        now = datetime.datetime.now(datetime.timezone.utc)
        with self.changed:
            for alert in alerts:
                ends = re.sub(r"(\.\d{1,6})\d*", r"\1", alert["endsAt"]).replace("Z", "+00:00")
                firing = datetime.datetime.fromisoformat(ends) > now
                labels = frozenset(alert["labels"].items())
                self.known[labels] = (firing, alert["annotations"])
                if firing:
                    self.fired[labels] = alert["annotations"]
            self.changed.notify_all()

    def forget(self):
        """Forgets alerts that have fired and resolved."""
        with self.changed:
            self.fired = {labels: annotations for labels, (firing, annotations) in self.known.items() if firing}

    def firing(self):
        return [dict(labels) for labels, (firing, _) in self.known.items() if firing]

    def wait_fired(self, limit_s, name, **labels):
        """Waits until one has fired since forget(), even briefly. Returns the annotations of each."""
        return self.wait(lambda: [annotations for known, annotations in self.fired.items() if {("alertname", name), *labels.items()} <= known],
                         limit_s, "does not fire")

    def wait_resolved(self, limit_s, name=None, **labels):
        """Waits until none of that name fires, or none at all."""
        wanted = ({"alertname": name} if name else {}) | labels
        self.wait(lambda: not any(wanted.items() <= alert.items() for alert in self.firing()), limit_s, "does not resolve")

    def wait(self, until, limit_s, what):
        with self.changed:
            if not self.changed.wait_for(until, limit_s):
                others = sorted({(alert["alertname"], alert.get("node"), alert.get("gpu")) for alert in self.firing()}, key=str)
                raise TimeoutError(f"{what} within {limit_s} s; firing: {others or 'none'}")
            return until()


class Prometheus:
    def __init__(self, program, directory, rules, alerts):
        """rules: texts of rule files."""
        self.program, self.directory, self.alerts = program, directory, alerts
        self.targets_file = directory / "targets.json"
        self.aim({})
        for at, text in enumerate(rules):
            (directory / f"rules{at}.yaml").write_text(text)
        (directory / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules*.yaml"],
            "alerting": {"alertmanagers": [{"api_version": "v2", "static_configs": [{"targets": [f"127.0.0.1:{alerts.port}"]}]}]},
            "scrape_configs": [{"job_name": "gpulet", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "2s"}]}]}))
        self.process = self.port = None

    def aim(self, targets):
        """{node: port}: sets the scrape targets."""
        text = json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": {"node": node}} for node, port in targets.items()])
        new = self.targets_file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.targets_file)

    def start(self):
        log = open(self.directory / "log", "wb+")
        self.process = subprocess.Popen(
            [self.program, f"--config.file={self.directory / 'prometheus.yaml'}", f"--storage.tsdb.path={self.directory / 'data'}",
             "--web.listen-address=127.0.0.1:0", "--query.lookback-delta=10s"], cwd=self.directory, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log)
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until and self.process.poll() is None:
            found = re.search(r'"?Listening on"? address=127\.0\.0\.1:(\d+)', (self.directory / "log").read_text(errors="replace"))
            if found:
                self.port = int(found[1])
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2).close()
                    return
                except (urllib.error.URLError, OSError):
                    pass  # it replays its log first
            self.process_moment()
        raise TimeoutError(f"Prometheus did not start: {(self.directory / 'log').read_text()[-500:]}")

    def process_moment(self):
        """A tenth of a second, or its end."""
        try:
            self.process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            pass

    def query(self, expression):
        """Returns the instant vector of Prometheus' API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expression}: {json.load(error).get('error')}") from error

    def wait_for(self, expression, limit_s):
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if found := self.query(expression):
                return found
            self.process_moment()
        raise TimeoutError(f"no data within {limit_s} s: {expression}")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def find(cache):
    """Debian's server, installed or put into the cache by scripts/bootstrap."""
    for path in (cache / "bin" / "prometheus", pathlib.Path("/usr/bin/prometheus")):
        if path.exists():
            return path
    raise FileNotFoundError("no prometheus: run scripts/bootstrap")
