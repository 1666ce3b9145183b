#!/usr/bin/python3
"""Runs the arm64 image in an emulator, on a simulated node with four GB200. The last step of `make image-arm64`; as root. Ends in
`N passed, N failed`. The agent runs with `listen: ""`, because the listener child needs seccomp, which the emulator lacks."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/monitoring"))
import kubelet  # noqa: E402

EMULATOR = "qemu-aarch64-static"
SIM = ROOT / "out/arm64/bin/gpulet-sim"
NODE = "{node}"
LIMIT_S = 60  # an emulator is slow
kubelet.LIMIT_S = LIMIT_S
# command, its output
COMMANDS = [
    (("version",), r"gpulet \d+\.\d+\.\d+ "),
    (("list", "-o", "wide"), r"(?s)4 GPUs.*NVIDIA GB200.*18 switched"),
    (("topo",), r"GPU3 +NV18"),
    (("place", "--size", "2"), r"linked by NV18, on NUMA node 0"),
    (("labels", "--explain"), r"nvidia\.com/gpu\.product=NVIDIA-GB200"),
    (("cdi", "generate", "--driver-root", NODE), r"usr/lib/aarch64-linux-gnu/libcuda\.so"),
]


def run(root, *command):
    ran = subprocess.run([EMULATOR, "-L", root, *command], capture_output=True, text=True, timeout=100, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def agent(root, node, directory):
    """Runs the agent: it registers, lists four healthy GPUs, prefers two, withdraws a faulty one. Returns the error or None."""
    node_kubelet = kubelet.Kubelet(directory / "kubelet")
    node_kubelet.start()
    command = [EMULATOR, "-L", root, root / "usr/bin/gpulet", "agent", "--listen=", "--socket=", "--kernel-log=", "--publish-gpu-node=false",
               f"--kubelet-dir={node_kubelet.directory}", f"--driver-root-ctr-path={node}", f"--nvidia-driver-root={node}",
               f"--state-dir={directory}/state", f"--health-file={directory}/health.json"]
    with open(directory / "agent.log", "w+", encoding="utf-8") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            def said(what):
                return f"{what}; it says {(directory / 'agent.log').read_text()[-1500:]!r}"
            if not node_kubelet.wait_for_health(*["Healthy"] * 4):
                return said(f"tells the kubelet {node_kubelet.health}, not four healthy GPUs")
            preferred = node_kubelet.prefer("nvidia.com/gpu", sorted(node_kubelet.health), 2)
            if len(set(preferred) & set(node_kubelet.health)) != 2:
                return said(f"of four GPUs prefers {preferred} where two are asked for")
            status, complaint = run(root, SIM, "xid", "0", "79", "--root", node)
            if status != 0 or not node_kubelet.wait_for_health("Unhealthy", *["Healthy"] * 3):
                return said(f"after an XID ({complaint!r}) tells {node_kubelet.health}, not one unhealthy GPU")
            process.send_signal(signal.SIGTERM)
            status = process.wait(LIMIT_S)
            return said(f"ends with {status}") if status != 0 else None
        finally:
            process.kill()
            node_kubelet.stop()


def main():
    failures, passed = [], 0
    with tempfile.TemporaryDirectory() as directory:
        root, node = pathlib.Path(directory) / "root", pathlib.Path(directory) / "node"
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
        if checks:
            why = agent(root, node, pathlib.Path(directory))
            failures += [("gpulet agent", why)] if why else []
            passed += not why
        run(root, SIM, "down", "--root", node)
    for name, why in failures:
        print(f"FAIL {name}: {why}")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
