"""Pages of the site that are made from the tree: the reference, the root's documents.

A hook of mkdocs: `mkdocs.yml` names it. The reference has one page per public package
or module of relive, and lists what its `__all__` lists.
"""

import ast
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "relive"
DOCUMENTS = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def modules() -> list[str]:
    """The dotted names that get a page.

    These are relive, its parts, and each module inside a part whose `__all__` has a name
    that the page of the part does not show.
    """
    found = ["relive"] if (PACKAGE / "__init__.py").exists() else []
    for path in sorted(PACKAGE.rglob("*.py*")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if path.suffix not in {".py", ".pyi"} or parts == ("__init__",):
            continue
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        hidden = any(part.startswith("_") for part in parts)
        if parts == ("_native",) or (not hidden and _adds_names(parts)):
            found.append(".".join(("relive", *parts)))
    return found


def _adds_names(parts: tuple[str, ...]) -> bool:
    """Whether a package or module has names that the page of its package does not show."""
    own = PACKAGE.joinpath(*parts)
    if len(parts) == 1 or own.is_dir():
        return True
    shown = public_names(own.parent / "__init__.py")
    return not set(public_names(own.with_suffix(".py"))) <= set(shown)


def public_names(path: Path) -> list[str]:
    """The `__all__` of a file; empty where it has none."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "__all__" and value is not None:
            return [str(name) for name in ast.literal_eval(value)]
    return []


def reference_page(module: str) -> str:
    """The page of one module."""
    title = f"# `{module}`\n\n"
    if module == "relive._native":
        title += "The extension: relive's own, not for callers; shown for those who work on it.\n\n"
    return f"{title}::: {module}\n"


def reference_index() -> str:
    """The first page of the reference: the parts, in order."""
    lines = ["# Reference", "", "Made from the code; one page per part.", ""]
    lines += [f"- [`{module}`]({module}.md)" for module in modules()]
    return "\n".join(lines) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the folders that the navigation names: the first page, then the others by name."""
    for entry in config.nav or ():
        for title, target in entry.items():
            if isinstance(target, str) and target.endswith("/"):
                entry[title] = [f"{target}index.md", *_pages_of(target)]
    return config


def _pages_of(folder: str) -> list[Any]:
    if folder == "reference/":
        return [{module: f"{folder}{module}.md"} for module in modules()]
    found = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}{path.name}" for path in found if path.name != "index.md"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those that lie in `docs/`."""
    made = {name: (ROOT / source).read_text() for name, source in DOCUMENTS.items()}
    made["reference/index.md"] = reference_index()
    made |= {f"reference/{module}.md": reference_page(module) for module in modules()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files
