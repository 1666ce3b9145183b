#!/usr/bin/python3
"""Checks the results of `make build`, `make image` and `make package`: names, links, hardening, requirements on the host, the image's
contents, and the package in a Debian root with its own systemd. As root. Ends in `N passed, N failed`."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import image  # noqa: E402
import operands  # noqa: E402
import outcome  # noqa: E402
import package  # noqa: E402

OUT = ROOT / "out"
DROP_INS = ["nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon", "config-manager", "dcgm-exporter", "nvidia-mig-manager",
            "nvidia-mig-parted", "mig-parted"]
# A plugin of kubectl, and what kubectl runs for its completions.
PLUGIN = {"kubectl-gpulet": ("--help", "kubectl gpulet list"), "kubectl_complete-gpulet": ("expl", "explain\t")}
PROGRAMS = [OUT / "bin" / "gpulet", OUT / "bin" / "gpulet-sim"]
HOOK = OUT / "bin" / "gpulet-hook"
LIBRARY = OUT / "lib" / "gpulet" / "sim" / "libnvidia-ml.so.1"
SMI = OUT / "lib" / "gpulet" / "sim" / "nvidia-smi"
# Parts of glibc: a release runs with this version of glibc.
GLIBC_PARTS = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
GLIBC_NEWEST = (2, 36)
GPULET_MAX_MIB = 20
HOOK_MAX_MIB = 1.5


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Elf:
    def __init__(self, path):
        self.headers = output("readelf", "-hlW", path)
        self.dynamic = output("readelf", "-dW", path)
        self.symbols = output("readelf", "--dyn-syms", "-W", path)

    def needed(self):
        return set(re.findall(r"\(NEEDED\).*\[(.*)\]", self.dynamic))

    def newest_glibc(self):
        return max(tuple(map(int, version.split("."))) for version in re.findall(r"@GLIBC_([\d.]+)", self.symbols))

    def exported(self):
        defined = re.findall(r"(?:FUNC|OBJECT|IFUNC|TLS)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+(?!UND)\d+\s+(\S+)", self.symbols)
        return {name.split("@")[0] for name in defined}


def hardening(path):
    """Returns missing hardening features as text."""
    elf = Elf(path)
    checks = {
        "position independent": "DYN (" in elf.headers,
        "full RELRO": "GNU_RELRO" in elf.headers and re.search(r"BIND_NOW|FLAGS_1.*NOW", elf.dynamic),
        "no executable stack": re.search(r"GNU_STACK.*\bRW\b", elf.headers),
        "stack protector": "__stack_chk_fail" in elf.symbols,
        "checked libc calls": re.search(r"__\w+_chk\b", elf.symbols.replace("__stack_chk_fail", "")),
        "needs only glibc": elf.needed() <= GLIBC_PARTS,
        f"glibc {GLIBC_NEWEST[0]}.{GLIBC_NEWEST[1]} is enough": elf.newest_glibc() <= GLIBC_NEWEST,
        "stripped": ".symtab" not in output("readelf", "-SW", path),
        "no run path": not re.search(r"\((RPATH|RUNPATH)\)", elf.dynamic),
        "no path of this machine": str(ROOT).encode() not in path.read_bytes(),
    }
    return [name for name, holds in checks.items() if not holds]


def check_hardening(path):
    missing = hardening(path)
    return f"lacks: {', '.join(missing)}" if missing else None


def check_is_position_independent_executable(path):
    return None if re.search(r"FLAGS_1.*PIE", Elf(path).dynamic) else "not marked as PIE"


def check_static(path):
    """The hook runs as root on a hostile image's files: it has no interpreter or library, and all hardening of a static program."""
    elf = Elf(path)
    checks = {
        "no interpreter": "INTERP" not in elf.headers,
        "no library": not elf.needed(),
        "position independent": "DYN (" in elf.headers and re.search(r"FLAGS_1.*PIE", elf.dynamic),
        "full RELRO": "GNU_RELRO" in elf.headers and re.search(r"BIND_NOW|FLAGS_1.*NOW", elf.dynamic),
        "no executable stack": re.search(r"GNU_STACK.*\bRW\b", elf.headers),
        "stripped": ".symtab" not in output("readelf", "-SW", path),
        "no path of this machine": str(ROOT).encode() not in path.read_bytes(),
        f"at most {HOOK_MAX_MIB} MiB": path.stat().st_size <= HOOK_MAX_MIB * 2**20,
    }
    missing = [name for name, holds in checks.items() if not holds]
    return f"lacks: {', '.join(missing)}" if missing else None


