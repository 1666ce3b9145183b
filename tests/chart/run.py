#!/usr/bin/python3
"""deploy/helm/gpulet, deploy/static and deploy/kustomize as they render, without a cluster. Ends in `N passed, N failed`.

The run `chart` of tests/cluster checks that the API server accepts the objects and that they work.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import outcome  # noqa: E402

CHART = ROOT / "deploy" / "helm" / "gpulet"
GPULET = ROOT / "out" / "bin" / "gpulet"
TESTBED = ROOT / "tests" / "cluster" / "testbed" / "tb"
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet")
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
# Values of NVIDIA's chart without a counterpart: accepted, and reported by NOTES.txt if set.
NOT_USED = {"gfd.nameOverride", "gfd.namespaceOverride", "gfd.resources", "gfd.securityContext", "gfd.containers", "mps.resources",
            "nfd", "configManager", "allowDefaultNamespace"}


def program(name):
    return TESTBED_BIN / name


def output(*command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command[:4]))}…: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def helm(command, values, *more, namespace="gpus", release="gpulet"):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        return output(program("helm"), command, *([release] if command == "template" else []), CHART, "--namespace", namespace,
                      "--kube-version", "1.31", "--values", file.name, *more)


def notes(values):
    """What an installation prints, which `helm template` does not: NOTES.txt in a copy of the chart, as an object."""
    with tempfile.TemporaryDirectory() as directory:
        chart = shutil.copytree(CHART, pathlib.Path(directory) / "gpulet")
        text = (chart / "templates" / "NOTES.txt").read_text()
        (chart / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}' + text + "{{- end -}}")
        (chart / "templates" / "notes.yaml").write_text('{{ dict "kind" "Notes" "text" (include "notes" .) | toYaml }}')
        (pathlib.Path(directory) / "values.yaml").write_text(yaml.safe_dump(values))
        return yaml.safe_load(output(program("helm"), "template", "gpulet", chart, "--namespace", "gpus", "--show-only", "templates/notes.yaml",
                                     "--values", pathlib.Path(directory) / "values.yaml"))["text"]


class Rendered:
    def __init__(self, values=None, **more):
        self.text = helm("template", values or {}, **more)
        self.objects = [item for item in yaml.safe_load_all(self.text) if item]

    def one(self, kind, name="gpulet"):
        found = [item for item in self.objects if (item["kind"], item["metadata"]["name"]) == (kind, name)]
        assert len(found) == 1, f"{len(found)} of {kind} {name}: {self.names()}"
        return found[0]

    def names(self):
        return sorted(f"{item['kind']}/{item['metadata']['name']}" for item in self.objects)

    def pod(self, name="gpulet", kind="DaemonSet"):
        return self.one(kind, name)["spec"]["template"]["spec"]

    def agent(self, name="gpulet"):
        return self.pod(name)["containers"][0]

    def env(self, name="gpulet"):
        reported = [variable["name"] for variable in self.agent(name)["env"]]
        assert len(reported) == len(set(reported)), f"a variable twice: {reported}"
        return {variable["name"]: variable.get("value") for variable in self.agent(name)["env"]}

    def mounts(self):
        """Name → (path in the container, path on the host or what else it is)."""
        volumes = {volume["name"]: volume for volume in self.pod()["volumes"]}
        mounts = self.agent()["volumeMounts"]
        assert {mount["name"] for mount in mounts} == set(volumes), "volumes without a mount, or the other way round"
        return {mount["name"]: (mount["mountPath"], volumes[mount["name"]].get("hostPath", {}).get("path")) for mount in mounts}

    def rights(self):
        """(resource, verb) of the agent's ClusterRole."""
        return {(resource, verb) for rule in self.one("ClusterRole")["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def expect(what, wanted):
    assert what == wanted, f"{what!r}, not {wanted!r}"


def refused(values, *words, **more):
    try:
        Rendered(values, **more)
    except AssertionError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"does not say {missing}: {error}"
        return
    raise AssertionError(f"{values} is taken")


def leaves(values, prefix=""):
    """Returns the paths of all settings; an empty map or a list counts as one."""
    for key, value in values.items():
        if isinstance(value, dict) and value and not (prefix == "" and key in ("resources", "affinity", "updateStrategy")) and key not in (
                "resources", "startupProbe", "livenessProbe", "readinessProbe"):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def nested(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def merged(one, other):
    result = dict(one)
    for key, value in other.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


# ------------------------------------------------------------------------------------------------------------ checks
def check_lint():
    reported = helm("lint", {}, "--strict")
    assert "0 chart(s) failed" in reported and "[WARNING]" not in reported and "[ERROR]" not in reported, reported


def check_generated():
    output(ROOT / "deploy" / "generate", "--check", env={**os.environ, "HELM": str(program("helm"))})


def check_version():
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert f"project(gpulet VERSION {version}" in (ROOT / "CMakeLists.txt").read_text(), version


def check_kustomize():
    base = [item for item in yaml.safe_load_all(output(program("kubectl"), "kustomize", ROOT / "deploy/kustomize/base")) if item]
    plain = [item for item in yaml.safe_load_all((ROOT / "deploy/static/gpulet.yaml").read_text()) if item]

    def key(item):
        return item["kind"], item["metadata"]["name"]
    expect(sorted(base, key=key), sorted(plain, key=key))
    overlay = Rendered.__new__(Rendered)
    overlay.objects = [item for item in yaml.safe_load_all(
        output(program("kubectl"), "kustomize", ROOT / "deploy/kustomize/inference")) if item]
    expect(overlay.agent()["image"], "registry.example/gpulet:0.1.0")
    expect(overlay.env()["CONFIG_FILE"], "/config/config.yaml")
    config = next(item for item in overlay.objects if item["kind"] == "ConfigMap")
    volume = next(volume for volume in overlay.pod()["volumes"] if volume["name"] == "config")
    expect(volume["configMap"]["name"], config["metadata"]["name"])
    expect(understood({"CONFIG_FILE": "x"}, config["data"]["config.yaml"])["sharing"]["timeSlicing"]["resources"][0]["replicas"], 4)


def schema_paths(schema, prefix=""):
    for key, part in schema["properties"].items():
        if "properties" in part and prefix + key != "gpulet":
            yield from schema_paths(part, f"{prefix}{key}.")
        else:
            yield prefix + key


def check_schema_has_every_value():
    schema = json.loads((CHART / "values.schema.json").read_text())
    reported = set(schema_paths(schema)) - {"global"}
    known = set(leaves(DEFAULTS))
    expect(sorted(reported - known), [])
    expect(sorted(known - reported), [])


def check_documented():
    text = (ROOT / "docs" / "chart-values.md").read_text()
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")}
    reported = {name.strip("` ") for row in rows for name in row.split(",")}
    wanted = set(leaves(DEFAULTS))
    expect(sorted(wanted - reported), [])
    expect(sorted(reported - wanted), [])


# A non-default value for each leaf, with the settings required for it to matter.
MAP = {"config": {"map": {"a": "version: v1\n", "b": "version: v1\n"}, "default": "a"}}
SCHEDULER, METRICS = {"scheduler": {"enabled": True}}, {"metricsApi": {"enabled": True}}
CLUSTER_PAGE = {"scheduler": {"enabled": True, "page": {"enabled": True}}}
WITH = {
    "config.name": "mine", "config.map": {"default": "version: v1\n"}, "config.default": ("b", MAP),
    "config.fallbackStrategies": (["named", "empty"], MAP), "migStrategy": "mixed", "failOnInitError": True,
    "deviceListStrategy": "envvar,cdi-annotations", "deviceIDStrategy": "index", "deviceDiscoveryStrategy": "nvml",
    "nvidiaDriverRoot": "/run/nvidia/driver", "nvidiaDevRoot": "/dev-root", "nvidiaDriverCapabilities": "all", "logVerbosity": 5,
    "selectorLabelsOverride": {"a": "b"}, "image.tag": "1", "image.pullPolicy": "Always",
    "imagePullSecrets": [{"name": "s"}], "updateStrategy": {"type": "OnDelete"}, "podAnnotations": {"a": "b"},
    "podSecurityContext": {"fsGroup": 1}, "securityContext": {"privileged": True}, "resources": {"limits": {"memory": "1Gi"}},
    "nodeSelector": {"a": "b"}, "affinity": {"nodeAffinity": None}, "tolerations": [], "runtimeClassName": "nvidia",
    "devicePlugin.resources": {"limits": {"cpu": "1"}}, "devicePlugin.containers.main.env": [{"name": "NODE_NAME", "value": "x"}],
    "gfd.enabled": False, "gfd.noTimestamp": True, "gfd.sleepInterval": 30, "mps.enabled": True, "mps.root": ("/mps", {"mps": {"enabled": True}}),
    "mps.enableHostPID": (False, {"mps": {"enabled": True}, "hostPID": False}), "cdi.nvidiaHookPath": "/usr/bin/nvidia-ctk",
    "dra.gaplessUpdate": (False, {"dra": {"enabled": True}}), "cdi.featureFlags": "disable-nvsandboxutils", "cdi.specDir": "/etc/cdi", "cdi.hookDir": "/opt/gpulet",
    "gpulet": {"logLevel": "debug"}, "pools": {"a": {"nodeSelector": {"pool": "a"}}}, "extraEnv": [{"name": "A", "value": "b"}],
    "extraEnvFrom": [{"secretRef": {"name": "s"}}], "extraArgs": ["--log-level=debug"], "extraVolumes": [{"name": "a", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "a", "mountPath": "/a"}], "podLabels": {"a": "b"}, "kubeletRoot": "/var/snap/kubelet",
    "podLogsDir": "/logs", "driverRootPaths": ["/usr"], "stateDir": "/opt/state", "runDir": "/opt/run", "port": 9500, "webConfig.secretName": "s",
    "webConfig.configMapName": "c", "privileged": False, "capabilities": ["SETUID", "SETGID", "SYS_ADMIN"], "terminationGracePeriodSeconds": 9,
    "startupProbe": {"periodSeconds": 9}, "livenessProbe": {"periodSeconds": 9}, "readinessProbe": {"periodSeconds": 9},
    "serviceAccount.annotations": {"a": "b"}, "rbac.eviction": True, "rbac.podAnnotations": True, "rbac.nodeFeatures": True,
    "rbac.extraRules": [{"apiGroups": [""], "resources": ["x"], "verbs": ["get"]}], "crds.install": True,
    "crds.keep": (False, SCHEDULER), "cleanup.timeoutSeconds": 9, "podMonitor.labels": ({"a": "b"}, {"podMonitor": {"enabled": True}}),
    "podMonitor.interval": ("1m", {"podMonitor": {"enabled": True}}), "serviceMonitor.labels": ({"a": "b"}, {"serviceMonitor": {"enabled": True}}),
    "serviceMonitor.interval": ("1m", {"serviceMonitor": {"enabled": True}}), "prometheusRule.labels": ({"a": "b"}, {"prometheusRule": {"enabled": True}}),
    "networkPolicy.from": [{"podSelector": {}}], "networkPolicy.schedulerFrom": ([{"podSelector": {}}], SCHEDULER),
    "networkPolicy.pageFrom": ([{"podSelector": {}}], CLUSTER_PAGE), "scheduler.page.enabled": (True, SCHEDULER), "scheduler.page.port": (9500, CLUSTER_PAGE),
    "scheduler.page.nodePage": ("https://gpus.example/{node}", CLUSTER_PAGE),
    "networkPolicy.metricsApiFrom": ([{"podSelector": {}}], METRICS),
    "scheduler.extraArgs": ["--x"], "scheduler.schedulerNames": (["gpulet"], SCHEDULER), "metricsApi.extraArgs": ["--x"], "metricsApi.tlsSecretName": ("s", {"metricsApi": {"caBundle": "eA=="}}),
    "scheduler.kubeScheduler.managedResources": ["nvidia.com/mig-1g.10gb"],
}
KINDS = {str: "other", int: 9, bool: None, type(None): True, list: [{"name": "x", "operator": "Exists", "key": "k"}], dict: {"a": "b"}}


def sample(path):
    value = DEFAULTS
    for key in path.split("."):
        value = value[key]
    more = {"scheduler": SCHEDULER, "metricsApi": METRICS}.get(path.split(".")[0], {}) if not path.endswith(".enabled") else {}
    if path in WITH:
        given = WITH[path]
        given, extra = given if isinstance(given, tuple) else (given, {})
        return given, merged(more, extra)
    return (not value if isinstance(value, bool) else KINDS[type(value)]), more


def check_every_value_counts():
    before, silent = {}, []
    for path in leaves(DEFAULTS):
        value, more = sample(path)
        base = json.dumps(more, sort_keys=True)
        if base not in before:
            before[base] = Rendered(more).text
        after = Rendered(merged(more, nested(path, value))).text
        if (after == before[base]) != (path in NOT_USED):
            silent.append(path)
    assert not silent, f"these change nothing, or are said to change nothing and do: {silent}"


def understood(env, config="version: v1\n"):
    """Returns the agent's effective config, by its own output."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "config.yaml"
        file.write_text(config)
        reported = output(GPULET, "config", "print", "--config-file", file, env={
            "PATH": os.environ["PATH"], **{name: value for name, value in env.items() if value is not None and not name.startswith("CONFIG_FILE")}})
    return yaml.safe_load(reported)


def check_nvidias_values():
    """With every value of NVIDIA's chart, the agent gets the settings that NVIDIA's plugin would get."""
    values = yaml.safe_load((ROOT / "tests/chart/nvidia-values.yaml").read_text())
    rendered = Rendered(values, release="nvdp")
    name = "nvdp-gpulet"
    reported = understood(rendered.env(name), rendered.one("ConfigMap", f"{name}-configs")["data"]["mig-mixed"])
    flags = reported["flags"]
    wanted = {"migStrategy": "mixed", "failOnInitError": True, "nvidiaDriverRoot": "/run/nvidia/driver", "nvidiaDevRoot": "/run/nvidia/driver",
              "gdrcopyEnabled": True, "gdsEnabled": True, "mofedEnabled": True, "deviceDiscoveryStrategy": "nvml"}
    expect({key: flags[key] for key in wanted}, wanted)
    wanted = {"passDeviceSpecs": True, "deviceListStrategy": ["envvar", "cdi-annotations"], "deviceIDStrategy": "index",
              "nvidiaCTKPath": "/usr/bin/nvidia-ctk"}
    expect({key: flags["plugin"][key] for key in wanted}, wanted)
    expect(reported["gpulet"]["cdiFeatureFlags"], ["disable-nvsandboxutils"])
    env = rendered.env(name)
    expect([env[key] for key in ("DEFAULT_CONFIG", "FALLBACK_STRATEGIES", "CONFIG_FILE_SRCDIR", "NVIDIA_DRIVER_CAPABILITIES")],
           ["mig-mixed", "named,single", "/available-configs", "compute,utility"])
    pod = rendered.pod(name)
    expect([pod["runtimeClassName"], pod["hostNetwork"], pod["priorityClassName"], pod["imagePullSecrets"]],
           ["nvidia", True, "system-node-critical", [{"name": "registry"}]])
    mounts = {mount["name"]: mount for mount in rendered.agent(name)["volumeMounts"]}
    expect(mounts["driver-root"]["mountPath"], "/driver-root")
    expect(mounts["mps-root"]["mountPropagation"], "Bidirectional")
    assert rendered.agent(name)["securityContext"]["privileged"] and pod["hostPID"], "one of its configs shares by MPS"
    expect([item["kind"] for item in rendered.objects if item["kind"] == "DaemonSet" and "cleanup" not in item["metadata"]["name"]],
           ["DaemonSet"])


def check_nvidias_names_are_all_there():
    """The file has every key of NVIDIA's values.yaml and schema of 0.20."""
    given = set(leaves(yaml.safe_load((ROOT / "tests/chart/nvidia-values.yaml").read_text())))
    ours = set(leaves(DEFAULTS))
    strange = {path for path in given if not any(path == name or path.startswith(name + ".") or name.startswith(path + ".") for name in ours)}
    expect(sorted(strange), [])


def check_defaults():
    rendered = Rendered()
    expect(understood(rendered.env())["flags"]["plugin"]["deviceListStrategy"], ["cdi-cri"])
    expect(rendered.rights(), {("events", "create"), ("events", "patch"), ("nodes", "get"), ("nodes", "list"), ("nodes", "watch"),
                               ("nodes", "patch"), ("nodes/status", "patch"), ("pods", "get")})
    # Only a privileged container can open the driver's nodes on an engine without NVIDIA's runtime.
    expect(access(rendered), ("privileged", ["SETUID", "SETGID", "SYSLOG", "MKNOD"], None, None))
    expect(rendered.env()["NVIDIA_VISIBLE_DEVICES"], "void")
    assert not any("Scheduler" in name or "CustomResource" in name or "APIService" in name for name in rendered.names()), rendered.names()


def access(rendered, name="gpulet"):
    """(privileged or not, the capabilities that the agent has, NVIDIA_MIG_MONITOR_DEVICES, NVIDIA_MIG_CONFIG_DEVICES)"""
    context, env = rendered.agent(name)["securityContext"], rendered.env(name)
    mig = env.get("NVIDIA_MIG_MONITOR_DEVICES"), env.get("NVIDIA_MIG_CONFIG_DEVICES")
    if context.get("privileged"):
        expect(context, {"privileged": True, "readOnlyRootFilesystem": True})
        kept = env.get("GPULET_KEEP_CAPABILITIES")
        return ("privileged", kept.split(",") if kept else "all", *mig)
    assert "GPULET_KEEP_CAPABILITIES" not in env, env
    added = context["capabilities"]["add"]
    expect(context, {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"},
                     "capabilities": {"drop": ["ALL"], "add": added}})
    return ("unprivileged", added, *mig)


def check_access_to_the_driver():
    """Each way to the driver's device nodes, with the rights that each config needs of MIG and no others."""
    def config(text):
        return {"config": {"map": {"default": "version: v1\n", "a100": f"version: v1\n{text}"}, "default": "default"}}
    own, runtime = ["SETUID", "SETGID"], {"runtimeClassName": "nvidia"}
    kept = [*own, "SYSLOG", "MKNOD"]
    both, monitor = ("all", "all"), ("all", None)
    nothing, mixed = {}, {"migStrategy": "mixed"}
    watched = merged(mixed, {"gpulet": {"mig": {"manage": False}}})
    for values, wanted in (
            # A plain engine.
            (nothing, ("privileged", kept, None, None)),
            (mixed, ("privileged", [*kept, "SYS_ADMIN"], None, None)),
            (watched, ("privileged", kept, None, None)),
            ({"gpulet": {"createDeviceNodes": False}}, ("privileged", [*own, "SYSLOG"], None, None)),
            (config("flags: {migStrategy: single}\n"), ("privileged", [*kept, "SYS_ADMIN"], None, None)),
            (config("gpulet: {partition: [{devices: all, mig: {layout: all-balanced}}]}\n"), ("privileged", [*kept, "SYS_ADMIN"], None, None)),
            (config("gpulet: {mig: {manage: true}}\n"), ("privileged", [*kept, "SYS_ADMIN"], None, None)),
            (config("flags: {migStrategy: none}\n"), ("privileged", kept, None, None)),
            ({"mps": {"enabled": True}}, ("privileged", "all", None, None)),
            ({"gpulet": {"fraction": {"onExceeded": "kill"}}}, ("privileged", [*kept, "KILL"], None, None)),
            ({"gpulet": {"fraction": {"onExceeded": "evict"}}}, ("privileged", kept, None, None)),
            ({"gpulet": {"fraction": {"driverLimits": True}}}, ("privileged", [*kept, "SYS_ADMIN"], None, None)),
            ({"gpulet": {"power": {"rules": [{"limit": "80%"}]}}}, ("privileged", [*kept, "SYS_ADMIN"], None, None)),
            ({"gpulet": {"power": {"rules": []}}}, ("privileged", kept, None, None)),
            (merged(runtime, {"gpulet": {"power": {"rules": [{"limit": "80%"}]}}}), ("unprivileged", [*own, "SYS_ADMIN"], None, None)),
            # NVIDIA's runtime, whose hook refuses NVIDIA_MIG_* without SYS_ADMIN.
            (runtime, ("unprivileged", own, None, None)),
            ({"deviceListStrategy": "envvar"}, ("unprivileged", own, None, None)),
            ({"deviceListStrategy": "volume-mounts,cdi-cri"}, ("unprivileged", own, None, None)),
            (merged(runtime, mixed), ("unprivileged", [*own, "MKNOD", "SYS_ADMIN"], *both)),
            (merged(runtime, watched), ("unprivileged", [*own, "MKNOD", "SYS_ADMIN"], *monitor)),
            (merged(runtime, {"mps": {"enabled": True}}), ("privileged", "all", None, None)),
            (merged(runtime, {"privileged": True}), ("privileged", kept, None, None)),
            # Some other way: NVIDIA's runtime as the default, or a plugin of the engine.
            ({"privileged": False}, ("unprivileged", own, None, None)),
            (merged(mixed, {"privileged": False}), ("unprivileged", [*own, "MKNOD", "SYS_ADMIN"], *both)),
            # One more capability is one more.
            ({"capabilities": [*own, "SYS_ADMIN"]}, ("privileged", [*own, "SYS_ADMIN", "SYSLOG", "MKNOD"], None, None)),
    ):
        rendered = Rendered(values)
        assert access(rendered) == wanted, f"{values}: {access(rendered)}, not {wanted}"
        by_runtime = wanted[0] == "unprivileged" or "runtimeClassName" in values
        expect(rendered.env()["NVIDIA_VISIBLE_DEVICES"], "all" if by_runtime else "void")
    # A security context of one's own is taken as it is.
    mine = Rendered({"securityContext": {"privileged": True, "runAsUser": 0}})
    expect(mine.agent()["securityContext"], {"privileged": True, "runAsUser": 0})
    assert "GPULET_KEEP_CAPABILITIES" not in mine.env()
    # Nothing but the agent's own container has rights on the node.
    for item in Rendered(mixed).objects:
        for container in item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            context = container["securityContext"]
            assert item["metadata"]["name"] == "gpulet" or (not context.get("privileged") and "add" not in context["capabilities"]), item


def check_rights_follow_the_config():
    everything = {"faults": {"eviction": {"enabled": True}, "podAnnotations": True}, "labels": {"outputs": ["node", "node-feature"]},
                  "metrics": {"countersConfigMap": "monitoring:counters"}}
    rendered = Rendered({"gpulet": everything})
    added = rendered.rights() - Rendered().rights()
    expect(added, {("pods/eviction", "create"), ("namespaces", "get"), ("pods", "patch"), ("nodefeatures", "get"), ("nodefeatures", "create"),
                   ("nodefeatures", "update")})
    expect(rendered.one("Role", "gpulet-counters")["metadata"]["namespace"], "monitoring")
    nothing = {"faults": {"condition": False, "label": False, "podEvents": False}, "labels": {"outputs": []}, "mig": {"manage": False}}
    expect(Rendered({"gpulet": nothing}).rights(), {("events", "create"), ("events", "patch"), ("nodes", "get"), ("nodes", "list"), ("nodes", "watch"),
                                                   ("nodes/status", "patch")})
    expect(Rendered({"gpulet": {"rebalance": {"enabled": True}}}).rights() - Rendered().rights(), {("pods/eviction", "create"), ("namespaces", "get")})
    expect(Rendered({"gpulet": {**nothing, "fraction": {"onExceeded": "warn"}}}).rights() - Rendered({"gpulet": nothing}).rights(), {("pods", "get")})
    expect(Rendered({"gpulet": {**nothing, "fraction": {"driverLimits": True}}}).rights() - Rendered({"gpulet": nothing}).rights(), {("pods", "get")})
    asked = {"power": {"rules": [{}], "podAnnotation": {"enabled": True}}}
    expect(Rendered({"gpulet": {**nothing, **asked}}).rights() - Rendered({"gpulet": nothing}).rights(), {("pods", "get")})
    for action in ("kill", "evict"):
        assert ("pods/eviction", "create") in Rendered({"gpulet": {"fraction": {"onExceeded": action}}}).rights()
    # One config of several is enough; a config in the map overrides `gpulet:`.
    drain = "version: v1\ngpulet: {mig: {drain: true}}\n"
    assert ("pods/eviction", "create") in Rendered({"config": {"map": {"default": "version: v1\n", "a100": drain}}}).rights()
    assert ("pods/eviction", "create") not in Rendered({"gpulet": {"mig": {"drain": True}}, "rbac": {"eviction": False}}).rights()
    assert "ClusterRole/gpulet" not in Rendered({"rbac": {"create": False}}).names()
    limits = {"gpulet": {"fraction": {"driverLimits": True}}}
    refused({**limits, "hostPID": False}, "gpulet.fraction.driverLimits", "hostPID")
    refused({**limits, "runDir": "/run/other"}, "gpulet.fraction.driverLimits", "/run/other")


def check_writes_are_bound_to_the_own_node():
    rendered = Rendered({}, release="mine", namespace="gpus")
    policies = [item for item in rendered.objects if item["kind"] == "ValidatingAdmissionPolicy"]
    bindings = {item["spec"]["policyName"]: item["spec"] for item in rendered.objects if item["kind"] == "ValidatingAdmissionPolicyBinding"}
    written = {resource for policy in policies for rule in policy["spec"]["matchConstraints"]["resourceRules"] for resource in rule["resources"]}
    everything = Rendered({"gpulet": {"faults": {"eviction": {"enabled": True}, "podAnnotations": True}, "labels": {"outputs": ["node-feature"]}}})
    expect(written, {resource for resource, verb in everything.rights() if verb not in ("get", "list", "watch")} | {"gpunodes"})
    agent = "system:serviceaccount:gpus:" + rendered.pod(name="mine-gpulet")["serviceAccountName"]
    for policy in policies:
        expect(policy["spec"]["failurePolicy"], "Fail")
        expect(policy["spec"]["matchConditions"][0]["expression"], f'request.userInfo.username == "{agent}"')
        expect(bindings.pop(policy["metadata"]["name"])["validationActions"], ["Deny"])
    expect(bindings, {})
    assert not [name for name in Rendered({"rbac": {"admissionPolicies": False}}).names() if name.startswith("ValidatingAdmission")]


def check_the_annotation_of_a_reboot_request_can_be_written():
    """Only while reboots are requested; what the schema allows to be null may be."""
    key = "example.com/reboot-needed"

    def is_allowed(repair):
        return f'["{key}"]' in json.dumps(Rendered({"gpulet": {"repair": repair}}).one("ValidatingAdmissionPolicy", "gpulet-own-node")).replace('\\"', '"')
    assert is_allowed({"rebootRequest": {"enabled": True, "annotation": key}})
    for repair in (None, {"rebootRequest": None}, {"rebootRequest": {"enabled": True, "annotation": None}}, {"rebootRequest": {"annotation": key}},
                   {"rebootRequest": {"enabled": False, "annotation": key}}):
        assert not is_allowed(repair), repair
        text = json.dumps({"version": "v1", "gpulet": {"repair": repair}})
        assert key not in json.dumps(Rendered({"config": {"map": {"default": text}}}).one("ValidatingAdmissionPolicy", "gpulet-own-node")), repair


def check_preflight_has_memory():
    """Its checks run in the agent's container; a limit that was chosen stays."""
    def limit(values):
        return Rendered(values).agent()["resources"]["limits"]["memory"]
    enabled = {"gpulet": {"preflight": {"enabled": True}}}
    expect([limit({}), limit({"gpulet": {"preflight": {"enabled": False}}}), limit(enabled)], ["128Mi", "128Mi", "1Gi"])
    expect(limit({**enabled, "resources": {"limits": {"memory": "2Gi"}}}), "2Gi")


def check_the_startup_taint_can_be_removed():
    """The agent is there before the taint is gone, and may remove it, whatever its prefix; without one nothing differs."""
    key, other = "startup-taint.cluster-autoscaler.kubernetes.io/gpulet", "gpulet.io/not-ready"
    plain, rendered = Rendered(), Rendered({"gpulet": {"startupTaint": key}})

    def added(some):
        return [toleration for toleration in some.pod()["tolerations"] if toleration not in plain.pod()["tolerations"]]
    expect(added(rendered), [{"key": key, "operator": "Exists"}])
    both = {"a": f"version: v1\ngpulet: {{startupTaint: {key}}}\n", "b": f"version: v1\ngpulet: {{startupTaint: {other}}}\n"}
    expect(added(Rendered({"config": {"map": both, "default": "a"}})), [{"key": name, "operator": "Exists"} for name in (key, other)])
    quiet = {"faults": {"condition": False, "label": False, "podEvents": False}, "labels": {"outputs": []}, "mig": {"manage": False}}
    expect(Rendered({"gpulet": {**quiet, "startupTaint": key}}).rights() - Rendered({"gpulet": quiet}).rights(), {("nodes", "patch")})

    def rules(some):
        return {rule["message"]: rule["expression"] for rule in some.one("ValidatingAdmissionPolicy", "gpulet-own-node")["spec"]["validations"]}
    differ = {message: text for message, text in rules(rendered).items() if rules(plain).get(message) != text}
    expect(sorted(differ), ["an agent may change taints of gpulet.io/ only", "an agent may remove the startup taint of a Node, and not set it"])
    assert all(f't.key in ["{key}"]' in text for text in differ.values()), differ
    printed = notes({"gpulet": {"startupTaint": other}})
    for setting in ("startupTaints", "--node-taints", "--node-init-taints", "nodeRegistration.taints", "registerWithTaints", f"--startup-taint={other}"):
        assert setting in printed, setting
    assert "--startup-taint=" not in notes({"gpulet": {"startupTaint": key}}) and "taint" not in notes({})
    refused({"gpulet": {"startupTaint": other}, "devicePlugin": {"enabled": False}}, "gpulet.startupTaint", "devicePlugin.enabled")


def check_pod_choices_can_be_read():
    """Pods are read, and nothing is written."""
    expect(Rendered({"gpulet": {"podChoices": True}}).rights() - Rendered().rights(), {("pods", "list")})


def check_rejected_pods_can_be_deleted():
    """Only with the setting, and only such Pods of the own node."""
    plain, rendered = (Rendered({"gpulet": {"faults": {"deleteRejectedPods": wanted}}}) for wanted in (False, True))
    expect(rendered.rights() - plain.rights(), {("pods", verb) for verb in ("list", "watch", "delete")})
    expect(set(rendered.names()) - set(plain.names()), {
        "ValidatingAdmissionPolicy/gpulet-own-pod-deletions", "ValidatingAdmissionPolicyBinding/gpulet-own-pod-deletions"})
    policy = rendered.one("ValidatingAdmissionPolicy", "gpulet-own-pod-deletions")["spec"]
    expect(policy["matchConstraints"]["resourceRules"], [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}])
    expect((policy["failurePolicy"], policy["matchConditions"][0]["expression"]),
           ("Fail", 'request.userInfo.username == "system:serviceaccount:gpus:gpulet"'))
    for part in ("spec.?nodeName", '"Failed"', '"UnexpectedAdmissionError"', '"Succeeded"', "restartPolicy", "ownerReferences"):
        assert part in policy["validations"][0]["expression"], policy["validations"]


def check_claims_have_what_they_need():
    plain, rendered = Rendered({}), Rendered({"dra": {"enabled": True}})
    expect(rendered.env()["GPULET_DRA"], "true")
    assert "GPULET_DRA" not in plain.env()
    expect(rendered.rights() - plain.rights(), {("resourceclaims", "get")} | {
        ("resourceslices", verb) for verb in ("list", "watch", "create", "update", "delete")})
    expect(set(rendered.names()) - set(plain.names()), {
        "DeviceClass/gpu.nvidia.com", "DeviceClass/mig.nvidia.com", "ValidatingAdmissionPolicy/gpulet-own-slices",
        "ValidatingAdmissionPolicyBinding/gpulet-own-slices"})
    expect({name: rendered.mounts()[name] for name in set(rendered.mounts()) - set(plain.mounts())},
           {"plugins": ("/var/lib/kubelet/plugins",) * 2, "plugins-registry": ("/var/lib/kubelet/plugins_registry",) * 2})
    # What a claim's containers get is written as CDI documents, whatever the device plugin would use.
    assert "cdi" in Rendered({"dra": {"enabled": True}, "deviceListStrategy": "envvar"}).mounts()
    policy = rendered.one("ValidatingAdmissionPolicy", "gpulet-own-slices")["spec"]
    expect(policy["matchConstraints"]["resourceRules"][0]["operations"], ["CREATE", "UPDATE", "DELETE"])
    expect(policy["failurePolicy"], "Fail")


def check_clients_are_limited():
    sources = Rendered().one("NetworkPolicy")["spec"]["ingress"][0]["from"]
    expect(sources, [{"podSelector": {}}, {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}])
    assert "NetworkPolicy/gpulet" not in Rendered({"networkPolicy": {"enabled": False}}).names()


def check_configs():
    mine = {"default": "# kept\nversion: v1\nflags: {migStrategy: single}\n", "b": "version: v1\ngpulet: {logLevel: error}\n"}
    expect(Rendered({"config": {"map": mine}}).one("ConfigMap", "gpulet-configs")["data"], mine)
    rendered = Rendered({"config": {"map": mine}, "gpulet": {"logLevel": "debug", "health": {"recoveryHold": "5s"}}, "gfd": {"sleepInterval": 30}})
    data = rendered.one("ConfigMap", "gpulet-configs")["data"]
    expect(yaml.safe_load(data["default"]), {"version": "v1", "flags": {"migStrategy": "single", "gfd": {"sleepInterval": "30s"}},
                                             "gpulet": {"logLevel": "debug", "health": {"recoveryHold": "5s"}}})
    expect(yaml.safe_load(data["b"])["gpulet"], {"logLevel": "error", "health": {"recoveryHold": "5s"}})
    alone = Rendered({"gpulet": {"logLevel": "debug"}})
    expect(understood(alone.env(), alone.one("ConfigMap", "gpulet-configs")["data"]["default"])["gpulet"]["logLevel"], "debug")
    external = Rendered({"config": {"name": "mine"}})
    volume = next(volume for volume in external.pod()["volumes"] if volume["name"] == "available-configs")
    expect(volume["configMap"]["name"], "mine")
    assert not [name for name in external.names() if name.startswith("ConfigMap")], external.names()


def check_examples():
    for path in sorted((ROOT / "examples/values").glob("*.yaml")):
        values = yaml.safe_load(path.read_text())
        rendered = Rendered(values)
        given = yaml.safe_load(values["config"]["map"]["default"])
        reported = understood(rendered.env(), rendered.one("ConfigMap", "gpulet-configs")["data"]["default"])
        expect(set(given.get("gpulet", {})) - set(reported["gpulet"]), set())


def check_every_setting_is_taken():
    reported = output(GPULET, "config", "print", env={"PATH": os.environ["PATH"]})
    known = yaml.safe_load(reported)["gpulet"]
    known["partition"] = [{"devices": "all", "whole": {}}]
    known["health"]["classes"] = {"lost": {"effect": "flag", "recoveryHold": "1m"}}
    known["faults"]["eviction"]["classes"] = {"thermal": "stay"}
    rendered = Rendered({"gpulet": known})
    expect(yaml.safe_load(rendered.one("ConfigMap", "gpulet-configs")["data"]["default"])["gpulet"], known)
    expect(understood(rendered.env(), rendered.one("ConfigMap", "gpulet-configs")["data"]["default"])["gpulet"]["health"]["recoveryHold"], known["health"]["recoveryHold"])


def check_mps():
    config = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    rule = "version: v1\ngpulet: {partition: [{devices: all, mps: {replicas: 4}}]}\n"
    claims = "version: v1\ngpulet: {dra: {featureGates: {MPSSupport: true}}}\n"
    for text in (config, rule, claims):
        rendered = Rendered({"config": {"map": {"default": text}}})
        assert rendered.agent()["securityContext"]["privileged"] and rendered.pod()["hostPID"]
        expect(rendered.mounts()["mps-root"], ("/run/nvidia/mps", "/run/nvidia/mps"))
        expect(rendered.env()["MPS_ROOT"], "/run/nvidia/mps")
        assert rendered.pod("gpulet-cleanup")["hostPID"], "the daemons are to be found when they are to end"
    assert "mps-root" in Rendered({"gpulet": {"dra": {"featureGates": {"MPSSupport": True}}}}).mounts()
    assert "mps-root" not in Rendered({"gpulet": {"dra": {"featureGates": {"TimeSlicingSettings": True}}}}).mounts()
    assert "mps-root" not in Rendered().mounts() and "hostPID" not in Rendered().pod("gpulet-cleanup")


def check_power_cleanup():
    values = {"config": {"map": {"default": "version: v1\ngpulet: {power: {rules: [{limit: 80%}]}}\n"}}}
    runtime = {"runtimeClassName": "nvidia", "deviceListStrategy": "envvar"}
    for more, privileged, mounted in (({}, True, True), (runtime, False, False)):
        pod = Rendered(values | more).pod("gpulet-cleanup")
        container = pod["initContainers"][0]
        env = {item["name"]: item.get("value") for item in container["env"]}
        expect(env["NVIDIA_VISIBLE_DEVICES"], "all")
        expect(env.get("DRIVER_ROOT_CTR_PATH", "/driver-root"), "/driver-root" if mounted else "/")
        expect(container["securityContext"].get("privileged", False), privileged)
        expect("SYS_ADMIN" in container["securityContext"].get("capabilities", {}).get("add", []), not privileged)
        expect("/driver-root" in [mount["mountPath"] for mount in container["volumeMounts"]], mounted)
        expect("driver-root" in [volume["name"] for volume in pod["volumes"]], mounted)
        expect(pod.get("runtimeClassName"), more.get("runtimeClassName"))
    plain = Rendered().pod("gpulet-cleanup")["initContainers"][0]
    assert "privileged" not in plain["securityContext"] and "add" not in plain["securityContext"]["capabilities"]


def check_paths():
    rendered = Rendered({"kubeletRoot": "/var/snap/microk8s/common/var/lib/kubelet", "cdi": {"specDir": "/etc/cdi", "hookDir": "/opt/gpulet"},
                         "stateDir": "/opt/state"})
    reported = understood(rendered.env())["gpulet"]
    kubelet = "/var/snap/microk8s/common/var/lib/kubelet"
    expect([reported["kubeletDir"], reported["cdi"]["specDir"], reported["cdi"]["hookDir"]], [kubelet, "/etc/cdi", "/opt/gpulet"])
    mounts = rendered.mounts()
    expect(mounts["device-plugins"], (f"{kubelet}/device-plugins", "/var/lib/kubelet/device-plugins"))
    expect(mounts["hook"], ("/opt/gpulet",) * 2)
    expect(mounts["state"], (reported["stateDir"], "/opt/state"))


def check_mounts_follow_the_features():
    """Each mount is there for a feature, and writable only where that writes: the table in docs/SECURITY.md."""
    def paths(rendered):
        writable = {mount["mountPath"] for mount in rendered.agent()["volumeMounts"] if not mount.get("readOnly")}
        return {path: path in writable for path in (mount["mountPath"] for mount in rendered.agent()["volumeMounts"]) if path != "/available-configs"}

    # The engine creates a file there, which a read-only /dev refuses, and a writable one keeps on the host.
    expect(Rendered().agent()["terminationMessagePath"], "/tmp/termination-log")
    kubelet = {"/var/lib/kubelet/device-plugins": True, "/var/lib/kubelet/pod-resources": False}
    always = {**kubelet, "/var/lib/gpulet": True, "/run/gpulet": True, "/sys": False}
    cdi, pods, driver = {"/var/run/cdi": True}, {"/var/log/pods": False}, {"/driver-root": False}
    expect(paths(Rendered()), {**always, **cdi, **pods, **driver, "/dev": True})
    # NVIDIA's runtime adds the driver's library and its nodes: nothing else of the host is seen, and nothing that an engine trusts is written.
    runtime = {"runtimeClassName": "nvidia", "deviceListStrategy": "envvar"}
    narrow = Rendered({**runtime, "hostPID": False})
    expect(paths(narrow), {**always, "/dev": False})
    expect(understood(narrow.env())["flags"]["plugin"]["containerDriverRoot"], "/")
    assert "DRIVER_ROOT_CTR_PATH" not in Rendered().env()
    # Each feature adds its own.
    expect(paths(Rendered(runtime)), {**always, **pods, "/dev": False})
    expect(paths(Rendered({**runtime, "hostPID": False, "gpulet": {"metrics": {"podUID": True}}})), {**always, **pods, "/dev": False})
    label = [{"name": "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "value": "true"}]
    expect(paths(Rendered({**runtime, "hostPID": False, "extraEnv": label})), {**always, **pods, "/dev": False})
    expect(paths(Rendered({**runtime, "migStrategy": "mixed"})), {**always, **pods, "/dev": True})
    expect(paths(Rendered({**runtime, "migStrategy": "mixed", "gpulet": {"createDeviceNodes": False}})),
           {**always, **pods, "/dev": False})
    expect(paths(Rendered({**runtime, "nvidiaDriverRoot": "/opt/driver"})), {**always, **pods, **driver, "/dev": False})
    by_cdi = {**always, **cdi, **pods, **driver, "/dev": False}
    expect(paths(Rendered({"runtimeClassName": "nvidia"})), by_cdi)
    for own in ({"extraEnv": [{"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri"}]}, {"extraArgs": ["--device-list-strategy=cdi-cri"]},
                {"devicePlugin": {"containers": {"main": {"env": [{"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri"}]}}}},
                {"pools": {"a": {"nodeSelector": {"pool": "a"}, "extraEnv": [{"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri"}]}}}):
        expect(paths(Rendered({**runtime, **own})), by_cdi)
    expect(paths(Rendered({**runtime, "mps": {"enabled": True}}))["/driver-root"], False)
    # Without CDI the state keeps a mount of its own.
    expect(narrow.mounts()["state"], ("/var/lib/gpulet",) * 2)
    expect(Rendered({**runtime, "cdi": {"hookDir": "/opt/gpulet"}}).mounts()["state"], ("/var/lib/gpulet",) * 2)


def check_parts_of_the_driver_root():
    def seen(values):
        rendered = Rendered(values)
        volumes = {volume["name"]: volume["hostPath"] for volume in rendered.pod()["volumes"] if volume["name"].startswith("driver-root")}
        mounts = [mount for mount in rendered.agent()["volumeMounts"] if mount["name"] in volumes]
        assert all(mount["readOnly"] and mount["mountPropagation"] == "HostToContainer" for mount in mounts), mounts
        expect(len(mounts), len(volumes))
        return [(volumes[mount["name"]]["path"], volumes[mount["name"]].get("type"), mount["mountPath"]) for mount in mounts]

    expect(seen({}), [("/", None, "/driver-root")])
    expect(seen({"driverRootPaths": ["/"]}), [("/", None, "/driver-root")])
    # A directory that does not exist is an error, and not created.
    expect(seen({"driverRootPaths": ["/usr", "/etc/OpenCL"]}),
           [("/usr", "Directory", "/driver-root/usr"), ("/etc/OpenCL", "Directory", "/driver-root/etc/OpenCL")])
    expect(seen({"driverRootPaths": ["/usr"], "nvidiaDriverRoot": "/run/nvidia/driver"}),
           [("/run/nvidia/driver/usr", "Directory", "/driver-root/usr")])
    expect(seen({"driverRootPaths": ["/usr"], "nvidiaDriverRoot": "/"}), [("/usr", "Directory", "/driver-root/usr")])
    expect(seen({"driverRootPaths": []}), [])
    expect(Rendered({"driverRootPaths": []}).env()["DRIVER_ROOT_CTR_PATH"], "/")
    for wrong in (["usr"], ["/usr/"], ["/usr/../etc"], ["/usr/./lib"], ["//usr"], ["/.."], ["/usr", "/usr"]):
        refused({"driverRootPaths": wrong}, "/driverRootPaths")
    expect(seen({"driverRootPaths": ["/a.b/.c"]})[0][0], "/a.b/.c")
    refused({"driverRootPaths": ["/", "/usr"]}, "driverRootPaths")
    refused({"driverRootPaths": ["/usr"], "mps": {"enabled": True}}, "driverRootPaths", "MPS")


def check_tokens_are_mounted_where_they_are_used():
    """A ServiceAccount gives its token to no Pod that does not ask for it."""
    rendered = Rendered({"scheduler": {"enabled": True}, "metricsApi": {"enabled": True}, "pools": {"a": {"nodeSelector": {"pool": "a"}}}})
    accounts = [item for item in rendered.objects if item["kind"] == "ServiceAccount"]
    expect({item["metadata"]["name"]: item["automountServiceAccountToken"] for item in accounts},
           dict.fromkeys(("gpulet", "gpulet-scheduler", "gpulet-metrics-api", "gpulet-cleanup"), False))
    pods = [item["spec"]["template"]["spec"] for item in rendered.objects if "template" in item.get("spec", {})]
    expect(len(pods), 6)
    for pod in pods:
        assert pod["automountServiceAccountToken"] is True, pod["serviceAccountName"]


def check_pools():
    pools = {"a100": {"nodeSelector": {"pool": "a100"}, "config": "b", "extraEnv": [{"name": "GPULET_LOG_LEVEL", "value": "debug"}]},
             "edge": {"nodeSelector": {"edge": "yes"}}}
    rendered = Rendered({**MAP, "pools": pools})
    expect(rendered.env("gpulet-a100")["DEFAULT_CONFIG"], "b")
    expect(rendered.env("gpulet-edge")["DEFAULT_CONFIG"], "a")
    expect(rendered.env("gpulet-a100")["GPULET_LOG_LEVEL"], "debug")
    expect(rendered.pod("gpulet-a100")["nodeSelector"], {"pool": "a100"})
    terms = rendered.pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(terms) == 6, terms
    for term in terms:
        for key, value in (("pool", "a100"), ("edge", "yes")):
            assert {"key": key, "operator": "NotIn", "values": [value]} in term["matchExpressions"], term
    selectors = [json.dumps(item["spec"]["selector"], sort_keys=True) for item in rendered.objects if item["kind"] == "DaemonSet"]
    assert len(selectors) == len(set(selectors)), "two DaemonSets select the same Pods"
    # Also without own affinity.
    bare = Rendered({"affinity": {"nodeAffinity": None}, "pools": {"edge": pools["edge"]}})
    terms = bare.pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    expect(terms, [{"matchExpressions": [{"key": "edge", "operator": "NotIn", "values": ["yes"]}]}])


def selects(terms, labels):
    """Whether a scheduler places a Pod with these nodeSelectorTerms on a node with these labels."""
    holds = {"In": lambda key, values: labels.get(key) in values, "NotIn": lambda key, values: labels.get(key) not in values,
             "DoesNotExist": lambda key, _: key not in labels}
    return any(all(holds[e["operator"]](e["key"], e.get("values")) for e in term["matchExpressions"]) for term in terms)


def check_default_nodes():
    pod = Rendered().pod()
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert "nodeSelector" not in pod
    nfd = {"feature.node.kubernetes.io/kernel-version.full": "6.1.0-30-amd64"}
    for labels, expected in (
            ({}, True),  # nobody has looked: the agent does
            ({"nvidia.com/gpu.present": "false"}, False),
            ({"nvidia.com/gpu.present": "true"}, True),
            (nfd, False),
            ({**nfd, "nvidia.com/gpu.present": "true"}, True),
            ({**nfd, "feature.node.kubernetes.io/pci-10de.present": "true"}, True),  # as NVIDIA's chart configures NFD
            ({**nfd, "feature.node.kubernetes.io/pci-0300_10de.present": "true"}, True),
            ({**nfd, "feature.node.kubernetes.io/pci-0302_10de.present": "true"}, True),
            ({**nfd, "feature.node.kubernetes.io/pci-0200_15b3.present": "true"}, False),
            ({**nfd, "feature.node.kubernetes.io/cpu-model.vendor_id": "NVIDIA"}, True)):
        assert selects(terms, labels) == expected, labels


def check_monitoring():
    rendered = Rendered({"podMonitor": {"enabled": True, "labels": {"release": "prom"}}, "prometheusRule": {"enabled": True}})
    monitor = rendered.one("PodMonitor")
    expect(monitor["metadata"]["labels"]["release"], "prom")
    labels = rendered.one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items(), "it selects no agent"
    assert "scrapeTimeout" not in monitor["spec"]["podMetricsEndpoints"][0], "the operator refuses a monitor whose interval is shorter"
    shipped = yaml.safe_load((ROOT / "deploy/prometheus/prometheusrule.yaml").read_text())
    expect(rendered.one("PrometheusRule")["spec"], shipped["spec"])
    rendered = Rendered({"serviceMonitor": {"enabled": True}, "port": 9500})
    service = rendered.one("Service")
    expect(service["spec"]["ports"][0]["port"], 9500)
    assert rendered.one("ServiceMonitor")["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert "scrapeTimeout" not in rendered.one("ServiceMonitor")["spec"]["endpoints"][0], "as above"


def check_cluster_page():
    """The scheduler gets the page's arguments, port and rights with the page alone."""
    with_page = {"scheduler": {"enabled": True, "page": {"enabled": True, "port": 9500, "nodePage": "https://gpus.example/{node}/"}}}
    rights, servers = {}, {}
    for name, values in (("without", SCHEDULER), ("with", with_page)):
        rendered = Rendered(values, release="r")
        role = rendered.one("ClusterRole", "r-gpulet-scheduler")
        rights[name] = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
        servers[name] = rendered.one("Deployment", "r-gpulet-scheduler")["spec"]["template"]["spec"]["containers"][0]
        more = {item for item in rendered.names() if "auth-delegator" in item or "cluster-page" in item}
        expect(more, set() if name == "without" else {"ClusterRoleBinding/r-gpulet-scheduler:system:auth-delegator", "ClusterRole/r-gpulet-cluster-page"})
    expect(rights["with"] - rights["without"], {("nodes", "list"), ("nodes", "watch")})
    expect(set(servers["with"]["args"]) - set(servers["without"]["args"]),
           {"--page-address=0.0.0.0:9500", "--agent-selector=app.kubernetes.io/name=gpulet", "--node-page=https://gpus.example/{node}/"})
    expect([port["name"] for port in servers["with"]["ports"]], ["http", "page"])
    expect(rendered.one("ClusterRole", "r-gpulet-cluster-page")["rules"], [{"nonResourceURLs": ["/cluster"], "verbs": ["get"]}])
    expect([port["name"] for port in rendered.one("Service", "r-gpulet-scheduler")["spec"]["ports"]], ["http", "page"])
    # The page selects the agents' Pods, and no others of the chart.
    labels = rendered.one("DaemonSet", "r-gpulet")["spec"]["template"]["metadata"]["labels"]
    expect(labels["app.kubernetes.io/name"], "gpulet")
    policy = rendered.one("NetworkPolicy", "r-gpulet-scheduler")["spec"]["ingress"]
    expect([rule["ports"][0]["port"] for rule in policy], ["http", "page"])
    limited = Rendered(merged(with_page, {"networkPolicy": {"pageFrom": [{"podSelector": {}}]}})).one("NetworkPolicy", "gpulet-scheduler")
    expect(limited["spec"]["ingress"][1]["from"], [{"podSelector": {}}])


def check_everything_at_once():
    rendered = Rendered({"scheduler": {"enabled": True, "tlsSecretName": "s"}, "metricsApi": {"enabled": True},
                         "podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "createNamespace": True})
    names = rendered.names()
    expect(len(names), len(set(names)))
    for name in ("Deployment/gpulet-scheduler", "Deployment/gpulet-metrics-api", "CustomResourceDefinition/gpunodes.gpulet.io",
                 "NetworkPolicy/gpulet", "NetworkPolicy/gpulet-scheduler", "NetworkPolicy/gpulet-metrics-api", "Namespace/gpus",
                 "Job/gpulet-cleanup", "DaemonSet/gpulet-cleanup"):
        assert name in names, f"no {name}: {names}"
    expect(rendered.one("CustomResourceDefinition", "gpunodes.gpulet.io")["metadata"]["annotations"], {"helm.sh/resource-policy": "keep"})
    for item in rendered.objects:
        if item["kind"] in ("Deployment", "Job"):
            for container in item["spec"]["template"]["spec"]["containers"]:
                context = {**item["spec"]["template"]["spec"].get("securityContext", {}), **container["securityContext"]}
                assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"] and context["capabilities"] == {"drop": ["ALL"]} \
                    and context["seccompProfile"] == {"type": "RuntimeDefault"} and not context["allowPrivilegeEscalation"], item["metadata"]["name"]


def check_mistakes_are_refused():
    refused({"migStratgy": "mixed"}, "migStratgy")
    refused({"migStrategy": "mixd"}, "/migStrategy", "'mixed'")
    refused({"config": {"mapp": {}}}, "/config", "mapp")
    refused({"deviceListStrategy": "envvar,cdi"}, "/deviceListStrategy")
    refused({"gfd": {"noTimestmp": True}}, "/gfd", "noTimestmp")
    refused({"pools": {"a": {"nodeSelector": {"a": "b"}, "confg": "x"}}}, "/pools/a", "confg")
    refused({"pools": {"a": {"nodeSelector": {"a": "b", "c": "d"}}}}, "/pools/a/nodeSelector")
    refused({"gpulet": {"logLevl": "debug"}}, "/gpulet", "logLevl")
    refused({"gpulet": {"faults": {"eviction": {"enable": True}}}}, "/gpulet/faults/eviction", "enable")
    refused({"capabilities": []}, "/capabilities")
    refused({"namespace": "x"}, "namespace")
    refused({}, "allowDefaultNamespace", namespace="default")
    refused({"config": {"name": "x", "map": {"default": "version: v1\n"}}}, "config.name", "config.map")
    refused({"config": {"name": "x"}, "gpulet": {"logLevel": "debug"}}, "ConfigMap x")
    refused({"config": {"map": {"a": "", "b": ""}}}, "config.default", "a, b")
    refused({"config": {"map": {"a": ""}, "default": "z"}}, "'z'")
    refused({"config": {"map": {"default": "a: ["}}}, "config.map.default")
    refused({"pools": {"p": {"nodeSelector": {"a": "b"}, "config": "z"}}}, "pools.p.config")
    refused({"image": {"repository": "registry.example/nvidia/k8s-device-plugin"}}, "NVIDIA's image")
    refused({"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}, "twice")


def main():
    global TESTBED_BIN
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:{CACHE / 'go' / 'bin'}:/usr/local/go/bin"}
    subprocess.run([TESTBED, "build", "helm"], check=True, env=env)
    TESTBED_BIN = pathlib.Path(output(TESTBED, "bin", env=env).strip())
    return outcome.report_checks([(name.removeprefix("check_").replace("_", " "), check)
                         for name, check in globals().items() if name.startswith("check_")])


if __name__ == "__main__":
    sys.exit(main())
