"""Compares the Chinese pages, docs/zh/NAME.md and examples/README.zh-CN.md, with their English originals, and searches the site as a
reader does."""
import functools
import http.server
import os
import pathlib
import re
import threading
import urllib.parse

from playwright.sync_api import Error, sync_playwright

CHROMIUM = "/usr/bin/chromium"
LIMIT_MS = 20_000
# What readers search for, and a page that they must find.
SEARCHES = {"time slicing": "partition.html", "getting started": "getting-started.html", "faq": "faq.html",
            "健康检查": "zh/health.html", "显存": "zh/partition.html", "时间片": "zh/partition.html", "资源配额": "zh/partition.html",
            "弹性伸缩": "zh/autoscaling.html", "自动扩缩": "zh/autoscaling.html", "流水线": "examples/README.zh-CN.html",
            "推理服务": "examples/README.zh-CN.html"}
LINK = re.compile(r"\]\(([^):#]+\.md)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def anchor(heading):
    """Returns the id that the site gives an English heading."""
    words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def features(text):
    """Returns what a page and its translation have in common, as lists of texts by kind."""
    prose = FENCE.sub("", text)
    headings = re.findall(r"^(#+) (.*?)(?: \{#([^}]*)\})?$", prose, re.MULTILINE)
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    return {
        "heading": [f"{level} {ident or anchor(title)}" for level, title, ident in headings],
        "command": [re.sub(r"(^|\s+)#.*", "", line).rstrip() for block in FENCE.findall(text) for line in block.splitlines()],
        "row": [f"row {number} of the tables" for number, _ in enumerate(rows)],
        "setting": sorted(set(re.findall(r"`[^`\n]+`", prose))),
    }


def find_difference(original, translation):
    """Returns what the translation lacks, or None. It may name more settings than its original, in another order."""
    translated = features(translation)
    for kind, wanted in features(original).items():
        found = translated[kind]
        missing = [one for one in wanted if one not in found]
        if missing:
            return f"lacks the {kind} {missing[0]}"
        if kind != "setting" and found != wanted:
            first = next((pair for pair in zip(found, wanted) if pair[0] != pair[1]), (found[-1], "nothing"))
            return f"has the {kind} {first[0]} where the original has {first[1]}"
    return None


def translated_pages(root):
    """Returns translation → original, which may not exist."""
    pages = {page: root / "docs" / page.name for page in sorted((root / "docs" / "zh").glob("*.md"))}
    return {**pages, root / "examples" / "README.zh-CN.md": root / "examples" / "README.md"}


def link_to_original(page, text, pages):
    """Returns a link to an English page that has a translation, or None. Its own original is what it switches to."""
    originals = {original: translation for translation, original in pages.items()}
    for link in LINK.findall(text):
        to = pathlib.Path(os.path.normpath(page.parent / link))
        if to in originals and to != pages[page]:
            return link
    return None


def check_translations(root):
    pages = translated_pages(root)
    for page, original in pages.items():
        name = page.relative_to(root)
        if not page.exists() or not original.exists():
            return f"{original.relative_to(root)} or its translation {name} is missing"
        text = page.read_text(encoding="utf-8")
        difference = find_difference(original.read_text(encoding="utf-8"), text)
        if difference:
            return f"{name} {difference}"
        if link := link_to_original(page, text, pages):
            return f"{name} links the English {link}, which is translated"
    return None


def site_page(page, root):
    """Returns the path in the site of a page of the repository."""
    place = page.relative_to(root / "docs" if page.is_relative_to(root / "docs") else root).with_suffix(".html")
    return str(place.with_name("index.html") if place.name == "README.html" else place)


def check_switch(root, site):
    """Each page with a translation and the translation link each other, and the Chinese index links each Chinese page."""
    index = (site / "zh" / "index.html").read_text(encoding="utf-8").partition("<article")[2]
    for translation, original in translated_pages(root).items():
        one, other = site_page(original, root), site_page(translation, root)
        for page, to, label in ((one, other, "中文"), (other, one, "English")):
            article = (site / page).read_text(encoding="utf-8").partition("<article")[2]
            link = f'<a href="{os.path.relpath(to, os.path.dirname(page))}">{label}</a>'
            if article.count(link) != 1:
                return f"{page} has {article.count(link)} links {link}"
        if other != "zh/index.html" and f'href="{os.path.relpath(other, "zh")}' not in index:
            return f"zh/index.html does not link {other}"
    return None


def check_that_omissions_are_found():
    """A translation that lacks a heading, a command, a row or a setting is found."""
    original = "# Use `a`\n\n## Check it\n\n```\nrun a # now\nrun b\n```\n\n| key |\n|---|\n| `x.y` |\n| z |\n"
    good = "# 使用 `a` {#use-a}\n\n## 检查 {#check-it}\n\n```\nrun a # 现在\nrun b\n```\n\n| 键 |\n|---|\n| `x.y` |\n| z |\n"
    if find_difference(original, good):
        return f"a complete translation {find_difference(original, good)}"
    for omission in ("## 检查 {#check-it}\n", "run b\n", "| z |\n", "`x.y`", "`a` "):
        if not find_difference(original, good.replace(omission, "", 1)):
            return f"nothing is reported without {omission!r}"
    return None if find_difference(original, good.replace("run a", "run c")) else "a changed command is not reported"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def check_search(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            for words, wanted in SEARCHES.items():
                page.goto(f"http://127.0.0.1:{server.server_port}/index.html?q={urllib.parse.quote(words)}")
                try:
                    page.wait_for_selector(f".md-search-result__link[href*='/{wanted}']", timeout=LIMIT_MS)
                except Error:
                    found = [link.get_attribute("href") for link in page.query_selector_all(".md-search-result__link")]
                    return f"a search for {words} finds {found or 'nothing'}, not {wanted}"
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    return None