def check_hook_runs():
    """Runs without environment, libraries or working directory; prints its version and refuses a state without a root."""
    version = subprocess.run([HOOK, "--version"], capture_output=True, text=True, timeout=20, env={}, cwd="/")
    refused = subprocess.run([HOOK, "create-container"], input='{"root":"/"}', capture_output=True, text=True, timeout=20,
                             env={"LD_PRELOAD": "/nonexistent.so"}, cwd="/")
    if version.returncode != 0 or not version.stdout.startswith("gpulet-hook "):
        return f"--version exits {version.returncode} and says {version.stdout!r} {version.stderr!r}"
    if refused.returncode != 1 or refused.stderr.count("\n") != 1 or "host's root" not in refused.stderr:
        return f"with the host's root exits {refused.returncode} and says {refused.stderr!r}"
    return None


def check_link(name):
    link = OUT / "bin" / name
    if not link.is_symlink() or link.readlink() != pathlib.Path("gpulet"):
        return "not a link to gpulet"
    argument, named = PLUGIN.get(name, ("--help", "gpulet mig" if name.endswith("mig-parted") else name))
    ran = subprocess.run([link, argument], capture_output=True, text=True, timeout=20)
    if ran.returncode != 0 or named not in ran.stdout:
        return f"{argument} exits {ran.returncode} and says {ran.stdout[:200]!r} {ran.stderr[:200]!r}"
    return None


def check_demo_links():
    """`make demo` compiles a part of the commands: they must not need what is left out."""
    done = subprocess.run(["ninja", "-C", OUT / "build" / "release", "gpulet_demo"], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout[-2000:]


def check_version():
    wanted = re.search(r"VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text().split("project(")[1])[1]
    ran = subprocess.run([PROGRAMS[0], "version"], capture_output=True, text=True, timeout=20)
    return None if ran.returncode == 0 and wanted in ran.stdout else f"says {ran.stdout!r} {ran.stderr!r}, not {wanted}"


def check_size():
    size = PROGRAMS[0].stat().st_size / 2**20
    return f"{size:.1f} MiB, at most {GPULET_MAX_MIB}" if size > GPULET_MAX_MIB else None


def check_exports():
    strange = {name for name in Elf(LIBRARY).exported() if not name.startswith("nvml")}
    return f"exports {sorted(strange)[:5]}" if strange else None


def check_soname():
    return None if "[libnvidia-ml.so.1]" in Elf(LIBRARY).dynamic else "its SONAME is not libnvidia-ml.so.1"


def main():
    checks = [(f"hardened {path.name}", check_hardening, (path,)) for path in [*PROGRAMS, LIBRARY, SMI]]
    checks += [(f"PIE {path.name}", check_is_position_independent_executable, (path,)) for path in PROGRAMS]
    checks += [("static gpulet-hook", check_static, (HOOK,)), ("gpulet-hook runs", check_hook_runs, ())]
    checks += [(f"link {name}", check_link, (name,)) for name in [*DROP_INS, *PLUGIN]]
    checks += [("version", check_version, ()), ("size", check_size, ()), ("exports", check_exports, ()),
               ("soname", check_soname, ()), ("the demo links", check_demo_links, ())]
    checks += [(name, check, ()) for name, check in image.CHECKS + operands.CHECKS + package.CHECKS]
    return outcome.report_checks((name, lambda check=check, arguments=arguments: check(*arguments)) for name, check, arguments in checks)


if __name__ == "__main__":
    sys.exit(main())
