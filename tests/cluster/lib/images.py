"""Small container images with glibc, made of this machine's files: to a driver, they are like CUDA images."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

NAME = "localhost/glibc:1"
PYTHON_NAME = "localhost/python:1"  # with this machine's Python; a Pod mounts PYTHON_LIBRARY
PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_LIBRARY = f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}"
# Opens each named library, as CUDA programs open the driver's.
PROBE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    void *library = dlopen(argv[i], RTLD_NOW);
    struct link_map *map = NULL;
    if (library) dlinfo(library, RTLD_DI_LINKMAP, &map);
    printf("dlopen %s %s\n", argv[i], library ? map->l_name : dlerror());
  }
  return 0;
}
"""


def libraries_of(*programs):
    """The system's files that the loader loads for them, the loader too."""
    reported = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    return sorted({pathlib.Path(word) for line in reported.splitlines() for word in line.split()
                   if word.startswith(("/lib", "/usr/lib")) and not word.endswith(":")})


def make_glibc_image(tar):
    write_image(tar, NAME)


def make_python_image(tar, packages):
    """`packages`: a directory of Python packages, which a Pod mounts; the image has what their libraries need."""
    parts = [path for directory in (pathlib.Path(PYTHON_LIBRARY) / "lib-dynload", packages) for path in directory.rglob("*.so")]
    write_image(tar, PYTHON_NAME, [PYTHON], libraries_of(PYTHON, *parts))


def write_image(tar, name, programs=(), libraries=()):
    """Writes an OCI archive: Debian's layout (one /usr, multiarch directories), a shell, ldconfig, the probe and what is named."""
    with tempfile.TemporaryDirectory() as work:
        root = pathlib.Path(work) / "root"
        for directory in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc/ld.so.conf.d", "tmp", "proc", "sys", "dev", "run"):
            (root / directory).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        for directory in ("bin", "sbin", "lib", "lib64"):
            (root / directory).symlink_to(f"usr/{directory}")
        shutil.copy("/bin/busybox", root / "usr/bin/busybox")
        for applet in ("sh", "env", "sed", "find", "stat", "mknod", "grep", "sleep", "readlink", "cat", "ls", "id"):
            (root / "usr/bin" / applet).symlink_to("busybox")
        shutil.copy("/sbin/ldconfig", root / "usr/sbin/ldconfig")
        source = pathlib.Path(work) / "probe.c"
        source.write_text(PROBE)
        probe = root / "usr/bin/probe"
        # The real driver's libraries need these parts of glibc too.
        parts = ("-Wl,--no-as-needed", "-lm", "-ldl", "-lpthread", "-lrt")
        subprocess.run(["gcc", "-O1", "-o", probe, source, *parts], check=True)
        for program in programs:
            shutil.copy(program, root / program.lstrip("/"))
        for library in {*libraries_of(probe), *libraries}:
            place = root / library.relative_to("/").parent
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(library.resolve(), place / library.name)
        (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
        for line in pathlib.Path("/etc/ld.so.conf.d").glob("*-linux-gnu.conf"):
            shutil.copy(line, root / "etc/ld.so.conf.d")
        (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n")
        subprocess.run(["ldconfig", "-r", root], check=True)
        image = f"{work}/oci:1"
        for command in (["init", "--layout", f"{work}/oci"], ["new", "--image", image], ["insert", "--image", image, root, "/"],
                        ["config", "--image", image, "--config.env", "PATH=/usr/bin:/usr/sbin"]):
            subprocess.run(["umoci", *map(str, command)], check=True, capture_output=True)
        subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", f"oci:{image}", f"oci-archive:{tar}:{name}"], check=True)
