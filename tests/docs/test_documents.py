"""The pages say what is true: commands run, keys, commands and options are explained, links lead somewhere.

The pages are README.md, CONTRIBUTING.md, CHANGELOG.md and all of docs/.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow.parquet as pq
import pytest
from latecomer.jobs.cli import main
from latecomer.specs import loading, schema, streams

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
KEY = re.compile(r"^\| `([a-z_.]+)` \|", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def sections(text: str, mark: str) -> dict[str, str]:
    """Text by the heading before it, for headings that begin with `mark`; back-ticks are removed."""
    parts = re.split(rf"^{mark} (.+)$", FENCE.sub("", text), flags=re.MULTILINE)
    return {name.replace("`", ""): body for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def anchors(page: Path) -> set[str]:
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ---- commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's project after a shell ran its commands as written, beside the checkout's environment."""
    place = tmp_path_factory.mktemp("quickstart")
    (place / ".venv").symlink_to(ROOT / ".venv")
    script = "set -e\n" + "".join(blocks(DOCS / "quickstart.md", "sh"))
    done = subprocess.run(["bash", "-c", script], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return place / "shop"


@pytest.mark.slow
def test_the_quickstart_runs_as_written(folder):
    assert pq.read_metadata(folder / "results.parquet").num_rows > 500
    assert (folder / "report" / "index.html").is_file()


@pytest.mark.slow
def test_columns_of_results_and_ledger_are_explained(folder):
    text = (DOCS / "tables.md").read_text(encoding="utf-8")
    with open(folder / "ledger.csv", encoding="utf-8") as ledger:
        columns = next(csv.reader(ledger))
    missing = [name for name in columns if f"`{re.sub('_(view|click)_', '_<alias>_', name)}`" not in text]
    envelope = pq.read_schema(folder / "results.parquet").names[-3:]
    assert not missing and all(f"`{name}`" in text for name in envelope)


def test_commands_of_the_readme_are_those_of_the_quickstart():
    """The quickstart's commands run as written, so those of the README do, in the same order."""
    quickstart = iter(commands(DOCS / "quickstart.md"))
    missing = [line for line in commands(README) if line not in quickstart]
    assert not missing


def commands(page: Path) -> list[str]:
    lines = "".join(blocks(page, "sh")).splitlines()
    return [" ".join(line.split("#")[0].split()) for line in lines if line.strip()]


def options(command: click.Command) -> set[str]:
    """Return the options of a command, and those of the commands of a group."""
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return set().union(*map(options, inner)) | {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in [*parameter.opts, *parameter.secondary_opts]
    }


def explained_options() -> dict[str, set[str]]:
    """Options that a page's section about a command lists in its table, by command."""
    bodies = sections((DOCS / "commands.md").read_text(encoding="utf-8"), "###")
    rows = {name: re.findall(r"^\| (`--.*?`) \|", body, re.MULTILINE) for name, body in bodies.items()}
    return {name.split()[1]: set(OPTION.findall(" ".join(cells))) for name, cells in rows.items()}


def test_every_command_and_option_is_explained():
    explained = explained_options()
    assert set(explained) == set(main.commands)
    for name, command in main.commands.items():
        common = {"--lake", "--json", "--spark"}
        assert explained[name] | common == options(command) | common, name


def test_pages_name_no_command_or_option_that_is_not_there():
    known = set().union(*map(options, main.commands.values())) | {"--help", "--version"}
    for page in PAGES:
        for line in re.findall(r"latecomer (\w+) ([^`\n]*)", "\n".join(code(page))):
            assert line[0] in main.commands, (page.name, line)
            assert set(re.findall(r"--[a-z][a-z-]*", line[1].split("#")[0])) <= known, (page.name, line)


def code(page: Path) -> Iterator[str]:
    yield from blocks(page, "sh")
    yield from re.findall(r"`(latecomer \w+ [^`]*)`", page.read_text(encoding="utf-8"))


# ---- query files and stream files


def documented(text: str, kind: str) -> set[str]:
    parts = sections(text, "##")
    return set(KEY.findall(parts["Every kind"])) | set(KEY.findall(parts[kind]))


def accepted(kind: str) -> set[str]:
    """Dotted keys that the reader of a kind's query files takes, with any strategy, as the schema has them."""
    cases = schema.query_schema()["allOf"]
    return next(schema.keys(case["then"]) for case in cases if case["if"]["properties"]["kind"]["const"] == kind)


@pytest.mark.parametrize("kind", loading.KINDS)
def test_every_key_of_a_query_file_is_explained(kind):
    text = (DOCS / "query-files.md").read_text(encoding="utf-8")
    refused = {"quality.silence"} if kind in ("aggregate", "topk") else set()  # of one stream there is no other
    assert documented(text, kind) == accepted(kind) | refused and not accepted(kind) & refused


@pytest.mark.parametrize("kind", loading.KINDS)
def test_every_strategy_is_named(kind):
    text = sections((DOCS / "query-files.md").read_text(encoding="utf-8"), "##")[kind]
    module = __import__(f"latecomer.specs.{kind}", fromlist=["STRATEGIES"])
    assert not [name for name in module.STRATEGIES if f"`{name}`" not in text]


def test_every_key_of_a_stream_file_is_explained():
    text = sections((DOCS / "stream-files.md").read_text(encoding="utf-8"), "##")["Stream files"]
    assert set(KEY.findall(text)) == schema.keys(schema.stream_schema())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_yaml_of_the_pages_can_be_read(page, tmp_path):
    for number, text in enumerate(blocks(page, "yaml")):
        if re.search(r"^kind:", text, re.MULTILINE):
            loading.parse_query(text, f"{page.name}, block {number}")
        elif text.startswith("# streams/"):
            name = text.split()[1].removeprefix("streams/")
            (tmp_path / name).write_text(text, encoding="utf-8")
            streams.load_stream(tmp_path / name)


# ---- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), (page.name, target)
        assert not anchor or anchor in anchors(place), (page.name, target)


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_lines_of_prose_have_at_most_120_characters(page):
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith(("|", "!["))]


def test_a_broken_link_and_a_missing_key_would_be_noticed(monkeypatch):
    assert "every-kind" in anchors(DOCS / "query-files.md") and "any-kind" not in anchors(DOCS / "query-files.md")
    text = (DOCS / "query-files.md").read_text(encoding="utf-8").replace("| `window` |", "| window |")
    assert "window" in accepted("join") - documented(text, "join")
