"""docs/getting-started.md as its readers use it: the commands that each numbered section has them type, and what they see.

A fenced block has commands; one that begins with ```text is the output of the command before it, where … stands for any text. Commands
in a sentence count too. tests/cluster types those of CLUSTER_SECTIONS, tests/docs those of SIMULATED_SECTION."""
import pathlib
import re
import typing

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "getting-started.md"
CLUSTER_SECTIONS, SIMULATED_SECTION = (1, 2, 3, 4), 5
SECTION = re.compile(r"^## (?:(\d+)\. )?.*$", re.MULTILINE)
TYPED = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<block>.*?)^```|`(?P<inline>(?:kubectl|helm|make|gpulet|gpulet-sim|out/bin/\S+)\s[^`]*)`",
                   re.MULTILINE | re.DOTALL)
HEREDOC = re.compile(r"<<(\w+)")


class Step(typing.NamedTuple):
    command: str       # as written, of several lines where a here-document or a backslash continues it
    output: str | None  # as the page shows it


def split_commands(block):
    """Returns the commands of a block of lines."""
    commands, end = [], None
    continued = False
    for line in block.splitlines():
        if continued:
            commands[-1] += "\n" + line
        elif line.strip():
            commands.append(line)
        else:
            continue
        if end is None:
            end = found[1] if (found := HEREDOC.search(line)) else None
        elif line == end:
            end = None
        continued = end is not None or line.endswith("\\")
    return commands


def steps_of(text):
    steps = []
    for found in TYPED.finditer(text):
        if found["kind"] == "text":
            steps[-1] = steps[-1]._replace(output=found["block"])
        else:
            typed = split_commands(found["block"]) if found["block"] else [" ".join(found["inline"].split())]
            steps += [Step(command, None) for command in typed]
    return steps


def sections(text=None):
    """Returns number → steps. Raises an AssertionError for a command that is in no section that a test runs."""
    text = PAGE.read_text(encoding="utf-8") if text is None else text
    heads = list(SECTION.finditer(text))
    found = {}
    for head, end in zip([None, *heads], [*[head.start() for head in heads], len(text)], strict=True):
        number = int(head[1]) if head and head[1] else None
        steps = steps_of(text[head.end() if head else 0:end])
        if steps and number not in (*CLUSTER_SECTIONS, SIMULATED_SECTION):
            raise AssertionError(f"no test runs `{steps[0].command}` of `{head[0] if head else 'the beginning'}`")
        if number:
            found[number] = steps
    missing = {*CLUSTER_SECTIONS, SIMULATED_SECTION} - {number for number, steps in found.items() if steps}
    if missing:
        raise AssertionError(f"{PAGE.name} has no commands in its sections {sorted(missing)}")
    return found


def shows(expected, output):
    """Whether a command's output is what the page shows, whatever the width of columns."""
    def lines(text):
        return [" ".join(line.split()) for line in text.strip().splitlines()]
    pattern = "\n".join(re.escape(line).replace("…", ".+") for line in lines(expected))
    return re.fullmatch(pattern, "\n".join(lines(output))) is not None


def check_reading():
    """The page's rules on a sample; a command outside of the sections that tests run is found."""
    sample = "".join(f"## {number}. Title\n\n```\nrun {number} \\\n  more\napply <<EOF\na: b\n\nEOF\nlast\n```\n\n```text\nA   B\n1 …\n```\n\n"
                     "Type `kubectl get\nall`, not `ls`.\n\n" for number in (*CLUSTER_SECTIONS, SIMULATED_SECTION))
    steps = sections(sample)[1]
    wanted = [("run 1 \\\n  more", None), ("apply <<EOF\na: b\n\nEOF", None), ("last", "A   B\n1 …\n"), ("kubectl get all", None)]
    if steps != wanted:
        return f"read {steps}"
    if not shows(steps[2].output, "A B\n1  2 3\n") or shows(steps[2].output, "A B\n2 2\n") or shows(steps[2].output, "A B\n1 2\nC\n"):
        return "outputs are not compared"
    for more in ("## 6. More\n\n```\nrun\n```\n", "## Next\n\nTry `helm list`.\n"):
        try:
            sections(sample + more)
        except AssertionError:
            continue
        return f"{more!r} is not found"
    return None
