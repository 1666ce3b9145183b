"""A hook of mkdocs that adds pages to those of docs/ in mkdocs.yml."""
import pathlib
import re

from mkdocs.structure.files import File

FROM_THE_ROOT = ["CONTRIBUTING.md", "CHANGELOG.md"]


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
