#!/usr/bin/python3
"""Writes gpulet's Grafana dashboards cluster.json and node.json into its own directory; --check compares them.

Each panel is one line here; Grafana's boilerplate is in one place. For Grafana 10 and later; the queries need the
rules of deploy/prometheus/recording.yaml.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
SCHEMA = 38  # Grafana 10.0's; later ones read it
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
GREEN, BLUE, YELLOW, ORANGE, RED, PURPLE, GREY = "green", "blue", "yellow", "orange", "red", "purple", "text"
NODE_LINK = "/d/gpulet-node/gpulet-node?${datasource:queryparam}&var-node=%s&${__url_time_range}"
# The device states of docs/health.md, worst last.
STATES = [("healthy", GREEN), ("unmonitored", GREY), ("degraded", YELLOW), ("recovering", BLUE), ("draining", PURPLE),
          ("quarantined", ORANGE), ("lost", RED)]


class Dashboard:
    """Panels from left to right and top to bottom, in the order in which they are added."""

    def __init__(self, uid, title, description, variables, links):
        self.panels, self.x, self.y, self.row_height = [], 0, 0, 0
        self.json = {
            "annotations": {"list": [{
                "name": "Alerts", "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": RED,
                "expr": f'ALERTS{{alertname=~"Gpulet.*",alertstate="firing"{links.pop("alerts")}}}', "step": "60s",
                "titleFormat": "{{alertname}}", "textFormat": "{{node}} GPU {{gpu}} {{class}}"}]},
            "description": description, "editable": True, "fiscalYearStartMonth": 0, "graphTooltip": 1, "id": None,
            "links": [{"asDropdown": False, "icon": "dashboard", "includeVars": True, "keepTime": True, "tags": [],
                       "targetBlank": False, "title": title, "tooltip": "", "type": "link", "url": url}
                      for title, url in links.items()],
            "liveNow": False, "panels": self.panels, "refresh": "30s", "schemaVersion": SCHEMA, "tags": ["gpu", "gpulet"],
            "templating": {"list": variables}, "time": {"from": "now-6h", "to": "now"}, "timepicker": {},
            "timezone": "", "title": title, "uid": uid, "version": 1, "weekStart": ""}

    def place(self, panel, width, height):
        if self.x + width > WIDTH:
            self.x, self.y, self.row_height = 0, self.y + self.row_height, 0
        panel["id"] = len(self.panels) + 1
        panel["gridPos"] = {"x": self.x, "y": self.y, "w": width, "h": height}
        self.x, self.row_height = self.x + width, max(self.row_height, height)
        self.panels.append(panel)

    def row(self, title):
        self.x, self.y, self.row_height = 0, self.y + self.row_height, 0
        self.place({"type": "row", "title": title, "collapsed": False, "panels": []}, WIDTH, 1)
        self.x, self.y, self.row_height = 0, self.y + 1, 0

    def panel(self, kind, title, description, targets, width, height, unit="short", steps=None, options=None, custom=None,
              **defaults):
        """targets: (query, legend) each; unit: one of Grafana's; steps: (from, colour) of its thresholds, the first from None."""
        instant = kind in ("stat", "table")
        colour = {"mode": "thresholds"} if steps or kind == "stat" else {"mode": "palette-classic"}
        self.place({
            "type": kind, "title": title, "description": description, "datasource": DATASOURCE,
            "fieldConfig": {"defaults": {
                "color": colour, "custom": custom or {}, "mappings": [], "unit": unit,
                "thresholds": {"mode": "absolute",
                               "steps": [{"color": c, "value": v} for v, c in steps or [(None, GREEN)]]}, **defaults},
                "overrides": []},
            "options": options or {},
            "targets": [{
                "datasource": DATASOURCE, "editorMode": "code", "expr": expr, "legendFormat": legend, "refId": chr(ord("A") + at),
                "instant": instant, "range": not instant, "format": "table" if kind == "table" else "time_series"}
                for at, (expr, legend) in enumerate(targets)],
        }, width, height)
        return self.panels[-1]

    def stat(self, title, description, query, unit="short", steps=None, width=3, legend="", text="auto", **more):
        options = {"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": text,
                   "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        return self.panel("stat", title, description, [(query, legend)], width, 4, unit, steps, options, **more)

    def graph(self, title, description, *targets, unit="short", width=12, stack=False, steps=None, height=8, **more):
        custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stack else 10, "showPoints": "never",
                  "spanNulls": False, "stacking": {"group": "A", "mode": "normal" if stack else "none"},
                  "thresholdsStyle": {"mode": "dashed" if steps else "off"}}
        panel = self.panel("timeseries", title, description, targets, width, height, unit, steps,
                           {"legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "right",
                                       "showLegend": True, "sortBy": "Last *", "sortDesc": True},
                            "tooltip": {"mode": "multi", "sort": "desc"}}, custom, **more)
        panel["fieldConfig"]["defaults"]["color"] = {"mode": "palette-classic"}
        return panel

    def table(self, title, description, targets, columns, width=24, height=8, links=None, sort=None):
        """One row for each set of labels common to all targets. columns: field → (title, unit, thresholds or None)."""
        panel = self.panel("table", title, description, targets, width, height, steps=[(None, GREY)],
                           options={"cellHeight": "sm", "showHeader": True, "footer": {"show": False, "fields": "", "reducer": ["sum"]},
                                    "sortBy": [{"displayName": sort, "desc": True}] if sort else []},
                           custom={"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False})
        panel["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
            {"id": "organize", "options": {"excludeByName": {}, "indexByName": {name: at for at, name in enumerate(columns)},
                                           "renameByName": {name: column[0] for name, column in columns.items()}}}]
        for name, (shown, unit, steps) in columns.items():
            properties = [{"id": "unit", "value": unit}] if unit else []
            if steps:
                properties += [{"id": "thresholds", "value": {"mode": "absolute", "steps": [
                    {"color": c, "value": v} for v, c in steps]}},
                    {"id": "custom.cellOptions", "value": {"type": "color-text"}}]
            if links and name in links:
                properties.append({"id": "links", "value": [{"title": "Node", "url": links[name], "targetBlank": False}]})
            if properties:
                panel["fieldConfig"]["overrides"].append({"matcher": {"id": "byName", "options": shown}, "properties": properties})
        return panel

    def states(self, title, description, query, legend, width=24, height=8):
        panel = self.panel("state-timeline", title, description, [(query, legend)], width, height,
                           options={"mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.9,
                                    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
                                    "tooltip": {"mode": "single", "sort": "none"}},
                           custom={"fillOpacity": 80, "lineWidth": 0})
        panel["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": {
            str(at): {"text": state, "color": colour, "index": at} for at, (state, colour) in enumerate(STATES)}}]


def variable(name, label, query, many=True, sort=1):
    """sort: 1 alphabetical, 3 numerical."""
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "definition": query, "hide": 0,
            "query": {"query": query, "refId": "Variable"}, "refresh": 2, "regex": "", "skipUrlSync": False, "sort": sort,
            "multi": many, "includeAll": many, "options": [],
            **({"allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}} if many else {"current": {}})}


def datasource():
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0,
            "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": "", "skipUrlSync": False}


def worst_state(selector):
    """The index in STATES of each device's state."""
    return " or ".join(f'max by (gpu, GPU_I_ID) (gpulet_device_state{{{selector},state="{state}"}}) * {at}'
                       for at, (state, _) in reversed(list(enumerate(STATES))))


PERCENT = [(None, GREY), (0.9, ORANGE), (0.97, RED)]
ANY_IS_BAD = [(None, GREEN), (1, RED)]
NODES = 'node=~"$node"'
PODS = 'node=~"$node",namespace=~"$namespace"'


def cluster():
    board = Dashboard("gpulet-cluster", "gpulet / Cluster", "The GPUs of a cluster: capacity, use and health.", [
        datasource(), variable("node", "Node", "label_values(up{job=\"gpulet\"}, node)"),
        variable("namespace", "Namespace", "label_values(gpulet_device_allocated, namespace)")],
        {"alerts": ',node=~"$node|"', "gpulet / Node": "/d/gpulet-node/gpulet-node"})
    board.row("Now")
    board.stat("Nodes", "Agents that respond.", f'sum(up{{job="gpulet",{NODES}}})')
    board.stat("Agents down", "Agents that cannot be scraped.", f'count(up{{job="gpulet",{NODES}}} == 0) or vector(0)', steps=ANY_IS_BAD)
    board.stat("GPUs", "GPUs of all agents, whole or in MIG mode.", f"sum(node:gpulet_gpus:count{{{NODES}}})")
    board.stat("Unavailable GPUs", "GPUs that are withdrawn, or have a withdrawn MIG device.",
               f"sum(node:gpulet_gpus:count{{{NODES}}}) - sum(node:gpulet_gpus_offered:count{{{NODES}}})", steps=ANY_IS_BAD)
    board.stat("Allocated", "GPUs with at least one share allocated to a Pod.", f"sum(node:gpulet_gpus_held:count{{{NODES}}}) or vector(0)")
    board.stat("Utilization", "Share of time that a kernel ran, averaged over the nodes.",
               f"avg(node:gpulet_utilization:avg{{{NODES}}})", unit="percentunit")
    board.stat("Memory used", "Share of the memory that Pods can use.",
               f"sum(node:gpulet_memory_used:bytes{{{NODES}}}) / sum(node:gpulet_memory_usable:bytes{{{NODES}}})", unit="percentunit", steps=PERCENT)
    board.stat("Power", "Power draw of all GPUs.", f"sum(node:gpulet_power:watts{{{NODES}}})", unit="watt")
    board.table("Firing alerts", "docs/monitoring.md has a runbook for each.",
                [('ALERTS{alertname=~"Gpulet.*",alertstate="firing",node=~"$node|"}', "")],
                {"alertname": ("Alert", None, None), "severity": ("Severity", None, None), "node": ("Node", None, None),
                 "gpu": ("GPU", None, None), "GPU_I_ID": ("GPU instance", None, None), "class": ("Fault", None, None),
                 "namespace": ("Namespace", None, None), "pod": ("Pod", None, None)}, height=6, links={"node": NODE_LINK % "${__value.raw}"})
    board.table("Nodes", "A node's name links to its own dashboard.", [
        (f"sum by (node) (node:gpulet_gpus:count{{{NODES}}})", ""), (f"sum by (node) (node:gpulet_gpus_offered:count{{{NODES}}})", ""),
        (f"sum by (node) (node:gpulet_gpus_held:count{{{NODES}}})", ""), (f"avg by (node) (node:gpulet_utilization:avg{{{NODES}}})", ""),
        (f"sum by (node) (node:gpulet_memory_used:bytes{{{NODES}}}) / sum by (node) (node:gpulet_memory_usable:bytes{{{NODES}}})", ""),
        (f"sum by (node) (node:gpulet_power:watts{{{NODES}}})", ""), (f"max by (node) (gpu:gpulet_temperature:celsius{{{NODES}}})", "")],
        {"node": ("Node", None, None), "Value #A": ("GPUs", "short", None), "Value #B": ("Offered", "short", None),
         "Value #C": ("Allocated", "short", None), "Value #D": ("Utilization", "percentunit", None),
         "Value #E": ("Memory used", "percentunit", PERCENT), "Value #F": ("Power", "watt", None),
         "Value #G": ("Hottest", "celsius", [(None, GREY), (80, ORANGE), (87, RED)])}, links={"node": NODE_LINK % "${__value.raw}"}, sort="Utilization")
    board.row("Use")
    board.graph("GPUs", "Allocated: at least one share belongs to a Pod. Busy: GPU time that Pods used, in GPUs.",
                (f"sum(node:gpulet_gpus:count{{{NODES}}})", "all"), (f"sum(node:gpulet_gpus_offered:count{{{NODES}}})", "offered"),
                (f"sum(node:gpulet_gpus_held:count{{{NODES}}})", "allocated"), (f"sum(pod:gpulet_busy:rate5m{{{NODES}}})", "busy"), min=0)
    board.graph("Utilization of each node", "Average over its GPUs.", (f"node:gpulet_utilization:avg{{{NODES}}}", "{{node}}"),
                unit="percentunit", min=0, max=1)
    board.graph("Memory used of each node", "Share of the memory that Pods can use.",
                (f"node:gpulet_memory_used:bytes{{{NODES}}} / node:gpulet_memory_usable:bytes{{{NODES}}}", "{{node}}"),
                unit="percentunit", min=0, max=1, steps=PERCENT)
    board.graph("Power of each node", "", (f"node:gpulet_power:watts{{{NODES}}}", "{{node}}"), unit="watt", stack=True, min=0)
    board.row("Usage by owner")
    board.graph("Devices allocated by namespace", "GPUs and MIG devices with a share allocated to its Pods; a shared one counts for each namespace.",
                ('namespace:gpulet_devices_held:count{namespace=~"$namespace"}', "{{namespace}}"), stack=True, min=0)
    board.graph("GPUs used by namespace", "Compare with the allocated devices: the difference is idle.",
                ('namespace:gpulet_busy:rate5m{namespace=~"$namespace"}', "{{namespace}}"), stack=True, min=0)
    board.graph("Power by namespace", "Sums to the GPUs' power draw, without unattributed power.",
                ('namespace:gpulet_power:watts{namespace=~"$namespace"}', "{{namespace}}"), unit="watt", stack=True, min=0)
    board.graph("Memory by namespace", "", ('namespace:gpulet_memory_used:bytes{namespace=~"$namespace"}', "{{namespace}}"),
                unit="bytes", stack=True, min=0)
    board.table("Pods", "Pods with devices, and their use.", [
        (f"sum by (namespace, pod, node) (pod:gpulet_devices_held:count{{{PODS}}})", ""), (f"sum by (namespace, pod, node) (pod:gpulet_busy:rate5m{{{PODS}}})", ""),
        (f"sum by (namespace, pod, node) (pod:gpulet_memory_used:bytes{{{PODS}}})", ""), (f"sum by (namespace, pod, node) (pod:gpulet_power:watts{{{PODS}}})", "")],
        {"namespace": ("Namespace", None, None), "pod": ("Pod", None, None), "node": ("Node", None, None), "Value #A": ("Devices", "short", None),
         "Value #B": ("GPUs busy", "short", [(None, ORANGE), (0.01, GREY)]), "Value #C": ("Memory", "bytes", None),
         "Value #D": ("Power", "watt", None)}, height=10, links={"node": NODE_LINK % "${__value.raw}"}, sort="Devices")
    board.row("Health")
    board.graph("Unhealthy devices", "GPUs and MIG devices by state: docs/health.md.",
                (f'count by (state) (gpulet_device_state{{{NODES},state!="healthy"}})', "{{state}}"), stack=True, min=0)
    board.graph("Open faults", "By class: docs/health.md.", (f"sum by (class) (gpulet_device_faults{{{NODES}}}) > 0", "{{class}}"), stack=True, min=0)
    board.table("Withdrawn devices", "Withdrawn devices, with duration and relapses.", [
        (f"max by (node, gpu, GPU_I_ID, UUID, modelName) (gpulet_device_quarantine_seconds{{{NODES}}})", ""),
        (f"max by (node, gpu, GPU_I_ID, UUID, modelName) (gpulet_device_relapses{{{NODES}}} and on (instance, UUID, GPU_I_ID) gpulet_device_quarantine_seconds)", "")],
        {"node": ("Node", None, None), "gpu": ("GPU", None, None), "GPU_I_ID": ("GPU instance", None, None), "modelName": ("Model", None, None),
         "UUID": ("UUID", None, None), "Value #A": ("Out of use for", "s", [(None, YELLOW), (86400, RED)]), "Value #B": ("Relapses", "short", None)},
        links={"node": NODE_LINK % "${__value.raw}"})
    board.row("Agents")
    board.graph("Versions", "Agents by version.", (f'count by (version) (gpulet_build_info{{{NODES}}})', "{{version}}"), stack=True, width=8, min=0)
    board.graph("Driver call", "Average duration of a driver call.", (f"node:gpulet_driver_call:seconds{{{NODES}}}", "{{node}}"), unit="s", width=8, min=0)
    board.graph("Config reload failures", "Each has a line in the agent's log.",
                (f"sum by (node) (increase(gpulet_config_reload_failures_total{{{NODES}}}[1h])) > 0", "{{node}}"), width=8, min=0)
    return board.json


def node():
    board = Dashboard("gpulet-node", "gpulet / Node", "One node: its GPUs, their users and health.", [
        datasource(), variable("node", "Node", "label_values(up{job=\"gpulet\"}, node)", many=False),
        variable("gpu", "GPU", "label_values(gpulet_device_state{node=\"$node\"}, gpu)", sort=3)],
        {"alerts": ',node="$node"', "gpulet / Cluster": "/d/gpulet-cluster/gpulet-cluster"})
    here, gpus, legend = 'node="$node"', 'node="$node",gpu=~"$gpu"', "GPU {{gpu}} {{GPU_I_PROFILE}} {{GPU_I_ID}}"
    board.row("Now")
    board.stat("Driver", "Whether the NVIDIA driver responds.", f"min(gpulet_driver_up{{{here}}})", steps=[(None, RED), (1, GREEN)],
               mappings=[{"type": "value", "options": {"0": {"text": "down", "index": 0}, "1": {"text": "up", "index": 1}}}])
    board.stat("Calls hanging", "Driver calls past their deadline.", f"sum(gpulet_driver_calls_hanging{{{here}}})", steps=ANY_IS_BAD)
    board.stat("GPUs", "Whole or in MIG mode.", f"sum(node:gpulet_gpus:count{{{here}}})")
    board.stat("Unavailable GPUs", "GPUs that are withdrawn, or have a withdrawn MIG device.",
               f"sum(node:gpulet_gpus:count{{{here}}}) - sum(node:gpulet_gpus_offered:count{{{here}}})", steps=ANY_IS_BAD)
    board.stat("Config", "Whether the last config reload succeeded.", f"min(gpulet_config_last_reload_successful{{{here}}})",
               steps=[(None, RED), (1, GREEN)],
               mappings=[{"type": "value", "options": {"0": {"text": "failed", "index": 0}, "1": {"text": "loaded", "index": 1}}}])
    board.stat("Sample age", "Time since the GPUs were last read.", f"max(gpulet_sample_age_seconds{{{here}}})", unit="s",
               steps=[(None, GREEN), (60, ORANGE), (120, RED)])
    board.stat("Pod data age", "Time since the kubelet last listed allocations.", f"max(gpulet_pod_resources_age_seconds{{{here}}})", unit="s",
               steps=[(None, GREEN), (150, ORANGE), (300, RED)])
    board.stat("Version", "The agent's version.", f"gpulet_build_info{{{here}}}", legend="{{version}}", text="name")
    board.states("State of each device", "docs/health.md explains the states.", worst_state(gpus), "GPU {{gpu}} {{GPU_I_ID}}")
    whole = "gpu, UUID, modelName"
    board.table("GPUs", "", [
        (f"avg by ({whole}) (gpu:gpulet_utilization:ratio{{{gpus}}})", ""),
        (f"sum by ({whole}) (gpu:gpulet_memory_used:bytes{{{gpus}}}) / sum by ({whole}) (gpu:gpulet_memory_usable:bytes{{{gpus}}})", ""),
        (f"max by ({whole}) (gpu:gpulet_temperature:celsius{{{gpus}}})", ""), (f"max by ({whole}) (gpu:gpulet_power:watts{{{gpus}}})", ""),
        (f"min by ({whole}) (gpulet_device_offered{{{gpus}}})", ""), (f"sum by ({whole}) (gpulet_device_faults{{{gpus}}})", ""),
        (f"max by ({whole}) (gpulet_device_relapses{{{gpus}}})", "")],
        {"gpu": ("GPU", None, None), "modelName": ("Model", None, None), "UUID": ("UUID", None, None),
         "Value #A": ("Utilization", "percentunit", None), "Value #B": ("Memory used", "percentunit", PERCENT),
         "Value #C": ("Temperature", "celsius", [(None, GREY), (80, ORANGE), (87, RED)]), "Value #D": ("Power", "watt", None),
         "Value #E": ("Offered", "bool_yes_no", [(None, RED), (1, GREEN)]), "Value #F": ("Faults", "short", ANY_IS_BAD),
         "Value #G": ("Relapses", "short", None)})
    board.table("Allocations", "Each share of each GPU and MIG device, as listed by the kubelet.", [(f"gpulet_device_allocated{{{gpus}}}", "")],
                {"gpu": ("GPU", None, None), "GPU_I_PROFILE": ("MIG profile", None, None), "GPU_I_ID": ("GPU instance", None, None),
                 "resource": ("Resource", None, None), "share": ("Share", None, None), "namespace": ("Namespace", None, None),
                 "pod": ("Pod", None, None), "container": ("Container", None, None)}, width=14)
    board.table("MIG layout", "The memory slices of each GPU instance.", [(f"gpulet_mig_instance{{{gpus}}}", "")],
                {"gpu": ("GPU", None, None), "GPU_I_PROFILE": ("Profile", None, None), "GPU_I_ID": ("GPU instance", None, None),
                 "start": ("First slice", None, None), "size": ("Slices", None, None)}, width=10)
    board.row("Load")
    board.graph("Utilization", "Share of time that a kernel ran; in MIG mode that of the instances, from Hopper on.",
                (f"gpu:gpulet_utilization:ratio{{{gpus}}}", legend), unit="percentunit", min=0, max=1)
    board.graph("Memory used", "Share of the memory that Pods can use.", (f"gpu:gpulet_memory_used:ratio{{{gpus}}}", legend), unit="percentunit", min=0, max=1, steps=PERCENT)
    for title, metric, description in (
            ("Tensor cores", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Hopper and later."), ("Memory interface", "DCGM_FI_PROF_DRAM_ACTIVE", "Hopper and later.")):
        board.graph(title, "Share of active cycles. " + description,
                    (f"max by (gpu, GPU_I_PROFILE, GPU_I_ID) ({metric}{{{gpus}}})", legend), unit="percentunit", min=0, max=1)
    board.graph("SM clock", "", (f"max by (gpu) (DCGM_FI_DEV_SM_CLOCK{{{gpus}}}) * 1e6", "GPU {{gpu}}"), unit="hertz", width=8, min=0)
    board.graph("PCIe", "Up: from the GPU. Hopper and later.", (f"max by (gpu, GPU_I_ID) (DCGM_FI_PROF_PCIE_TX_BYTES{{{gpus}}})", "GPU {{gpu}} {{GPU_I_ID}} out"),
                (f"-max by (gpu, GPU_I_ID) (DCGM_FI_PROF_PCIE_RX_BYTES{{{gpus}}})", "GPU {{gpu}} {{GPU_I_ID}} in"), unit="Bps", width=8)
    # As in DCGM: not a counter, but a rate in thousands of KiB per second.
    board.graph("NVLink", "Both directions of all links.", (f"max by (gpu) (DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{gpus}}}) * 1024e3", "GPU {{gpu}}"),
                unit="Bps", width=8, min=0)
    board.row("NVLinks")
    link = "GPU {{gpu}} link {{link}}"
    board.graph("Data sent", "Of each link: with gpulet.metrics.nvlinks.",
                (f"sum by (gpu, link) (rate(gpulet_nvlink_transmitted_bytes_total{{{gpus}}}[$__rate_interval]))", link), unit="Bps", width=8, min=0)
    board.graph("Data received", "Of each link.",
                (f"sum by (gpu, link) (rate(gpulet_nvlink_received_bytes_total{{{gpus}}}[$__rate_interval]))", link), unit="Bps", width=8, min=0)
    board.graph("Link errors", "Of each link since the driver was loaded, by kind.",
                (f"sum by (gpu, link, kind) (gpulet_nvlink_errors_total{{{gpus}}}) > 0", link + " {{kind}}"), width=8, min=0, decimals=0)
    board.row("Pods")
    pods = f'{gpus},pod!=""'
    board.graph("GPUs used", "By Pod, also on shared GPUs.", (f"sum by (namespace, pod) (podgpu:gpulet_busy:rate5m{{{gpus}}})", "{{namespace}}/{{pod}}"),
                stack=True, min=0)
    board.graph("Memory", "By Pod; unattributed memory is the driver's own.",
                (f"sum by (namespace, pod) (gpulet_pod_gpu_memory_bytes{{{pods}}})", "{{namespace}}/{{pod}}"),
                (f'sum(gpulet_pod_gpu_memory_bytes{{{gpus},pod=""}})', "unattributed"), unit="bytes", stack=True, min=0)
    board.graph("Power", "By Pod; sums to the GPUs' power draw.",
                (f"sum by (namespace, pod) (rate(gpulet_pod_gpu_energy_joules_total{{{pods}}}[$__rate_interval]))", "{{namespace}}/{{pod}}"),
                (f'sum(rate(gpulet_pod_gpu_energy_joules_total{{{gpus},pod=""}}[$__rate_interval]))', "unattributed"), unit="watt", stack=True, min=0)
    board.row("Temperature and power")
    board.graph("Temperature", "Dashed: thermal throttling limit of data centre GPUs.", (f"gpu:gpulet_temperature:celsius{{{gpus}}}", "GPU {{gpu}}"),
                unit="celsius", steps=[(None, GREEN), (80, ORANGE), (87, RED)])
    board.graph("Power draw", "", (f"gpu:gpulet_power:watts{{{gpus}}}", "GPU {{gpu}}"), unit="watt", min=0)
    board.row("Health")
    board.graph("Open faults", "By class: docs/health.md.", (f"sum by (gpu, class) (gpulet_device_faults{{{gpus}}}) > 0", "GPU {{gpu}} {{class}}"), stack=True, min=0)
    board.graph("Last XID", "The value of DCGM_FI_DEV_XID_ERRORS, which stays after the error. docs/xids.md explains each.",
                (f"max by (gpu, GPU_I_ID) (DCGM_FI_DEV_XID_ERRORS{{{gpus}}}) > 0", "GPU {{gpu}} {{GPU_I_ID}}"), decimals=0)
    board.graph("Remapped memory rows", "For uncorrectable and for correctable errors, since manufacture.",
                (f"gpu:gpulet_rows_remapped_uncorrectable:max{{{gpus}}}", "GPU {{gpu}} uncorrectable"),
                (f"gpu:gpulet_rows_remapped_correctable:max{{{gpus}}}", "GPU {{gpu}} correctable"), min=0, decimals=0)
    board.graph("PCIe replays", "Indicate a bad slot or riser.", (f"sum by (gpu) (rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{gpus}}}[$__rate_interval]))", "GPU {{gpu}}"), unit="cps", min=0)
    board.row("The agent")
    board.graph("Devices offered to the kubelet", "By resource and health.", (f"gpulet_devices{{{here}}}", "{{resource}} {{health}}"), stack=True, min=0, width=8)
    board.graph("Driver calls", "", (f"sum(rate(gpulet_driver_calls_total{{{here}}}[$__rate_interval]))", "calls"), unit="cps", min=0, width=8)
    board.graph("Driver call", "Average duration.", (f"node:gpulet_driver_call:seconds{{{here}}}", "average"), unit="s", min=0, width=8)
    board.graph("Events", "Events since the agent started, by reason.", (f"sum by (reason) (gpulet_events_total{{{here}}})", "{{reason}}"),
                width=8, min=0)
    board.graph("Registrations", "Registrations with the kubelet; one per resource is normal.", (f"sum(gpulet_registrations_total{{{here}}})", "registrations"),
                (f"sum(gpulet_config_reloads_total{{{here}}})", "configurations"), width=8, min=0, decimals=0)
    board.graph("PodResources errors", "Failed requests for allocations to the kubelet.",
                (f"sum(increase(gpulet_pod_resources_errors_total{{{here}}}[$__rate_interval]))", "errors"), width=8, min=0)
    return board.json


def main(arguments):
    differs = []
    for name, board in (("cluster", cluster()), ("node", node())):
        path = HERE / f"{name}.json"
        text = json.dumps(board, indent=2) + "\n"
        if arguments == ["--check"]:
            differs += [path.name] * (not path.exists() or path.read_text() != text)
        else:
            path.write_text(text)
    if differs:
        print(f"{', '.join(differs)}: differs from the output of dashboards.py")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
