"""What `deploy/` shows of containers: commands that exist, extras that exist, and files that are copied."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.test_documentation import parsed

REPO = Path(__file__).resolve().parents[3]
DOCKERFILE = (REPO / "deploy" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((REPO / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


def filled(text: str) -> str:
    """A value of the file with its variables filled in: by their defaults, else by a word."""
    return re.sub(r"\$\{\w+(?::([-?])([^}]*))?\}", lambda found: found[2] if found[1] == "-" else "word", text)


@pytest.mark.parametrize("service", sorted(SERVICES.keys() - {"postgres"}))
def test_a_service_runs_a_command_that_exists(service: str) -> None:
    """Its options are those of `tttembed`, and its store is the database beside it, with the user made there.

    Its password stands in no argument, which every user of a machine may read.
    """
    arguments = [filled(argument) for argument in SERVICES[service]["command"]]
    (store,) = (argument for argument in arguments if argument.startswith("postgresql"))
    user = SERVICES["postgres"]["environment"]["POSTGRES_USER"]

    assert parsed(arguments)[0] == arguments[0]
    assert store == f"postgresql+psycopg://{user}@postgres/{user}"
    assert filled(SERVICES[service]["environment"]["PGPASSWORD"]) == "word"
    assert SERVICES[service]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_the_proxy_is_reached_from_this_machine_alone() -> None:
    """It listens to the other containers, and its port is published on loopback."""
    assert "0.0.0.0" in SERVICES["proxy"]["command"]  # noqa: S104 - inside its container
    assert SERVICES["proxy"]["ports"] == ["127.0.0.1:8787:8787"]


def test_the_image_installs_extras_that_exist_and_runs_as_nobody_in_particular() -> None:
    """The image has the extras for PostgreSQL, judges and the proxy; its command is ours, its user not root."""
    extras = {folder: names.split(",") for folder, names in re.findall(r"'/src(\S*)\[([\w,]+)\]'", DOCKERFILE)}
    exist = {
        folder: tomllib.loads((REPO / folder.lstrip("/") / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for folder in extras
    }
    last = DOCKERFILE.rpartition("\nFROM ")[2]

    assert {"postgres", "serve"} <= set(extras["/integrations/tttembed-store"])
    assert [name for name, folder in extras.items() if set(folder) - exist[name]["optional-dependencies"].keys()] == []
    assert re.findall(r"useradd .*--uid (\d+)", last) == re.findall(r"^USER (\d+)$", last, re.MULTILINE) != []
    assert re.findall(r"^ENTRYPOINT (.*)$", last, re.MULTILINE) == ['["tttembed"]']
    assert "x-tttembed" in COMPOSE
    assert (REPO / "deploy" / COMPOSE["x-tttembed"]["build"]["context"]).resolve() == REPO
    assert (REPO / COMPOSE["x-tttembed"]["build"]["dockerfile"]).is_file()


def test_what_the_image_is_built_from_is_let_in() -> None:
    """The list of what is left out of the build lets in what the build reads, and nothing else of the clone."""
    lines = (REPO / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    named = {
        word.partition("[")[0].removeprefix("/src/") for word in shlex.split(DOCKERFILE) if word.startswith("/src/")
    }

    assert lines[0] == "**"
    assert [name for name in let_in if not (REPO / name).exists()] == []
    assert named | {"tttembed_rag", "pyproject.toml", "README.md", "LICENSE"} == let_in
