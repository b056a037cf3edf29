"""What holds of the repository as a whole: imports, names, versions, wheels, documents."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import tttembed_rag

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "tttembed_rag"
STORE = REPO / "integrations" / "tttembed-store"
TOOLS = REPO / "integrations" / "tttembed-tools"
LANGCHAIN = REPO / "integrations" / "langchain-tttembed"
LLAMA_INDEX = REPO / "integrations" / "llama-index-embeddings-tttembed"
HAYSTACK = REPO / "integrations" / "tttembed-haystack"
HOSTS = REPO / "integrations" / "tttembed-hosts"
# The import package of each distribution.
SOURCES = {
    REPO: PACKAGE,
    STORE: STORE / "tttembed_store",
    TOOLS: TOOLS / "tttembed_tools",
    LANGCHAIN: LANGCHAIN / "langchain_tttembed",
    LLAMA_INDEX: LLAMA_INDEX / "llama_index",
    HAYSTACK: HAYSTACK / "src" / "haystack_integrations",
    HOSTS: HOSTS / "tttembed_hosts",
}
DISTRIBUTIONS = tuple(SOURCES)
ADAPTERS = [SOURCES[distribution] for distribution in (LANGCHAIN, LLAMA_INDEX, HAYSTACK, HOSTS)]
# The three that are one product: they share a version, and may import modules of those before them.
PACKAGES = {source.name: source for source in (PACKAGE, SOURCES[STORE], SOURCES[TOOLS])}

# What a line names imports from the lines above it alone. A folder is one entry, whose modules may import each other;
# `__init__` is what importing the package runs. CONTRIBUTING prints these tables.
LAYERS = {
    "tttembed_rag": (
        ("errors",),
        ("system", "vectors"),
        ("rewards",),
        ("offsets", "clients"),
        ("fitting", "judges"),
        ("gate", "embedders", "judging"),
        ("serving", "evaluate"),
        ("capture",),
        ("adapting", "testing"),
        ("__init__",),
        ("cli",),
        ("__main__",),
    ),
    "tttembed_store": (
        ("extras", "background"),
        ("spans", "shards"),
        ("sql",),
        ("batches", "following"),
        ("worker",),
        ("capture", "report", "proxy"),
        ("__init__",),
        ("cli",),
    ),
    "tttembed_tools": (
        ("catalog",),
        ("index", "outcomes"),
        ("learning",),
        ("explaining",),
        ("learned",),
        ("recall", "tools"),
        ("__init__",),
        ("demo", "hosts"),
        ("cli",),
    ),
}
LAYER = {
    (package, name): number
    for package, layers in LAYERS.items()
    for number, names in enumerate(layers)
    for name in names
}
OURS = {source.name for source in SOURCES.values()} - {"llama_index", "haystack_integrations"}
# Modules that list public names and load each where it is asked for.
FACADES = [
    module
    for source in SOURCES.values()
    for module in sorted(source.rglob("*.py"))
    if "facade(" in module.read_text(encoding="utf-8") and module.name != "facades.py"
]
MODULES = [(package, module) for package, folder in PACKAGES.items() for module in sorted(folder.rglob("*.py"))]


def modules(folder: Path) -> list[Path]:
    """The Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def entry(package: str, module: Path) -> tuple[str, str]:
    return package, module.relative_to(PACKAGES[package]).with_suffix("").parts[0]


def imports(module: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]


def own_imports(package: str, module: Path) -> list[tuple[str, str]]:
    """The layer entries a module of a package imports from; a public name comes from `__init__`."""
    names_of_layers = []
    for name, names in imports(module):
        top, _, below = name.partition(".")
        if top == package and below:
            names_of_layers.append(below.partition(".")[0])
        elif top == package:
            names_of_layers += [taken if (package, taken) in LAYER else "__init__" for taken in names] or ["__init__"]
    return [(package, name) for name in names_of_layers]


