"""`gpulet list`, `topo` and `labels` against nvidia-smi and NVML."""
import pathlib
import re
import statistics
import time

import nvml
from report import Skip, same
from machine import run


def parse_query(text):
    """`nvidia-smi -q`: (driver fields, one {"Section/Field": value} for each GPU)."""
    head, gpus, path = {}, [], []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        gpu = re.match(r"GPU ([0-9A-F]{8}:[0-9A-F:.]+)$", line.strip())
        if gpu and indent == 0:
            gpus.append({"": gpu[1]})
            path = []
            continue
        field, colon, value = line.partition(" : ")
        level = indent // 4
        if not line.strip() or line.startswith("="):
            continue
        path = path[:max(level - 1, 0)] if gpus else []
        name = "/".join([*path, field.strip()])
        if colon:
            (gpus[-1] if gpus else head)[name] = value.strip()
        else:
            path = [*path, field.strip()]
    return head, gpus


def check_list(report, machine, library):
    listed = machine.gpulet_json("list")
    head, queried = parse_query(machine.smi("-q").stdout)
    with report.check("list: driver and CUDA version as nvidia-smi -q"):
        same((listed["driver"]["version"], listed["driver"]["cuda"]), (head["Driver Version"], head["CUDA Version"]))
    with report.check("list: as many GPUs as nvidia-smi -q"):
        same(len(listed["gpus"]), len(queried))
    with report.check("list: every field as nvidia-smi -q"):
        compared = sum(compare_with_query(gpu, asked) for gpu, asked in zip(listed["gpus"], queried))
        if not compared:
            raise AssertionError("no field compared")
    with report.check("list: every field as NVML"):
        for gpu, device in zip(listed["gpus"], library.devices()):
            compare_with_nvml(gpu, library, device)
    return listed


def compare_with_query(gpu, asked):
    """Compares what nvidia-smi prints of one GPU; returns how many fields it has."""
    pairs = {
        "Product Name": gpu["model"], "Product Brand": gpu["brand"], "Product Architecture": gpu["architecture"].capitalize(),
        "Serial Number": gpu["serial"] or "N/A", "GPU UUID": gpu["uuid"], "Minor Number": str(gpu["minor"]),
        "PCI/Bus Id": f"0000{gpu['pci']}".upper(), "PCI/Device Id": f"0x{gpu['pciDeviceId']:08X}",
        "PCI/Sub System Id": f"0x{gpu['pciSubsystemId']:08X}", "FB Memory Usage/Total": f"{gpu['memoryBytes'] >> 20} MiB",
        "MIG Mode/Current": {True: "Enabled", False: "Disabled"}[gpu["mig"]["enabled"]] if gpu["mig"]["capable"] else "N/A",
    }
    compared = 0
    for field, ours in pairs.items():
        if field in asked:
            same(ours, asked[field], f"GPU {gpu['index']} {field}")
            compared += 1
    return compared


def compare_with_nvml(gpu, library, device):
    what = f"GPU {gpu['index']}"
    pci = library.pci(device)
    mig = library.mig_mode(device)
    same(gpu["uuid"], library.text("nvmlDeviceGetUUID", device), what)
    same(gpu["model"], library.text("nvmlDeviceGetName", device), what)
    same((gpu["pci"], gpu["pciDeviceId"], gpu["pciSubsystemId"]), (pci.address, pci.device_id, pci.subsystem_id), what)
    same(gpu["memoryBytes"], library.memory_total(device), what)
    same(gpu["minor"], library.number("nvmlDeviceGetMinorNumber", device), what)
    same((gpu["mig"]["capable"], gpu["mig"]["enabled"]), (mig is not None, bool(mig and mig[0])), what)
    same([link["index"] for link in gpu["nvlinks"]], library.active_links(device), f"{what} NVLinks")


def check_nvlink(report, machine, listed):
    with report.check("list: links as nvidia-smi nvlink -s and -R"):
        answer = machine.smi("nvlink", "-s", check=False)
        if answer.returncode != 0 or "GPU 0" not in answer.stdout + "GPU 0" * (not answer.stdout.strip()):
            raise Skip("this nvidia-smi has no `nvlink`")
        counts, current = {}, None
        for line in answer.stdout.splitlines():
            gpu = re.match(r"GPU (\d+):", line)
            current = int(gpu[1]) if gpu else current
            if re.match(r"\s+Link \d+: [\d.]+ GB/s", line):
                counts[current] = counts.get(current, 0) + 1
        for gpu in listed["gpus"]:
            same(len(gpu["nvlinks"]), counts.get(gpu["index"], 0), f"GPU {gpu['index']}")


