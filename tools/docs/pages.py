"""A hook of mkdocs that adds pages to those of docs/ in mkdocs.yml, and links each page and its translation."""
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

FROM_THE_ROOT = ["CONTRIBUTING.md", "CHANGELOG.md"]
EXAMPLES, CHINESE_EXAMPLES = "examples/README.md", "examples/README.zh-CN.md"


def on_config(config):
    """Lists the decisions, in their order, below the entry of the navigation that names their directory."""
    directory = pathlib.Path(config.docs_dir)
    pages = [directory / "adr" / "README.md", *sorted((directory / "adr").glob("0*.md"))]
    shelf = next(entry for entry in config.nav if "Decisions" in entry)
    shelf["Decisions"] = [str(page.relative_to(directory)) for page in pages]
    return config


def on_files(files, config):
    """Adds pages from outside docs/, with links adjusted, and the examples unchanged."""
    root = pathlib.Path(config.docs_dir).parent
    for example in sorted(path for path in (root / "examples").rglob("*") if path.suffix in (".md", ".py", ".yaml")):
        files.append(File.generated(config, str(example.relative_to(root)), content=example.read_text(encoding="utf-8")))
    for name in FROM_THE_ROOT:
        text = (root / name).read_text(encoding="utf-8")
        text = re.sub(r"\[([^\]]*)\]\(LICENSE\)", r"\1", text.replace("](docs/", "]("))
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown, page, files, **_):
    """Adjusts links to the examples, which are beside docs/ in the repository and below it here, and adds the language switch."""
    up = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace(f"]({up}../examples/", f"]({up}examples/")
    language, other = counterpart(page.file.src_uri)
    link = posixpath.relpath(other, posixpath.dirname(page.file.src_uri))
    if not files.get_file_from_path(other) or f"]({link})" in markdown.partition("\n## ")[0]:
        return markdown
    return re.sub(r"^# .*$", lambda heading: f"{heading[0]}\n\n[{language}]({link})", markdown, count=1, flags=re.MULTILINE)


def counterpart(name):
    """Returns (language, page) of a page's translation, or of a translation's original."""
    if name in (EXAMPLES, CHINESE_EXAMPLES):
        return ("中文", CHINESE_EXAMPLES) if name == EXAMPLES else ("English", EXAMPLES)
    return ("English", name.removeprefix("zh/")) if name.startswith("zh/") else ("中文", f"zh/{name}")
