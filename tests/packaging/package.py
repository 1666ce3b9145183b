"""The Debian package: its exact contents, reproducible bytes, and its life on a host: it is installed, upgraded, removed and purged in a
Debian root with its own systemd, on a simulated node with eight H100. The checks of the service are steps of one life, in their order."""
import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/monitoring"))
import debian_root  # noqa: E402
import image  # noqa: E402
import kubelet  # noqa: E402
from outcome import between, same  # noqa: E402

MAX_MB = 8
STOP_LIMIT_S = 0.5  # with the rights of the unit, which cannot signal the listener child
MAX_EXPOSURE = 3.0  # of 10, by systemd-analyze security
FILES = {
    "usr/bin/gpulet": 0o755, "usr/bin/gpulet-hook": 0o755,
    "usr/bin/kubectl-gpulet": 0o777, "usr/bin/kubectl_complete-gpulet": 0o777,  # links
    "lib/systemd/system/gpulet.service": 0o644, "lib/udev/rules.d/71-gpulet.rules": 0o644,
    "etc/gpulet/config.yaml": 0o644, "etc/gpulet/environment": 0o644,
    "usr/share/bash-completion/completions/gpulet": 0o644, "usr/share/zsh/vendor-completions/_gpulet": 0o644,
    "usr/share/fish/vendor_completions.d/gpulet.fish": 0o644,
    **{f"usr/share/man/man1/gpulet{command}.1.gz": 0o644 for command in (
        "", "-agent", "-cdi", "-cleanup", "-completion", "-config", "-cordon", "-doctor", "-dra", "-driver", "-explain", "-health", "-help",
        "-labels", "-list", "-metrics-api", "-mig", "-migrate", "-place", "-preflight", "-runtime", "-scheduler", "-top", "-topo", "-uncordon", "-usage", "-version")},
    "usr/share/man/man1/kubectl-gpulet.1.gz": 0o644,
    **{f"usr/share/doc/gpulet/{name}": 0o644 for name in (
        "changelog.gz", "copyright", "gpulet.spdx.json", "examples/mig.conf", "examples/mps.conf", "examples/power.conf")},
}
UNIT = "gpulet.service"
NODE = "gpu-7.example"
UPGRADED = "99.0"
MPS = "sharing:\n  mps:\n    resources:\n      - {name: nvidia.com/gpu, replicas: 2}\n"
EDIT = "# an operator's line\n"
# For the simulated driver only: where it is, and that its library keeps the machine's state in its own directory.
SIMULATED = "[Service]\nEnvironment=NVIDIA_DRIVER_ROOT=/opt/driver DRIVER_ROOT_CTR_PATH=/opt/driver\nReadWritePaths=/opt/driver\n"
# Files of the package manager and of systemd, which a package changes and does not own.
OTHERS = re.compile(r"/(var/(lib/(dpkg|systemd)|cache|log)|run/(systemd|log|programs|utmp|upgrade\.deb)|usr/share/info)(/|$)|/etc/ld\.so\.cache$")
# What the unit's restrictions permit. Major 195 is NVIDIA's: permitted, and nothing answers here. 10:200 is /dev/net/tun.
PROBE = """#!/bin/sh
probe() { name=$1; shift; if "$@" >/dev/null 2>/var/lib/gpulet/complaint; then echo "$name: yes"; else echo "$name: no"; fi; }
device() { mknod "/var/lib/gpulet/$1" "$2" "$3" "$4" && head -c 1 "/var/lib/gpulet/$1"; }
probe 'write state' touch /var/lib/gpulet/file
probe 'write CDI specs' touch /run/cdi/file
probe 'write plugin sockets' touch /var/lib/kubelet/device-plugins/file
probe 'write programs' touch /usr/bin/file
probe 'write its config' touch /etc/gpulet/file
probe 'see homes' ls /root/.bashrc
probe 'read the kernel log' dd if=/dev/kmsg of=/dev/null bs=8192 count=1
probe 'create a character device' mknod /var/lib/gpulet/created c 511 1
probe 'create a block device' mknod /var/lib/gpulet/disk b 7 0
probe 'mount' mount -t tmpfs none /mnt
probe 'open another device' device tun c 10 200
cat /var/lib/gpulet/complaint
probe 'open a device of the driver' device nvidiactl c 195 255
cat /var/lib/gpulet/complaint
"""
PROBED = """write state: yes
write CDI specs: yes
write plugin sockets: yes
write programs: no
write its config: no
see homes: no
read the kernel log: yes
create a character device: yes
create a block device: no
mount: no
open another device: no
head: cannot open '/var/lib/gpulet/tun' for reading: Operation not permitted
open a device of the driver: no
head: cannot open '/var/lib/gpulet/nvidiactl' for reading: No such device or address
"""


