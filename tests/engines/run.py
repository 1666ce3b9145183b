#!/usr/bin/python3
"""Podman with a spec of `gpulet cdi generate`: `podman run --device nvidia.com/gpu=0`.

  tests/engines/run.py [--bin out/bin] [--lib out/lib]     ends in `N passed, N failed`
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cluster")]
sys.dont_write_bytecode = True
import outcome  # noqa: E402
from lib.images import NAME, make_glibc_image  # noqa: E402

# Podman's default spec directories; the test's spec has its own vendor to avoid conflicts.
SPECS = pathlib.Path("/etc/cdi")
VENDOR = f"gpulet-test{os.getpid()}.example"
LOOK = """
find /dev -name 'nvidia[0-9]*' | sed 's/^/node /'
find /dev/nvidia-caps 2>/dev/null -type c | sed 's/^/cap /'
ldconfig -p | sed -n 's/.*libcuda.so.1 .*=> /cache /p'
probe libcuda.so.1
nvidia-smi -L | sed 's/^/smi /'
echo "user $(id -u)"
"""
MACHINE = "hgx-h100"


class Podman:
    def __init__(self, directory, arguments):
        self.directory, self.bin = directory, arguments.bin
        self.root = directory / "driver"
        self.hook = directory / "gpulet-hook"  # where an unprivileged user can run it
        directory.chmod(0o755)
        shutil.copy(self.bin / "gpulet-hook", self.hook)
        library = next(f for f in (arguments.lib / "gpulet" / "sim", arguments.lib) if f.is_dir())
        self.run(self.bin / "gpulet-sim", "up", MACHINE, "--root", self.root, "--library", library / "libnvidia-ml.so.1",
                 "--nvidia-smi", library / "nvidia-smi")
        # A container's limits may exceed this machine's.
        (directory / "containers.conf").write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n')
        make_glibc_image(directory / "image.tar")
        self.podman("load", "-i", directory / "image.tar")
        self.spec = SPECS / f"{VENDOR}.yaml"

    def run(self, *command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=100, check=False,
                              env={**os.environ, "CONTAINERS_CONF": str(self.directory / "containers.conf")})
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command[:3]))}…: {done.stderr.strip()[-600:]}")
        return done.stdout

    def podman(self, *words):
        return self.run("podman", "--root", self.directory / "storage", "--runroot", self.directory / "run", "--storage-driver", "vfs",
                        "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc", *words)

    def generator(self, *options):
        return [self.bin / "gpulet", "cdi", "generate", "--driver-root", self.root, "--vendor", VENDOR,
                "--nvidia-cdi-hook-path", self.hook, "--output", self.spec, *options]

    def generate(self):
        SPECS.mkdir(exist_ok=True)
        self.run(*self.generator())

    def look(self, devices, *options):
        """First word → the rest, of each line that the container prints."""
        words = [word for device in devices for word in ("--device", f"{VENDOR}/gpu={device}")]
        said = self.podman("run", "--rm", "--network", "none", "-v", f"{self.root}/run/gpulet-sim:/run/gpulet-sim", *words, *options,
                           NAME, "sh", "-c", LOOK)
        return self.parsed(said)

    @staticmethod
    def parsed(said):
        found = {}
        for line in said.splitlines():
            kind, _, rest = line.partition(" ")
            found.setdefault(kind, []).append(rest)
        return found

    def uuids(self):
        reported = self.run(self.bin / "gpulet", "list", "-o", "json", "--driver-root", self.root)
        return re.findall(r'"(GPU-[0-9a-f-]+)"', reported)

    def down(self):
        self.spec.unlink(missing_ok=True)
        self.run(self.bin / "gpulet-sim", "down", "--root", self.root)

    # The checks.
    def one_gpu_by_index(self):
        self.generate()
        self.assert_gpus(self.look(["0"]), [0])

    def two_by_uuid(self):
        uuids = list(dict.fromkeys(self.uuids()))
        self.assert_gpus(self.look([uuids[1], uuids[5]]), [1, 5])

    def all_of_them(self):
        self.assert_gpus(self.look(["all"]), range(8))

    def read_only_and_not_root(self):
        found = self.look(["2"], "--read-only", "--user", "1000:1000", "--security-opt", "no-new-privileges", "--cap-drop", "all")
        self.assert_gpus(found, [2])
        assert found["user"] == ["1000"], found

    def rootless(self):
        """In a user namespace, without privileges on the machine."""
        home = self.directory / "home"
        (home / "run").mkdir(parents=True, mode=0o700)
        (self.directory / "image.tar").chmod(0o644)
        podman = ["podman", "--root", home / "storage", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
                  "--events-backend", "file", "--runtime", "runc"]
        script = " && ".join(" ".join(map(shlex.quote, map(str, command))) for command in (
            [*podman, "load", "-q", "-i", self.directory / "image.tar"],
            [*podman, "run", "--rm", "--network", "none", "-v", f"{self.root}/run/gpulet-sim:/run/gpulet-sim",
             "--device", f"{VENDOR}/gpu=3", NAME, "sh", "-c", LOOK + "sed 's/^/map /' /proc/self/uid_map\n"]))
        said = self.run(HERE / "rootless", self.root, home, *self.generator("--dev-root", "/"), "--", "sh", "-c", script)
        found = self.parsed(said)
        self.assert_gpus(found, [3])
        assert [line.split() for line in found["map"]][0] == ["0", "64100", "1"], found

    def restarted(self):
        """Runs the hook twice on the same root directory: nothing accumulates."""
        name = f"again{os.getpid()}"
        self.podman("run", "-d", "--name", name, "--network", "none", "--device", f"{VENDOR}/gpu=0", NAME, "sleep", "1000")
        def files():
            return sorted(self.podman("exec", name, "find", "/etc", "/usr/lib", "-xdev").splitlines())
        before = files()
        for _ in range(2):
            self.podman("restart", "-t", "0", name)
        after = files()
        self.podman("rm", "-f", "-t", "0", name)
        assert before == after, f"new: {set(after) - set(before)}, gone: {set(before) - set(after)}"

    def assert_gpus(self, found, indices):
        wanted = {f"/dev/nvidia{index}" for index in indices}
        nodes = set(found.get("node", []))
        assert nodes == wanted, f"{nodes}, not {wanted}"
        uuids = list(dict.fromkeys(self.uuids()))
        listed = [re.search(r"GPU-[0-9a-f-]+", line)[0] for line in found.get("smi", [])]
        assert listed == [uuids[index] for index in indices], f"nvidia-smi lists {listed}"
        assert len(found.get("cache", [])) == 1 and found["dlopen"][0].split()[1].startswith("/"), found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    parser.add_argument("--lib", type=pathlib.Path, default=ROOT / "out" / "lib")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpulet-podman-") as directory:
        podman = Podman(pathlib.Path(directory), arguments)
        try:
            return outcome.report_checks((f"podman: {check.__name__.replace('_', ' ')}", check) for check in (
                podman.one_gpu_by_index, podman.two_by_uuid, podman.all_of_them, podman.read_only_and_not_root,
                podman.rootless, podman.restarted))
        finally:
            podman.down()


if __name__ == "__main__":
    sys.exit(main())
