"""The image for the GPU operator's Pods: its contents and settings, and three operands started in it as the operator does, on the simulated
driver: the device plugin by an entry script, GPU feature discovery by its name, and dcgm-exporter by nothing but its variables. The driver
is mounted at /driver-root for all of them, in place of what the container toolkit does for the last two. As root."""
import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import image

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "monitoring"))
import kubelet  # noqa: E402

ARCHIVE = ROOT / "out" / "image" / "gpulet-operator.tar"
SIM = ROOT / "out" / "bin" / "gpulet-sim"
LIMIT_S = 40
kubelet.LIMIT_S = LIMIT_S
SHELL = ("sh", "cat", "grep", "lsmod", "sleep")
FILES = image.FILES | {"bin", "var/run", "usr/bin/busybox", "usr/bin/gpulet-operand", "usr/share/doc/busybox-static/copyright",
                       *(f"usr/bin/{name}" for name in SHELL)}
# Written from what the operator's scripts do: wait for the validator, source its file, ask for modules, start the plugin by PATH.
ENTRY = r"""#!/bin/sh
until [ -f /run/nvidia/validations/driver-ready ]; do
  echo "waiting for the driver"
  sleep 1
done
set -o allexport
cat /run/nvidia/validations/driver-ready
. /run/nvidia/validations/driver-ready
>feature-flags.env
if [ -z "$GDRCOPY_ENABLED" ] && lsmod | grep -q '^gdrdrv '; then
  echo "GDRCOPY_ENABLED=true" >>feature-flags.env
fi
for module in nvidia_fs; do
  if [ -z "$GDS_ENABLED" ] && lsmod | grep -q "^$module "; then
    echo "GDS_ENABLED=true" >>feature-flags.env
  fi
done
case "$MIG_STRATEGY" in
  none | single | mixed) ;;
  *) exit 1 ;;
esac
. ./feature-flags.env
echo "starting with the driver in $DRIVER_ROOT_CTR_PATH"
exec nvidia-device-plugin
"""
READY = "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n" \
        "NVIDIA_DEV_ROOT=/run/nvidia/driver\nDEV_ROOT_CTR_PATH=/driver-root\n"
PLUGIN = {"PASS_DEVICE_SPECS": "true", "FAIL_ON_INIT_ERROR": "true", "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri", "DEVICE_ID_STRATEGY": "uuid",
          "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "MPS_ROOT": "/run/nvidia/mps", "MIG_STRATEGY": "single",
          "NVIDIA_MIG_MONITOR_DEVICES": "all", "CDI_ENABLED": "true", "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/",
          "NVIDIA_CDI_HOOK_PATH": "/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
DISCOVERY = {"GFD_SLEEP_INTERVAL": "60s", "GFD_FAIL_ON_INIT_ERROR": "true", "MIG_STRATEGY": "single", "USE_NODE_FEATURE_API": "false",
             "NODE_NAME": "n1", "NAMESPACE": "gpu-operator", "POD_NAME": "gpu-feature-discovery-1"}
EXPORTER = {"DCGM_EXPORTER_LISTEN": ":9400", "DCGM_EXPORTER_KUBERNETES": "true", "NODE_NAME": "n1",
            "DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/dcp-metrics-included.csv"}
# $1: the image's root, $2: a directory for everything else, then SOURCE=TARGET of each mount, "--", and the command.
START = r"""
set -e
ip link set lo up
mkdir "$2"/upper "$2"/work "$2"/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2"/root
cd "$2"/root
shift 2
mount -t proc proc proc
for node in null urandom; do touch dev/$node; mount --bind /dev/$node dev/$node; done
while [ "$1" != -- ]; do
  source=${1%=*} target=.${1#*=}
  if [ -d "$source" ]; then mkdir -p "$target"; else touch "$target"; fi
  mount --rbind "$source" "$target"
  shift
done
shift
exec chroot . "$@"
"""


@functools.cache
def variant():
    subprocess.run([ROOT / "deploy/image/build", "--operator"], check=True, capture_output=True, text=True)
    directory = tempfile.TemporaryDirectory()
    made = image.Image(pathlib.Path(directory.name), ARCHIVE)
    made.directory = directory  # lasts as long as its image
    return made


class Container:
    """A process with the image as its root and namespaces of its own, but for the cgroup's."""

    def __init__(self, directory, command, variables, mounts):
        self.log = directory / "log"
        settings = variant().config["config"]
        environment = dict(line.split("=", 1) for line in settings["Env"]) | variables
        words = command or settings["Entrypoint"]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", START, "sh", variant().root, directory,
                 *(f"{source}={target}" for source, target in mounts.items()), "--", *words], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=environment)

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, holds, what):
        until = time.monotonic() + LIMIT_S
        while not holds():
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{what}: exit status {self.process.poll()}; it says {self.said()[-2000:]!r}")
            time.sleep(0.05)

    def get(self, path):
        """The body of a page of port 9400, empty while there is none."""
        return subprocess.run(["nsenter", f"--target={self.process.pid}", "--net", "curl", "-sf", "--max-time", "1",
                               f"http://127.0.0.1:9400{path}"], capture_output=True, text=True, check=False).stdout

    def main_process(self):
        """(argv, environment) of its first process."""
        pid = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0]
        read = [pathlib.Path(f"/proc/{pid}/{name}").read_bytes().decode().rstrip("\0").split("\0") for name in ("cmdline", "environ")]
        return read[0], dict(line.split("=", 1) for line in read[1])

    def end(self):
        """Ends its first process by SIGTERM. Returns the exit status."""
        pid = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0]
        os.kill(int(pid), signal.SIGTERM)
        return self.process.wait(LIMIT_S)


