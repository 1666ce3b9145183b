"""A Debian root that is booted with its own systemd, in namespaces and without a network. Everything written is in a directory of its
own, so that what a package leaves can be listed. As root.

The root below it is scripts/bootstrap's, which nothing changes.
"""
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet")
LOWER = CACHE / "debian-root"
LIMIT_S = 30
CLONE_NEWNET = 0x40000000
# cgroup v2 also where the machine's controllers are in v1: systemd needs the tree, and its device policy is a BPF program of it.
# $1: the lower root, $2: a directory for everything else, $3: a directory of programs, mounted at /run/programs.
BOOT = r"""
set -e
mkdir "$2"/upper "$2"/work "$2"/root "$2"/cgroup
mount -t cgroup2 cgroup2 "$2"/cgroup
mkdir "$2"/cgroup/"$(basename "$2")"
echo $$ > "$2"/cgroup/"$(basename "$2")"/cgroup.procs
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2"/root
cd "$2"/root
mount -t tmpfs -o mode=755 run run
mount -t tmpfs tmp tmp
mount -t tmpfs -o mode=755 dev dev
mkdir dev/pts dev/shm run/programs run/outside
for node in null zero full random urandom tty kmsg; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mount --rbind "$3" run/programs
exec unshare --pid --cgroup --uts --ipc --net --mount --fork --kill-child sh -ec '
  read -r pid rest </proc/self/stat
  echo $pid
  mount -t proc proc proc
  mount --bind -o ro proc/sys proc/sys
  mount -t sysfs -o ro sys sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  pivot_root . run/outside
  cd /
  umount -l run/outside
  rmdir run/outside
  exec env -i container=gpulet-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal'
"""
END = r"""
mount -t cgroup2 cgroup2 "$1"/cgroup
find "$1"/cgroup/"$(basename "$1")" -depth -type d -exec rmdir {} +
"""


class DebianRoot:
    def __init__(self, programs):
        if not LOWER.is_dir():
            raise RuntimeError(f"no {LOWER}: scripts/bootstrap --for test makes it")
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="gpulet-debian-"))
        self.process = subprocess.Popen(["unshare", "--mount", "sh", "-c", BOOT, "sh", LOWER, self.directory, programs], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self.init = self.process.stdout.readline().strip()
            if not self.init:
                raise RuntimeError(f"no namespaces for a root: {self.process.stderr.read()}")
            self.path = pathlib.Path(f"/proc/{self.init}/root")
            self.wait_for(lambda: self.run("systemctl", "is-system-running", "--wait").stdout.strip() in ("running", "degraded"))
        except BaseException:
            self.end()
            raise
        self.do("ip", "link", "set", "lo", "up", namespaces="--net")

    def run(self, *command, namespaces="--all"):
        return subprocess.run(["nsenter", "--target", self.init, namespaces, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=LIMIT_S, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"})

    def do(self, *command, namespaces="--all"):
        """Runs a command that has to succeed. Returns its standard output."""
        ran = self.run(*command, namespaces=namespaces)
        if ran.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}: exit status {ran.returncode}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    @staticmethod
    def wait_for(holds):
        until = time.monotonic() + LIMIT_S
        while not holds():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {LIMIT_S} s")
            time.sleep(0.05)

    def listen(self):
        """A TCP socket that listens on 127.0.0.1 inside: a socket belongs to the network of the thread that makes it."""
        made = []

        def make():
            with open(f"/proc/{self.init}/ns/net", "rb") as network:
                if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def files(self):
        """What differs from the lower root, and what is in /run: {path: type and mode, with the content of small files}."""
        found = {}
        for top, name in ((self.directory / "upper", ""), (self.path / "run", "run")):
            for directory, directories, files in os.walk(top):
                for each in directories + files:
                    path = pathlib.Path(directory) / each
                    if not name and path.is_dir() and (LOWER / path.relative_to(top)).is_dir():
                        continue  # of the lower root: it has other entries
                    try:
                        state = path.lstat()
                        content = path.read_bytes() if path.is_file() and not path.is_symlink() and state.st_size < 1 << 16 else b""
                    except FileNotFoundError:
                        continue  # of a daemon that works
                    found[str(pathlib.Path("/", name, path.relative_to(top)))] = (oct(state.st_mode), content)
        return found

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        # The tree is empty as soon as the kernel has ended the last process.
        self.wait_for(lambda: subprocess.run(["unshare", "--mount", "sh", "-c", END, "sh", self.directory], capture_output=True,
                                             check=False).returncode == 0)
        shutil.rmtree(self.directory)
