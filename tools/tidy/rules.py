"""The style rules (docs/STYLE.md) as data: what each refuses, where it holds, and what to do instead."""
import re
from dataclasses import dataclass

MAX_COLUMNS = 120
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 100


@dataclass
class Ban:
    rule: str
    pattern: re.Pattern
    instead: str
    allowed: re.Pattern = re.compile(r"(?!)")  # paths where it may stand
    raw: bool = False  # looked for in comments and strings too


def ban(rule, pattern, instead, allowed=r"(?!)", raw=False):
    return Ban(rule, re.compile(pattern), instead, re.compile(allowed), raw)


TESTS = r"(_test|_bench|_fuzz)\.cpp$|^tests/|^bench/|/test_[^/]*\.h$"
COMMAND_LINES = r"^src/cli/|^sim/control/|^sim/demo/|^sim/schedule/command\.cpp$|^sim/smi/|^sim/mps/program/|^sim/main\.cpp$|^tools/|"

CODE = [
    ban("environment", r"\b(std::)?(secure_)?getenv\s*\(", "take a value from config (src/config reads the environment, once)",
        r"^src/config/|^src/cli/|^sim/(driver|cuda)/|^sim/mps/program/|^sim/main\.cpp$|^sim/control/|" + TESTS),
    ban("sleep", r"\b(u|nano|clock_nano)?sleep(_for|_until)?\s*\(", "wait for the event: Loop::after, a condition variable, poll",
        r"^sim/driver/"),
    ban("shell", r"\b(system|popen)\s*\(", "base/process.h runs a program without a shell"),
    ban("c-string", r"\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|strncpy|strncat)\s*\(", "std::string, std::format_to or snprintf"),
    ban("number", r"\b(atoi|atol|atoll|atof)\s*\(", "base/text.h or std::from_chars, which say what was wrong"),
    ban("null", r"\bNULL\b", "nullptr"),
    ban("output", r"\b(std::cout|std::cerr|printf|puts|putchar)\b|#include <iostream>|\bfprintf\s*\(\s*std(out|err)",
        "base/log.h, or return text to src/cli", COMMAND_LINES + TESTS),
    ban("namespace", r"^\s*using namespace (?!std::(chrono|string)_literals)", "name what is used: this reaches every includer",
        r"\.cpp$"),
    ban("random", r"\b(rand|srand|random_shuffle)\s*\(", "a seeded std::mt19937_64 that is handed in"),
    ban("nesting", r"\bparse\s*\(.*nullptr, false\)", "parse_json of base/json.h, which limits the nesting", r"^src/base/json\.h$|^sim/|" + TESTS),
    ban("clock", r"\b(steady_clock|system_clock)::now\s*\(", "Loop::now, so that a test can turn the clock",
        r"^src/base/|^sim/|^src/nvml/|^src/cli/|^src/http/|^src/web/|^src/k8s/|^src/device_plugin/|" + TESTS),
    ban("unfinished", r"\b(TODO|FIXME|XXX|HACK)\b", "finish it, or open an issue", raw=True),
    ban("machine-path", r"(/work/(main|shared)|/root/\.|/tmp/build)", "a path of one machine does not belong here", raw=True),
]

# Libraries that cost much to include or throw: the files that may see them. Everything else sees a header of ours.
LIBRARIES = [
    ban("library", r"#include <CLI/", "only the files that make the command line see CLI11", r"^src/arguments/(arguments|command_doc|output)\.cpp$|^src/cli/(main/command(_line|_test)?|commands/\w+|dropin/\w+|kubectl/program|top/command)\.cpp$|^sim/(main|control/\w+|schedule/\w+|demo/\w+)\.cpp$"),
    ban("library", r"#include <spdlog/", "base/log.h", r"^src/base/log\.cpp$"),
    ban("library", r"#include <grpc", "device_plugin/ and dra/ speak gRPC; others hand them values",
        r"^src/device_plugin/|^src/dra/|^sim/kubelet/|^bench/|" + TESTS),
    ban("library", r"#include <boost/", "http/ speaks HTTP; base/loop.h waits", r"^src/(http|web|k8s)/|" + TESTS),
    ban("library", r"#include <yaml-cpp/", "config/yaml.h", r"^src/config/|^sim/machine/"),
    ban("library", r"#include <openssl/", "http/ and k8s/", r"^src/(http|k8s|web)/|" + TESTS),
    ban("library", r"#include <(zlib|crypt)\.h", "http/", r"^src/(http|web)/|" + TESTS),
    ban("library", r"#include <(n?curses|term)\.h", "cli/top/terminal.h", r"^src/cli/top/terminal\.cpp$"),
    ban("library", r"#include <seccomp", "web/", r"^src/web/"),
    ban("library", r"#include [<\"]nvml\.h", "only nvml/ sees the C ABI", r"^src/nvml/|^sim/driver/|^sim/smi/|" + TESTS),
]
HEAVY_IN_HEADERS = re.compile(r"#include <(nlohmann|rapidjson|grpc|boost|yaml-cpp|spdlog|CLI)/")
THROWING_LIBRARY = re.compile(r"#include <(yaml-cpp|nlohmann|boost|CLI|regex|spdlog)")
EXCEPTIONS = re.compile(r"\b(throw\b(?!\()|try\s*\{|catch\s*\()")
ARCHITECTURE = re.compile(r"^\s*#if\s.*\b__(aarch64|x86_64)__")
DEFINED = re.compile(r"\b(?:constexpr|const)\b[^=;({]*?\b(\w+)\s*(?:=|\{|\[)|^\s*#define\s+(\w+)")
THREADS = re.compile(r"\bstd::j?thread\b(?!::)|\bpthread_create\s*\(")
