"""How many small faults the tests notice: a fixed sample of mutations of the method, of serving and of the stores.

    pip install pytest-cov
    python benchmarks/mutants.py [--count 300] [--seed 0] [--jobs 2] [--rooms tttembed_rag/gate] [--json OUT]

A mutant is a package with one comparison, sum, condition, constant or call changed. The tests (those marked slow or
data left out) run once with a record of the lines that each test runs through; then those of a changed line run against
the mutant until one fails, in a process that was forked with what the package imports. A run that takes --seconds
of a processor, or five times as long, ends as a failed one. What survives is printed with its line.
Two trees are compared by their shares: a share of 300 mutants has a standard error of about 2 points.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from coverage import CoverageData

REPO = Path(__file__).resolve().parents[1]
PACKAGES = {"tttembed_rag": REPO, "tttembed_store": REPO / "integrations" / "tttembed-store"}
ROOMS = tuple(f"tttembed_rag/{room}" for room in ("gate", "fitting", "offsets", "serving"))
ROOMS += tuple(f"tttembed_store/{room}" for room in ("sql", "worker"))
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
UNCHANGED = {"annotation", "returns", "decorator_list"}
# What takes long to import, once for all mutants; no plug-in of pytest, which wants to import those itself.
PRELOADED = ("faiss", "numpy", "psycopg", "safetensors", "scipy", "sqlalchemy", "torch")
# The configuration puts this checkout before the mutant; nothing else does.
OPTIONS = ("-q", "-p", "no:cacheprovider", "-o", "pythonpath=", "-m", "not slow and not data")


@dataclass(frozen=True)
class Mutation:
    """One change of one module.

    Attributes:
        module: Path, from the package on.
        place: Which of the module's nodes that can be changed, counted as `places` finds them.
        line: First line of the statement that it stands in.
        what: The change in words.
    """

    module: str
    place: int
    line: int
    what: str

    @property
    def room(self) -> str:
        """The folder of the module."""
        return str(Path(self.module).parent)

    @property
    def package(self) -> Path:
        """The package that it is of."""
        return file_of(self.module.partition("/")[0])


def file_of(module: str) -> Path:
    """Where a path that begins with a package lies."""
    return PACKAGES[module.partition("/")[0]] / module


def places(tree: ast.Module) -> list[tuple[ast.AST, int]]:
    """The nodes of a module that can be changed, with the line of their statement; no annotation and no message."""
    found: list[tuple[ast.AST, int]] = []

    def visit(node: ast.AST, line: int, *, inside: bool) -> None:
        if isinstance(node, ast.Raise | ast.Assert):
            return
        line = node.lineno if isinstance(node, ast.stmt | ast.ExceptHandler) else line
        if inside and change(copy.deepcopy(node)):
            found.append((node, line))
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in UNCHANGED:
                    visit(child, line, inside=inside)

    visit(tree, 0, inside=False)
    return found


def change(node: ast.AST) -> str:
    """Change a node in place and say how; nothing where there is nothing to change."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        before = type(node.ops[0])
        node.ops[0] = SWAPS[before]()
        return f"{before.__name__} -> {SWAPS[before].__name__}"
    if isinstance(node, ast.BinOp | ast.BoolOp) and (before := type(node.op)) in SWAPS:
        node.op = SWAPS[before]()
        return f"{before.__name__} -> {SWAPS[before].__name__}"
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "condition negated"
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value, node.value = node.value, (not node.value if isinstance(node.value, bool) else node.value + 1)
        return f"{value} -> {node.value}"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        node.value = ast.Constant(None)
        return "call dropped"
    return ""


def sample(rooms: tuple[str, ...], count: int, seed: int) -> list[Mutation]:
    """*count* mutations of all that the rooms hold, drawn without replacement, in the order of the tree."""
    found = [
        Mutation(f"{room}/{file.relative_to(file_of(room))}", place, line, change(copy.deepcopy(node)))
        for room in rooms
        for file in sorted(file_of(room).rglob("*.py"))
        for place, (node, line) in enumerate(places(ast.parse(file.read_text(encoding="utf-8"))))
    ]
    drawn = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    return [found[k] for k in sorted(drawn)]


