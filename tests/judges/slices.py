"""Kubernetes' own validation and allocator on the ResourceSlices of each machine in each layout, by one process for all
(tests/cluster/testbed/kube/claim-judge): what each layout offers is allocated, no more than that, and nothing twice; and the MIG
devices that the allocator chooses are really made.
"""
import collections
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NODE = "node-1"
DRIVER = "gpu.nvidia.com"
PAIR, QUAD, ISLAND = "gpulet.io/bestPair", "gpulet.io/bestQuad", "gpulet.io/nvlinkIsland"
CLASSES = [{"metadata": {"name": name}, "spec": {"selectors": [{"cel": {
    "expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"}}]}}
           for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig"))]
GIB = 1 << 30
LIMIT_S = 30
RANDOM_CLAIMS = 24  # fill eight GPUs
SICK = "hgx-h100"  # of these, with sick GPUs
# More GPUs than fit in a slice of counters, with all their profiles.
LARGE = {"version": 1, "name": "sixteen-h100", "product": "16 x H100", "gpus": {
    "count": 16, "model": "h100-sxm5-80gb", "pci": [f"0000:{0x10 + 8 * i:02x}:00.0" for i in range(16)], "numa": [0] * 8 + [1] * 8},
         "numa_cpus": {0: "0-55", 1: "56-111"}, "links": {"nvswitch": 18}}


def claim(kind="gpu", count=1, match=None, profile=None, capacity=None, tolerates=False):
    request = {"deviceClassName": f"{kind}.nvidia.com", "allocationMode": "ExactCount", "count": count}
    if profile:
        request["selectors"] = [{"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{profile}'"}}]
    if capacity:
        request["capacity"] = {"requests": capacity}
    if tolerates:
        request["tolerations"] = [{"operator": "Exists"}]
    devices = {"requests": [{"name": "gpus", "exactly": request}]}
    if match:
        devices["constraints"] = [{"requests": ["gpus"], "matchAttribute": match}]
    return {"metadata": {"namespace": "team", "name": "claim", "uid": "claim"}, "spec": {"devices": devices}}


