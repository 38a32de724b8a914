"""The texts of `text.py`: passages from the docstrings of Python's standard library, and others.

Nothing is downloaded or imported: the source files of the Python that runs this are parsed.
"""

import ast
import random
import re
import string
import sysconfig
from collections.abc import Iterator
from itertools import product
from pathlib import Path

TOPICS = {
    "networks": "email http urllib smtplib ftplib imaplib poplib socket ssl xmlrpc ipaddress",
    "files": "os shutil pathlib zipfile tarfile tempfile gzip posixpath filecmp _pyio csv json xml",
    "concurrency": "asyncio multiprocessing concurrent threading queue sched subprocess selectors",
    "testing": "unittest doctest pdb bdb trace profile pstats timeit logging",
}
"""What the network learns, and the modules that speak of it."""
GRAPHICS, CODE = "tkinter turtle turtledemo colorsys", "statistics fractions heapq random calendar"
GERMAN = (
    ("Der Hund", "Die Katze", "Unser Nachbar", "Ein alter Mann", "Das kleine Kind"),
    ("sucht seit gestern", "findet endlich", "vergisst jeden Tag", "bringt morgen"),
    ("den roten Schirm", "das Buch vom Dachboden", "die Brille", "frisches Brot", "einen Brief"),
    ("am Bahnhof.", "im Garten.", "hinter dem Haus.", "vor dem Regen.", "auf dem Markt."),
)


def sources(modules: str) -> Iterator[str]:
    """The source files of modules and packages of the standard library."""
    for name in modules.split():
        place = Path(sysconfig.get_path("stdlib"), name)
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        yield from (f.read_text("utf-8") for f in files if "test" not in f.parts and f.exists())


def passages(modules: str, least: int = 20) -> list[str]:
    """Sentences of their docstrings, each used once, joined until there are `least` words."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for text in sources(modules) for node in ast.walk(ast.parse(text))]
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
    paragraphs = [" ".join(p.split()) for t in texts for p in t.split("\n\n") if ">>>" not in p]
    sentences = [s for p in paragraphs for s in re.split(r"(?<=[.!?])\s+", p)]
    found, words = [], []
    for sentence in dict.fromkeys(sentences):
        if 5 <= len(sentence.split()) <= 40 and not re.search(r"--|==|\*\*|__", sentence):
            words += sentence.split()
        if len(words) >= least:
            found.append(" ".join(words))
            words = []
    return found


def unfamiliar(draw: random.Random) -> dict[str, list[str]]:
    """Four kinds of text that none of the topics fits."""
    kinds = (ast.Assign, ast.Return, ast.Raise, ast.AugAssign)
    nodes = [node for text in sources(CODE) for node in ast.walk(ast.parse(text))]
    code = [" ".join(ast.unparse(node).split()) for node in nodes if isinstance(node, kinds)]
    keys = string.ascii_lowercase + "    ,.;"
    return {
        "another topic": passages(GRAPHICS),
        "source code": [line for line in dict.fromkeys(code) if 25 < len(line) < 200],
        "German": [" ".join(words) for words in product(*GERMAN)],
        "keyboard": ["".join(draw.choices(keys, k=draw.randint(30, 120))) for _ in range(400)],
    }
