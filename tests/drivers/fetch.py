#!/usr/bin/python3
"""Real driver libraries for the tests: two branches of Debian's non-free packages in the layouts of four kinds of nodes.

  tests/drivers/fetch.py OUT    makes OUT/BRANCH/debian, rhel, gke and driver-container for each branch (470, the oldest one that
                                Debian has, and 535), and prints their versions

The packages (packages.txt, pinned by sha256) are downloaded from the mirror in this machine's apt configuration into
$GPULET_CACHE/drivers (default ~/.cache/gpulet/drivers), and are never part of the project. Nothing of them is run: the
links that update-alternatives would create are read from their scripts. Exits with 3 and the reason if the packages are
not available here, with 1 on any other error.
"""
import argparse
import dataclasses
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet") / "drivers"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITE = "bookworm"
TRIPLET = "x86_64-linux-gnu"
APT_LIMIT_S = 300
NO_DRIVERS = 3


@dataclasses.dataclass(frozen=True)
class Branch:
    name: str
    directory: str     # of its own, beside that of another branch: /usr/lib/nvidia/DIRECTORY
    alternatives: str  # the package that chooses it


BRANCHES = (Branch("470", "tesla-470", "nvidia-tesla-470-alternative"), Branch("535", "current", "nvidia-alternative"))


class NotHere(Exception):
    """The packages are not available on this machine."""


def pinned(*branches):
    """(name, version, sha256) of each package of these branches."""
    lines = [line.split() for line in (HERE / "packages.txt").read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(package) for branch, *package in lines if branch in ("*", *branches)]


def cached(package):
    name, version, digest = package
    path = CACHE / f"{name}_{version.replace(':', '%3a')}_amd64.deb"
    if not path.exists():
        return None
    return path if hashlib.sha256(path.read_bytes()).hexdigest() == digest else None


def mirror():
    """The mirror of bookworm's packages in this machine's apt configuration."""
    try:
        listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)|$(CODENAME)|$(COMPONENT)",
                                 "Created-By: Packages"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NotHere(f"there is no apt to ask: {error}") from error
    for line in listed.splitlines():
        uri, codename, component = line.split("|")
        if codename == SUITE and component == "main":
            return uri
    raise NotHere(f"apt has no source of Debian {SUITE}")


def apt(arguments, directory, cwd):
    options = ["-o", f"Dir::Etc::sourcelist={directory}/sources.list", "-o", "Dir::Etc::sourceparts=-",
               "-o", f"Dir::State::lists={directory}/lists", "-o", f"Dir::Cache={directory}/cache",
               "-o", "APT::Sandbox::User=", "-q"]
    try:
        done = subprocess.run(["apt-get", *options, *arguments], cwd=cwd, capture_output=True, text=True,
                              timeout=APT_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise NotHere(f"apt-get {arguments[0]} took longer than {APT_LIMIT_S} s") from error
    if done.returncode != 0:
        raise NotHere(f"apt-get {arguments[0]}: {done.stderr.strip().splitlines()[-1:]}")


def download(missing):
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "sources.list").write_text(
            f"deb [arch=amd64 signed-by={KEYRING}] {mirror()} {SUITE} main contrib non-free non-free-firmware\n")
        for name in ("lists/partial", "cache/archives/partial", "debs"):
            pathlib.Path(directory, name).mkdir(parents=True)
        apt(["update"], directory, directory)
        apt(["download", *(f"{name}:amd64={version}" for name, version, _ in missing)], directory, f"{directory}/debs")
        for package in missing:
            name, version, digest = package
            deb = pathlib.Path(directory, "debs", f"{name}_{version.replace(':', '%3a')}_amd64.deb")
            if not deb.exists():
                raise NotHere(f"apt-get download brought no {deb.name}")
            if hashlib.sha256(deb.read_bytes()).hexdigest() != digest:
                raise SystemExit(f"{deb.name} is not the pinned one: sha256 differs")
            with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as copy:
                copy.write(deb.read_bytes())
            os.replace(copy.name, CACHE / deb.name)


