"""Checks the rules of the house on a tree of sources: layers, sizes, banned calls with their replacement.

  tools/tidy/tidy.py [ROOT]   prints `file:line: rule: what instead`, one a line; exit status 1 when there is any

A line may be excused by a comment on it that gives the reason: `// tidy: RULE because …`.
"""
import pathlib
import re
import subprocess
import sys

import rules

INCLUDE = re.compile(r'^\s*#include "([^"]+)"')
EXCUSE = re.compile(r"// tidy: ([a-z-]+) because \S+")


def blank(source):
    """The source with comments and the insides of strings blanked out, line for line."""
    pattern = re.compile(
        r'R"([^()\\ ]{0,16})\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

    def replace(match):
        text = match[0]
        if text.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", text)
        if text[0] == "'" and match.start() > 0 and source[match.start() - 1].isalnum():
            return text  # a digit separator
        return '"' + re.sub(r"[^\n]", " ", text[1:-1]) + '"'
    lines = []
    for line, original in zip(pattern.sub(replace, source).split("\n"), source.split("\n")):
        lines.append(original if original.lstrip().startswith("#include") else line)
    return lines


class Rooms:
    """What each room may include, from the link lists of gpulet_room(...)."""

    def __init__(self, root):
        self.folders, self.links, self.private, self.for_tests = {}, {}, {}, {}
        for listing in sorted(root.glob("*/CMakeLists.txt")):
            for call in re.finditer(r"^gpulet_room\((\w+)([^)]*)\)", re.sub(r"\$\{CMAKE_CURRENT_SOURCE_DIR\}",
                                    str(listing.parent.relative_to(root)), listing.read_text()), re.MULTILINE):
                self.add(call[1], call[2].split(), listing.parent.relative_to(root))

    def add(self, name, words, place):
        folder, lists, current = place / name, {"LINKS": [], "PRIVATE_LINKS": [], "TEST_LINKS": []}, None
        for word in words:
            if word in lists or word == "FOLDER":
                current = word
            elif current == "FOLDER":
                folder = pathlib.PurePath(word)
            else:
                lists[current].append(word)
        self.folders[folder.as_posix()] = name
        self.links[name], self.private[name], self.for_tests[name] = lists.values()

    def closure(self, names):
        seen, left = set(), list(names)
        while left:
            name = left.pop()
            if name not in seen and name in self.links:
                seen.add(name)
                left += self.links[name]
        return seen

    def room_of(self, path):
        return self.folders.get(pathlib.PurePath(path).parent.as_posix())

    def room_of_include(self, text):
        folder = pathlib.PurePath(text).parent.as_posix()
        return self.folders.get(f"src/{folder}") or self.folders.get(folder)

    def refusal(self, path, included):
        """Why `path` may not include `included`, or None."""
        room, other = self.room_of(path), self.room_of_include(included)
        if not room or not other or room == other:
            return None
        names = [room, *self.private[room]]
        if re.search(rules.TESTS, path):
            names += self.for_tests[room]
        if other in self.closure(names):
            return None
        return f"{room} does not link {other}: what it needs belongs in a room that it links, or the link in CMakeLists.txt"


def functions(lines):
    """(first line, number of lines) of each function body, by its braces."""
    found, stack, head = [], [], ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            continue
        for character in line:
            if character == "{":
                inside = any(kind == "function" for kind, _ in stack)
                text = head.strip()
                is_function = not inside and re.search(r"\)\s*(const|noexcept|override|final|mutable|&|->[^;{}]*|:[^:;].*)*\s*$", text,
                                                       re.DOTALL) and not re.match(r"(namespace|class|struct|enum|union)\b", text)
                stack.append(("function" if is_function else "other", number))
                head = ""
            elif character == "}":
                if stack:
                    kind, first = stack.pop()
                    if kind == "function":
                        found.append((first, number - first + 1))
                head = ""
            elif character == ";":
                head = ""
            else:
                head += character
        head += "\n"
    return found


class Checker:
    def __init__(self, root, paths):
        self.root, self.paths, self.rooms = root, paths, Rooms(root)
        threads = root / "docs" / "THREADS.md"
        self.thread_files = set(re.findall(r"`([\w/]+\.cpp)`", threads.read_text())) if threads.exists() else set()
        self.findings = []

    def run(self):
        for path in self.paths:
            self.check(path)
        return self.findings

    def check(self, path):
        source = (self.root / path).read_text(encoding="utf-8")
        original, code = source.split("\n"), blank(source)

        def report(number, rule, instead):
            excuse = EXCUSE.search(original[number - 1]) if number <= len(original) else None
            if not excuse or excuse[1] != rule:
                self.findings.append((path, number, rule, instead))
        self.check_whole(path, original, code, report)
        for number, line in enumerate(code, 1):
            self.check_line(path, number, line, original[number - 1], report)
        throwing = any(rules.THROWING_LIBRARY.search(line) for line in code)
        test = re.search(rules.TESTS, path)
        for number, line in enumerate(code, 1):
            if not throwing and not test and rules.EXCEPTIONS.search(line):
                report(number, "exception", "return a Result; only the file that wraps a throwing library sees exceptions")
            if path not in self.thread_files and not test and rules.THREADS.search(line):
                report(number, "thread", "post to the loop; a thread that must be is listed with its file in docs/THREADS.md")

    def check_whole(self, path, original, code, report):
        if len(original) - 1 > rules.MAX_FILE_LINES:
            report(1, "file-size", f"{len(original) - 1} lines, at most {rules.MAX_FILE_LINES}: one concept per file pair")
        for first, count in functions(code):
            if count > rules.MAX_FUNCTION_LINES:
                report(first, "function-size", f"{count} lines, at most {rules.MAX_FUNCTION_LINES}: name its parts")
        if not path.endswith(".h"):
            return
        if not original[0].startswith("//"):
            report(1, "header-comment", "begin with what this is, its shapes, units, errors and source")
        if not any(line == "#pragma once" for line in original):
            report(1, "pragma-once", "#pragma once after the header comment")

    def check_line(self, path, number, line, raw, report):
        if len(raw) > rules.MAX_COLUMNS:
            report(number, "columns", f"{len(raw)} columns, at most {rules.MAX_COLUMNS}")
        if raw != raw.rstrip() or "\t" in raw:
            report(number, "whitespace", "no tabs, nothing after the last word")
        for banned in rules.CODE + rules.LIBRARIES:
            if banned.pattern.search(raw if banned.raw else line) and not banned.allowed.search(path):
                report(number, banned.rule, banned.instead)
        if path.endswith(".h") and rules.HEAVY_IN_HEADERS.search(line):
            report(number, "heavy-header", "forward declare it: this header is compiled again for every includer")
        include = INCLUDE.match(line)
        refusal = include and self.rooms.refusal(path, include[1])
        if refusal:
            report(number, "layer", refusal)


def sources(root):
    """Every C++ file that git knows or would add, below root."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--deduplicate"], cwd=root, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    return sorted(path for path in listed if path.endswith((".cpp", ".h")) and "/samples/" not in f"/{path}" and
                  (root / path).exists())


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent.parent).resolve()
    findings = Checker(root, sources(root)).run()
    for path, number, rule, instead in findings:
        print(f"{path}:{number}: {rule}: {instead}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
