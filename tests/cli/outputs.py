"""Each command that shows something, with each -o, on a simulated node with a running agent."""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import termios
import time

import kubectl
import schemas
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COLUMNS = 80
CONFIG = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n      - {name: nvidia.com/gpu, replicas: 2}\n"
CLAIM = ("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: one}\nspec: {devices: {config: [{opaque: {driver: gpu.nvidia.com, "
         "parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig}}}]}}\n")
CONTAINERD = "version = 2\n[plugins]\n"

# Command line, schema, exit codes.
COMMANDS = (
    ("list", "list", 0),
    ("topo", "topo", 0),
    ("place --size 2", "place", 0),
    ("labels", "labels", 0),
    ("labels --explain", "labels-explained", 0),
    ("health", "health", 0),
    ("health 3", "health", 0),
    ("doctor", "doctor", 1),
    ("preflight GPU-0 --memory 64", "preflight", 1),
    ("config check {config}", "config-check", 0),
    ("config check {typo}", "config-check", 1),
    ("config print --config-file {config}", "config-print", 0),
    ("mig plan -c all-1g.10gb", "mig", 0),
    ("mig apply -c all-balanced --dry-run --gpu 1", "mig", 0),
    ("mig assert -c all-disabled", "mig", 0),
    ("mig assert -c all-1g.10gb", "mig", 1),
    ("mig export", "mig-export", 0),
    ("cdi list --spec-dir {cdi}", "cdi-list", 0),
    ("cdi validate --spec-dir {cdi}", "cdi-validate", 0),
    ("cdi validate {typo}", "cdi-validate", 1),
    ("runtime check --host-root {host}", "runtime-check", 1),
    ("runtime configure --runtime containerd --host-root {host} --dry-run", "runtime-configure", 0),
    ("runtime configure --deny-visible-devices-env --host-root {host} --dry-run", "runtime-configure", 0),
    ("dra check {claim}", "dra-check", 0),
    ("dra check {typo_claim}", "dra-check", 1),
    ("dra slices", "dra-slices", 0),
    ("driver status", "driver-status", 0),
    ("migrate check --root {host}", "migrate-check", 3),
    ("top -n 1", "top", 0),
    ("usage", "usage", 0),
    ("version", "version", 0),
)
# The simulator's have no schema.
SIMULATOR = ("status --root {root}", "schedule --load --machines 1 --days 2 --policy spread")
# With MIG devices, a lost GPU, one that cannot be read, a cordoned one and a process.
FAULTS = ("gpulet mig apply -c all-3g.40gb --gpu 0", "gpulet-sim xid 3 79 --root {root}", "gpulet-sim lost 4 --root {root}",
          "gpulet cordon 5 --reason test", "gpulet-sim load 2 50 --root {root}")
FAULTY = (
    ("list", "list", 0),
    ("topo", "topo", 0),
    ("place --size 2", "place", 0),
    ("labels", "labels", 0),
    ("health", "health", 3),
    ("health 3", "health", 3),
    ("doctor", "doctor", 1),
    ("mig plan -c all-1g.10gb", "mig", 1),
    ("mig export", "mig-export", 1),
    ("top -n 1", "top", 0),
)
# Lines of text whose end is to be copied, or that a file would have: not broken at 80 columns.
TEXTS = ("config", "doctor", "dra", "labels", "mig", "migrate", "runtime", "top", "place", "version")
# Commands that print prose, which continues below the line at a terminal.
PROSE = ("doctor", "labels --explain", "place --size 2", "mig plan -c all-1g.10gb", "mig apply -c all-balanced --dry-run --gpu 1",
         "mig assert -c all-1g.10gb", "runtime check --host-root {host}", "runtime configure --deny-visible-devices-env --host-root {host}")
HANG = 27  # columns that a continued line may have on its left
LIMIT_S = 20
ATTEMPTS = 3  # `doctor` shows agents of other tests, which begin and end meanwhile


def stable(document):
    """Without what differs between two runs."""
    return re.sub(r'"(at|found|text|now|[a-z]*Time|uptimeSeconds|sampledAt)": *("[^"]*"|[\d.]+)', "", json.dumps(document))


def at_terminal(node, line, environment):
    """What `gpulet LINE` prints at a terminal of 80 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen([node.programs / "gpulet", *line.split()], env={**node.environment, **environment}, stdin=slave,
                               stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    text = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(master, 1 << 16):
            text += chunk
    process.wait(timeout=LIMIT_S)
    os.close(master)
    return text.decode().replace("\r\n", "\n")


def broad_lines(text):
    """Those wider than a terminal that could be broken: at a blank, but not in `code`."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    return [line for line in plain.splitlines()
            if len(line) > COLUMNS and re.search(r"\S \S", re.sub("`[^`]*`", lambda code: "x" * len(code[0]), line)[HANG:])]


