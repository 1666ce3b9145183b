#!/usr/bin/python3
"""Compares the image of deploy/image/Dockerfile, built by Podman from the newest commit, with out/image/gpulet.tar, which `make image`
built from the same commit: the files must be equal byte for byte, and so must the settings. As root; takes as long as a whole build.
Ends in `N passed, N failed`.

  tests/packaging/dockerfile.py [OPTION...]     options of `podman build`, for example --build-arg BASE=IMAGE

The base image must have Debian's packages in the versions of this machine: each difference is reported with its package.
"""
import gzip
import hashlib
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ARCHIVE = ROOT / "out" / "image" / "gpulet.tar"
NAME = "localhost/gpulet-of-dockerfile"
SBOM = "usr/share/sbom/gpulet.spdx.json"
# Buildah's label in every image.
TOOLS_LABEL = "io.buildah.version"


def read(path):
    """Returns ({name: file metadata with digest}, the image's settings, {package: version}) of an OCI archive."""
    files, sbom = {}, {}
    with tarfile.open(path) as archive:
        names = {name.removeprefix("./"): name for name in archive.getnames()}

        def blob(digest):
            data = archive.extractfile(names["blobs/" + digest.replace(":", "/")])
            compressed = data.read(2) == b"\x1f\x8b"
            data.seek(0)
            return gzip.GzipFile(fileobj=data) if compressed else data
        index = json.load(archive.extractfile(names["index.json"]))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        config = json.load(blob(manifest["config"]["digest"]))["config"]
        for each in manifest["layers"]:
            with tarfile.open(fileobj=blob(each["digest"])) as layer:
                for member in layer:
                    name = member.name.removeprefix("./").removesuffix("/")
                    data = layer.extractfile(member).read() if member.isfile() else b""
                    if name not in ("", "."):  # the root itself is the engine's
                        files[name] = {"type": member.type, "mode": oct(member.mode & 0o7777), "owner": (member.uid, member.gid),
                                       "target": member.linkname, "time": int(member.mtime), "bytes": member.size,
                                       "sha256": hashlib.sha256(data).hexdigest()}
                    if name == SBOM:
                        sbom = {each["name"]: each["versionInfo"] for each in json.loads(data)["packages"]}
    config["Labels"].pop(TOOLS_LABEL, None)
    return files, config, sbom


def build(directory, options):
    """Builds the Dockerfile's image of the newest commit as an OCI archive."""
    sources, archive = directory / "sources", directory / "image.tar"
    sources.mkdir()
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", sources], input=packed, check=True)
    epoch = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["podman", "build", "--file", sources / "deploy/image/Dockerfile", "--build-arg", f"SOURCE_DATE_EPOCH={epoch}",
                    "--tag", NAME, *options, sources], check=True)
    subprocess.run(["podman", "save", "--quiet", "--format", "oci-archive", "--output", archive, NAME], check=True)
    return archive


def differences(ours, theirs):
    """Returns the differences as readable lines."""
    lines = []
    for name in sorted({*ours, *theirs}):
        one, other = ours.get(name, "missing"), theirs.get(name, "missing")
        if isinstance(one, dict) and isinstance(other, dict):
            one, other = ({key: value for key, value in each.items() if one.get(key) != other.get(key)} for each in (one, other))
        if one != other:
            lines.append(f"{name}: {one}, the Dockerfile's {other}")
    return lines


def main():
    if not ARCHIVE.exists():
        sys.exit("tests/packaging/dockerfile.py: no out/image/gpulet.tar: make image")
    ours = read(ARCHIVE)
    with tempfile.TemporaryDirectory(dir=ROOT / "out") as directory:
        theirs = read(build(pathlib.Path(directory), sys.argv[1:]))
    failed = 0
    for what, one, other in zip(("files", "settings", "packages"), ours, theirs):
        lines = differences(one, other)
        failed += bool(lines)
        for line in lines:
            print(f"FAIL {what}: {line}")
    print(f"{len(ours[0])} files, of {len(ours[2])} packages")
    print(f"{3 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
