"""Static checks of rules, dashboards and manifests."""
import json
import os
import re
import subprocess
import tempfile

import contract
import yaml
from contract import DASHBOARDS, DEPLOY, ROOT, RULE_FILES

HERE = ROOT / "tests" / "monitoring"
PROMETHEUS_RULE = DEPLOY / "prometheus" / "prometheusrule.yaml"
PROMETHEUS_RULE_HEAD = """\
# For the Prometheus operator: recording.yaml and alerts.yaml as one resource. Generated; do not edit
# (UPDATE_GOLDEN=1 tests/monitoring/run.py --only static).
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpulet
  namespace: gpulet
  labels:
    app.kubernetes.io/name: gpulet # plus the label that your Prometheus selects, such as `release: kube-prometheus-stack`
spec:
  groups:
"""
UNITS = {"short", "percentunit", "watt", "celsius", "bytes", "s", "Bps", "cps", "hertz", "bool_yes_no"}
LEAST_SCHEMA = 38  # Grafana 10.0
WIDTH = 24
FEWEST_WORDS = 4


def promtool(tool, *arguments, cwd=ROOT):
    ran = subprocess.run([tool, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    return " ".join((ran.stdout + ran.stderr).split())[-800:] if ran.returncode else None


def rule_syntax(tool):
    return promtool(tool, "check", "rules", *RULE_FILES)


def rule_units(tool):
    return promtool(tool, "test", "rules", "rules_test.yaml", cwd=HERE)


def every_alert_is_tested(_):
    """Each alert has a test in which it fires and one in which it does not."""
    tests = yaml.safe_load((HERE / "rules_test.yaml").read_text())["tests"]
    fires, quiet = set(), set()
    for test in tests:
        for case in test.get("alert_rule_test", []):
            (fires if case.get("exp_alerts") else quiet).add(case["alertname"])
        for case in test.get("promql_expr_test", []):
            for pattern in re.findall(r'alertname=~?"([^"]+)"', case["expr"]):
                matching = {name for name in contract.alerts() if re.fullmatch(pattern, name)}
                (fires if case.get("exp_samples") else quiet).update(matching)
            for sample in case.get("exp_samples", []):
                fires.update(re.findall(r'alertname="([^"]+)"', sample["labels"]))
            if "alertname" not in case["expr"] and "ALERTS" in case["expr"] and not case.get("exp_samples"):
                quiet.update(contract.alerts())
    missing = [f"{name} never fires" for name in contract.alerts() if name not in fires]
    missing += [f"{name} is never quiet" for name in contract.alerts() if name not in quiet]
    return "; ".join(missing)


def alerts_say_what_to_do(_):
    """Each alert has a severity, a one-line summary, a description and an existing runbook."""
    wrong = []
    for name, rule in contract.alerts().items():
        says = rule.get("annotations", {})
        if rule.get("labels", {}).get("severity") not in ("critical", "warning", "info"):
            wrong.append(f"{name}: no severity")
        for key in ("summary", "description"):
            if len(says.get(key, "").split()) < FEWEST_WORDS or "\n" in says.get(key, ""):
                wrong.append(f"{name}: its {key} is no sentence")
        path, _, anchor = says.get("runbook_url", "").partition("#")
        page = ROOT / path
        if not page.is_file() or anchor not in anchors(page.read_text()):
            wrong.append(f"{name}: no runbook at {says.get('runbook_url')}")
    headings = set(re.findall(r"^#+ (Gpulet\w+)$", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE))
    wrong += [f"docs/monitoring.md: no alert is called {name}" for name in sorted(headings - set(contract.alerts()))]
    return "; ".join(wrong)


def anchors(markdown):
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)}


def names_exist(_):
    known = set(contract.OWN) | contract.DCGM_DEFAULT | contract.DCGM_ASKED_FOR | contract.recorded() | contract.PROMETHEUS
    return "; ".join(f"{where} reads {name}, which no program serves" for name, where in sorted(contract.named().items()) if name not in known)


def names_are_the_agents(_):
    """The contract matches the agent's source: default metrics are in its table, and so are its own names."""
    table = (ROOT / "src" / "metrics" / "fields.cpp").read_text()
    default = set(re.findall(r'"(DCGM_\w+)",\s*Type::k(?:Gauge|Counter),\s*kDefault', table))
    every = set(re.findall(r'"(DCGM_\w+)",\s*Type::', table))
    missing = sorted(contract.DCGM_DEFAULT - default) + sorted(contract.DCGM_ASKED_FOR - every)
    source = "".join(path.read_text() for room in ("agent", "metrics") for path in (ROOT / "src" / room).rglob("*.cpp")
                     if not path.name.endswith("_test.cpp"))
    missing += [name for name in contract.OWN if f'"{name}"' not in source]
    return f"not in src/metrics or src/agent: {', '.join(missing)}" if missing else None


def every_record_is_read(_):
    return ", ".join(sorted(contract.recorded() - set(contract.named()))) or None


