"""Validates the output of `gpulet cdi generate` with the CDI project's own schema and library (tests/judges/cdi)."""
import itertools
import os
import pathlib
import subprocess
import tempfile

import judge
from judge import check, machine, same

ROOT = os.environ["JUDGE_ROOT"]
GPULET = pathlib.Path(os.environ["JUDGE_CONTROL"]).parent / "gpulet"
JUDGE = os.environ["JUDGE_CDI"]


def generated(directory, *options):
    """Generates one file per format and hook program with these options. Returns the files in `directory`."""
    made = []
    for form, hook in itertools.product(("json", "yaml"), ("gpulet-hook", "nvidia-cdi-hook", "nvidia-ctk")):
        path = directory / f"{hook}.{form}"
        command = [GPULET, "cdi", "generate", "--driver-root", ROOT, "--nvidia-cdi-hook-path", f"/usr/bin/{hook}",
                   "--output", path, *options]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        same(ran.returncode, 0, f"{' '.join(map(str, command))}: {ran.stderr}")
        made.append(path)
    return made


def judged(*options):
    """Returns the judge's device count of each."""
    with tempfile.TemporaryDirectory(prefix="gpulet-specs-") as directory:
        files = generated(pathlib.Path(directory), *options)
        ran = subprocess.run([JUDGE, *files], capture_output=True, text=True, timeout=20, check=False)
        same(ran.returncode, 0, ran.stderr)
        return {int(line.split()[-2]) for line in ran.stdout.splitlines()}


@check
def gpus_by_every_name():
    count = len(machine()["gpus"])
    same(judged(), {2 * count + 1})
    same(judged("--device-name-strategy", "type-index", "--no-all-device"), {count})
    same(judged("--device-name-strategy", "uuid", "--vendor", "k8s.device-plugin.nvidia.com"), {count + 1})


@check
def gpus_with_every_feature():
    for flag in ("additional-gids-for-device-nodes", "enable-explicit-driver-libraries", "disable-ipc-discoverer"):
        same(judged("--feature-flag", flag), {2 * len(machine()["gpus"]) + 1})
    same(judged("--disable-hook", "all"), {2 * len(machine()["gpus"]) + 1})
    same(judged("--device-id", "none"), {1})


@check
def management():
    same(judged("--mode", "management"), {1})


if __name__ == "__main__":
    judge.main()