def checks(node):
    host, config, typo = (node.directory / name for name in ("host", "config.yaml", "mistake.yaml"))
    (host / "etc" / "containerd").mkdir(parents=True)
    (host / "usr" / "bin").mkdir(parents=True)
    (host / "etc" / "containerd" / "config.toml").write_text(CONTAINERD)
    config.write_text(CONFIG)
    typo.write_text("version: v1\nflags: {migStratgy: none}\n")
    claim, typo_claim = (node.directory / f"{name}.yaml" for name in ("claim", "claim-mistake"))
    claim.write_text(CLAIM)
    typo_claim.write_text(CLAIM.replace("GpuConfig", "GPUConfig"))
    names = {"host": host, "config": config, "typo": typo, "cdi": node.directory / "cdi", "claim": claim, "typo_claim": typo_claim}

    def run(line, code, *options):
        node.start_agent()
        done = node.run(["gpulet", *line.format(**names).split(), *options])
        if done.returncode != code:
            raise AssertionError(f"exit code {done.returncode}, not {code}: {done.stdout[-300:]}{done.stderr[-300:]}")
        return done

    def check_documents(line, schema, code):
        for _ in range(ATTEMPTS):
            found = json.loads(run(line, code, "-o", "json").stdout)
            again = yaml.load(run(line, code, "-o", "yaml").stdout, Loader=yaml.CSafeLoader)
            if schema == "top" or stable(found) == stable(again):
                break
        else:
            return f"JSON and YAML differ: {stable(found)[:1000]} and {stable(again)[:1000]}"
        return schemas.validate(schema, found) or schemas.validate(schema, again)

    def check_table(line, code):
        default, table, wide = (run(line, code, *form).stdout for form in ((), ("-o", "table"), ("-o", "wide")))
        if re.sub(r"\d+ \w+ ago", "", default) != re.sub(r"\d+ \w+ ago", "", table) and not re.search("top|export|slices", line):
            return "-o table is not the default"
        if "\x1b" in table + wide:
            return "has colours without a terminal"
        bare = run(line, code, "-o", "table", "--no-headers").stdout if "top" not in line else ""
        if re.match(r"(GPU|CONFIG|CHECK)\s+[A-Z]", bare):
            return "--no-headers prints headings"
        rows = table.splitlines() if line.split()[0] not in TEXTS else []
        broad = [text for text in rows if len(text) > COLUMNS and not re.match(r"GPU \d.*: |  next ", text)]
        return f"wider than {COLUMNS} columns: {broad[0]!r}" if broad else None
    for line, schema, code in COMMANDS:
        yield f"gpulet {line} as documents", lambda line=line, schema=schema, code=code: check_documents(line, schema, code)
        yield f"gpulet {line} as a table", lambda line=line, code=code: check_table(line, code)

    def check_simulator(line):
        forms = {}
        for form in ("", "-o table", "-o wide", "--no-headers", "-o json", "-o yaml"):
            done = node.run(["gpulet-sim", *line.format(root=node.root).split(), *form.split()])
            if done.returncode != 0:
                return f"{form}: exit code {done.returncode}: {done.stderr}"
            forms[form] = done.stdout
        if not forms[""] == forms["-o table"] == forms["-o wide"]:
            return "-o table is not the default, or -o wide shows something else"
        # Columns are as wide as what is in them.
        table, rows = forms[""].split(), forms["--no-headers"].split()
        if not 0 < len(rows) < len(table) or table[-len(rows):] != rows or rows[0] in ("GPU", "POLICY"):
            return f"--no-headers prints {rows}"
        found, again = json.loads(forms["-o json"]), yaml.load(forms["-o yaml"], Loader=yaml.CSafeLoader)
        return None if found == again else f"JSON and YAML differ: {found} and {again}"
    for line in SIMULATOR:
        yield f"gpulet-sim {line.split()[0]}", lambda line=line: check_simulator(line)

    def check_all_are_listed():
        used = {f"{schema}.schema.json" for _, schema, _ in COMMANDS} | kubectl.SCHEMAS
        written = {path.name for path in schemas.SCHEMAS.glob("*.schema.json")}
        linked = set(re.findall(r"\(reference/([a-z-]+\.schema\.json)\)", (ROOT / "docs" / "cli.md").read_text()))
        return None if used == written == linked else f"used {sorted(used)}, written {sorted(written)}, linked {sorted(linked)}"
    yield "schemas", check_all_are_listed

    def check_colors():
        shown = at_terminal(node, "doctor", {})
        if "\x1b[31mfail" not in shown:
            return f"no colour at a terminal: {shown[:300]!r}"
        for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
            if "\x1b" in at_terminal(node, "doctor", {name: value}):
                return f"a colour with {name}={value}"
        return None
    yield "colours", check_colors

    def check_prose(line):
        node.start_agent()
        shown = at_terminal(node, line.format(**names), {})
        broad = broad_lines(shown)
        return f"wider than {COLUMNS} columns at a terminal: {broad[0]!r}" if broad or not shown else None
    for line in PROSE:
        yield f"gpulet {line} at a terminal", lambda line=line: check_prose(line)

    def break_gpus():
        node.start_agent()
        for line in FAULTS:
            done = node.run(line.format(root=node.root).split())
            if done.returncode != 0:
                return f"{line}: {done.stderr}"
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            states = [device["state"] for device in json.loads(node.run(["gpulet", "health", "-o", "json"]).stdout)["devices"]]
            if states.count("lost") == 2 and "quarantined" in states:
                return None
            time.sleep(0.1)
        return f"states {states}"
    yield "faults", break_gpus
    for line, schema, code in FAULTY:
        yield f"gpulet {line} with faults, as documents", lambda line=line, schema=schema, code=code: check_documents(line, schema, code)
        yield f"gpulet {line} with faults, as a table", lambda line=line, code=code: check_table(line, code)
