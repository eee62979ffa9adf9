"""The JSON Schemas of query and stream files: made by their readers, and as strict as a schema can be."""

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from latecomer.jobs import init_project
from latecomer.specs import schema
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import KINDS, parse_mapping, parse_query
from latecomer.specs.streams import load_stream
from ruamel.yaml import YAML

from tests.contracts import test_query_files, test_stream_files
from tests.core import test_specs_files
from tests.core.test_specs_files import BAD, EXAMPLES, changed

ROOT = Path(__file__).resolve().parents[2]
EXPRESSIONS = ("where", "score", "conditions", "select", "group_by", "element", "keys")
BEYOND = re.compile(
    "longer than ten years|finer than a microsecond|is longer than the|is longer than max_wait|puts each row"
    "|is too fine"
    "|fingerprints of more than|differs from another alias|is a reserved word|an alias whose column|is not possible"
    "|is not counted|beside over|is not before|has no rows|is of a recall|is not offered|reads one alone"
)
"""Faults that a schema cannot express: of two keys together, or of names that depend on others."""


def is_beyond(error):
    """True for a fault of an expression or a column's name, of a key that is an alias, and for faults of `BEYOND`."""
    of_text = error.key.split(".")[0].split("[")[0] in EXPRESSIONS and not re.match(
        "must be|is missing|is not a key|has no value", error.problem
    )
    of_alias = re.fullmatch(r"(element|keys|window)\.(?!size|slide)\w+", error.key) is not None
    return of_text or of_alias or BEYOND.search(error.problem) is not None


