"""Compares nvidia-ml-py's struct sizes and constants with NVIDIA's compiled header."""
import ctypes
import os
import pathlib
import re
import subprocess
import tempfile

import judge
import pynvml as nvml
from judge import check

INCLUDE = pathlib.Path(os.environ["JUDGE_NVML_INCLUDE"])
HEADER = (INCLUDE / "nvml.h").read_text()
# Known differences of nvidia-ml-py 13.615.71 from this header: names of an earlier version of a struct, structs with a
# different layout, and constants with other values.
OWN_SIZES = {"nvmlGpuFabricInfoV_t", "nvmlGridLicensableFeature_t", "nvmlGridLicensableFeatures_t", "nvmlVgpuMetadata_t",
             "nvmlVgpuPgpuMetadata_t"}
OWN_CONSTANTS = {"NVML_FI_MAX", "nvmlC2cModeInfo_v1", "nvmlClocksEventReasonAll"}
UNSIGNED = 1 << 64  # the program prints all numbers as signed ones


def compiled(expressions):
    """{name: value} of C expressions."""
    with tempfile.TemporaryDirectory() as directory:
        source = pathlib.Path(directory) / "ask.c"
        lines = [f'printf("{name} %lld\\n", (long long)({text}));' for name, text in expressions.items()]
        source.write_text("#include <stdio.h>\n#include <nvml.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
        program = pathlib.Path(directory) / "ask"
        subprocess.run(["cc", "-w", "-I", INCLUDE, source, "-o", program], check=True, capture_output=True, text=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def differences(ours, theirs, known):
    return [f"{name} is {ours[name]}, not {theirs[name]}" for name in sorted(ours) if (ours[name] - theirs[name]) % UNSIGNED and name not in known]


@check
def sizes_of_structs():
    names = set(re.findall(r"^\}\s*(nvml\w+_t);", HEADER, re.MULTILINE)) | set(re.findall(r"^typedef nvml\w+ (nvml\w+_t);", HEADER, re.MULTILINE))
    ours = {}
    for name, value in vars(nvml).items():
        c_name = name.removeprefix("c_")
        if isinstance(value, type) and issubclass(value, (ctypes.Structure, ctypes.Union)) and c_name in names:
            ours[c_name] = ctypes.sizeof(value)
    wrong = differences(ours, compiled({name: f"sizeof({name})" for name in ours}), OWN_SIZES)
    if wrong or len(ours) < 60:
        raise AssertionError(f"of {len(ours)} structs {wrong}")


@check
def values_of_constants():
    defined = set(re.findall(r"^#define\s+((?:NVML|nvml)\w+)[ \t]+[^\s\\]", HEADER, re.MULTILINE))
    defined |= set(re.findall(r"^\s+(NVML_\w+)\s*(?:=|,)", HEADER, re.MULTILINE))
    ours = {name: value for name, value in vars(nvml).items() if name in defined and isinstance(value, int)}
    wrong = differences(ours, compiled({name: name for name in ours}), OWN_CONSTANTS)
    if wrong or len(ours) < 500:
        raise AssertionError(f"of {len(ours)} constants {wrong}")


if __name__ == "__main__":
    judge.main()
