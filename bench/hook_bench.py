#!/usr/bin/python3
"""Measures what gpulet-hook adds to a container start: the same container started by runc with and without it.

  bench/hook_bench.py HOOK [--runs N] [--rootfs DIRECTORY]

HOOK is the program (out/build/release/bin/gpulet-hook). The container's root is DIRECTORY, or a small one built from this
machine's libraries: a Debian root with 200 of them and a driver's sixteen. It runs `true` and ends. The kinds of start
alternate in a changing order, so that machine load and the kernel's cleanup of the last
container affect all equally. Needs root and runc.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

LIBRARIES = 200
DRIVER = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvcuvid", "libnvidia-encode",
          "libnvidia-opticalflow", "libnvoptix", "libnvidia-rtcore", "libnvidia-glcore", "libnvidia-eglcore",
          "libnvidia-allocator", "libnvidia-cfg", "libnvidia-fbc", "libGLX_nvidia", "libEGL_nvidia")
VERSION = "535.104.05"
# Kind of start → additional options of the hook; None: no hook.
KINDS = {"no hook": None, "gpulet-hook": [], "gpulet-hook, no ldconfig": ["--disable=update-ldcache"],
         "gpulet-hook, same root again": []}
NEW = ("gpulet-hook", "gpulet-hook, no ldconfig")


def libraries():
    """(name, file) of the libraries that this machine's loader has, of its own architecture."""
    listing = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        if "64" in line and " => " in line:
            yield line.split()[0], pathlib.Path(line.rsplit(" => ", 1)[1])


def make_root(root):
    triplet = f"{os.uname().machine}-linux-gnu"
    directory = root / "usr/lib" / triplet
    directory.mkdir(parents=True)
    for name in ("usr/bin", "usr/lib64", "etc/ld.so.conf.d", "proc", "sys", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/debian_version").write_text("12\n")
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (root / f"etc/ld.so.conf.d/{triplet}.conf").write_text(f"/usr/local/lib/{triplet}\n/lib/{triplet}\n/usr/lib/{triplet}\n")
    small = sorted(libraries(), key=lambda pair: ("libc.so" not in pair[0] and "ld-linux" not in pair[0],
                                                  pair[1].stat().st_size, pair[0]))
    for name, file in small[:LIBRARIES]:
        shutil.copy(file, (root / "usr/lib64" if "ld-linux" in name else directory) / name)
    shutil.copy("/bin/true", root / "usr/bin/true")
    # The content does not affect the time, but the SONAME does.
    body = small[LIBRARIES // 2][1]
    for name in DRIVER:
        shutil.copy(body, directory / f"{name}.so.{VERSION}")
    return f"/usr/lib/{triplet}"


def write_bundle(bundle, root, hook):
    subprocess.run(["runc", "spec", "--bundle", bundle], check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"].update(terminal=False, args=["/bin/true"])
    config["root"] = {"path": str(root), "readonly": False}
    if hook:
        config["hooks"] = {"createContainer": [{"path": hook[0], "args": hook, "env": ["GPULET=1"]}]}
    (bundle / "config.json").write_text(json.dumps(config))


def make_container(bundle, options, extra):
    """Creates a bundle with its own root. Returns the root and the driver's directory in it."""
    root = bundle / "rootfs"
    if options.rootfs:
        shutil.copytree(options.rootfs, root, symlinks=True)
        directory = f"/usr/lib/{os.uname().machine}-linux-gnu"
    else:
        directory = make_root(root)
    hook = [os.path.abspath(options.hook), "create-container", f"--folder={directory}", f"--host-driver-version={VERSION}",
            "--host-cuda-version=12.2", f"--link=libcuda.so.1::{directory}/libcuda.so"]
    write_bundle(bundle, root, None if extra is None else hook + extra)
    return root, root / directory[1:]


def forget(root, directory, links):
    """Resets the container: nothing of the last start remains."""
    for name in ("etc/ld.so.cache", "etc/ld.so.conf.d/00-gpulet.conf"):
        (root / name).unlink(missing_ok=True)
    for name in DRIVER if links else ():
        for link in directory.glob(f"{name}.so*"):
            if link.is_symlink():
                link.unlink()


def start(state, bundle, number):
    begin = time.perf_counter()
    subprocess.run(["runc", "--root", state, "run", "--bundle", bundle, f"gpulet-bench-{os.getpid()}-{number}"], check=True,
                   stdin=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1e3


def row(name, times):
    ordered = sorted(times)
    print(f"{name:<28} median {statistics.median(ordered):7.2f} ms   p10 {ordered[len(ordered) // 10]:7.2f}   "
          f"p90 {ordered[len(ordered) * 9 // 10]:7.2f}")
    return statistics.median(ordered)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("hook")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--rootfs", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("runc"):
        sys.exit("hook_bench: needs root and runc")
    with tempfile.TemporaryDirectory(prefix="gpulet-hook-bench-") as place:
        base = pathlib.Path(place)
        roots = {kind: make_container(base / kind, options, extra) for kind, extra in KINDS.items()}
        times = {kind: [] for kind in roots}
        for number in range(-5, options.runs):
            for kind in random.sample(list(roots), len(roots)):
                if kind in NEW:
                    forget(*roots[kind], links=not options.rootfs)
                took = start(base / "state", base / kind, number)
                if number >= 0:
                    times[kind].append(took)
        print(f"{options.runs} starts of each, load {os.getloadavg()[0]:.1f}")
        plain = row("runc run, no hook", times.pop("no hook"))
        for kind, took in times.items():
            print(f"  the hook adds {row(kind, took) - plain:.2f} ms")


if __name__ == "__main__":
    main()
