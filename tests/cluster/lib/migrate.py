"""`gpulet migrate check` on a real API server: its findings, and that its commands can be applied and undone."""
import json
import re
import subprocess

from lib.kubectl import kubectl
from lib.node import GPULET

NAME = "nvidia-device-plugin-daemonset"
# NVIDIA's static manifest, on no node here, with a mistake that its plugin ignores.
MANIFEST = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAME, "namespace": "kube-system"}, "spec": {
    "selector": {"matchLabels": {"name": NAME}}, "template": {"metadata": {"labels": {"name": NAME}}, "spec": {
        "nodeSelector": {"gpulet.io/no-node": "true"},
        "containers": [{"name": "nvidia-device-plugin-ctr", "image": "registry.example/nvidia/k8s-device-plugin:v0.17.1",
                        "env": [{"name": "FAIL_ON_INIT_ERROR", "value": "false"}, {"name": "CONFIG_FILE", "value": "/config/c"}],
                        "volumeMounts": [{"name": "config", "mountPath": "/config"}]}],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}]}}}}


class MigrateChecks:
    @staticmethod
    def report(status):
        ran = subprocess.run([GPULET, "migrate", "check", "--cluster", "--json"], capture_output=True, text=True, timeout=60)
        assert ran.returncode == status, f"exit status {ran.returncode}: {ran.stdout[-500:]} {ran.stderr}"
        return json.loads(ran.stdout)

    def config(self, text):
        kubectl("apply", "-f", "-", items=[{
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "kube-system"}, "data": {"c": text}}])

    def there_and_back(self):
        assert not self.report(0)["found"], "NVIDIA's programs in an empty cluster"
        try:
            self.config("version: v1\nflags: {migStrategie: mixed}\n")
            kubectl("apply", "-f", "-", items=[MANIFEST])
            assert "migStrategie" in " ".join(self.report(3)["decide"])
            self.config("version: v1\nflags: {migStrategy: mixed}\n")
            report = self.report(0)
            fates = {setting["name"]: setting["fate"] for setting in report["settings"]}
            assert fates["FAIL_ON_INIT_ERROR"] == "carries" and fates["flags.migStrategy"] == "carries", fates
            self.run(report["next"], "Change only the image")
            assert "gpulet under that name" in self.report(0)["found"][0]["what"]
            self.run(report["back"], "rollout undo")
            assert "k8s-device-plugin:v0.17.1" in self.report(0)["found"][0]["what"]
        finally:
            kubectl("-n", "kube-system", "delete", f"daemonset/{NAME}", f"configmap/{NAME}", "--ignore-not-found")

    @staticmethod
    def run(steps, which):
        command = re.search(r"`(kubectl [^`]*)`", next(step for step in steps if which in step))[1]
        subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True, timeout=60)
