"""A room imports only from rooms above it, as docs/architecture.md lists them."""

import ast
from pathlib import Path
from typing import TypeGuard

from torch import nn

import tulip_ood

ROOT = Path(tulip_ood.__file__).parent
ORDER = [
    "errors",
    "version",
    "wording",
    "numerics",
    "network",
    "shifts",
    "detectors",
    "data",
    "models",
    "export",
    "benchmark",
    "theory",
    "adapters",
    "figures",
    "report",
    "demo",
    "serving",
    "cluster",
    "cli",
]
# `shifts` stands beside `network`: neither knows of the other.
FORBIDDEN = {("shifts", "network"), ("network", "shifts")}
# `theory` stands on `numerics` alone.
FORBIDDEN |= {("theory", room) for room in ORDER[ORDER.index("network") : ORDER.index("theory")]}


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from, also inside functions and for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "tulip_ood":
                names = [f"tulip_ood.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("tulip_ood.")}
    return found


def test_every_room_knows_only_the_rooms_above_it() -> None:
    rank = {room: i for i, room in enumerate(ORDER)}
    wrong = []
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        room = parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        assert room in rank, f"{room} is not in the list of rooms"
        wrong += [
            f"{'/'.join(parts)} imports from {other}"
            for other in imports(path)
            if rank.get(other, -1) > rank[room] or (room, other) in FORBIDDEN
        ]
    assert wrong == []


def test_every_room_is_in_the_documents() -> None:
    text = (ROOT.parents[1] / "docs" / "architecture.md").read_text()
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert {room for room in rooms if f"`{room}/`" not in text} == set()


def test_nobody_reaches_into_a_network() -> None:
    """What others need of it has a public name."""
    own = ROOT / "network" / "network.py"
    fields = [node for node in ast.walk(ast.parse(own.read_text())) if _is_private_of_self(node)]
    private = {node.attr for node in fields} - set(dir(nn.Module()))
    assert {"_skeleton", "_may_widen"} <= private
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in private
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert not wrong


def _is_private_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
