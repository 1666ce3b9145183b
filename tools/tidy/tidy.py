"""Checks the style rules on a tree of sources: layers, sizes, banned calls with their replacement.

  tools/tidy/tidy.py [ROOT]   prints `file:line: rule: what instead`, one a line; exit status 1 when there is any

A line may be excused by a comment on it that gives the reason: `// tidy: RULE because …`.
"""
import pathlib
import re
import subprocess
import sys

import names
import rules
import words

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


class Libraries:
    """What each library may include, from the link lists of gpulet_library(...)."""

    def __init__(self, root):
        self.directories, self.links, self.private, self.for_tests = {}, {}, {}, {}
        for listing in sorted(root.glob("*/CMakeLists.txt")):
            for call in re.finditer(r"^gpulet_library\((\w+)([^)]*)\)", re.sub(r"\$\{CMAKE_CURRENT_SOURCE_DIR\}",
                                    str(listing.parent.relative_to(root)), listing.read_text()), re.MULTILINE):
                self.add(call[1], call[2].split(), listing.parent.relative_to(root))

    def add(self, name, words, place):
        directory, lists, current = place / name, {"LINKS": [], "PRIVATE_LINKS": [], "TEST_LINKS": []}, None
        for word in words:
            if word in lists or word == "DIRECTORY":
                current = word
            elif current == "DIRECTORY":
                directory = pathlib.PurePath(word)
            else:
                lists[current].append(word)
        self.directories[directory.as_posix()] = name
        self.links[name], self.private[name], self.for_tests[name] = lists.values()

    def closure(self, names):
        seen, left = set(), list(names)
        while left:
            name = left.pop()
            if name not in seen and name in self.links:
                seen.add(name)
                left += self.links[name]
        return seen

    def library_of(self, path):
        """The library of the nearest directory above the path that is one."""
        return next(filter(None, (self.directories.get(parent.as_posix()) for parent in pathlib.PurePath(path).parents)), None)

    def library_of_include(self, text):
        return self.library_of(f"src/{text}") or self.library_of(text)

    def refusal(self, path, included):
        """Why `path` may not include `included`, or None."""
        library, other = self.library_of(path), self.library_of_include(included)
        if not library or not other or library == other:
            return None
        names = [library, *self.private[library]]
        if re.search(rules.TESTS, path):
            names += self.for_tests[library]
        if other in self.closure(names):
            return None
        return f"{library} does not link {other}: move what it needs to a library that it links, or add the link in CMakeLists.txt"


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


def uneven_branches(lines):
    """Yields (line, names) for #if branches by architecture of which one does not define what another does: only a cross build of
    that architecture would notice."""
    branches, start, depth = [], 0, 0
    for number, line in enumerate(lines, 1):
        if not branches:
            if rules.ARCHITECTURE.search(line):
                branches, start, depth = [set()], number, 0
            continue
        directive = line.strip()
        depth += directive.startswith("#if")
        if directive.startswith("#endif"):
            if depth == 0:
                defined = [names for names in branches if names is not None]
                uneven = set.union(*defined, set()) - set.intersection(*defined) if defined else set()
                if uneven:
                    yield start, sorted(uneven)
                branches = []
            depth -= 1
        elif depth == 0 and directive.startswith(("#elif", "#else")):
            branches.append(set())
        elif directive.startswith("#error"):
            branches[-1] = None
        elif branches[-1] is not None:
            branches[-1].update(name for found in rules.DEFINED.findall(line) for name in found if name)


class Checker:
    def __init__(self, root, paths):
        self.root, self.paths, self.libraries = root, paths, Libraries(root)
        threads = root / "docs" / "THREADS.md"
        self.thread_files = set(re.findall(r"`([\w/]+\.cpp)`", threads.read_text())) if threads.exists() else set()
        self.findings = []

    def run(self):
        for path in self.paths:
            self.check(path)
        self.check_names()
        for page in sorted(path.relative_to(self.root).as_posix() for path in (self.root / "docs").rglob("*.md")) + ["README.md"]:
            if (self.root / page).exists():
                self.check_words(page, words.prose((self.root / page).read_text(encoding="utf-8")))
        return self.findings

    def check_names(self):
        product = [path for path in self.paths if is_product(path)]
        sources = [(path, blank((self.root / path).read_text(encoding="utf-8"))) for path in product]
        for path, line, name, owners in names.shared_names(sources):
            self.findings.append((path, line, "shared-name", f"{name} names {len(owners)} unrelated functions, at most "
                                  f"{names.MAX_OWNERS}: say what it does to what ({', '.join(owners)})"))

    def check_words(self, path, texts, lines=()):
        for number, word, instead in words.retired_words(texts):
            excuse = EXCUSE.search(lines[number - 1]) if number <= len(lines) else None
            if excuse and excuse[1] == "word":
                continue
            self.findings.append((path, number, "word", f"'{word}': {instead}"))

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
        if is_product(path):
            self.check_words(path, words.literals(source), original)
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
        for first, names in uneven_branches(code):
            report(first, "architecture", f"{', '.join(names)}: define it in each branch")
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
        refusal = include and self.libraries.refusal(path, include[1])
        if refusal:
            report(number, "layer", refusal)


def is_product(path):
    """Whether a path is code that ships or simulates, not a test, benchmark, fuzz target or their helper."""
    return path.startswith(("src/", "sim/")) and not re.search(rules.TESTS, path)


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