class Simulated:
    """A machine: its facts by its YAML, its driver root, and the layouts that were asked of it."""

    def __init__(self, court, directory, name, facts, source):
        self.court, self.directory, self.name, self.facts = court, directory, name, facts
        self.root = directory / "root"
        self.count = len(facts["gpus"])
        self.profiles = facts["gpus"][0].get("mig", {}).get("profiles", [])
        self.layouts = {}
        self.health = directory / "health.json"
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "DRIVER_ROOT_CTR_PATH": str(self.root), "NODE_NAME": NODE,
                            "GPULET_HEALTH_FILE": str(self.health), "GPULET_STATE_DIR": str(directory),
                            "GPULET_DRA_RECORD_DIR": str(directory / "claims"), "GPULET_KUBELET_DIR": str(directory),
                            "GPULET_SOCKET": str(directory / "agent.sock")}
        self.run(court.control, "up", source, "--root", self.root, "--library", court.library, "--nvidia-smi", court.smi, "--no-device-nodes",
                 "--seed", "1")

    def run(self, program, *arguments):
        done = subprocess.run([program, *map(str, arguments)], env=self.environment, cwd=self.directory, capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{arguments}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def gpulet(self, *arguments):
        return self.run(self.court.control.parent / "gpulet", *arguments)

    def sim(self, *arguments):
        return self.run(self.court.control, *arguments, "--root", self.root)

    def add_layout(self, name, rules):
        config = self.directory / "config.yaml"
        config.write_text(json.dumps({"version": "v1", "gpulet": {"dra": {"enabled": True}, "partition": rules}}))
        printed = json.loads(self.gpulet("dra", "slices", "-o", "json", "--config-file", config))
        self.layouts[name] = printed["items"]

    def set_mig(self, gpus):
        for index in gpus:
            self.run(self.root / "usr/bin/nvidia-smi", "-i", index, "-mig", "1")

    @contextlib.contextmanager
    def agent(self):
        """Runs while the health of GPUs changes."""
        with open(self.directory / "agent.log", "wb") as log:
            agent = subprocess.Popen([self.court.control.parent / "gpulet", "agent", "--listen", "", "--kernel-log", "", "--cdi-spec-dir",
                                      self.directory / "cdi", "--cdi-hook-dir", self.directory / "hook", "--kubelet-socket", ""],
                                     env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.wait_for_states([])
            yield
        finally:
            agent.terminate()
            agent.wait(timeout=LIMIT_S)

    def wait_for_states(self, sick):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if self.health.exists():
                devices = json.loads(self.health.read_text())["devices"]
                if {one["index"] for one in devices if one["state"] in ("quarantined", "lost")} >= set(sick):
                    return
            time.sleep(0.02)
        raise AssertionError(f"no report of GPUs {sick}: {(self.directory / 'agent.log').read_text(errors='replace')[-500:]}")

    def make_layouts(self):
        every, half = f"0-{self.count - 1}", self.count // 2
        self.add_layout("whole", [])
        self.add_layout("mixed", [{"devices": [f"0-{half - 1}"], "whole": {}, "offer": "devicePlugin"}])
        for limit in ("memory", 3, "unlimited"):
            self.add_layout(f"shared-{limit}", [{"devices": [every], "whole": {"consumableShares": limit}}])
        if self.name == SICK:
            self.add_sick()
        if not self.profiles:
            return
        self.gpulet("mig", "apply", "-c", "all-balanced")
        self.add_layout("static", [])
        self.gpulet("mig", "apply", "-c", "all-disabled")
        profiles = [profile["name"] for profile in self.profiles]
        self.set_mig(range(half, self.count))
        self.add_layout("half", [{"devices": [f"{half}-{self.count - 1}"], "dynamicMig": {"profiles": profiles}}])
        self.set_mig(range(half))
        self.add_layout("dynamic", [{"devices": [every], "dynamicMig": {"profiles": profiles}}])

    def add_sick(self):
        with self.agent():
            self.sim("xid", 1, 79)
            self.sim("xid", 2, 95)
            self.wait_for_states([1, 2])
            self.add_layout("sick", [])
        self.health.unlink()
        self.sim("heal")


def devices_of(slices):
    return [device for one in slices for device in one["spec"].get("devices", [])]


def attribute(device, name):
    value = device["attributes"].get(name)
    return None if value is None else next(iter(value.values()))


def chosen(results):
    """The claims that got devices. No device twice."""
    got = [devices for devices in results["devices"] or [] if devices]
    names = list(itertools.chain(*got))
    if len(names) != len(set(names)):
        raise AssertionError(f"allocated twice: {[name for name, times in collections.Counter(names).items() if times > 1]}")
    return got


def expect_count(wanted, size=1):
    def check(_, __, results):
        got = chosen(results)
        if len(got) != wanted or any(len(one) != size for one in got):
            raise AssertionError(f"{len(got)} claims got devices, expected {wanted} of {size} each: {got[:4]}")
    return check


def expect_best(size):
    """Each set is linked as well as the machine allows: of a matrix of links with the greatest sum, and within a NUMA node where all can be."""
    def check(machine, slices, results):
        wanted = len(devices_of(slices)) // size
        expect_count(wanted, size)(machine, slices, results)
        gpus, by_pci = machine.facts["gpus"], {gpu["pci"]: index for index, gpu in enumerate(machine.facts["gpus"])}
        index = {device["name"]: by_pci[attribute(device, "resource.kubernetes.io/pciBusID")] for device in devices_of(slices)}
        sets = [[index[name] for name in one] for one in chosen(results)]
        if any(any(gpu["links_to"]) for gpu in gpus):
            def links(one):
                return sum(gpus[a]["links_to"][b] for a, b in itertools.combinations(one, 2))
            found, best = sum(map(links, sets)), greatest(sorted(index.values()), size, links)
            if found < best:
                raise AssertionError(f"{sets} have {found} links, and {best} are possible")
            return
        nodes = collections.Counter(gpus[one]["numa"] for one in index.values())
        if all(number % size == 0 for number in nodes.values()) and any(len({gpus[one]["numa"] for one in group}) > 1 for group in sets):
            raise AssertionError(f"{sets} cross NUMA nodes")
    return check


def greatest(rest, size, score):
    """The greatest sum over the partitions into sets of that size."""
    if len(rest) < size:
        return 0
    first, *others = rest
    return max(score((first, *some)) + greatest([one for one in others if one not in some], size, score)
               for some in itertools.combinations(others, size - 1))


def expect_island(machine, _, results):
    linked = any(gpu["links"] for gpu in machine.facts["gpus"])
    if bool(chosen(results)) != linked:
        raise AssertionError(f"GPUs with{'' if linked else 'out'} NVLinks: {results['devices']}")


def expect_shares(wanted, limit):
    """So many claims, and of no device more than it has."""
    def check(_, slices, results):
        got = [devices for devices in results["devices"] if devices]
        if len(got) != wanted:
            raise AssertionError(f"{len(got)} claims got a share, expected {wanted}")
        used = collections.Counter()
        for devices, shares in zip(results["devices"], results["consumed"]):
            for device, share in zip(devices or [], shares or []):
                used[device] += share.get(limit, 0)
        has = {device["name"]: quantity(device["capacity"].get(limit, {"value": "0"})["value"]) for device in devices_of(slices)}
        over = {name: amount for name, amount in used.items() if amount > has[name]}
        if over:
            raise AssertionError(f"more {limit} than there is: {over}")
    return check


def quantity(text):
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "": 1}
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
    return int(number) * units[unit]


def expect_untainted(machine, slices, results):
    tainted = {device["name"] for device in devices_of(slices) if device.get("taints")}
    if len(tainted) != 2:
        raise AssertionError(f"tainted: {tainted}, expected two GPUs")
    got = set(itertools.chain(*chosen(results)))
    if got & tainted or len(got) != machine.count - 2:
        raise AssertionError(f"{got} were chosen, {tainted} are tainted")


def profile_of(device):
    return attribute(device, "profile")


def expect_profiles(machine, slices, results):
    """As many of each profile as the layout has."""
    names = {device["name"]: profile_of(device) for device in devices_of(slices)}
    if any(len(one) != 1 for one in chosen(results)) or len(chosen(results)) != len(names):
        raise AssertionError(f"{len(chosen(results))} claims got devices of {len(names)}")


def placed(machine, _, results):
    """What fits is checked when it is made: placements.py."""
    if not chosen(results):
        raise AssertionError("nothing was chosen")


def random_profiles(machine, seed):
    numbers = random.Random(seed)
    names = [profile["name"] for profile in machine.profiles]
    return [claim("mig", profile=numbers.choice(names)) for _ in range(RANDOM_CLAIMS)]


SEEDS = range(2)


def cases(machine, layout, slices):
    """(what, claims, check): claims come one after the other and stay."""
    count = len(devices_of(slices))
    if layout in ("whole", "mixed"):
        yield "one GPU each", [claim()] * (count + 1), expect_count(count)
        yield "pairs", [claim(count=2, match=PAIR)] * (count // 2 + 1), expect_best(2)
        yield "quads", [claim(count=4, match=QUAD)] * (count // 4 + 1), expect_best(4)
        yield "an island", [claim(count=2, match=ISLAND)], expect_island
        yield "all", [claim(count=count), claim()], expect_count(1, count)
    elif layout == "sick":
        yield "healthy ones only", [claim()] * (count + 1), expect_untainted
        yield "with a toleration", [claim(tolerates=True)] * (count + 1), expect_count(count)
    elif layout == "shared-memory":
        gib = quantity(devices_of(slices)[0]["capacity"]["memory"]["value"]) // GIB
        yield "thirds of the memory", [claim(capacity={"memory": f"{gib // 3}Gi"})] * (3 * count + 1), expect_shares(3 * count, "memory")
        yield "all of the memory", [claim()] * (count + 1), expect_shares(count, "memory")
        yield "more than the memory", [claim(capacity={"memory": f"{gib + 1}Gi"})], expect_shares(0, "memory")
    elif layout == "shared-3":
        yield "single shares", [claim()] * (3 * count + 1), expect_shares(3 * count, "shares")
        yield "two shares", [claim(capacity={"shares": "2"})] * (count + 1), expect_shares(count, "shares")
    elif layout == "shared-unlimited":
        yield "any number", [claim()] * (5 * count), expect_shares(5 * count, "memory")
    elif layout == "static":
        yield "each profile", [claim("mig", profile=profile_of(device)) for device in devices_of(slices)], expect_profiles
        yield "any", [claim("mig")] * (count + 1), expect_count(count)
        yield "no whole GPU", [claim()], expect_count(0)
    elif layout == "half":
        half = machine.count // 2
        yield "whole GPUs", [claim()] * (half + 1), expect_count(half)
        # Of sixteen GPUs those of which many fit take seconds.
        for profile in (one for one in machine.profiles if machine.count <= 8 or one["instances"] == 1):
            instances = profile["instances"] * (machine.count - half)
            yield profile["name"], [claim("mig", profile=profile["name"])] * (instances + 1), expect_count(instances)
    else:
        for seed in SEEDS:
            yield f"random {seed}", random_profiles(machine, seed), placed


def complete(slices):
    """What the API server does not check, and consumers do."""
    pools = {(one["spec"]["pool"]["name"], one["spec"]["pool"]["generation"], one["spec"]["pool"]["resourceSliceCount"]) for one in slices}
    if pools != {(NODE, 1, len(slices))}:
        return f"{len(slices)} slices of the pools {pools}"
    names = [device["name"] for device in devices_of(slices)]
    return None if len(names) == len(set(names)) else "a device's name occurs twice"


def build_judge(directory, environment):
    # As the testbed builds Kubernetes, so that what it compiled is used again.
    subprocess.run(["go", "build", "-buildvcs=false", "-gcflags", "all=-l -dwarf=false", "-o", directory / "claim-judge", "./claim-judge"],
                   cwd=ROOT / "tests/cluster/testbed/kube", env=environment, check=True)
    return directory / "claim-judge"


def run_judge(program, directory, machines):
    """The results by machine, layout and case; and what is wrong with a layout."""
    files = {}
    for machine in machines:
        for layout, slices in machine.layouts.items():
            file = directory / f"{machine.name}-{layout}.json"
            file.write_text(json.dumps({"slices": slices, "classes": CLASSES, "cases": [
                {"name": f"{machine.name} {layout}: {what}", "sequential": True, "claims": claims}
                for what, claims, _ in cases(machine, layout, slices)]}))
            files[str(file)] = (machine.name, layout)
    done = subprocess.run([program, *files], capture_output=True, text=True, timeout=200, check=False)
    refused = {files[line.partition(": ")[0]]: line.partition(": ")[2] for line in done.stderr.splitlines() if line.partition(": ")[0] in files}
    if done.returncode != 0 and not refused:
        refused[None] = done.stderr.strip()[-400:]
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}, refused


def make_chosen(machine, results):
    """Makes the MIG devices that were chosen, as the agent does: each at its placement. Returns what is wrong."""
    sets = [list(itertools.chain(*chosen(results[f"{machine.name} dynamic: random {seed}"]))) for seed in SEEDS]
    environment = {**machine.environment, "PYTHONDONTWRITEBYTECODE": "1", "LD_LIBRARY_PATH": str(next(machine.root.glob("usr/lib/*-linux-gnu")))}
    done = subprocess.run([machine.court.python, HERE / "placements.py"], input=json.dumps(sets), env=environment, capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)
    return done.stderr.strip()[-400:] if done.returncode else None


def check_case(machine, slices, check, results):
    try:
        if results is None:
            return "the judge has no result"
        return check(machine, slices, results)
    except AssertionError as error:
        return str(error)


def checks(court, directory, machines):
    """(name, what is wrong or None)."""
    program = build_judge(directory, court.go_environment)
    for machine in machines:
        machine.make_layouts()
    results, refused = run_judge(program, directory, machines)
    if None in refused:
        yield "the claim judge", refused[None]
    for machine in machines:
        for layout, slices in machine.layouts.items():
            yield f"{machine.name} {layout} slices", refused.get((machine.name, layout)) or complete(slices)
            for what, _, check in cases(machine, layout, slices):
                name = f"{machine.name} {layout}: {what}"
                yield name, check_case(machine, slices, check, results.get(name))
        if machine.profiles:
            yield f"{machine.name} dynamic: what is chosen can be made", make_chosen(machine, results)
        machine.sim("down")
