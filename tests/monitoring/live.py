"""Debian's Prometheus on two agents with simulated drivers: faults make every alert fire and resolve; every query has data."""
import contextlib
import copy
import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass, field

import contract
import prometheus
from node import CONFIG, Node

# Temperature is evaluated per minute.
FIRE_S, RESOLVE_S, START_S = 90, 150, 60
# The rules' times, shortened: each must occur.
SHORTER = [(r"\bfor: \w+", "for: 1s"), (r"\[5m\]", "[10s]"), (r"\[1h\]", "[15s]"), (r"\[1d\]", "[15s]"), (r"> 86400\b", "> 3"),
           (r"seconds > 120\b", "seconds > 15"), (r"seconds > 300\b", "seconds > 15")]


def short_rules():
    texts = [path.read_text() for path in contract.RULE_FILES]
    for long, short in SHORTER:
        if not any(re.search(long, text) for text in texts):
            raise ValueError(f"no rule has {long}: take it out of SHORTER")
        texts = [re.sub(long, short, text) for text in texts]
    return texts


@dataclass
class Case:
    """What makes an alert fire and resolve: gpulet-sim commands on a node."""
    alert: str
    node: str
    labels: dict = field(default_factory=dict)
    inject: list = field(default_factory=list)
    heal: list = field(default_factory=list)

    def __post_init__(self):
        self.inject, self.heal = [line.split() for line in self.inject], [line.split() for line in self.heal]


# The rows of a phase run together: each on another GPU, or after an earlier row.
FAULTS = [
    Case("GpuletDeviceQuarantined", "n1", {"gpu": "0"}, ["xid 0 95"], ["heal 0", "reset 0 --force"]),
    Case("GpuletDeviceFault", "n1", {"gpu": "0", "class": "xid-reset"}),
    Case("GpuletDeviceWithdrawnLong", "n1", {"gpu": "0"}),
    Case("GpuletDeviceLost", "n1", {"gpu": "1"}, ["lost 1"], ["heal 1"]),
    Case("GpuletGpuHot", "n1", {"gpu": "2"}, ["thermal 2 95"], ["heal 2"]),
    Case("GpuletGpuThrottledByHeat", "n1", {"gpu": "3"}, ["violation 3 thermal 600000"]),
    Case("GpuletMemoryErrors", "n1", {"gpu": "4"}, ["ecc 4 uncorrected 2", "ecc 4 threshold"], ["heal 4", "reset 4 --force"]),
    Case("GpuletEccErrorsGrow", "n1", {"gpu": "4"}),
    Case("GpuletRowsRemapped", "n1", {"gpu": "5"}, ["remap 5 uncorrectable"], ["heal 5", "reset 5 --force"]),
    Case("GpuletCorrectableRowsRemapped", "n1", {"gpu": "5"}, ["remap 5 correctable"] * 8),
    Case("GpuletRowRemapPending", "n1", {"gpu": "5"}, ["remap 5 pending"]),
    Case("GpuletRowRemapFailed", "n1", {"gpu": "6"}, ["remap 6 failed"], ["heal 6"]),
    Case("GpuletMemoryNearlyFull", "n1", {"gpu": "7"}, ["load 7 50 --memory 80500"], ["load 7 30 --memory 1000"]),
    Case("GpuletLinkDown", "n2", {"gpu": "2", "link": "3"}, ["nvlink 2 3 down"], ["nvlink 2 3 up"]),
    Case("GpuletLinkErrorsGrow", "n2", {"gpu": "2", "link": "4"}, ["nvlink 2 4 errors 500"]),
    Case("GpuletIdleButHeld", "n2", {"gpu": "0", "namespace": "models", "pod": "idle"}, ["load 0 0"], ["load 0 80"]),
]
HANG = [Case("GpuletDriverHangs", "n1", {}, ["hang all"], ["heal"]), Case("GpuletSamplesStale", "n1")]


