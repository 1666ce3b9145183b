"""Wrong command lines. wrong_inputs.txt has each as "$ COMMAND LINE", then its exit code and what it prints.

In a command line, \\xNN is a byte, {tab}, {bytes} and {typo} are config files with such a mistake, {claim} is a manifest with one, {root} is
the driver root, {dir} a directory, {node} that of everything. Output has the same names for them.
"""
import os
import pathlib
import re
import shlex

GOLDEN = pathlib.Path(__file__).resolve().parent / "wrong_inputs.txt"
FILES = {"tab": b"version: v1\nflags:\n\tmigStrategy: none\n",
         "bytes": b"version: v1\nflags:\n  migStrategy: \"\xff\xfe\"\n",
         "typo": b"version: v1\nflags:\n  migStratgy: none\n  failOnInitError: maybe\n",
         "claim": b"{apiVersion: v1, kind: Pod}\n---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: one}\nspec:\n  devices:\n"
                  b"    config:\n      - opaque:\n          driver: gpu.nvidia.com\n          parameters:\n"
                  b"            apiVersion: resource.nvidia.com/v1beta1\n            kind: GpuConfig\n            sharng: {}\n"}
LEAST = 100


def read_golden():
    """Returns (command line, expected lines), in order."""
    blocks = []
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("$ "):
            blocks.append((line[2:], []))
        else:
            blocks[-1][1].append(line)
    return blocks


def bytes_of(word):
    return re.sub(rb"\\x([0-9a-f]{2})", lambda code: bytes([int(code[1], 16)]), word.encode())


def run_line(node, line):
    """Returns the exit code and the printed lines, in the form of the golden file."""
    names = {"dir": str(node.directory / "inputs"), "root": str(node.root), "node": str(node.directory)}
    for name in FILES:
        names[name] = str(node.directory / "inputs" / f"{name}.yaml")
    words = [shlex.split(word)[0] if "'" in word else word for word in line.split(" ")]
    for name, value in names.items():
        words = [word.replace("{" + name + "}", value) for word in words]
    done = node.run([bytes_of(word) for word in words])
    text = done.stderr + done.stdout
    for name, value in sorted(names.items(), key=lambda one: -len(one[1])):
        text = text.replace(value, "{" + name + "}")
    return [f"exit code {done.returncode}", *text.splitlines()]


def check_messages(lines):
    """What holds for every message."""
    text = "\n".join(lines)
    if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\udc80-\udcff]", text):
        return f"echoes a control character or invalid UTF-8: {text!r}"
    if len(lines) < 2:
        return "prints nothing"
    return None


def checks(node):
    directory = node.directory / "inputs"
    directory.mkdir()
    for name, content in FILES.items():
        (directory / f"{name}.yaml").write_bytes(content)
    golden = read_golden()
    node.start_agent()
    found = [(line, run_line(node, line)) for line, _ in golden]
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text("".join("\n".join([f"$ {line}", *lines]) + "\n" for line, lines in found))
        golden = found

    def check(expected, lines):
        if why := check_messages(lines):
            return why
        return None if lines == expected else f"{lines!r}, not {expected!r}"
    yield "enough of them", lambda: None if len(golden) >= LEAST else f"only {len(golden)}"
    for (line, expected), (_, lines) in zip(golden, found):
        yield line, lambda expected=expected, lines=lines: check(expected, lines)
    yield "no file is created", lambda: None if not (node.directory / "x.tar").exists() and not os.path.exists("/nope") \
        else "a refused command has created a file"