def download_missing():
    if not shutil.which("dpkg-deb"):
        raise NotHere("there is no dpkg-deb to unpack them with")
    missing = [package for package in pinned(*(branch.name for branch in BRANCHES)) if not cached(package)]
    if missing:
        download(missing)


def unpack(debs, out):
    out.mkdir(parents=True)
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, out], check=True, timeout=120)


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink() and not path.exists():
        path.symlink_to(target)


def merged_usr(root):
    """Creates /lib, /bin and /sbin as links into /usr, as current distributions do."""
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        old = root / name
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
        link(old, f"usr/{name}")


def slaves(script):
    """(link, name, file) of each alternative that a package's postinst would create on this architecture."""
    for line in re.findall(r"\$\((add_(?:multiarch_)?slave [^()$]*)\)", script):
        function, *words = shlex.split(line)
        if function == "add_slave":
            yield tuple(words)
            continue
        target, below_target, file, source, below_source, _, source_file = (words + [""] * 3)[:7]
        source_file = source_file or file
        yield (f"{target}/{TRIPLET}/{below_target}{file}", f"{file}-{TRIPLET}",
               f"{source}/{TRIPLET}/{below_source}{source_file}")


def add_alternatives(branch, root, debs):
    for directory in ("usr/lib/xorg/modules/drivers", "usr/lib/xorg/modules/extensions", f"usr/lib/{TRIPLET}/gbm",
                   f"usr/lib/{TRIPLET}/vdpau", "usr/share/X11/xorg.conf.d"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    link(root / "usr/lib/nvidia/nvidia", "/etc/alternatives/nvidia")
    link(root / "etc/alternatives/nvidia", f"/usr/lib/nvidia/{branch.directory}")
    for package, prefix in ((branch.alternatives, "nvidia--"), ("glx-alternative-nvidia", "glx--")):
        deb = next(deb for deb in debs if deb.name.startswith(f"{package}_"))
        script = subprocess.run(["dpkg-deb", "-I", deb, "postinst"], check=True, capture_output=True, text=True).stdout
        for place, name, file in slaves(script):
            source, target = root / file[1:], root / place[1:]
            if "mesa" in file or file == place or not (source.is_file() or source.is_symlink()) or not target.parent.is_dir():
                continue
            link(root / "etc/alternatives" / (prefix + name), file)
            link(target, f"/etc/alternatives/{prefix}{name}")


def make_debian(branch, debs, out):
    unpack(debs, out)
    merged_usr(out)
    add_alternatives(branch, out, debs)


class Files:
    """The packages' files by type."""

    def __init__(self, branch, root):
        self.root = root
        lib = root / "usr/lib" / TRIPLET
        self.libraries = sorted(path for directory in (lib, lib / "nvidia" / branch.directory) for path in directory.glob("lib*.so*"))
        # Files only: Debian's alternatives replace the links.
        self.libraries = [path for path in self.libraries
                          if not path.is_symlink() or "/" not in os.readlink(path)]
        self.x_modules = root / "usr/lib/nvidia" / branch.directory
        self.x_config = root / "etc/nvidia" / branch.directory / "nvidia-drm-outputclass.conf"
        self.programs = [*self.x_modules.glob("nvidia-[sd]*"), *(root / "usr/bin").glob("nvidia-*"),
                         *(root / "usr/sbin").glob("nvidia-*")]
        self.programs = [path for path in self.programs if not path.is_symlink() and os.access(path, os.X_OK)]
        self.version = next(path.name for path in self.libraries if re.match(r"libcuda\.so\.\d+\.\d", path.name)
                            ).removeprefix("libcuda.so.")


def put(source, target):
    """Copies a link, and hard-links a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() or target.is_symlink():
        return
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    else:
        os.link(source, target)


def put_libraries(files, directory):
    for path in files.libraries:
        vdpau = path.name.startswith("libvdpau_nvidia")
        put(path, directory / "vdpau" / path.name if vdpau else directory / path.name)
    link(directory / "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
    link(directory / "libGLX_indirect.so.0", f"libGLX_nvidia.so.{files.version}")


def put_programs(files, directory):
    for path in files.programs:
        put(path, directory / path.name)


def put_firmware(files, directory):
    for path in (files.root / "usr/lib/firmware/nvidia" / files.version).glob("gsp*.bin"):
        put(path, directory / "nvidia" / files.version / path.name)


def put_shared(files, root):
    for name in ("glvnd/egl_vendor.d/10_nvidia.json", "egl/egl_external_platform.d/10_nvidia_wayland.json",
                 "egl/egl_external_platform.d/15_nvidia_gbm.json", "vulkan/implicit_layer.d/nvidia_layers.json"):
        if (files.root / "usr/share" / name).exists():  # 470 has no backend of GBM
            put(files.root / "usr/share" / name, root / "usr/share" / name)
    put(files.root / "etc/OpenCL/vendors/nvidia.icd", root / "etc/OpenCL/vendors/nvidia.icd")
    put(files.x_config, root / "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf")


def make_rhel(files, out):
    put_libraries(files, out / "usr/lib64")
    put_programs(files, out / "usr/bin")
    put_firmware(files, out / "usr/lib/firmware")
    put_shared(files, out)
    put(files.root / "usr/share/vulkan/icd.d/nvidia_icd.json", out / "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    put(files.x_modules / "nvidia_drv.so", out / "usr/lib64/xorg/modules/drivers/nvidia_drv.so")
    for name in ("libglxserver_nvidia.so", f"libglxserver_nvidia.so.{files.version}"):
        put(files.x_modules / name, out / "usr/lib64/xorg/modules/extensions" / name)
    merged_usr(out)


def make_gke(files, out):
    place = out / "home/kubernetes/bin/nvidia"
    put_libraries(files, place / "lib64")
    put_programs(files, place / "bin")
    put_firmware(files, place / "firmware")
    put(files.root / "usr/share/vulkan/icd.d/nvidia_icd.json", place / "vulkan/icd.d/nvidia_icd.json")
    merged_usr(out)


def make_driver_container(files, out):
    put_libraries(files, out / "usr/lib" / TRIPLET)
    put_programs(files, out / "usr/bin")
    put_firmware(files, out / "usr/lib/firmware")
    put_shared(files, out)
    put(files.root / "usr/share/vulkan/icd.d/nvidia_icd.json", out / "etc/vulkan/icd.d/nvidia_icd.json")
    put(files.x_modules / "nvidia_drv.so", out / "usr/lib" / TRIPLET / "nvidia/xorg/nvidia_drv.so")
    for name in ("libglxserver_nvidia.so", f"libglxserver_nvidia.so.{files.version}"):
        put(files.x_modules / name, out / "usr/lib" / TRIPLET / "nvidia/xorg" / name)
    merged_usr(out)


def make_layouts(branch, out):
    """Returns the version of the driver."""
    shutil.rmtree(out, ignore_errors=True)
    debs = [cached(package) for package in pinned(branch.name)]
    make_debian(branch, debs, out / "debian")
    files = Files(branch, out / "debian")
    make_rhel(files, out / "rhel")
    make_gke(files, out / "gke")
    make_driver_container(files, out / "driver-container")
    return files.version


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out.resolve()
    if os.uname().machine != "x86_64":
        raise NotHere(f"the pinned packages are for x86_64, and this is {os.uname().machine}")
    download_missing()
    print(" ".join(make_layouts(branch, out / branch.name) for branch in BRANCHES))


if __name__ == "__main__":
    try:
        main()
    except NotHere as reason:
        print(f"no real driver libraries here: {reason}", file=sys.stderr)
        sys.exit(NO_DRIVERS)
