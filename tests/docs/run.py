#!/usr/bin/python3
"""Builds the docs site as `make docs` does, in strict mode: every link, heading and page of the navigation must exist, no page may
fetch from other hosts, the two READMEs must agree, the Chinese pages with their originals, and the tutorial must work with the
programs of `make build`. Ends in `N passed, N failed`.

  tests/docs/run.py             builds into out/docs
"""
import html.parser
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE", pathlib.Path.home() / ".cache" / "gpulet"))
VENV = CACHE / "venv"
if pathlib.Path(sys.prefix) != VENV and (VENV / "bin" / "python").exists():
    os.execv(VENV / "bin" / "python", [str(VENV / "bin" / "python"), *sys.argv])  # where scripts/bootstrap put Playwright
sys.path.insert(0, str(ROOT / "tests"))
import outcome  # noqa: E402

import translations  # noqa: E402
import tutorial  # noqa: E402
import tutorial_page  # noqa: E402

DOCS = ROOT / "docs"
SITE = ROOT / "out" / "docs"
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
LIST = re.compile(r"(- |\d+\. |\|)")
MAX_WORDS = 35_000  # of all English pages, as `wc -w` counts
LARGEST_PAGES = 8  # named when there are more


def check_site():
    # Not quietly: mkdocs would not count its warnings either.
    built = subprocess.run([CACHE / "docs" / "bin" / "mkdocs", "build", "--strict"], cwd=ROOT, capture_output=True,
                           text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=100, check=False)
    if built.returncode != 0 or not (SITE / "index.html").exists():
        said = [line for line in (built.stderr + built.stdout).splitlines() if line.strip() and not line.startswith("INFO")]
        return "; ".join(said)
    return None


class Assets(html.parser.HTMLParser):
    """URLs that a browser fetches with a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video") or (tag == "link" and given.get("rel") != "canonical"):
            self.found += [given[name] for name in ("src", "href") if given.get(name)]


def check_nothing_from_elsewhere():
    pages = sorted(SITE.rglob("*.html"))
    for page in pages:
        assets = Assets()
        assets.feed(page.read_text())
        for asset in assets.found:
            if re.match(r"(\w+:)?//", asset):
                return f"{page.relative_to(SITE)} fetches {asset}"
    for sheet in SITE.rglob("*.css"):
        if re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()):
            return f"{sheet.relative_to(SITE)} fetches from elsewhere"
    return None if len(pages) > 20 else f"only {len(pages)} pages"


def check_lists():
    """Markdown requires a blank line before a list or a table."""
    for page in sorted(DOCS.rglob("*.md")):
        code, before = False, ""
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("```"):
                code = not code
            elif not code and LIST.match(line) and before.strip() and not before.startswith((" ", "```", "<!--")) \
                    and not LIST.match(before):
                return f"{page.relative_to(ROOT)}:{number}: a list without a blank line before it"
            before = line
    return None


def word_counts():
    """Returns (words, page) of what `wc -w docs/*.md README.md docs/adr/*.md examples/README.md` counts, the largest first."""
    pages = [*DOCS.glob("*.md"), READMES[0], *DOCS.glob("adr/*.md"), ROOT / "examples" / "README.md"]
    return sorted(((len(page.read_text(encoding="utf-8").split()), page.relative_to(ROOT)) for page in pages), reverse=True)


def check_words(limit=MAX_WORDS):
    """One fact in one place: a page that grows makes another shrink, or links to it."""
    counts = word_counts()
    total = sum(words for words, _ in counts)
    largest = ", ".join(f"{page} {words}" for words, page in counts[:LARGEST_PAGES])
    return f"{total} words in {len(counts)} pages, at most {limit}; the largest: {largest}" if total > limit else None


def check_that_excess_is_found():
    total = sum(words for words, _ in word_counts())
    largest = str(word_counts()[0][1])
    if check_words(total) or largest not in (check_words(total - 1) or ""):
        return f"one word more than {total - 1} is not reported with {largest}"
    return None


def check_decisions():
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (DOCS / "adr/README.md").read_text(), re.MULTILINE)
    there = [(page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in sorted((DOCS / "adr").glob("0*.md"))]
    wrong = sorted(set(listed) ^ set(there))
    return f"docs/adr/README.md and the pages differ: {wrong[0]}" if listed != there else None


def links(text):
    return re.findall(r"\]\(([^)]*)\)", text)


def without_code_comments(block):
    return [re.sub(r"\s+#.*", "", line) for line in block.splitlines()]


def check_readmes():
    english, chinese = (page.read_text() for page in READMES)
    commands = [[without_code_comments(block) for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
                for text in (english, chinese)]
    same = {
        "headings": [len(re.findall(r"^#+ ", text, re.MULTILINE)) for text in (english, chinese)],
        "commands": commands,
        "links, but to each other": [[link for link in links(text) if not link.startswith("README")] for text in (english, chinese)],
        "rows of tables": [len(re.findall(r"^\|", text, re.MULTILINE)) for text in (english, chinese)],
        "figures": [figures(text) for text in (english, chinese)],
    }
    for what, (one, other) in same.items():
        if one != other:
            parts = [pair for pair in zip(one, other) if pair[0] != pair[1]] if isinstance(one, list) else []
            return f"README.md and README.zh-CN.md differ in {what}: {parts[0] if parts else (one, other)}"
    return None


def figures(text):
    """Returns the numbers of each table row, with units."""
    rows = [re.sub(r"\]\([^)]*\)|`[^`]*`", "", line) for line in text.splitlines() if line.startswith("|")]
    return [sorted(re.findall(r"\d+(?:[.,]\d+)*(?: (?:ms|MB)\b)?", row)) for row in rows]


def check_compared():
    """Checks that README.md's comparison matches docs/compared.md."""
    section = READMES[0].read_text().split("## Compared with NVIDIA's stack")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "NVIDIA |" not in line]
    shown = (DOCS / "compared.md").read_text()
    for row in rows:
        if f"\n{row.removesuffix('|')}| " not in shown:
            return f"docs/compared.md has no row {row}"
    return None if len(rows) > 5 else "README.md compares nothing"


def check_readme_links():
    for page in READMES:
        for link in links(page.read_text()):
            if not link.startswith("http") and not (ROOT / link.partition("#")[0]).exists():
                return f"{page.name}: {link} is not there"
    return None


CHECKS = [("site", check_site), ("nothing from elsewhere", check_nothing_from_elsewhere), ("lists", check_lists),
          ("words", check_words), ("excess of words", check_that_excess_is_found), ("decisions", check_decisions),
          ("READMEs say the same", check_readmes), ("links of the READMEs", check_readme_links),
          ("README's figures", check_compared), ("translations", lambda: translations.check_translations(ROOT)),
          ("omissions of translations", translations.check_that_omissions_are_found),
          ("switch of language", lambda: translations.check_switch(ROOT, SITE)),
          ("search", lambda: translations.check_search(SITE)),
          ("reading of the tutorial", tutorial_page.check_reading),
          ("the tutorial's simulated node", tutorial.check_simulated_node)]


def main():
    return outcome.report_checks(CHECKS)


if __name__ == "__main__":
    sys.exit(main())