def prometheus_rule(_):
    text = PROMETHEUS_RULE_HEAD
    for path in RULE_FILES:
        groups = path.read_text().split("\ngroups:\n", 1)[1]
        text += "".join(f"  {line}\n" if line else "\n" for line in groups.rstrip("\n").split("\n"))
    if os.environ.get("UPDATE_GOLDEN"):
        PROMETHEUS_RULE.write_text(text)
    rule = yaml.safe_load(text)["spec"]["groups"]
    plain = [group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"]]
    if rule != plain:
        return "the resource differs from the files"
    same = PROMETHEUS_RULE.exists() and PROMETHEUS_RULE.read_text() == text
    return None if same else "prometheusrule.yaml differs from recording.yaml and alerts.yaml: UPDATE_GOLDEN=1"


def scraping(tool):
    """Prometheus accepts the configuration, and the operator's resources select the DaemonSet's Pods and port."""
    configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    job = configuration["scrape_configs"][0]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        # Debian's Prometheus is built without discovery in Kubernetes.
        plain = {**{key: value for key, value in job.items() if key != "kubernetes_sd_configs"}, "static_configs": [{"targets": ["n1:9400"]}]}
        yaml.safe_dump({"rule_files": [str(DEPLOY / "prometheus" / name) for name in configuration["rule_files"]], "scrape_configs": [plain]}, file)
        if why := promtool(tool, "check", "config", file.name):
            return why
    daemon_set = next(one for one in yaml.safe_load_all((DEPLOY / "static" / "gpulet.yaml").read_text()) if one["kind"] == "DaemonSet")
    pod = daemon_set["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for container in pod["spec"]["containers"] for port in container["ports"]}
    labels, space = pod["metadata"]["labels"], daemon_set["metadata"]["namespace"]
    service, service_monitor = yaml.safe_load_all((DEPLOY / "prometheus" / "servicemonitor.yaml").read_text())
    pod_monitor = yaml.safe_load((DEPLOY / "prometheus" / "podmonitor.yaml").read_text())
    wrong = []
    if not service["spec"]["selector"].items() <= labels.items() or service["spec"]["ports"][0]["targetPort"] not in ports:
        wrong.append("the Service does not reach the DaemonSet")
    if not service_monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items():
        wrong.append("the ServiceMonitor does not select the Service")
    if service_monitor["spec"]["endpoints"][0]["port"] != service["spec"]["ports"][0]["name"]:
        wrong.append("the ServiceMonitor's port is not the Service's")
    if not pod_monitor["spec"]["selector"]["matchLabels"].items() <= labels.items():
        wrong.append("the PodMonitor does not select the Pods")
    if pod_monitor["spec"]["podMetricsEndpoints"][0]["port"] not in ports:
        wrong.append("the PodMonitor's port is not the Pod's")
    for monitor, of in ((service_monitor, service["metadata"]["labels"]), (pod_monitor, labels)):
        if of.get(monitor["spec"]["jobLabel"]) != "gpulet":
            wrong.append(f"the {monitor['kind']}'s job is not gpulet")
    if job["job_name"] != "gpulet" or job["relabel_configs"][0]["regex"] not in ports:
        wrong.append("prometheus.yaml's job does not match")
    wrong += [f"{one['kind']} is in another namespace" for one in (service, service_monitor, pod_monitor) if one["metadata"]["namespace"] != space]
    return "; ".join(wrong)


def queries_parse(tool):
    """Checks queries as rules, because promtool parses queries only there."""
    found = contract.queries()
    with tempfile.TemporaryDirectory(prefix="gpulet-monitoring-") as directory:
        path = f"{directory}/queries.yaml"
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"groups": [{"name": "queries", "rules": [
                {"record": f"query:{at}", "expr": expr, "labels": {"where": where}} for at, (where, expr) in enumerate(found.items())]}]}, file)
        return promtool(tool, "check", "rules", path)


def dashboards_are_made(_):
    ran = subprocess.run([DEPLOY / "grafana" / "dashboards.py", "--check"], capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout.strip() or ran.stderr.strip() if ran.returncode else None


def dashboards_are_sound(_):
    """Checks what Grafana rejects or readers would miss."""
    wrong, uids = [], set()
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        uids.add(board["uid"])
        variables = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval"}
        cells, ids = set(), set()
        if board["schemaVersion"] < LEAST_SCHEMA or board["id"] is not None:
            wrong.append(f"{path.name}: schema or id")
        for panel in board["panels"]:
            where, grid = f"{path.name}: {panel['title']}", panel["gridPos"]
            taken = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
            if taken & cells or grid["x"] + grid["w"] > WIDTH or panel["id"] in ids:
                wrong.append(f"{where}: lies on another, or beyond the edge, or has its id")
            cells, ids = cells | taken, ids | {panel["id"]}
            if panel["type"] == "row":
                continue
            defaults = panel["fieldConfig"]["defaults"]
            if defaults["unit"] not in UNITS or not defaults["thresholds"]["steps"] or defaults["thresholds"]["steps"][0]["value"] is not None:
                wrong.append(f"{where}: unit or thresholds")
            for target in panel["targets"]:
                used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
                if used - variables or target["datasource"]["uid"] != "${datasource}":
                    wrong.append(f"{where}: asks {used - variables or target['datasource']}")
        for link in board["links"]:
            if link["url"].split("/")[2] not in {json.loads(other.read_text())["uid"] for other in DASHBOARDS}:
                wrong.append(f"{path.name}: its link leads nowhere")
        for one in board["templating"]["list"]:
            if unknown := {name for name in contract.names(one.get("definition", "")) if name not in contract.OWN and name != "up"}:
                wrong.append(f"{path.name}: the variable {one['name']} asks for {unknown}")
    return "; ".join(wrong) or (None if len(uids) == len(DASHBOARDS) else "two dashboards have one uid")


CHECKS = {"rules: syntax": rule_syntax, "rules: unit tests": rule_units, "rules: every alert is tested": every_alert_is_tested,
          "rules: every alert says what to do": alerts_say_what_to_do, "rules: every record is read": every_record_is_read,
          "rules: the operator's resource": prometheus_rule, "names: all are served": names_exist,
          "names: the agent's source has them": names_are_the_agents, "scraping": scraping,
          "dashboards: made as written": dashboards_are_made, "dashboards: queries parse": queries_parse,
          "dashboards: sound": dashboards_are_sound}