def parse_matrix(text):
    """{GPU: {GPU: connection}} and {GPU: NUMA affinity} of `topo -m`, nvidia-smi's or ours."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    start = next(at for at, line in enumerate(lines) if re.match(r"\s*GPU0\b", line))
    columns = re.findall(r"\bGPU\d+\b", lines[start])
    matrix, numa = {}, {}
    for line in lines[start + 1:]:
        words = line.split()
        if not words or not re.fullmatch(r"GPU\d+", words[0]):
            break
        matrix[words[0]] = dict(zip(columns, words[1:]))
        rest = words[1 + len(columns):]
        # nvidia-smi: CPU affinity, NUMA affinity, GPU NUMA id; ours: NUMA affinity.
        numa[words[0]] = rest[1] if len(rest) > 1 else rest[0] if rest else "N/A"
    return matrix, numa


def check_topology(report, machine, listed):
    ours = parse_matrix(run(machine.gpulet, "topo", env=machine.gpulet_env).stdout)
    theirs = parse_matrix(machine.smi("topo", "-m").stdout)
    with report.check("topo: every pair as nvidia-smi topo -m"):
        same(ours[0], theirs[0])
    with report.check("topo: NUMA affinity as nvidia-smi topo -m, N/A where the kernel knows no node"):
        same(ours[1], {f"GPU{gpu['index']}": theirs[1][f"GPU{gpu['index']}"] if knows_numa_node(machine, gpu["pci"]) else "N/A"
                       for gpu in listed["gpus"]})


def knows_numa_node(machine, pci):
    """Without one, nvidia-smi prints the node of all CPUs, and NVIDIA's plugin gives the kubelet no hint, as gpulet does."""
    path = pathlib.Path(machine.root, "sys/bus/pci/devices", pci, "numa_node")
    return path.exists() and int(path.read_text()) >= 0


def check_labels(report, machine, library, listed):
    with report.check("labels: as NVML"):
        text = run(machine.gpulet, "labels", env=machine.gpulet_env).stdout
        labels = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        device, gpu = library.devices()[0], listed["gpus"][0]
        cuda = library.number("nvmlSystemGetCudaDriverVersion_v2")
        clock = library.number("nvmlDeviceGetMaxClockInfo", device, nvml.CLOCKS["memory"])
        bits = library.number("nvmlDeviceGetMemoryBusWidth", device)
        bandwidth = clock * 2 * bits // 8000  # GB/s
        wanted = {
            "nvidia.com/cuda.driver-version.full": library.text("nvmlSystemGetDriverVersion"),
            "nvidia.com/cuda.runtime-version.full": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "nvidia.com/gpu.count": str(len(listed["gpus"])),
            "nvidia.com/gpu.memory": str(library.memory_total(device) >> 20),
            "nvidia.com/gpu.product": gpu["model"].replace(" ", "-"),
            "nvidia.com/gpu.family": gpu["architecture"],
            "nvidia.com/mig.capable": str(library.mig_mode(device) is not None).lower(),
            "gpulet.io/gpu.memory-bandwidth": str(bandwidth - bandwidth % 10 ** (len(str(bandwidth)) - 2)),
        }
        same({key: labels.get(key) for key in wanted}, wanted)


def check_durations(report, machine):
    """How long the commands take from start to end: medians."""
    with report.check("the commands that read the driver end in a second"):
        commands = {"gpulet list": lambda: run(machine.gpulet, "list", env=machine.gpulet_env),
                    "gpulet labels": lambda: run(machine.gpulet, "labels", env=machine.gpulet_env),
                    "gpulet cdi generate": lambda: run(machine.gpulet, "cdi", "generate", "--driver-root", machine.root),
                    "nvidia-smi -L": lambda: machine.smi("-L")}
        if not machine.has_nodes:
            del commands["gpulet cdi generate"]
        medians = {name: median_ms(command) for name, command in commands.items()}
        report.figure("timings.commands_ms", medians)
        same({name: took for name, took in medians.items() if took > 1000}, {}, "milliseconds")


def median_ms(command, runs=9):
    spent = []
    for _ in range(runs):
        started = time.perf_counter()
        command()
        spent.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(spent), 1)


def check_inventory(report, machine):
    with nvml.Nvml(machine.library) as library:
        listed = check_list(report, machine, library)
        check_nvlink(report, machine, listed)
        check_topology(report, machine, listed)
        check_labels(report, machine, library, listed)
    check_durations(report, machine)
