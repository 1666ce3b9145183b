"""Runs a manifest's Python program with this machine's Python, mounted into the image that has only busybox."""
from lib import testbed

CACHE = testbed.CACHE / "workloads"
# What a Debian program needs, in the image that has only busybox: directories of the machine, and where the container has them.
MACHINE = {"/usr": "/usr", "/usr/lib": "/lib", "/usr/lib64": "/lib64", "/etc/alternatives": "/etc/alternatives", "/etc/ld.so.cache": "/etc/ld.so.cache",
           "/etc/nsswitch.conf": "/etc/nsswitch.conf",  # names of /etc/hosts before those of a DNS that the testbed lacks
           **({str(CACHE): str(CACHE)} if CACHE.exists() else {})}
# tests/workloads/programs.py says why of the first two.
ENVIRONMENT = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(CACHE / "video"),
               "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
SLOWER = {"--device=gpu": "--device=cpu", "--device=cuda": "--device=cpu", "--decoder=nvdec": "--decoder=software"}


def on_this_machine(template, options=()):
    """Changes a Pod template to run its program with this machine's Python, on the CPU. `options` replace those of the same name."""
    spec = template["spec"]
    replaced = {option.partition("=")[0]: option for option in options}
    for number, path in enumerate(MACHINE):
        spec.setdefault("volumes", []).append({"name": f"machine-{number}", "hostPath": {"path": path}})
    for container in spec["containers"]:
        words = [SLOWER.get(word, replaced.get(word.partition("=")[0], word)) for word in map(str, container["command"])]
        tensorflow = any("tensorflow" in word for word in words)
        python = str(CACHE / "tensorflow/bin/python") if tensorflow else "/usr/bin/python3"
        container.update(image="localhost/busybox:1", imagePullPolicy="Never", command=[python if words[0] == "python" else words[0], *words[1:]])
        container["env"] = [*container.get("env", []), *({"name": name, "value": value} for name, value in ENVIRONMENT.items())]
        container.setdefault("volumeMounts", []).extend(
            {"name": f"machine-{number}", "mountPath": path, "readOnly": True} for number, path in enumerate(MACHINE.values()))