@contextlib.contextmanager
def driver():
    """Yields a directory with a simulated driver root `driver`."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        subprocess.run([SIM, "up", "hgx-h100", "--root", directory / "driver"], check=True, capture_output=True)
        try:
            yield directory
        finally:
            subprocess.run([SIM, "down", "--root", directory / "driver"], check=True, capture_output=True)


@contextlib.contextmanager
def container(directory, command, variables, mounts):
    started = Container(directory, command, variables, mounts)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def check_contents():
    files = {name for name, member in variant().members.items() if not member.isdir()}
    if files != FILES:
        return f"lacks {sorted(FILES - files)}, has {sorted(files - FILES)} besides"
    links = {name: variant().members[name].linkname for name in ("bin", "var/run", "usr/bin/sh", "usr/bin/gpulet-operand")}
    wanted = {"bin": "usr/bin", "var/run": "../run", "usr/bin/sh": "busybox", "usr/bin/gpulet-operand": "gpulet"}
    if links != wanted:
        return f"links {links}"
    if any(name.startswith("var/lib/kubelet") for name in variant().members):
        return "has a directory of the kubelet, by whose absence the exporter's container is recognized"
    return None


def check_settings():
    settings = variant().config["config"]
    said = image.dockerfile_config(-2)
    if settings != said or not variant().name.endswith("-operator"):
        return f"{variant().name} has {settings}, deploy/image/Dockerfile says {said}"
    missing = {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all"} - set(settings["Env"])
    return f"lacks {missing}" if missing else None


def check_sbom():
    packages = json.loads((variant().root / "usr/share/sbom/gpulet.spdx.json").read_text())["packages"]
    licences = {each["name"]: each["licenseDeclared"] for each in packages}
    return None if licences.get("busybox-static") == "GPL-2.0-only" else f"busybox-static: {licences.get('busybox-static')}"


def check_device_plugin():
    with driver() as directory:
        node = kubelet.Kubelet(directory / "kubelet")
        node.start()
        script, validations, cdi = directory / "entrypoint.sh", directory / "validations", directory / "cdi"
        script.write_text(ENTRY)
        script.chmod(0o700)
        validations.mkdir()
        cdi.mkdir()
        mounts = {script: "/bin/entrypoint.sh", validations: "/run/nvidia/validations", directory / "driver": "/driver-root", cdi: "/var/run/cdi",
                  directory / "kubelet" / "device-plugins": "/var/lib/kubelet/device-plugins"}
        with container(directory, ["/bin/sh", "-c", "/bin/entrypoint.sh"], PLUGIN, mounts) as plugin:
            plugin.wait_for(lambda: "waiting for the driver" in plugin.said(), "waits for driver-ready")
            (validations / "new").write_text(READY)
            (validations / "new").rename(validations / "driver-ready")
            if not node.wait_for_health(*["Healthy"] * 8):
                return f"tells the kubelet {node.health}; it says {plugin.said()[-2000:]!r}"
            arguments, environment = plugin.main_process()
            if arguments != ["nvidia-device-plugin"] or environment.get("DRIVER_ROOT_CTR_PATH") != "/driver-root":
                return f"runs as {arguments} with {environment}"
            plugin.wait_for(lambda: list(cdi.glob("k8s.device-plugin.nvidia.com-*")), "writes its CDI spec")
            status = plugin.end()
            return f"ends with {status}: {plugin.said()[-2000:]!r}" if status else None


def check_feature_discovery():
    with driver() as directory:
        features = directory / "features.d"
        features.mkdir()
        mounts = {directory / "driver": "/driver-root", features: "/etc/kubernetes/node-feature-discovery/features.d", "/sys": "/sys"}
        with container(directory, ["/usr/bin/gpu-feature-discovery"], DISCOVERY, mounts) as discovery:
            discovery.wait_for(lambda: (features / "gfd").exists(), "writes its labels")
            lines = (features / "gfd").read_text().splitlines()
            return None if "nvidia.com/gpu.count=8" in lines and "nvidia.com/mig.strategy=single" in lines else f"writes {lines}"


def check_exporter():
    """Its Pod has no command: the image recognizes it."""
    with driver() as directory, container(directory, None, EXPORTER, {directory / "driver": "/driver-root"}) as exporter:
        exporter.wait_for(lambda: exporter.get("/health") == "OK\n", "serves /health")
        exporter.wait_for(lambda: exporter.get("/metrics").count("\nDCGM_FI_DEV_GPU_TEMP{") == 8, "serves /metrics")
        page = exporter.get("/metrics")
        if 'Hostname="n1"' not in page or "\ngpulet_devices{" in page:
            return f"serves {page[:2000]!r}"
        status = exporter.end()
        return f"ends with {status}: {exporter.said()[-2000:]!r}" if status else None


CHECKS = [
    ("operator image: contents", check_contents), ("operator image: settings", check_settings), ("operator image: SBOM", check_sbom),
    ("operator image: device plugin by an entry script", check_device_plugin),
    ("operator image: GPU feature discovery", check_feature_discovery),
    ("operator image: dcgm-exporter by its variables", check_exporter),
]
