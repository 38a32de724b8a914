"""What SECURITY.md promises of our own code: no eval, no pickle, no network unless asked for."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tulip_ood

ROOT = Path(tulip_ood.__file__).parent
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
PROCESSES = {"subprocess", "pty", "ctypes"}
NETWORK = {"socket", "ssl", "http", "urllib", "requests", "httpx", "ftplib", "smtplib", "xmlrpc"}
# These listen or connect because the user starts them for that.
ROOMS_WITH_A_NETWORK = {"serving", "cluster"}
# Decoders of images: our own interpreter and our own module, over pipes.
STARTS_PROCESSES = {"data/workers.py"}


@functools.cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = sorted(ROOT.rglob("*.py"))
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


def imported(tree: ast.Module) -> set[str]:
    """Names of imported modules and of what is imported from them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def called(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call, by the text of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_no_text_is_run_as_code() -> None:
    wrong = [
        f"{where}:{call.lineno} {name}"
        for where, tree in modules()
        for name, call in called(tree)
        if name in RUNS_TEXT or name in {"os.system", "os.popen"} or name.startswith("os.exec")
    ]
    assert wrong == []


def test_nothing_is_pickled_or_unpickled() -> None:
    """`pickle` is imported to catch the error that PyTorch raises, and for nothing else."""
    wrong = []
    for where, tree in modules():
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in PICKLES
        }
        wrong += [f"{where}: pickle.{name}" for name in used - {"UnpicklingError"}]
        others = {name.partition(".")[0] for name in imported(tree)} & PICKLES
        wrong += [f"{where}: {name}" for name in others - {"pickle"}]
        wrong += [f"{where}: {name}" for name in imported(tree) if name.startswith("pickle.")]
    assert wrong == []


def test_files_are_opened_without_pickle() -> None:
    wanted = {"torch.load": "weights_only=True", "np.load": "allow_pickle=False"}
    wanted |= {"npy.read_array": "allow_pickle=False"}
    seen = []
    for where, tree in modules():
        for name, call in called(tree):
            if name in wanted:
                given = {f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords}
                assert wanted[name] in given, f"{where}:{call.lineno}"
                seen.append(name)
    assert "torch.load" in seen


def test_no_module_starts_processes_or_opens_the_network() -> None:
    wrong = []
    for where, tree in modules():
        forbidden = set() if where in STARTS_PROCESSES else set(PROCESSES)
        if where.partition("/")[0] not in ROOMS_WITH_A_NETWORK:
            forbidden |= NETWORK
        names = {name for name in imported(tree) if not name.startswith("urllib.parse")}
        wrong += [f"{where}: {n}" for n in names if n.partition(".")[0] in forbidden]
    assert wrong == []


WATCHED = """
import sys, warnings
import torch
warnings.simplefilter("ignore")
import tulip_ood

seen = []

def watch(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "pickle.find_class")):
        seen.append((event, str(arguments)[:80]))

sys.addaudithook(watch)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
x, y = torch.randn(120, 2), torch.randint(3, (120,))
folder = sys.argv[1]
for name in ("tulip", "knn"):
    detector = tulip_ood.detectors.make(name, model)
    detector.fit([(x, y)])
    detector.predict(x)
    detector.save(f"{folder}/d.safetensors")
    tulip_ood.load(f"{folder}/d.safetensors", model).score(x)
print(seen)
"""


def test_a_detector_at_work_touches_neither_network_nor_processes(tmp_path: Path) -> None:
    """Python's own audit events, from fitting to loading again."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
