"""The order of the documentation's pages; a hook of mkdocs.

A page that is listed and is not there is left out; one that is there and not listed stands under
"More". So a page can come and go without anyone editing two files.
"""

from pathlib import Path
from typing import Any

ORDER: dict[str, list[str]] = {
    "Start": [
        "index.md",
        "start.md",
        "deployed.md",
        "choosing.md",
        "why.md",
        "faq.md",
        "promises.md",
    ],
    "Guides": [
        "detectors.md",
        "adapters.md",
        "examples.md",
        "serving.md",
        "cluster.md",
        "export.md",
        "architectures.md",
    ],
    "Evidence": ["benchmark.md", "performance.md", "comparison.md", "research.md"],
    "Method": ["method.md", "architecture.md"],
    "API": ["api/index.md"],
    "Project": ["changelog.md", "contributing.md", "security.md"],
}
# Where the page's own heading would say too little, or too much.
TITLES = {
    "index.md": "What it is",
    "faq.md": "Questions and answers",
    "promises.md": "What is promised",
    "api/index.md": "The door",
}


def pages(folder: Path) -> dict[str, list[str]]:
    """Sections with the pages that are there."""
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.md")}
    listed = {page for section in ORDER.values() for page in section}
    nav = {name: [page for page in section if page in there] for name, section in ORDER.items()}
    nav["API"] += sorted(page for page in there - listed if page.startswith("api/"))
    more = sorted(page for page in there - listed if not page.startswith("api/"))
    if more:
        nav["More"] = more
    return {name: section for name, section in nav.items() if section}


def on_config(config: Any) -> Any:
    """Called by mkdocs before anything is built."""
    found = pages(Path(config["docs_dir"]))
    config["nav"] = [
        {name: [{TITLES[page]: page} if page in TITLES else page for page in section]}
        for name, section in found.items()
    ]
    return config