def plain(value):
    """Return a value of YAML as JSON has it."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def validator(kind):
    return Draft202012Validator(json.loads(schema.text(kind)))


@pytest.fixture(scope="module")
def queries():
    return validator("query")


def by_yaml(text):
    return plain(YAML(typ="safe", pure=True).load(text))


@pytest.mark.parametrize("kind", schema.FILES)
def test_the_shipped_file_is_what_the_readers_say(kind):
    """Renew it with: python -m latecomer.specs.schema"""
    assert schema.text(kind) == schema.generated(kind)
    Draft202012Validator.check_schema(json.loads(schema.text(kind)))


def test_a_key_that_a_reader_takes_is_in_the_schema():
    text = json.loads(schema.text("query"))
    by_kind = {case["if"]["properties"]["kind"]["const"]: case["then"] for case in text["allOf"]}
    assert by_kind["join"]["properties"]["strategy"]["anyOf"][1]["properties"]["estimator"]["enum"][0] == "paper"
    assert by_kind["topk"]["properties"]["k"] == {"type": "integer", "minimum": 1, "maximum": 10_000}
    assert {"k", "streams", "window", "score"} <= set(by_kind["topk"]["required"])
    assert by_kind["theta_join"]["properties"]["emit"]["enum"] == ["rows", "count", "ranges", None]


@pytest.mark.parametrize("kind", KINDS)
def test_good_files_are_valid(queries, kind):
    example = plain(YAML(typ="safe", pure=True).load(test_specs_files.quoted(EXAMPLES[kind])))
    queries.validate(example)
    queries.validate(example | {"schedule": {"start": "2013-01-31", "interval": "0 5 * * 1-5"}, "publish": None})
    module = __import__(f"latecomer.specs.{kind}", fromlist=["STRATEGIES"])
    for strategy in module.STRATEGIES:
        data = {key: value for key, value in example.items() if key not in ("strategy", "emit", "select")}
        data |= {"select": example["select"]} if kind == "aggregate" else {}
        for stated in (strategy, {"name": strategy}, {"name": strategy, "slack": "0 s"}, {"name": strategy, "x": 1}):
            try:
                parse_mapping(data | {"strategy": stated}, "q")
            except SpecError as error:
                assert not queries.is_valid(data | {"strategy": stated}), (stated, str(error))
            else:
                queries.validate(data | {"strategy": stated})


def test_every_query_file_of_the_repository_is_valid(queries, tmp_path):
    init_project.make(tmp_path / "shop", True)
    paths = [*(ROOT / "include" / "queries").glob("*.yaml"), *(tmp_path / "shop" / "queries").glob("*.yaml")]
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    blocks = [block for page in pages for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)]
    texts = [path.read_text() for path in paths] + [block for block in blocks if re.search(r"^kind:", block, re.M)]
    assert len(texts) >= 15
    for text in texts:
        parse_query(text)
        queries.validate(by_yaml(text))


def test_every_stream_file_of_the_repository_is_valid(tmp_path):
    init_project.make(tmp_path / "shop", True)
    streams = validator("stream")
    commented = (tmp_path / "shop" / "streams" / "views.yaml").read_text()
    stated = re.sub(r"^# (\w+:)", r"\1", commented, flags=re.M)
    pages = [ROOT / "docs" / "stream-files.md", *(ROOT / "docs" / "sources").glob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)]
    texts = [block for block in blocks if block.startswith("# streams/")]
    texts += [commented, stated, (ROOT / "include" / "streams" / "flights.yaml").read_text()]
    assert len(texts) >= 5
    for text in texts:
        streams.validate(by_yaml(text))


def test_files_of_init_name_schemas_that_lie_where_they_say(tmp_path):
    init_project.make(tmp_path / "shop")
    for path in [*(tmp_path / "shop").rglob("*.yaml")]:
        first = path.read_text().splitlines()[0]
        place = first.removeprefix("# yaml-language-server: $schema=")
        kind = {"queries": "query", "streams": "stream"}[path.parent.name]
        assert (path.parent / place).read_text() == schema.text(kind)


@pytest.mark.parametrize(("kind", "key", "value"), BAD)
def test_bad_files_are_refused_unless_their_fault_is_beyond_a_schema(queries, kind, key, value):
    data = plain(changed(kind, key, value))
    if value != value:
        return  # JSON has no such number
    if queries.is_valid(json.loads(json.dumps(data, default=str))):
        with pytest.raises(SpecError) as caught:
            parse_query(test_specs_files.dumped(changed(kind, key, value)))
        assert is_beyond(caught.value), caught.value


def test_most_bad_files_are_refused(queries):
    bad = [plain(changed(*case)) for case in BAD if case[1] != "where"]
    refused = [data for data in bad if not queries.is_valid(json.loads(json.dumps(data, default=str)))]
    assert len(refused) / len(bad) > 0.75, (len(refused), len(bad))


@pytest.mark.parametrize("mutation", test_query_files.MUTATIONS, ids=lambda mutation: mutation[1][:40])
def test_mutations_are_refused_unless_their_fault_is_beyond_a_schema(queries, mutation):
    old, new, _ = mutation
    if ".nan" in new:
        return  # JSON has no such number
    text = test_query_files.GOOD.replace(old, new)
    try:
        data = by_yaml(text)
    except Exception:
        return  # no YAML
    if queries.is_valid(data):
        with pytest.raises(SpecError) as caught:
            parse_query(text)
        assert is_beyond(caught.value), caught.value


@pytest.mark.parametrize(
    "text",
    [
        "event_colum: ts", "time_unit: ns", "time_unit: [s]", "format: xml", "max_future: 0 s", "max_future: 7",
        "max_quarantined: 5", "recursive: maybe", "recursive: 1", "event_column: 7", "event_column: [a, b, c]", "[a]",
        "source: kafka\ntopic: t", "source: delta", "source: delta\ntable: t\ntopic: t", "topic: t", "columns: {}",
        "columns: {a: 1}", "key: []", "skip_rows: -1", "on_duplicate: last", "null_values: [1]", "separator: ''",
    ],
)  # fmt: skip
def test_bad_stream_files_are_refused(tmp_path, text):
    with pytest.raises(SpecError):
        test_stream_files.loaded(tmp_path, text)
    assert not validator("stream").is_valid(by_yaml(text))


@pytest.mark.parametrize("text", ["", "event_column: [day, time]\nquote: ''", "source: kafka\ntopic: t\nservers: a:1"])
def test_good_stream_files_are_valid(tmp_path, text):
    test_stream_files.loaded(tmp_path, text)
    assert load_stream(tmp_path / "s.yaml") is not None
    validator("stream").validate(by_yaml(text))


def test_the_command_prints_it():
    line = [sys.executable, "-m", "latecomer.jobs.cli", "schema", "stream"]
    assert subprocess.run(line, capture_output=True, text=True).stdout == schema.text("stream")