def recorded(data: Path, tests: list[str]) -> CoverageData:
    """Which test runs through which line; the tests run once for it, where *data* holds no record yet."""
    if not data.exists():
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            *OPTIONS,
            *(f"--cov={package}" for package in PACKAGES),
            "--cov-context=test",
            "--cov-report=",
            *tests,
        ]
        path = os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "COVERAGE_FILE": str(data)}
        subprocess.run(command, cwd=REPO, env=environment, check=False)  # noqa: S603 - pytest
    record = CoverageData(str(data))
    record.read()
    return record


def tests_of(mutation: Mutation, record: CoverageData) -> list[str]:
    """The tests that run through the changed line, by the names that pytest takes."""
    contexts = record.contexts_by_lineno(str(file_of(mutation.module))).get(mutation.line, [])
    return sorted({context.rpartition("|")[0] for context in contexts if "|" in context})


def notices(mutation: Mutation | None, tests: list[str], seconds: int) -> bool:
    """Whether one of the tests fails under a mutation (None changes nothing); the calling process cannot undo it."""
    with tempfile.TemporaryDirectory() as folder:
        if mutation is not None:
            copied = Path(folder) / mutation.package.name
            shutil.copytree(mutation.package, copied, ignore=shutil.ignore_patterns("__pycache__"))
            file = Path(folder) / mutation.module
            tree = ast.parse(file.read_text(encoding="utf-8"))
            change(places(tree)[mutation.place][0])
            file.write_text(ast.unparse(tree), encoding="utf-8")
        names = Path(folder) / "tests.txt"
        names.write_text("\n".join(tests), encoding="utf-8")
        sys.path[:0] = [folder, str(REPO)]
        paths = os.pathsep.join([folder, str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])
        os.environ.update(PYTHONPATH=paths, TMPDIR=folder, PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode, tempfile.tempdir = True, folder
        os.chdir(REPO)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(5 * seconds)
        return pytest.main([*OPTIONS, "-x", f"@{names}"]) != 0


def forked(mutation: Mutation | None, tests: list[str], seconds: int) -> int:
    """The id of a process that ends with 0 where no test fails under a mutation."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        code = int(bool(tests) and notices(mutation, tests, seconds))
    finally:
        os._exit(code)


def main() -> None:
    """Print the share of mutants that the tests notice, by room, and those that survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument(
        "--tests",
        default="tests,integrations/tttembed-store/tests",
        help="where tests are looked for, with commas between",
    )
    parser.add_argument("--data", type=Path, default=REPO / "build" / "mutants.coverage", help="the record of lines")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.data.parent.mkdir(parents=True, exist_ok=True)
    record = recorded(options.data, options.tests.split(","))
    drawn = sample(tuple(options.rooms.split(",")), options.count, options.seed)
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    some = next(filter(None, (tests_of(mutation, record) for mutation in drawn)))
    if os.waitpid(forked(None, some, options.seconds), 0)[1]:
        sys.exit(f"expected tests that pass on the package as it is, got a failure in {', '.join(some)}")
    running, survived, waiting = dict[int, Mutation](), list[Mutation](), list(drawn)
    while waiting or running:
        while waiting and len(running) < options.jobs:
            mutation = waiting.pop(0)
            running[forked(mutation, tests_of(mutation, record), options.seconds)] = mutation
        pid, status = os.wait()
        mutation = running.pop(pid)
        if status == 0:
            survived.append(mutation)
            count = len(tests_of(mutation, record))
            print(f"survived {count} tests: {mutation.module}:{mutation.line} {mutation.what}", flush=True)
    asked, left = Counter(m.room for m in drawn), Counter(m.room for m in survived)
    for room in asked:
        print(f"{room:24} {asked[room] - left[room]:4} of {asked[room]:4} noticed")
    print(f"{'all':24} {len(drawn) - len(survived):4} of {len(drawn):4} noticed")
    if options.json:
        found = {"asked": asked, "survived": left, "mutants": [asdict(mutation) for mutation in survived]}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