def version():
    return re.search(r"^project\(gpulet VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def path():
    return ROOT / "out" / "package" / f"gpulet_{version()}_amd64.deb"


def build(umask, directory):
    """Builds the package elsewhere. Returns its digest."""
    subprocess.run(["sh", "-c", f"umask {umask}; deploy/package/build"], cwd=ROOT, check=True, capture_output=True, text=True,
                   env={**os.environ, "TMPDIR": str(directory), "TZ": "Asia/Tokyo"})
    return hashlib.sha256(path().read_bytes()).hexdigest()


def check_same_bytes():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory(dir=ROOT / "out") as other:
        digests = build("022", one), build("077", other)
    same(digests[0], digests[1], "digests of two builds")


def check_contents():
    listed = subprocess.run(["dpkg-deb", "--fsys-tarfile", path()], check=True, capture_output=True).stdout
    files, strangers = {}, []
    with tarfile.open(fileobj=io.BytesIO(listed)) as archive:
        for member in archive:
            if (member.uname, member.gname, member.uid, member.gid) != ("root", "root", 0, 0) or (member.mode & 0o022 and not member.issym()):
                strangers.append(member.name)
            if not member.isdir():
                files[member.name.removeprefix("./")] = member.mode
    same(files, FILES)
    same(strangers, [], "not root's alone")
    fields = subprocess.run(["dpkg-deb", "--field", path()], check=True, capture_output=True, text=True).stdout
    wanted = {"Version": version(), "Architecture": "amd64", "Depends": "libc6 (>= 2.36), init-system-helpers (>= 1.52)"}
    same({name: re.search(f"^{name}: (.*)$", fields, re.MULTILINE)[1] for name in wanted}, wanted)
    size = path().stat().st_size / 1e6
    return f"{size:.1f} MB, at most {MAX_MB}" if size > MAX_MB else None


class Host:
    """The Debian root with a simulated driver and a kubelet, before the package is installed."""

    def __init__(self):
        self.root = debian_root.DebianRoot(ROOT / "out")
        self.ends = contextlib.ExitStack()
        self.ends.callback(self.root.end)
        self.do, self.run = self.root.do, self.root.run
        self.sim("up", "hgx-h100")
        (self.root.path / "var/lib/kubelet/device-plugins").mkdir(parents=True)
        self.write("etc/systemd/system/gpulet.service.d/simulated.conf", SIMULATED)
        self.kubelet = kubelet.Kubelet(self.root.path / "var/lib/kubelet")
        self.kubelet.start()
        self.ends.callback(self.kubelet.stop)
        directory = pathlib.Path(self.ends.enter_context(tempfile.TemporaryDirectory()))
        self.certificate, self.port, self.requests = self.ends.enter_context(image.api_server(directory, self.root.listen()))
        self.before = self.files()

    def sim(self, *command):
        self.do("/run/programs/bin/gpulet-sim", *command, "--root", "/opt/driver")

    def write(self, name, text):
        (self.root.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root.path / name).write_text(text)

    def read(self, name):
        return (self.root.path / name).read_text()

    def files(self):
        return {name: state for name, state in self.root.files().items() if not OTHERS.match(name) and not name.startswith("/opt/driver/")}

    def service(self):
        """(active state, main PID) of the unit."""
        shown = self.do("systemctl", "show", "--property=ActiveState,MainPID", UNIT)
        return re.search("ActiveState=(.*)", shown)[1], int(re.search("MainPID=(.*)", shown)[1])

    def wait_for_registration(self, before, *health):
        """Waits until the kubelet has seen a new registration after `before` of them, and this health of the devices."""
        with self.kubelet.changed:
            registered = self.kubelet.changed.wait_for(lambda: len(self.kubelet.watched) > before, debian_root.LIMIT_S)
        if not registered or not self.kubelet.wait_for_health(*health):
            journal = self.run("journalctl", "--boot", "--unit", UNIT, "--no-pager").stdout
            raise AssertionError(f"registered {len(self.kubelet.watched)} times, with {self.kubelet.health}: {journal[-1500:]}")

    def daemons(self):
        """Process ids of the unit's MPS control daemons, without the agent's short-lived clients of them."""
        def arguments(pid):
            try:
                return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                return [""]  # it has ended
        processes = self.read("sys/fs/cgroup/system.slice/gpulet.service/cgroup.procs").split()
        return [pid for pid in processes if "nvidia-cuda-mps" in (said := arguments(pid))[0] and "-d" in said]

    def registrations(self):
        return len(self.kubelet.watched)


@functools.cache
def host():
    made = Host()
    atexit.register(made.ends.close)
    return made


HEALTHY = ["Healthy"] * 8
ONE_LOST = ["Unhealthy"] + ["Healthy"] * 7


def check_install():
    """Installed, it is enabled and runs, and the kubelet has eight GPUs; CDI specs name the package's hook."""
    host().do("dpkg", "--install", f"/run/programs/package/{path().name}")
    host().wait_for_registration(0, *HEALTHY)
    same(host().do("systemctl", "is-enabled", UNIT).strip(), "enabled")
    spec = next((host().root.path / "run/cdi").glob("k8s.device-plugin.nvidia.com-*.json")).read_text()
    same(set(re.findall(r'"path": ?"([^"]*hook)"', spec)), {"/usr/bin/gpulet-hook"}, "hooks of the CDI spec")
    same(host().do("gpulet", "health").count("healthy"), 8, "lines of gpulet health")


def check_unit():
    """systemd finds no mistake in the unit and its examples, and sees its restrictions."""
    for names in ((), ("mig", "mps"), ("mps",)):
        for name in names:
            host().do("cp", f"/usr/share/doc/gpulet/examples/{name}.conf", "/etc/systemd/system/gpulet.service.d/")
        verified = host().run("systemd-analyze", "verify", UNIT)
        host().do("rm", "-f", *(f"/etc/systemd/system/gpulet.service.d/{name}.conf" for name in names), "/none")
        same((verified.returncode, verified.stdout + verified.stderr), (0, ""), f"systemd-analyze verify with {names}")
    analysed = host().do("systemd-analyze", "security", "--no-pager", "--offline=true", UNIT)
    exposure = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", analysed)[1])
    return f"exposure {exposure}, at most {MAX_EXPOSURE}" if exposure > MAX_EXPOSURE else None


def check_restrictions():
    """What a program can do that runs as the unit does."""
    unit = host().read("lib/systemd/system/gpulet.service")
    unit = re.sub("^(Type=.*|Restart.*|Environment.*)\n", "", unit, flags=re.MULTILINE)
    unit = unit.replace("ExecStart=/usr/bin/gpulet agent", "Type=oneshot\nExecStart=/bin/sh /run/probe")
    unit = unit.replace("=gpulet\n", "=gpulet\nStandardOutput=truncate:/run/probed\n", 1)
    host().write("run/systemd/system/probe.service", unit)
    host().write("run/probe", PROBE)
    host().do("systemctl", "daemon-reload")
    host().do("systemctl", "start", "probe.service")
    probed = host().read("run/probed")
    host().do("sh", "-c", "rm /run/probe /run/probed /run/systemd/system/probe.service /run/cdi/file /var/lib/kubelet/device-plugins/file; "
              "cd /var/lib/gpulet && rm file complaint created tun nvidiactl")
    same(probed, PROBED)


def check_fault():
    """Under these restrictions a lost GPU is noticed and withdrawn."""
    host().sim("xid", "0", "79")
    if not host().kubelet.wait_for_health(*ONE_LOST):
        return f"after an XID 79 tells {host().kubelet.health}"
    return None


def check_kubeconfig():
    """The node joins its cluster: the agent takes the kubelet's identity, and the Node's name from it."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                        f"/O=system:nodes/CN=system:node:{NODE}", "-keyout", directory / "key", "-out", directory / "cert"],
                       check=True, capture_output=True)
        host().write("var/lib/kubelet/pki/kubelet-client-current.pem", (directory / "cert").read_text() + (directory / "key").read_text())
    host().write("var/lib/kubelet/pki/ca.crt", host().certificate)
    pem = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    before, pid = host().registrations(), host().service()[1]
    host().write("var/lib/kubelet/kubeconfig", json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{host().port}", "certificate-authority": "pki/ca.crt"}}],
        "users": [{"name": "u", "user": {"client-certificate": pem, "client-key": pem}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}))
    host().wait_for_registration(before, *ONE_LOST)
    while (request := host().requests.get(timeout=debian_root.LIMIT_S)) and "/nodes" not in request:
        pass
    same(NODE in request, True, request)
    return None if host().service()[1] != pid else "was not restarted"


def check_crash():
    """systemd starts a killed agent again."""
    before = host().registrations()
    host().do("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT)
    host().wait_for_registration(before, *ONE_LOST)


def check_upgrade():
    """A newer version replaces program and files, restarts the service and keeps edited settings."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["dpkg-deb", "--raw-extract", path(), directory], check=True)
        control, environment = pathlib.Path(directory, "DEBIAN/control"), pathlib.Path(directory, "etc/gpulet/environment")
        control.write_text(re.sub("^Version: .*", f"Version: {UPGRADED}", control.read_text(), flags=re.MULTILINE))
        environment.write_text(environment.read_text() + "# a new default\n")
        subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", directory, host().root.path / "run/upgrade.deb"],
                       check=True, capture_output=True)
    host().write("etc/gpulet/config.yaml", host().read("etc/gpulet/config.yaml") + EDIT)
    before, pid = host().registrations(), host().service()[1]
    host().do("dpkg", "--install", "/run/upgrade.deb")
    host().wait_for_registration(before, *ONE_LOST)
    stopped = host().do("journalctl", "--boot", "--unit", UNIT, "--output=short-unix", "--no-pager")
    times = [float(line.split()[0]) for line in stopped.splitlines() if "stopping on a signal" in line or "Deactivated" in line]
    between(times[-1] - times[-2], 0, STOP_LIMIT_S, "seconds from SIGTERM to the exit")
    same(host().service()[0], "active")
    same(host().service()[1] != pid, True, "restarted")
    same(host().read("etc/gpulet/config.yaml").endswith(EDIT), True, "keeps the edited file")
    same(host().read("etc/gpulet/environment").endswith("# a new default\n"), True, "replaces the untouched file")
    same(host().do("dpkg-query", "-W", "-f", "${Version}", "gpulet"), UPGRADED)


