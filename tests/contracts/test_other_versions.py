"""States and plans of another version are refused in one line: never misread, and never an internal error."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from latecomer.core.state import REMEDY, OtherVersion
from latecomer.lake import journal, state_json
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.ledger.join_accounts import restore_join
from latecomer.ledger.open_periods import open_ledger
from latecomer.ledger.window_accounts import restore_window_accounts
from latecomer.specs.loading import load_query, parse_query
from latecomer.strategies.windows import window_controls

from tests.support.commands import call

QUERIES = {
    "join": "kind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 0.9, period: 10 s}\n",
    "join without a guarantee": "kind: join\nstreams: {l: a, r: b}\nwindow: 1 s\n"
    "quality: {recall: 0.9, period: 10 s}\nstrategy: {name: qjoin, guarantee: false}\n",
    "join by the paper": "kind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 0.9, period: 10 s}\n"
    "strategy: {name: qjoin, estimator: paper}\n",
    "join behind a watermark": "kind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 0.9, period: 10 s}\n"
    "strategy: aq_k_slack\n",
    "aggregate": "kind: aggregate\nstreams: {s: a}\nwindow: 1 s\nselect: {n: count()}\n"
    "quality: {error: 0.1, probability: 0.9, period: 10 s}\n",
    "topk": "kind: topk\nstreams: {s: a}\nscore: v\nk: 2\nwindow: 1 s\nquality: {hit_rate: 0.9, period: 10 s}\n"
    "strategy: adaptive_wait\n",
    "theta_join": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: 1 s\nconditions: [r.v < s.v]\n",
    "membership": "kind: membership\nstreams: {r: a, s: b}\nelement: v\nwindow: 1 s\n",
}


def state_of(spec):
    """Return the part of a query's state after its first micro-batch that the ledger reads."""
    if spec.kind == "join":
        control, accounts = restore_join(spec, None)
        return {"control": control.to_dict(), "books": accounts.to_dict()}
    controls = [control.to_dict() for control in window_controls(spec, None)]
    return {"controls": controls, "books": restore_window_accounts(spec, None).to_dict()}


def places(document, parent=()):
    """Yield the path of every key of every object in a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if isinstance(document, dict):
            yield (*parent, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*parent, key))


def changed(document, place, **more):
    """Return the document, as the lake has it, without the key at a place, or with `more` keys next to it."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    if more:
        inner.update(more)
    else:
        del inner[place[-1]]
    return state_json.loads(json.dumps(copy), "state of q")


@pytest.mark.parametrize("kind", QUERIES)
def test_a_state_without_a_key_is_of_another_version(kind):
    spec = parse_query("name: q\n" + QUERIES[kind])
    state = state_of(spec)
    refused = 0
    for place in places(state):
        try:
            open_ledger(spec, changed(state, place))
        except OtherVersion as error:
            refused += 1
            assert repr(place[-1]) in str(error) and REMEDY in str(error) and "\n" not in str(error)
        open_ledger(spec, changed(state, place, of_a_later_version=1))
    assert refused > 5


def test_an_unknown_version_has_a_remedy():
    for kind, parent in (
        ("aggregate", ("controls", 0, "policy")),
        ("topk", ("controls", 0, "policy")),
        ("join", ("control", "policy")),
        ("join without a guarantee", ("control", "policy", "controller")),
    ):
        spec = parse_query("name: q\n" + QUERIES[kind])
        place = (*parent, "version")
        with pytest.raises(OtherVersion, match="version 99") as caught:
            open_ledger(spec, changed(state_of(spec), place, version=99))
        assert caught.value.exit_code == 2 and REMEDY in str(caught.value)


def saved(tmp_path, **columns):
    """Make a lake with the state of a join's first micro-batch and changed `columns`; a None removes the column."""
    lake, path = Lake(tmp_path / "lake"), tmp_path / "q.yaml"
    path.write_text("name: q\n" + QUERIES["join"])
    spec = load_query(path)
    counts = {"rows_read": 1, "on_time": 0, "late": 0}
    state = journal.RunState(0, 1, False, spec.fingerprint(), state_of(spec), counts)
    journal.save_state(lake, "q", state)
    row = lake.table("state", "q").read().to_pylist()[0] | columns
    row = {name: value for name, value in row.items() if value is not None}
    lake.table("state", "q").append(pa.Table.from_pylist([row]), "run", 1)
    return lake, path, state


def test_a_state_without_a_format_has_the_first_format(tmp_path):
    lake, _, state = saved(tmp_path, format=None)
    assert journal.STATE_FORMAT == 1 and journal.load_state(lake, "q") == state


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"format": 2}, "has format 2"),
        ({"fingerprint": None}, "'fingerprint'"),
        ({"stage": '{"control": {}, "books": {}}'}, "'policy'"),
        ({"counts": "{}", "stage": '{"kontrol": {}}'}, "'control'"),
    ],
)
def test_the_error_of_the_command_is_one_line(tmp_path, columns, message):
    lake, path, _ = saved(tmp_path, **columns)
    done = call("check", path, "--lake", lake.uri)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and message in done.stderr and REMEDY in done.stderr


def test_status_shows_the_other_queries(tmp_path):
    lake, _, state = saved(tmp_path, format=2)
    journal.save_state(lake, "other", state)
    done = call("status", "--lake", lake.uri)
    assert done.returncode == 0, done.stderr
    assert "state of q: has format 2" in done.stdout and REMEDY in done.stdout
    assert any(line.split()[:2] == ["other", "1"] for line in done.stdout.splitlines())
    done = call("status", "--lake", lake.uri, "--query", "other", "--query", "third")
    assert done.returncode == 0 and "state of q" not in done.stdout, done.stdout
    assert "third: has not been run here" in done.stdout and "other  " in done.stdout
    done = call("status", "--lake", lake.uri, "--query", "../q")
    assert done.returncode == 2 and "'../q'" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_error_of_a_changed_query_names_the_keys_if_the_state_has_its_signature(tmp_path):
    lake, path, state = saved(tmp_path)
    changed = load_query(path)
    path.write_text(path.read_text().replace("window: 1 s", "window: 2 s"))
    spec = load_query(path)
    assert spec.fingerprint() != changed.fingerprint()
    with pytest.raises(InputError, match="has changed since it was first run"):
        journal.load_state(lake, "q", spec)
    journal.save_state(lake, "q", replace(state, number=2, signature=changed.signature()))
    with pytest.raises(
        InputError, match=r"has changed since it ran: window was 1 s, is 2 s; .*restore .* `latecomer forget q`"
    ):
        journal.load_state(lake, "q", spec)
    assert journal.load_state(lake, "q", changed) == replace(state, number=2, signature=changed.signature())


def test_a_plan_of_another_format_is_refused(tmp_path, monkeypatch):
    lake = Lake(tmp_path / "lake")
    journal.plan(lake, "q", "run", 0, {"seq_to": 7})
    assert journal.planned(lake, "q", "run", 0) == {"seq_to": 7}
    with pytest.raises(OtherVersion, match="'seq_from'"):
        journal.planned(lake, "q", "run", 0)["seq_from"]
    monkeypatch.setattr(journal, "STATE_FORMAT", 2)
    with pytest.raises(OtherVersion, match="plan of q: has format 1, this program reads 2"):
        journal.planned(lake, "q", "run", 0)


def test_plans_without_a_format_have_the_first_format(tmp_path):
    lake = Lake(tmp_path / "lake")
    lake.table("journal", "q").append(pa.table({"number": [0], "plan": ['{"seq_to": 7}']}), "run", 0)
    assert journal.planned(lake, "q", "run", 0) == {"seq_to": 7}
