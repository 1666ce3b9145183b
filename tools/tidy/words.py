"""Words that a reader of Kubernetes or NVIDIA documentation cannot search for, and what to write instead (docs/STYLE.md).

They are refused where users see them: in the string literals of what ships and simulates, and in the docs.
"""
import re

RETIRED = [(re.compile(rf"\b({words})\b", re.IGNORECASE), instead) for words, instead in [
    ("anew", "again"),
    ("whom", "name it: the Pod, the kubelet, the API server"),
    ("(?<!--)folders?", "directory"),
    ("wish(es|ed)?", "request, target or command"),
    ("tells|told|telling|(?<!cannot )(?<!can )tell", "report, publish, send, log, set"),
    ("standing", "status"),
    ("make it so", "apply"),
    ("put right", "fix"),
    ("so many", "N"),
    ("would do", "expected …"),
    ("nobody's", "unattributed, unowned"),
    ("of the house", "of the project"),
    ("mend(s|ed|ing)?", "fix"),
    ("taken? away", "removed"),
]]
LITERAL = re.compile(r'R"([^()\\ ]{0,16})\((.*?)\)\1"|//[^\n]*|/\*.*?\*/|"((?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def literals(source):
    """(line, text) of each string literal of a C++ source, but the names of included files."""
    for match in LITERAL.finditer(source):
        text = match[2] if match[2] is not None else match[3]
        if text is not None and not source[source.rfind("\n", 0, match.start()) + 1:match.start()].lstrip().startswith("#include"):
            yield source.count("\n", 0, match.start()) + 1, text


def prose(source):
    """(line, text) of a Markdown page without its code: blocks and `spans`."""
    block = False
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("```"):
            block = not block
        elif not block:
            yield number, re.sub(r"`[^`]*`", "", line)


def retired_words(texts):
    """(line, word, what to write instead) of each retired word in (line, text) pairs."""
    for number, text in texts:
        for pattern, instead in RETIRED:
            match = pattern.search(text)
            if match:
                yield number, match[0], instead
