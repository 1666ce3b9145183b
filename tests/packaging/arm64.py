#!/usr/bin/python3
"""The image for arm64 by an emulator, on a simulated node with four GB200. What `make image-arm64` ends with; as root. Ends in
`N passed, N failed`. The emulator knows no seccomp, so that the agent itself, whose listener asks for it, does not run here."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EMULATOR = "qemu-aarch64-static"
SIM = ROOT / "out/arm64/bin/gpulet-sim"
NODE = "{node}"
# command, what it says
COMMANDS = [
    (("version",), r"gpulet \d+\.\d+\.\d+ "),
    (("list",), r"(?s)4 GPUs.*NVIDIA GB200.*18 switched"),
    (("topo",), r"GPU3 +NV18"),
    (("place", "--size", "2"), r"linked by NV18, on NUMA node 0"),
    (("labels", "--explain"), r"nvidia\.com/gpu\.product=NVIDIA-GB200"),
    (("cdi", "generate", "--driver-root", NODE), r"usr/lib/aarch64-linux-gnu/libcuda\.so"),
]


def run(root, *command):
    ran = subprocess.run([EMULATOR, "-L", root, *command], capture_output=True, text=True, timeout=100, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def main():
    failures, passed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        root, node = pathlib.Path(folder) / "root", pathlib.Path(folder) / "node"
        subprocess.run([ROOT / "deploy/image/rootfs", root, "arm64"], check=True)
        program = root / "usr/bin/gpulet"
        checks = [("gpulet " + " ".join(command), [program, *(word.format(node=node) for word in command)], wanted) for command, wanted in COMMANDS]
        checks.append(("gpulet-hook --version", [root / "usr/bin/gpulet-hook", "--version"], r"gpulet-hook \d"))
        status, said = run(root, SIM, "up", "gb200", "--root", node)
        if status != 0:
            checks, failures = [], [("gpulet-sim up", said)]
        os.environ["DRIVER_ROOT_CTR_PATH"] = str(node)
        for name, command, wanted in checks:
            status, said = run(root, *command)
            if status == 0 and re.search(wanted, said):
                passed += 1
            else:
                failures.append((name, f"exits {status} and says {said[:400]!r}, not {wanted!r}"))
        run(root, SIM, "down", "--root", node)
    for name, why in failures:
        print(f"FAIL {name}: {why}")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
