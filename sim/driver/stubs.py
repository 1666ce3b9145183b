#!/usr/bin/env python3
"""Writes a C++ file that defines every function of nvml.h which the given sources do not: each returns NOT_SUPPORTED.

A function whose first argument is a device suffers the faults of that GPU first, as a supported one would.
Usage: stubs.py NVML_H OUTPUT SOURCE...
"""
import re
import sys

DECLARATION = re.compile(r"\bnvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(([^)]*)\)\s*;")
DEFINITION = re.compile(r"^(?:nvmlReturn_t|const char\*) (nvml\w+)\(", re.MULTILINE)


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    return {name: re.sub(r"\s+", " ", arguments).strip() for name, arguments in DECLARATION.findall(text)}


def without_name(argument):
    """The type of one parameter declaration: 'unsigned int *count' is 'unsigned int *'."""
    return re.sub(r"\b\w+$", "", argument.strip()).strip()


def stub(name, arguments):
    types = [] if arguments in ("", "void") else [without_name(a) for a in arguments.split(",")]
    on_device = bool(types) and types[0] == "nvmlDevice_t"
    named = [f"{t} device" if i == 0 and on_device else t for i, t in enumerate(types)]
    call = "unsupported(device)" if on_device else "unsupported()"
    return f"nvmlReturn_t {name}({', '.join(named)}) {{ return {call}; }}\n"


def main():
    header_path, output_path, *source_paths = sys.argv[1:]
    with open(header_path, encoding="utf-8") as header:
        functions = declared(header.read())
    defined = set()
    for path in source_paths:
        with open(path, encoding="utf-8") as source:
            defined.update(DEFINITION.findall(source.read()))
    with open(output_path, "w", encoding="utf-8") as output:
        output.write("// Made by sim/driver/stubs.py from nvml.h.\n")
        output.write('#include "sim/driver/call.h"\n\nnamespace {\n\n')
        output.write("nvmlReturn_t unsupported() {\n")
        output.write("  const nvmlReturn_t error = gpulet::sim::enter_driver();\n")
        output.write("  return error != NVML_SUCCESS ? error : NVML_ERROR_NOT_SUPPORTED;\n}\n\n")
        output.write("nvmlReturn_t unsupported(nvmlDevice_t device) {\n")
        output.write("  const auto error = gpulet::sim::GpuCall(device, gpulet::sim::Accepts::kGpuOrMig).entry_error();\n")
        output.write("  return error != NVML_SUCCESS ? error : NVML_ERROR_NOT_SUPPORTED;\n}\n\n}  // namespace\n\n")
        for name in sorted(set(functions) - defined):
            output.write(stub(name, functions[name]))


main()
