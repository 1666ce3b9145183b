"""A service with a daily peak under a HorizontalPodAutoscaler, with the forecast and without: days compressed into minutes.

Real: Kubernetes with its autoscaler, scheduler and kubelets, the agents, the metrics API, and the time that a replica takes to
start. Not real: the GPUs, which report the load that this file sets; the requests, which are a number here (the demand, and what
waits because the replicas cannot serve it); and the clock of the metrics API's forecast, which runs SCALE times faster. Both
services have the same demand at the same time, and start with one replica and without any history.
"""
import math
import time

from lib.autoscaling import AUTOSCALERS, DEPLOYMENTS, AutoscalingChecks, deployment
from lib.kubectl import kubectl

HOUR_S = 6.0  # of the compressed day
DAY_S = 24 * HOUR_S
SCALE = 3600 / HOUR_S
TARGET, MOST = 70, 7
HOT = 95  # percent of a GPU
METRICS = {"plain": {"name": "gpu_utilization"},
           "ahead": {"name": "gpu_utilization_forecast", "selector": {"matchLabels": {"horizon": "1h"}}}}
# The demand in percent of one GPU by the hour of the day; in between it is interpolated. The day begins with the night.
DEMAND = [40] * 8 + [60, 400, 420, 400, 280, 400, 420, 400, 380, 250, 120, 80, 60, 40, 40, 40]
TICK_S = 0.25


def demand(hour):
    before, after = DEMAND[int(hour) % 24], DEMAND[(int(hour) + 1) % 24]
    return before + (after - before) * (hour % 1)


def service(name):
    made = deployment()
    made["metadata"]["name"] = name
    made["spec"]["selector"]["matchLabels"] = {"app": name}
    made["spec"]["template"]["metadata"]["labels"] = {"app": name}
    return made


def autoscaler(name):
    rule = {"policies": [{"type": "Pods", "value": MOST, "periodSeconds": 1}]}
    return {"metadata": {"name": name}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}, "minReplicas": 1, "maxReplicas": MOST,
        "metrics": [{"type": "Pods", "pods": {"metric": METRICS[name], "target": {"type": "AverageValue", "averageValue": str(TARGET)}}}],
        # Half an hour of the compressed day, as the field's default of five minutes is of a busy one.
        "behavior": {"scaleUp": {**rule, "stabilizationWindowSeconds": 0},
                     "scaleDown": {**rule, "stabilizationWindowSeconds": math.ceil(HOUR_S / 2)}}}}


class Served:
    """What one service does with the demand, from tick to tick."""

    def __init__(self):
        self.waiting = 0.0  # in percent of a GPU times seconds
        self.forget()

    def forget(self):
        self.time = self.hot = self.replicas = self.waited = self.most = 0.0

    def step(self, asked, replicas, seconds):
        """Returns the utilization of each replica in percent."""
        work, capacity = self.waiting + asked * seconds, 100 * replicas * seconds
        done = min(work, capacity)
        self.waiting = work - done
        use = 100 * done / capacity if capacity else 100
        self.time += seconds
        self.hot += seconds * (use >= HOT)
        self.replicas += seconds * replicas
        self.waited += seconds * self.waiting
        self.most = max(self.most, self.waiting)
        return round(use)

    def report(self):
        """Hot time in percent; the work that waits, in GPU-minutes of the compressed day: mean and most; mean replicas."""
        minutes = SCALE / 60 / 100
        return {"hot": 100 * self.hot / self.time, "waiting": minutes * self.waited / self.time, "most": minutes * self.most,
                "replicas": self.replicas / self.time}


class DailyPeakChecks(AutoscalingChecks):
    server_arguments = [*AutoscalingChecks.server_arguments, f"--forecast-time-scale={SCALE:g}"]
    services = list(METRICS)

    def run(self):
        return [
            ("the manifests' agents and metrics API, its forecast in compressed time", self.deploy),
            (f"a first day of {DAY_S:.0f} s: both are surprised by the peak", self.first_day),
            ("a second day: the forecast has the replicas there before the peak", self.second_day),
            ("everything is removed", self.end),
        ]

    def deploy(self):
        super().deploy()
        kubectl("-n", "gpulet", "scale", "deployment/gpulet-metrics-api", "--replicas=1")  # one learns what all are asked
        for name in self.services:
            self.kube.call("POST", DEPLOYMENTS, service(name))
            self.kube.call("POST", AUTOSCALERS, autoscaler(name))
        self.served = {name: Served() for name in self.services}
        self.begun = self.before = time.monotonic()

    def first_day(self):
        self.live_until(DAY_S)
        first = self.reports()
        assert first["plain"]["hot"] > 1, f"the peak came without notice: {first}"

    def second_day(self):
        for one in self.served.values():
            one.forget()
        self.live_until(2 * DAY_S)
        second = self.reports()
        assert second["ahead"]["hot"] < second["plain"]["hot"] / 2, second
        assert second["ahead"]["waiting"] < second["plain"]["waiting"] / 2, second

    def end(self):
        for name in self.services:
            self.kube.call("DELETE", f"{AUTOSCALERS}/{name}")
            self.kube.call("DELETE", f"{DEPLOYMENTS}/{name}", {"propagationPolicy": "Background"})
        self.undeploy()
        self.checks.remove_pods()

    def live_until(self, end):
        while (now := time.monotonic()) < self.begun + end:
            asked = demand((now - self.begun) / HOUR_S)
            loads = {}
            for name, places in self.places().items():
                use = self.served[name].step(asked, len(places), now - self.before)
                loads.update({place: use for place in places})
            self.before = now
            self.set_loads(loads)
            time.sleep(max(0.0, now + TICK_S - time.monotonic()))

    def places(self):
        """Service → the GPUs of its running replicas."""
        held = self.held(self.services)
        return {name: [place for pod, place in held.items() if pod.startswith(f"{name}-")] for name in self.services}

    def reports(self):
        reports = {name: one.report() for name, one in self.served.items()}
        for name, found in reports.items():
            print(f"   {name}: {found['hot']:.1f} % of the time above {HOT} %; {found['waiting']:.1f} GPU-minutes waiting on average, "
                  f"{found['most']:.1f} at most; {found['replicas']:.2f} replicas", flush=True)
        return reports