class Live:
    def __init__(self, stack, programs, cache, tool):
        self.tool, self.directory = tool, pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpulet-monitoring-")))
        self.nodes = {"n1": Node("n1", "hgx-h100", self.directory / "n1", programs), "n2": Node("n2", "dgx-a100", self.directory / "n2", programs)}
        for node in self.nodes.values():
            stack.callback(node.end)
        self.alerts = prometheus.Alerts()
        home = self.directory / "prometheus"
        home.mkdir()
        self.prometheus = prometheus.Prometheus(prometheus.find(cache), home, short_rules(), self.alerts)
        stack.callback(self.prometheus.stop)
        self.silent = {}  # queries without data up to now
        self.fired = set()
        self.started = False

    # --- the checks, in this order

    def start(self):
        for node in self.nodes.values():
            node.driver_up(cut_up=node.name == "n2")
            node.kubelet.start()
            node.start()
        devices = self.nodes["n2"].devices()
        self.nodes["n2"].kubelet.hold("models", "idle", "nvidia.com/gpu", devices[0])
        self.nodes["n2"].kubelet.hold("models", "busy", "nvidia.com/gpu", devices[1])
        self.nodes["n1"].kubelet.hold("models", "full", "nvidia.com/gpu", self.nodes["n1"].devices()[7])
        for node, gpu in (("n2", "0"), ("n2", "1"), ("n1", "7")):
            self.nodes[node].sim("load", gpu, "60", "--memory", "1000")
        if len(self.nodes["n1"].kubelet.prefer("nvidia.com/gpu", self.nodes["n1"].devices(), 2)) != 2:
            return "no preferred allocation"
        self.prometheus.start()
        self.aim()
        for node in self.nodes:
            self.prometheus.wait_for(f'up{{node="{node}"}} == 1', START_S)
        self.started = True
        return None

    def aim(self):
        self.prometheus.aim({node.name: node.port for node in self.nodes.values()})

    def pages(self):
        """promtool has no findings."""
        for node in self.nodes.values():
            ran = subprocess.run([self.tool, "check", "metrics"], input=node.page(), capture_output=True, text=True, timeout=60, check=False)
            # DCGM's own names and labels (UUID, modelName) stay.
            said = [line for line in (ran.stdout + ran.stderr).splitlines() if not line.startswith("DCGM_") and "camelCase" not in line]
            if said:
                return f"{node.name}: {'; '.join(said[:5])}"
        return None

    def all_is_well(self):
        for node in self.nodes:
            self.prometheus.wait_for(f'node:gpulet_gpus:count{{node="{node}"}} == 8', START_S)
        self.prometheus.wait_for('(count(gpulet_device_state{state!="healthy"}) or vector(0)) == 0', START_S)
        self.alerts.wait_resolved(START_S)

    def nvidia_dashboard(self):
        return ", ".join(name for name in contract.NVIDIA_DASHBOARD if not self.prometheus.query(name)) or None

    def names(self):
        """Checks the contract during a fault: some series exist only then."""
        found = {}
        for node in self.nodes.values():
            for name, labels in contract.samples(node.page()).items():
                found.setdefault(name, []).extend(labels)
        wrong = [f"{name} is missing" for name in [*contract.OWN, *sorted(contract.DCGM_DEFAULT & set(contract.named()))] if name not in found]
        wrong += [f"{name} has no {', '.join(sorted(labels - set().union(*found[name])))}" for name, labels in contract.OWN.items()
                  if name in found and not any(labels <= has for has in found[name])]
        return "; ".join(wrong)

    def look_at_dashboards(self):
        """Records queries without data so far."""
        queries = {where: [contract.queries(node=node)[where] for node in (".*", "n1", "n2")] for where in contract.queries()}
        for where, forms in queries.items():
            if self.silent.get(where, True):
                self.silent[where] = not any(self.prometheus.query(form) for form in forms)

    def dashboards(self):
        self.look_at_dashboards()
        # The examples name Pods of their own.
        silent = [where for where, is_silent in self.silent.items() if is_silent and not where.startswith("keda")]
        return f"never had data: {'; '.join(silent)}" if silent else None

    def act(self, cases, what):
        if what == "inject":
            self.alerts.forget()
        for case in cases:
            for words in getattr(case, what):
                self.nodes[case.node].sim(*words)

    def fires(self, case):
        said = self.alerts.wait_fired(FIRE_S, case.alert, node=case.node, **case.labels)
        self.fired.add(case.alert)
        broken = [f"{key}: {text}" for one in said for key, text in one.items() if not text or "<no value>" in text or "<error" in text]
        return "; ".join(broken)

    def resolves(self, case):
        if case.alert not in self.fired:
            return "it has not fired"
        self.alerts.wait_resolved(RESOLVE_S, case.alert, node=case.node, **case.labels)
        return None

    def phase(self, cases, after_firing=()):
        yield f"{cases[0].alert} and more: faults are injected", lambda: self.act(cases, "inject")
        for case in cases:
            yield f"{case.alert} fires", lambda case=case: self.fires(case)
        yield from after_firing
        yield f"{cases[0].alert} and more: faults are healed", lambda: self.act(cases, "heal")
        for case in cases:
            yield f"{case.alert} resolves", lambda case=case: self.resolves(case)

    def simple(self, alert, node, begin, end):
        """An alert with another cause than a gpulet-sim command."""
        case = Case(alert, node)
        yield f"{alert} fires", lambda: self.alerts.forget() or begin() or self.fires(case)
        yield f"{alert} resolves", lambda: end() or self.resolves(case)

    def relapse(self):
        node = self.nodes["n1"]
        for _ in range(4):
            node.sim("xid", "0", "95")
            self.prometheus.wait_for('gpulet_device_offered{node="n1",gpu="0"} == 0', FIRE_S)
            node.sim("heal", "0")
            node.sim("reset", "0", "--force")
            self.prometheus.wait_for('gpulet_device_offered{node="n1",gpu="0"} == 1', FIRE_S)

    def refuse(self):
        config = copy.deepcopy(CONFIG)
        config["gpulet"]["helth"] = {}
        self.nodes["n2"].configure(config)

    def restart(self, node, **environment):
        self.nodes[node].stop()
        self.nodes[node].start(**environment)

    def no_target(self):
        self.alerts.forget()
        self.prometheus.aim({})
        self.alerts.wait_fired(FIRE_S, "GpuletAbsent")
        self.fired.add("GpuletAbsent")
        self.aim()
        self.alerts.wait_resolved(RESOLVE_S, "GpuletAbsent")

    def every_alert_fired(self):
        return ", ".join(sorted(set(contract.alerts()) - self.fired)) or None

    def list(self):
        n1, n2 = self.nodes["n1"], self.nodes["n2"]
        yield "agents and Prometheus start", self.start
        yield "pages are clean", self.pages
        yield "nothing fires without a fault", self.all_is_well
        yield "NVIDIA's dashboard has data", self.nvidia_dashboard
        yield from self.phase(FAULTS, [("names are on the pages", self.names), ("dashboards are asked", self.look_at_dashboards)])
        yield "nothing fires after the faults", self.all_is_well
        yield from self.simple("GpuletDriverDown", "n1", lambda: n1.sim_meanwhile("driver-reload", "--force", "--down-ms", "15000"), lambda: None)
        yield from self.phase(HANG)
        yield from self.simple("GpuletDeviceRelapsing", "n1", self.relapse, lambda: None)
        yield from self.simple("GpuletConfigRefused", "n2", self.refuse, lambda: n2.configure(CONFIG))
        yield "GpuletPodResourcesStale: the kubelet goes", n2.kubelet.stop
        both = [Case("GpuletNotRegistered", "n2"), Case("GpuletPodResourcesStale", "n2")]
        for case in both:
            yield f"{case.alert} fires", lambda case=case: self.fires(case)
        yield "GpuletPodResourcesStale: the kubelet returns", n2.kubelet.start
        for case in both:
            yield f"{case.alert} resolves", lambda case=case: self.resolves(case)
        yield from self.simple("GpuletAgentDown", "n2", n2.stop, lambda: n2.start(DP_DISABLE_HEALTHCHECKS="all"))
        yield from self.simple("GpuletDeviceUnmonitored", "n2", lambda: None, lambda: self.restart("n2"))
        yield "GpuletAbsent fires and resolves", self.no_target
        yield "every alert has fired", self.every_alert_fired
        yield "every query of the dashboards has had data", self.dashboards
        yield "nothing fires at the end", self.all_is_well


def checks(programs, cache, tool):
    """(name, check) in the required order; the last one stops everything."""
    with contextlib.ExitStack() as stack:
        live = Live(stack, programs, cache, tool)
        for name, check in live.list():
            yield name, lambda check=check: check() if live.started or check == live.start else "not reached: they have not started"
