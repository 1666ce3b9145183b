#!/usr/bin/python3
"""The programs of examples/programs, alone. Ends in `N passed, N failed`.

  tests/workloads/run.py           runs them with PyTorch and TensorFlow for CPUs (make workloads; scripts/bootstrap --for workloads)
  tests/workloads/run.py --quick   what needs neither: manifests and programs agree, and the server's scaffold

tests/cluster/run.py --only workloads runs the manifests with them on a cluster.
"""
import argparse
import ast
import pathlib
import sys

import yaml

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples/programs"), str(ROOT / "tests/workloads")]
import outcome  # noqa: E402
import programs  # noqa: E402
import scaffold  # noqa: E402

EXAMPLES = ROOT / "examples"
PROGRAMS = {path.name: path for path in sorted((EXAMPLES / "programs").glob("*.py"))}
MOUNTED = "/programs"
CONFIG_MAP = "example-programs"


def containers(thing):
    """(Pod spec, container) of an object of any kind."""
    if isinstance(thing, dict):
        for container in thing.get("containers", []) if isinstance(thing.get("containers"), list) else []:
            yield thing, container
        for value in thing.values():
            yield from containers(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from containers(value)


def manifests():
    return {path: list(yaml.safe_load_all(path.read_text())) for path in sorted(EXAMPLES.rglob("*.yaml")) if path.parent.name != "values"}


def commands():
    """(manifest, Pod spec, container, program, its words) of each container that runs a shipped program."""
    for path, items in manifests().items():
        for pod, container in containers(items):
            words = list(map(str, container.get("command", [])))
            at = next((index for index, word in enumerate(words) if word.startswith(f"{MOUNTED}/")), None)
            if at is not None:
                yield path.relative_to(EXAMPLES), pod, container, words[at].removeprefix(f"{MOUNTED}/"), words[at + 1:]


def imports(tree):
    return {name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])}


def options_of(tree):
    """Option → its choices or None, of each add_argument("--…", …) of a program."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            choices = next((ast.literal_eval(word.value) for word in node.keywords if word.arg == "choices"), None)
            found[node.args[0].value] = choices
    return found


def check_each_is_used():
    """Every program is run by a manifest or imported by one that is."""
    used = {program for *_, program, _ in commands()}
    trees = {name: ast.parse(path.read_text(), name) for name, path in PROGRAMS.items()}
    used |= {f"{module}.py" for name in used & set(trees) for module in imports(trees[name])}
    outcome.same(used & set(PROGRAMS), set(PROGRAMS), "programs in use")
    missing = {program for *_, program, _ in commands()} - set(PROGRAMS)
    return f"manifests run {sorted(missing)}, which are not in examples/programs" if missing else None


def check_options():
    """Every word that a manifest gives a program is an option, or a Job for pipeline.py."""
    trees = {name: ast.parse(path.read_text(), name) for name, path in PROGRAMS.items()}
    count = 0
    for path, _, _, program, words in commands():
        if program == "pipeline.py":
            jobs = [item["metadata"]["name"] for item in manifests()[EXAMPLES / path] if item["kind"] == "Job" and item["spec"].get("suspend")]
            outcome.same(words, jobs, f"{path}: the stages of {program}")
            continue
        known = options_of(trees[program])
        for name in imports(trees[program]) & {"serving"}:
            known |= options_of(trees[f"{name}.py"])
        for word in words:
            name, _, value = word.partition("=")
            if name not in known or (known[name] and value not in known[name]):
                return f"{path}: {program} has no {word}: {sorted(known)}"
            count += 1
    return None if count > 20 else f"only {count} options were found"


def check_volumes():
    """Each such container mounts the ConfigMap of programs at /programs, and the claim where its options name /data."""
    for path, pod, container, _, words in commands():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        outcome.same(mounts[MOUNTED]["configMap"]["name"], CONFIG_MAP, f"{path}: {MOUNTED}")
        if any("=/data" in word for word in words):
            outcome.same(mounts["/data"]["persistentVolumeClaim"]["claimName"], "training-data", f"{path}: /data")


def check_processes():
    """torchrun starts as many processes as the container has GPUs."""
    for path, _, container, _, _ in commands():
        for word in container["command"]:
            if str(word).startswith("--nproc_per_node="):
                outcome.same(int(word.partition("=")[2]), container["resources"]["limits"]["nvidia.com/gpu"], f"{path}: processes")


def check_readme():
    """Lists every file, and the command that makes the ConfigMap."""
    text = (EXAMPLES / "README.md").read_text()
    missing = [str(path.relative_to(EXAMPLES)) for path in [*EXAMPLES.rglob("*.yaml"), *PROGRAMS.values()]
               if f"]({path.relative_to(EXAMPLES)})" not in text]
    command = f"kubectl create configmap {CONFIG_MAP} --from-file=examples/programs"
    return f"README.md does not name {sorted(missing)}" if missing else None if command in text else f"README.md lacks: {command}"


def check_size():
    """A ConfigMap holds 1 MiB."""
    total = sum(path.stat().st_size for path in PROGRAMS.values())
    outcome.between(total, 1, 200_000, "bytes of all programs")


QUICK = [
    ("every program is run by a manifest", check_each_is_used),
    ("the manifests' options are the programs'", check_options),
    ("the manifests mount the programs and the data", check_volumes),
    ("one process per GPU", check_processes),
    ("the README names every file", check_readme),
    ("the programs fit into a ConfigMap", check_size),
    *scaffold.CHECKS,
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="without PyTorch and TensorFlow")
    chosen = QUICK if parser.parse_args().quick else programs.CHECKS
    sys.exit(outcome.report_checks(chosen))