def tracked_files() -> list[Path]:
    """The files that are in version control, or would be after `git add`."""
    command = ["git", "-C", REPO, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [REPO / name for name in listed if name and (REPO / name).is_file()]


# Imports


@pytest.mark.parametrize("package", LAYERS)
def test_the_order_of_layers_is_printed_for_contributors(package: str) -> None:
    """CONTRIBUTING holds the tables above, line by line."""
    printed = "\n".join("    " + ", ".join(names) for names in LAYERS[package])

    assert printed in (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_module_has_a_layer() -> None:
    """The order of layers names every module of the packages, and no module that is gone."""
    assert {entry(*module) for module in MODULES} == set(LAYER)


@pytest.mark.parametrize(("package", "module"), MODULES, ids=lambda part: getattr(part, "name", part))
def test_imports_point_one_way(package: str, module: Path) -> None:
    """A module imports from earlier layers of its package alone, inside functions too."""
    mine = entry(package, module)

    upward = [name for name in own_imports(package, module) if name != mine and LAYER[name] >= LAYER[mine]]

    assert upward == []


def test_a_package_imports_from_those_before_it_alone() -> None:
    """The method knows no store and no tools, the store no tools; they are found by entry points."""
    order = list(PACKAGES)
    later = {package: tuple(order[order.index(package) + 1 :]) for package in order}

    imported = [
        (str(module.relative_to(REPO)), name)
        for package, module in MODULES
        for name, _ in imports(module)
        if name.partition(".")[0] in later[package]
    ]

    assert imported == []


def test_the_package_knows_no_framework() -> None:
    """Nothing imports an adapter, or what adapters are for, but the folder of tttembed_tools for hosts of agents."""
    frameworks = re.compile(
        r"(langchain|llama_index|haystack|tttembed_hosts|chromadb|lancedb|fastmcp|mcp|mteb|phoenix|langfuse|langsmith)"
    )
    hosts = PACKAGES["tttembed_tools"] / "hosts"

    imported = [
        (module.name, name)
        for _, module in MODULES
        if module.parent != hosts
        for name, _ in imports(module)
        if frameworks.match(name)
    ]

    assert imported == []


def test_adapters_import_public_names_alone() -> None:
    """The adapters take from the packages, and from their modules that list public names, nothing else."""
    taken = [
        (name, names)
        for folder in ADAPTERS
        for module in modules(folder)
        for name, names in imports(module)
        if name.partition(".")[0] in PACKAGES
        and not name.startswith("tttembed_store.cli")  # what commands of others are made of
    ]

    assert len(taken) >= 2
    assert [line for line in taken if not set(line[1]) <= set(getattr(import_module(line[0]), "__all__", ()))] == []


def test_importing_loads_the_standard_library_alone() -> None:
    """`import tttembed_rag` in a fresh process loads nothing else, and prints nothing."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import tttembed_rag\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )

    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)

    loaded = set(done.stdout.split())
    assert loaded - sys.stdlib_module_names == {"tttembed_rag"}
    assert done.stderr == ""


# Names


def types_of(module: Path) -> dict[str, str]:
    """The module of each name that a facade imports for those who read types."""
    (block,) = [node for node in ast.parse(module.read_text(encoding="utf-8")).body if isinstance(node, ast.If)][:1]
    return {alias.name: line.module for line in block.body for alias in line.names}  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", FACADES, ids=lambda path: str(path.relative_to(REPO)))
def test_a_facade_lists_what_it_loads(module: Path) -> None:
    """Each name of `__all__` is loaded from where its type is, and so are all names by a star; `dir` shows them."""
    source = next(source for source in SOURCES.values() if module.is_relative_to(source))
    parts = module.relative_to(source.parent).with_suffix("").parts
    package = import_module(".".join(parts).removesuffix(".__init__"))
    types, starred = types_of(module), {}
    exec(f"from {package.__name__} import *", starred)  # noqa: S102 - what a user may write

    assert package.__all__ == sorted(types, key=lambda name: (not name.isupper(), name))
    assert {name: getattr(import_module(types[name]), name) for name in types} == {
        name: getattr(package, name) for name in package.__all__
    }
    assert set(package.__all__) <= starred.keys() & set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Nothing'"):
        _ = package.Nothing


def test_the_first_page_has_thirty_names() -> None:
    """Whatever else there is stands in the room that it is of."""
    assert len(tttembed_rag.__all__) == 30


@pytest.mark.parametrize(
    ("statement", "most"),
    [("import tttembed_rag", 5_000), ("from langchain_tttembed import TTTEmbeddings", 8_000)],
)
def test_an_import_loads_few_lines_of_ours(statement: str, most: int) -> None:
    """Of all modules that were loaded in a fresh process."""
    code = (
        f"{statement}\nimport sys\n"
        f"print(*(module.__file__ for name, module in sys.modules.items() if name.partition('.')[0] in {OURS!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    files = done.stdout.split()
    assert files
    assert sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files) <= most


def test_modules_are_named_after_what_they_hold() -> None:
    """No module of the package has a name that says nothing."""
    empty_names = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager", "core"}
    parts = {part for _, module in MODULES for part in module.relative_to(REPO).with_suffix("").parts}

    assert parts & empty_names == set()


def test_no_two_public_classes_share_a_name() -> None:
    """A class is known by its name alone, wherever in the package it is mentioned."""
    names = Counter(
        node.name
        for _, module in MODULES
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert {name for name, count in names.items() if count > 1} == set()


# Versions and wheels


def project(distribution: Path) -> dict[str, object]:
    return tomllib.loads((distribution / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("adapter", DISTRIBUTIONS[1:], ids=lambda path: path.name)
def test_adapters_have_the_version_of_the_package(adapter: Path) -> None:
    """A distribution has the package's version and requires exactly that version of those it stands on."""
    pinned = [Requirement(line) for line in project(adapter)["dependencies"] if line.startswith("tttembed-")]

    assert project(adapter)["version"] == tttembed_rag.__version__
    assert {str(requirement.specifier) for requirement in pinned} == {f"=={tttembed_rag.__version__}"}


def lowest_promised(distribution: Path) -> set[tuple[str, Version]]:
    """What a distribution wants at least, in its extras too; what its own tests want is no promise."""
    table = project(distribution)
    extras = [lines for name, lines in table.get("optional-dependencies", {}).items() if name not in ("dev", "stores")]
    return {
        (requirement.name.lower(), Version(bound.version))
        for requirement in map(Requirement, chain(table["dependencies"], *extras))
        for bound in requirement.specifier
        if bound.operator == ">="
    }


def lowest_tested(constraints: str) -> set[tuple[str, Version]]:
    lines = (REPO / constraints).read_text(encoding="utf-8").splitlines()
    return {(name, Version(version)) for name, _, version in (line.partition("==") for line in lines[1:])}


def test_the_lowest_versions_that_are_promised_are_those_that_are_tested() -> None:
    """A dependency has one lower bound in all extras, and `make test-lowest` installs that version."""
    promised = lowest_promised(REPO) | lowest_promised(STORE)

    assert promised - lowest_tested("constraints-lowest.txt") == set()


def test_the_lowest_versions_that_adapters_promise_are_those_that_are_tested() -> None:
    """`make test-lowest-hosts` installs that version; of torch, which takes some GB, `make test-lowest` does."""
    promised = set().union(*map(lowest_promised, DISTRIBUTIONS[2:]))
    torch = {pin for pin in lowest_tested("constraints-lowest.txt") if pin[0] == "torch"}

    assert promised - lowest_tested("constraints-lowest-hosts.txt") == torch


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels, each built once from the source distribution of a copy of the sources, by distribution."""
    sources, built = tmp_path_factory.mktemp("sources"), {}
    for file in tracked_files():
        target = sources / file.relative_to(REPO)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for distribution in DISTRIBUTIONS:
        out = tmp_path_factory.mktemp("wheel")
        folder = sources / distribution.relative_to(REPO)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (built[distribution.name],) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheels in one folder, as an installer lays them out."""
    folder = tmp_path_factory.mktemp("unpacked")
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def listed(wheel: Path) -> set[str]:
    """The files of a wheel without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def typed_packages(source: Path) -> list[Path]:
    """The mark of types of each import package below *source*, whose namespaces are others' too."""
    packages = [init.parent for init in source.rglob("__init__.py")]
    return [package / "py.typed" for package in packages if not any(other in package.parents for other in packages)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_a_wheel_holds_its_sources_and_nothing_else(wheels: dict[str, Path], distribution: Path) -> None:
    """A wheel has every tracked file of its import package, its types too, and no other; so the sdist has them too."""
    source = SOURCES[distribution]
    expected = {str(file.relative_to(source.parent)) for file in tracked_files() if file.is_relative_to(source)}
    typed = {str(path.relative_to(source.parent)) for path in typed_packages(source)}

    assert expected == listed(wheels[distribution.name])
    assert typed
    assert typed <= expected


def test_no_wheel_claims_the_llama_index_namespace(wheels: dict[str, Path]) -> None:
    """`llama_index` and the packages below it are shared with others: no wheel of ours has their __init__."""
    claimed = {f"llama_index/{part}__init__.py" for part in ("", "embeddings/", "postprocessor/", "retrievers/")}

    assert claimed & listed(wheels[LLAMA_INDEX.name]) == set()


def test_every_wheel_carries_the_licence(wheels: dict[str, Path]) -> None:
    """The licence text travels inside each wheel."""
    carried = {
        name: [path for path in zipfile.ZipFile(wheel).namelist() if path.endswith("licenses/LICENSE")]
        for name, wheel in wheels.items()
    }

    assert {name: len(paths) for name, paths in carried.items()} == dict.fromkeys(wheels, 1)


# Modules that need what `make test` does not install.
HOSTED = re.compile(
    r"tttembed_hosts\.(chroma|dspy|lancedb|mem0|mteb|pydantic_ai|sentence_transformers)"
    r"|tttembed_tools\.hosts\.(mcp|pydantic_ai)|.*\.__main__"
)


@pytest.fixture(scope="module")
def unpacked_origins(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where a fresh process, started elsewhere, finds each module of the wheels, but those that are `HOSTED`."""
    files = [path.relative_to(unpacked).with_suffix("") for path in unpacked.rglob("*.py")]
    names = sorted(".".join(path.parts).removesuffix(".__init__") for path in files if "versions" not in path.parts)
    wanted = [name for name in names if not HOSTED.fullmatch(name)]
    code = (
        "import importlib, json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[2:]}))"
    )
    command = [sys.executable, "-I", "-c", code, unpacked, *wanted]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_modules_import_from_the_wheels_alone(unpacked_origins: dict[str, str], unpacked: Path) -> None:
    """Every module imports from the installed files, not from this checkout."""
    elsewhere = [name for name, origin in unpacked_origins.items() if not Path(origin).is_relative_to(unpacked)]

    assert len(unpacked_origins) > 200
    assert elsewhere == []


def test_the_installed_command_runs(unpacked: Path, tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tttembed_rag.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-I", "-c", code, unpacked, "--version"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert done.stdout == f"tttembed, version {tttembed_rag.__version__}\n"


# Documents


def test_no_file_names_a_package_index() -> None:
    """Where packages come from is the reader's setting: no tracked file names an index or an option for one."""
    # Brackets keep this very file from matching.
    index = re.compile(
        rb"pypi[.]org|pythonhosted[.]org|(extra-)?index[-_]url|trusted[-]host|find[-]links|https?://[^\s\"')]+/simpl[e]\b"
    )

    naming = [str(file.relative_to(REPO)) for file in tracked_files() if index.search(file.read_bytes())]

    assert naming == []


def test_contributors_are_told_where_a_release_fills_in_the_address() -> None:
    """CONTRIBUTING lists the files in which a placeholder stands for the repository; one test names it, too."""
    placeholder = b"repository." + b"invalid"
    naming = [str(file.relative_to(REPO)) for file in tracked_files() if placeholder in file.read_bytes()]
    listed = re.findall(r"^    (\S+)$", (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(naming) == sorted(["CONTRIBUTING.md", *(name for name in listed if (REPO / name).is_file())])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[1:], ids=lambda path: path.name)
def test_distributions_say_the_same_of_themselves(distribution: Path) -> None:
    """Addresses, classifiers and the oldest Python are those of the package."""
    metadata = [
        {name: table[name] for name in ("classifiers", "requires-python", "urls", "license")}
        for table in (project(REPO), project(distribution))
    ]

    assert metadata[0] == metadata[1]


def documented_targets() -> list[tuple[str, str]]:
    return [
        (document.name, target)
        for document in sorted(REPO.glob("*.md"))
        for target in re.findall(
            r"(?:^(?:    |\t|\$ )\s*|`)make ([\w-]+)", document.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]


def test_documented_targets_exist() -> None:
    """The README names make targets, and the Makefile has every target that a document names."""
    targets = set(re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    documented = documented_targets()

    assert "README.md" in {document for document, _ in documented}
    assert [target for target in documented if target[1] not in targets] == []


def test_links_between_files_lead_somewhere() -> None:
    links = [
        (file, target.partition("#")[0])
        for file in tracked_files()
        if file.suffix == ".md"
        for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:|#", target)
    ]

    broken = [f"{file.relative_to(REPO)}: {target}" for file, target in links if not (file.parent / target).exists()]

    assert broken == []
