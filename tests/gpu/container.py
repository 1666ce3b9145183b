#!/usr/bin/env python3
"""A container by hand: a root file system made as a CDI spec says, without any container engine.

  container.py SPEC.json DEVICE HOOK_DIRECTORY WORK [--without NODE] [--bind SOURCE:TARGET] -- PROGRAM…

Makes a mount namespace and a root directory with this machine's Python and C library, applies the spec's
device nodes, mounts and environment, runs its createContainer hooks, changes root, gives up all rights
(user 65534) and runs the program with that Python. The driver's files come from the spec alone. Needs root.
"""
import ctypes
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import sysconfig

sys.dont_write_bytecode = True
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
LIBC = ctypes.CDLL(None, use_errno=True)
USER = 65534
PYTHON = os.path.realpath(sys.executable)  # this machine's, at the same path in the image
# What a C program finds in an ordinary image, beside what Python needs.
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6")

NOT_NEEDED = ("__pycache__", "test", "*-packages", "config-*", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "pydoc_data")


def mount(source, target, kind=None, flags=0, data=None):
    def encode(text):
        return None if text is None else str(text).encode()
    if LIBC.mount(encode(source), encode(target), encode(kind), flags, encode(data)) != 0:
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")


def bind(source, target, read_only=True):
    """Binds a file or directory; makes the target."""
    target = pathlib.Path(target)
    if pathlib.Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount(None, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def needed_libraries(program):
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    return {word for line in said.splitlines() for word in line.split() if word.startswith("/")}


def make_image(root, bind_modules=True):
    """A directory with Python, its modules (bound, or copied) and the C library, at their places on this machine."""
    modules = pathlib.Path(sysconfig.get_path("stdlib"))
    files = needed_libraries(PYTHON)
    for extension in modules.glob("lib-dynload/_ctypes*.so"):
        files |= needed_libraries(extension)
    for directory in {str(pathlib.Path(file).parent) for file in files}:
        files |= {f"{directory}/{name}" for name in LIBRARIES if os.path.exists(f"{directory}/{name}")}
    for file in files | {PYTHON}:
        place = root / file.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(file), place)
    if bind_modules:
        bind(modules, root / str(modules).lstrip("/"))
    else:
        shutil.copytree(modules, root / str(modules).lstrip("/"), dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_NEEDED))
    for directory in ("etc", "tmp", "dev", "proc", "sys", "usr/bin", "usr/lib"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    loaders = {str(pathlib.Path(file).parent) for file in files}
    (root / "etc/ld.so.conf").write_text("\n".join(sorted(loaders)) + "\n")


def apply_edits(root, edits, without):
    for node in edits.get("deviceNodes", []):
        if node["path"] in without:
            continue
        status = os.stat(node.get("hostPath", node["path"]))
        target = root / node["path"].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        number = os.makedev(node["major"], node.get("minor", 0)) if "major" in node else status.st_rdev
        os.mknod(target, stat.S_IFCHR | 0o666, number)
        os.chmod(target, node.get("fileMode", status.st_mode & 0o777))
    for one in edits.get("mounts", []):
        bind(one["hostPath"], root / one["containerPath"].lstrip("/"), "ro" in one.get("options", []))


def run_hooks(edits, bundle):
    state = json.dumps({"ociVersion": "1.0.2", "id": "gpulet-test", "status": "creating", "pid": os.getpid(), "bundle": str(bundle)})
    for hook in edits.get("hooks", []):
        done = subprocess.run([hook["path"], *hook["args"][1:]], input=state, text=True, capture_output=True, check=False, timeout=60,
                              env=dict(word.split("=", 1) for word in hook.get("env", [])))
        if done.returncode != 0:
            raise SystemExit(f"hook {hook['args'][1]}: exit status {done.returncode}: {done.stderr.strip()}")


def main():
    words = sys.argv[1:]
    program = words[words.index("--") + 1:]
    options = words[:words.index("--")]
    spec_path, device, work = options[:3]
    without = {options[at + 1] for at, word in enumerate(options) if word == "--without"}
    binds = [options[at + 1].split(":", 1) for at, word in enumerate(options) if word == "--bind"]
    spec = json.loads(pathlib.Path(spec_path).read_text())
    selected = [spec.get("containerEdits", {})] + [one["containerEdits"] for one in spec["devices"] if one["name"] == device]

    if LIBC.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    bundle = pathlib.Path(work)
    mount("tmpfs", bundle, "tmpfs", data="mode=755")
    root = bundle / "rootfs"
    root.mkdir()
    mount(root, root, flags=MS_BIND)
    make_image(root)
    mount("proc", root / "proc", "proc")
    bind("/sys", root / "sys")
    for name in ("null", "zero", "urandom"):
        bind(f"/dev/{name}", root / "dev" / name, False)
    bind(pathlib.Path(__file__).resolve().parent, root / "test")
    for source, target in binds:
        bind(source, root / target.lstrip("/"), False)
    env = [word for edits in selected for word in edits.get("env", [])]
    (bundle / "config.json").write_text(json.dumps({"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"env": env}}))
    for edits in selected:
        apply_edits(root, edits, without)
    for edits in selected:
        run_hooks(edits, bundle)

    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    os.execve(PYTHON, [PYTHON, "-B", "-I", "-S", *program],
              {"PATH": "/usr/bin", **dict(word.split("=", 1) for word in env)})


if __name__ == "__main__":
    main()
