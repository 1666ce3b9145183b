#!/usr/bin/env python3
"""Writes the C ABI of the simulated driver: one exported function for every function of nvml.h.

The functions of the given sources are compiled under other names (NAMES has the macros). Each exported function first asks
for a configured answer (`gpulet-sim answer`), then calls the source's function. One that no source defines returns
NOT_SUPPORTED; if its first argument is a device, it suffers the faults of that GPU first, as a supported one would.
Usage: entry_points.py NVML_H FUNCTIONS NAMES SOURCE...
"""
import re
import sys

DECLARATION = re.compile(r"\bnvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(([^)]*)\)\s*;")
DEFINITION = re.compile(r"^nvmlReturn_t (nvml\w+)\(", re.MULTILINE)
HANDLES = ("nvmlDevice_t", "nvmlGpuInstance_t", "nvmlComputeInstance_t")
PREFIX = "sim_"


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    return {name: re.sub(r"\s+", " ", arguments).strip() for name, arguments in DECLARATION.findall(text)}


def without_name(argument):
    """The type of one parameter declaration: 'unsigned int *count' is 'unsigned int *'."""
    return re.sub(r"\b\w+$", "", argument.strip()).strip()


def entry_point(name, arguments, is_defined):
    types = [] if arguments in ("", "void") else [without_name(argument) for argument in arguments.split(",")]
    parameters = ", ".join(f"{type_} a{number}" for number, type_ in enumerate(types))
    values = ", ".join(f"a{number}" for number in range(len(types)))
    handle = "a0" if types and types[0] in HANDLES else "nullptr"
    if is_defined:
        call = f"{PREFIX}{name}({values})"
    else:
        call = "unsupported(a0)" if types and types[0] == "nvmlDevice_t" else "unsupported()"
        parameters = ", ".join(f"[[maybe_unused]] {type_} a{number}" for number, type_ in enumerate(types))
    declaration = f'extern "C" nvmlReturn_t {PREFIX}{name}({", ".join(types)});\n' if is_defined else ""
    return (f"{declaration}nvmlReturn_t {name}({parameters}) {{\n"
            f'  const nvmlReturn_t answer = gpulet::sim::configured_answer("{name}", {handle});\n'
            f"  return answer != NVML_SUCCESS ? answer : {call};\n}}\n")


def main():
    header_path, functions_path, names_path, *source_paths = sys.argv[1:]
    with open(header_path, encoding="utf-8") as header:
        functions = declared(header.read())
    defined = set()
    for path in source_paths:
        with open(path, encoding="utf-8") as source:
            defined.update(DEFINITION.findall(source.read()))
    with open(names_path, "w", encoding="utf-8") as output:
        output.write("// Made by sim/driver/entry_points.py.\n#ifndef GPULET_SIM_ENTRY_POINTS\n")
        for name in sorted(defined & set(functions)):
            output.write(f"#define {name} {PREFIX}{name}\n")
        output.write("#endif\n")
    with open(functions_path, "w", encoding="utf-8") as output:
        output.write("// Made by sim/driver/entry_points.py from nvml.h.\n")
        output.write('#include "sim/driver/call.h"\n\n#pragma GCC diagnostic ignored "-Wdeprecated-declarations"\n\nnamespace {\n\n')
        output.write("nvmlReturn_t unsupported() {\n")
        output.write("  const nvmlReturn_t error = gpulet::sim::enter_driver();\n")
        output.write("  return error != NVML_SUCCESS ? error : NVML_ERROR_NOT_SUPPORTED;\n}\n\n")
        output.write("nvmlReturn_t unsupported(nvmlDevice_t device) {\n")
        output.write("  const auto error = gpulet::sim::GpuCall(device, gpulet::sim::Accepts::kGpuOrMig).entry_error();\n")
        output.write("  return error != NVML_SUCCESS ? error : NVML_ERROR_NOT_SUPPORTED;\n}\n\n}  // namespace\n\n")
        for name in sorted(functions):
            output.write(entry_point(name, functions[name], name in defined))


main()
