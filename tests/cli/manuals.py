"""Help and man pages, which are made of the same options."""
import re
import subprocess

COLUMNS = 80
LIMIT_S = 30


def commands(node, *path):
    """Yields each command, as words, by what the completion lists."""
    lines = node.run(["gpulet", "__complete", *path, ""]).stdout.splitlines()
    for name in [line.split("\t")[0] for line in lines]:
        if re.fullmatch(r"[a-z-]+", name) and (not path or path[0] not in ("completion", "help")):
            yield (*path, name)
            yield from commands(node, *path, name)


def check_help(node, words):
    shown = node.run(["gpulet", *words, "--help"])
    same = node.run(["gpulet", "help", *words])
    if shown.returncode or same.returncode or shown.stdout != same.stdout:
        return f"`gpulet help {' '.join(words)}` differs from --help: {same.stderr}"
    lines = shown.stdout.splitlines()
    if "Examples:" not in lines:
        return "no example"
    titles = [line for line in lines if re.fullmatch(r"[A-Z][^:]*:", line)]
    if len(titles) != len(set(titles)):
        return f"a title twice: {titles}"
    longest, length, title = "", 0, ""
    for line in lines:
        if line in titles:
            title, length = line, 0
        elif line.startswith("  -"):
            length += 1
            if length > 20:
                longest = title
    if longest:
        return f"more than 20 options below {longest}"
    examples = lines[lines.index("Examples:"):]
    end = next(at for at, line in enumerate(examples) if not line)
    broad = [line for line in lines if len(line) > COLUMNS and " " in line.strip() and line not in examples[:end]]
    return f"wider than {COLUMNS} columns: {broad[0]!r}" if broad else None


def check_own_examples(node, name):
    lines = node.run(["gpulet-sim", name, "--help"]).stdout.splitlines()
    shown = "\n".join(lines).partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    others = [line for line in shown if not line.startswith(f"  gpulet-sim {name}")]
    return f"not an example of {name}: {others or lines}" if others or not shown else None


def check_page(path):
    text = path.read_text()
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path], capture_output=True, text=True,
                          timeout=LIMIT_S, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"},
                          check=False)
    if done.returncode or done.stderr:
        return f"man: exit code {done.returncode}, {done.stderr[:300]}"
    sections = re.findall(r"^\.SH (.*)", text, re.MULTILINE)
    wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS"]
    return None if [one for one in sections if one in wanted] == wanted else f"sections {sections}"


def check_text(node, directory):
    """What a reader sees of one page has the words of the help."""
    shown = subprocess.run(["man", "-E", "UTF-8", "-l", directory / "gpulet-list.1"], capture_output=True, text=True, timeout=LIMIT_S,
                           env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"}, check=False).stdout
    shown = re.sub(r".\x08", "", shown)
    for wanted in ("-o, --output FORMAT", "output format: table, wide, json or yaml", "gpulet list -o json"):
        if wanted not in shown:
            return f"no {wanted!r} in {shown}"
    return None


def checks(node):
    directory = node.directory / "man"
    directory.mkdir()
    made = node.run(["gpulet", "help", "--man-dir", str(directory)])
    pages = sorted(directory.glob("*.1"))
    all_commands = [(), *commands(node)]
    wanted = {"gpulet.1", *(f"gpulet-{words[0]}.1" for words in all_commands if words), "kubectl-gpulet.1"}
    yield "pages are written", lambda: made.stderr or (
        None if {page.name for page in pages} == wanted and len(wanted) > 20 else f"{[page.name for page in pages]}, not {wanted}")
    for page in pages:
        yield page.name, lambda page=page: check_page(page)
    yield "text", lambda: check_text(node, directory)
    for name in ("demo", "schedule"):
        yield f"gpulet-sim {name} --help", lambda name=name: check_own_examples(node, name)
    for words in all_commands:
        yield f"gpulet {' '.join(words)} --help", lambda words=words: check_help(node, words)
