"""The metrics that rules and dashboards may use (docs/metrics.md), and those that they use."""
import json
import pathlib
import re

try:
    import yaml
except ImportError:  # tests/web has its own environment and reads no rules
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
RULE_FILES = [DEPLOY / "prometheus" / "recording.yaml", DEPLOY / "prometheus" / "alerts.yaml"]
DASHBOARDS = [DEPLOY / "grafana" / "cluster.json", DEPLOY / "grafana" / "node.json"]
DEVICE = {"gpu", "UUID", "device", "modelName"}
POD = {"namespace", "pod"}

# Each with its minimal labels.
OWN = {
    "gpulet_build_info": {"version"}, "gpulet_driver_up": set(), "gpulet_config_last_reload_successful": set(),
    "gpulet_config_reloads_total": set(), "gpulet_config_reload_failures_total": set(), "gpulet_registrations_total": set(),
    "gpulet_devices": {"resource", "health"}, "gpulet_resource_registered": {"resource"}, "gpulet_events_total": {"reason"},
    "gpulet_device_state": DEVICE | {"state"}, "gpulet_device_offered": DEVICE, "gpulet_device_faults": DEVICE | {"class"},
    "gpulet_device_relapses": DEVICE, "gpulet_device_quarantine_seconds": DEVICE,
    # Prometheus drops empty labels: the share of a whole device; below, the Pod of unattributed usage.
    "gpulet_device_allocated": DEVICE | POD | {"resource", "container"},
    "gpulet_pod_gpu_memory_bytes": DEVICE, "gpulet_pod_gpu_busy_seconds_total": DEVICE, "gpulet_pod_gpu_energy_joules_total": DEVICE,
    # With gpulet.metrics.nvlinks.
    "gpulet_nvlink_up": DEVICE | {"link", "remote"}, "gpulet_nvlink_transmitted_bytes_total": DEVICE | {"link", "remote"},
    "gpulet_nvlink_received_bytes_total": DEVICE | {"link", "remote"}, "gpulet_nvlink_errors_total": DEVICE | {"link", "remote", "kind"},
    "gpulet_mig_instance": DEVICE | {"GPU_I_PROFILE", "GPU_I_ID", "start", "size"},
    "gpulet_driver_calls_total": set(), "gpulet_driver_call_seconds_total": set(), "gpulet_driver_calls_hanging": set(), "gpulet_driver_released": set(),
    "gpulet_snapshot_age_seconds": set(), "gpulet_sample_age_seconds": set(), "gpulet_pod_resources_age_seconds": set(),
    "gpulet_pod_resources_errors_total": set(), "gpulet_pod_resources_seconds": set(), "gpulet_snapshot_generation": set(),
    "gpulet_pods_moved_total": set(),
}
# dcgm-exporter's default counters, which the agent serves unasked. Source: its etc/default-counters.csv.
DCGM_DEFAULT = {f"DCGM_FI_{name}" for name in """
    DEV_SM_CLOCK DEV_MEM_CLOCK DEV_MEMORY_TEMP DEV_GPU_TEMP DEV_POWER_USAGE DEV_TOTAL_ENERGY_CONSUMPTION DEV_PCIE_REPLAY_COUNTER
    DEV_GPU_UTIL DEV_MEM_COPY_UTIL DEV_ENC_UTIL DEV_DEC_UTIL DEV_XID_ERRORS DEV_FB_FREE DEV_FB_USED DEV_FB_RESERVED
    DEV_NVLINK_BANDWIDTH_TOTAL DEV_VGPU_LICENSE_STATUS DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_CORRECTABLE_REMAPPED_ROWS
    DEV_ROW_REMAP_FAILURE PROF_GR_ENGINE_ACTIVE PROF_PIPE_TENSOR_ACTIVE PROF_DRAM_ACTIVE PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES""".split()}
# Only with a counters file; without, their rules have no series.
DCGM_ASKED_FOR = {"DCGM_FI_DEV_SLOWDOWN_TEMP", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"}
DCGM_COUNTERS = {f"DCGM_FI_DEV_{name}" for name in """
    TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER NVLINK_BANDWIDTH_TOTAL UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS
    ECC_DBE_VOL_TOTAL""".split()}
# Metrics of NVIDIA's published dashboard (12239).
NVIDIA_DASHBOARD = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL",
                    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_FB_USED"]
PROMETHEUS = {"up", "ALERTS"}
NAME = re.compile(r"\b(?:gpulet_|DCGM_|[a-z]+:gpulet_)[A-Za-z0-9_:]*|\bup\b|\bALERTS\b")


def rules():
    return [rule for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts():
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def panels():
    """(dashboard, panel) of all panels with queries."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            if panel.get("targets"):
                yield path.stem, panel


def queries(**variables):
    """Place → query of dashboards and autoscalers, with the dashboards' variables filled in."""
    fill = {"node": ".*", "gpu": ".*", "namespace": ".*", "__rate_interval": "10s", **variables}

    def filled(text):
        return re.sub(r"\$\{?(\w+)\}?", lambda found: fill[found[1]], text)
    found = {f"{board}: {panel['title']} {target['refId']}": filled(target["expr"]) for board, panel in panels() for target in panel["targets"]}
    for path in DASHBOARDS:
        for annotation in json.loads(path.read_text())["annotations"]["list"]:
            found[f"{path.stem}: annotation {annotation['name']}"] = filled(annotation["expr"])
    adapter = yaml.safe_load((DEPLOY / "autoscaling" / "prometheus-adapter.yaml").read_text())
    found.update({f"prometheus-adapter: {rule['name']['as']}": rule["seriesQuery"] for rule in adapter["rules"]})
    keda = yaml.safe_load((DEPLOY / "autoscaling" / "keda.yaml").read_text())
    found.update({f"keda: {trigger['type']}": trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]})
    return found


def names(expression):
    """The metrics that a query names. Quoted texts are not metrics (regular expressions over names could be, but are not used)."""
    return set(NAME.findall(re.sub(r'"[^"]*"', '""', expression)))


def named():
    """Every metric that rules, dashboards and autoscaling read, by who reads it first."""
    found = {}
    for rule in rules():
        for name in names(rule["expr"]):
            found.setdefault(name, rule.get("alert") or rule["record"])
    for where, query in queries().items():
        for name in names(query):
            found.setdefault(name, where)
    return found


def recorded():
    return {rule["record"] for rule in rules() if "record" in rule}


def samples(page):
    """A page's samples: name → the sets of labels that have a value, as the text format escapes them."""
    found = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, labels = re.match(r"([^{ ]+)(?:\{(.*)\})?", line).groups()
            found.setdefault(name, []).append({key for key, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "") if value})
    return found