def check_mps():
    """With the drop-in for MPS the agent shares GPUs by MPS, and finds its control daemon again after a restart."""
    host().do("cp", "/usr/share/doc/gpulet/examples/mps.conf", "/etc/systemd/system/gpulet.service.d/")
    host().write("etc/gpulet/environment", host().read("etc/gpulet/environment") + "MPS_ROOT=/run/nvidia/mps\nDRIVER_ROOT_CTR_PATH=/opt/driver\n")
    host().write("etc/gpulet/config.yaml", host().read("etc/gpulet/config.yaml") + MPS)
    host().do("systemctl", "daemon-reload")
    found = []
    for _ in range(2):
        before = host().registrations()
        host().do("systemctl", "restart", UNIT)
        host().wait_for_registration(before, *ONE_LOST * 2)
        found.append(host().daemons())
    same((len(found[0]), found[1]), (1, found[0]), "control daemons")


def check_remove():
    """Removed, it is stopped, and nothing that others act on is left; settings and recorded faults stay."""
    removed = host().run("dpkg", "--remove", "gpulet")
    same((removed.returncode, re.findall("warning.*|gpulet:.*", removed.stderr)), (0, []))
    same(host().run("systemctl", "is-active", UNIT).stdout.strip(), "inactive")
    left = [name for name in host().files() if name not in host().before]
    same([name for name in left if name.startswith(("/run/cdi/", "/usr", "/lib", "/var/lib/kubelet/device-plugins/"))], [])
    same({"/etc/gpulet/config.yaml", "/var/lib/gpulet/health-state"} - set(left), set(), "kept")
    deleted = [request for request in list(host().requests.queue) if request.startswith("DELETE")]
    same(deleted, [], "requests to the API server that a kubelet may not make")


def check_purge():
    """Purged, everything is as before the installation."""
    host().do("dpkg", "--purge", "gpulet")
    (host().root.path / "etc/systemd/system/gpulet.service.d/mps.conf").unlink()
    (host().root.path / "var/lib/kubelet/kubeconfig").unlink()
    for name in ("pki/kubelet-client-current.pem", "pki/ca.crt"):
        (host().root.path / "var/lib/kubelet" / name).unlink()
    (host().root.path / "var/lib/kubelet/pki").rmdir()
    after = host().files()
    different = sorted(name for name in {*after, *host().before} if after.get(name) != host().before.get(name))
    same(different, [])
    host().ends.close()


CHECKS = [
    ("package: reproducible", check_same_bytes), ("package: contents", check_contents), ("service: installed", check_install),
    ("service: unit", check_unit), ("service: restrictions", check_restrictions), ("service: a lost GPU", check_fault),
    ("service: joins its cluster", check_kubeconfig), ("service: killed", check_crash), ("service: upgraded", check_upgrade),
    ("service: MPS", check_mps), ("service: removed", check_remove), ("service: purged", check_purge),
]
