"""Removes each permission of the agent in turn: it reports that at its start, and the rest works."""
from lib.kube import ApiError, token_kubeconfig, until
from lib.kubectl import manifest
from lib.node import ROOT

NAME = "gpulet-rights"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
COUNT = "nvidia.com/gpu.count"
# Without these permissions the labels do not come back.
LABELLING = {("get", "nodes"), ("patch", "nodes")}


class RightsChecks:
    def __init__(self, checks):
        self.kube, self.node = checks.kube, checks.n2
        self.kubeconfig = self.node.state / "rights.kubeconfig"
        self.log = self.node.state / "log" / f"{self.node.name}-agent"

    def run(self):
        return [
            ("the manifest's permissions are complete", self.all_there),
            ("each missing permission is named, and the rest works", self.each_in_turn),
        ]

    @staticmethod
    def manifest_rules():
        """The manifests' roles for the agent and for publishing."""
        rules = []
        for name in ("gpulet.yaml", "scheduler.yaml"):
            for item in manifest(ROOT / "deploy/static" / name):
                if item["kind"] == "ClusterRole" and item["metadata"]["name"] in ("gpulet", "gpulet-publish"):
                    rules += item["rules"]
        return rules

    @staticmethod
    def rights_of(rules):
        """(verb, group, resource) of each; events count once, whichever API group they are written in."""
        return sorted({(verb, "" if resource == "events" else group, resource)
                       for rule in rules for verb in rule["verbs"] for group in rule["apiGroups"] for resource in rule["resources"]})

    def put(self, path, body):
        try:
            self.kube.call("POST", path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            self.kube.call("PUT", f"{path}/{body['metadata']['name']}", body)

    def give(self, rights):
        groups = {"events": ["", "events.k8s.io"]}
        self.put(ROLES, {"metadata": {"name": NAME}, "rules": [
            {"verbs": [verb], "apiGroups": groups.get(resource, [group]), "resources": [resource]} for verb, group, resource in rights]})

    def account(self):
        self.put("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": NAME}})
        self.put("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {
            "metadata": {"name": NAME}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": "default"}]})
        token = self.kube.call("POST", f"/api/v1/namespaces/default/serviceaccounts/{NAME}/token", {"spec": {"expirationSeconds": 3600}})
        self.kubeconfig.write_text(token_kubeconfig(self.node.state, token["status"]["token"]))

    def missing(self):
        return [line.split('right="')[1].split('"')[0] for line in self.log.read_text(errors="replace")[self.from_here:].splitlines()
                if "missing RBAC permission" in line]

    def begin(self):
        """Starts the agent with these permissions and waits until it offers its GPUs."""
        self.from_here = self.log.stat().st_size if self.log.exists() else 0
        self.node.start_agent(env={"KUBECONFIG": str(self.kubeconfig), "GPULET_PUBLISH_GPU_NODE": "true"})  # unset, it would be silent
        self.node.wait_allocatable(self.kube, 8)

    def labelled_anew(self):
        """Labels that were removed while no agent ran are restored."""
        until("the node is labelled", lambda: self.kube.get(f"/api/v1/nodes/{self.node.name}")["metadata"]["labels"].get(COUNT) == "8")

    def end(self):
        self.node.stop_agent()
        self.node.wait_allocatable(self.kube, 0)
        self.kube.patch(f"/api/v1/nodes/{self.node.name}", {"metadata": {"labels": {COUNT: None}}})

    def all_there(self):
        self.rights = self.rights_of(self.manifest_rules())
        assert len(self.rights) >= 10, self.rights
        self.account()
        self.give(self.rights)
        self.begin()
        self.labelled_anew()
        page = until("the page says how many are missing", lambda: next(
            (line for line in self.node.metrics().splitlines() if line.startswith("gpulet_rights_missing ")), None))
        assert page == "gpulet_rights_missing 0", page
        assert not self.missing(), self.missing()
        self.end()

    def each_in_turn(self):
        for right in self.rights:
            verb, group, resource = right
            self.give([other for other in self.rights if other != right])
            self.begin()
            name = f"{verb} on {resource}" + (f".{group}" if group else "")
            reported = until(f"the agent reports the missing permission {name}", self.missing)
            if (verb, resource) not in LABELLING:
                self.labelled_anew()
            assert self.missing() == [name], f"without {name} it named {reported}"
            assert self.node.agent.poll() is None, f"without {name} it ended"
            self.end()
