"""The log of a Delta table: which files hold the rows of its versions, whatever the table went through."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latecomer.ingest import delta_source
from latecomer.ingest.delta_log import DeltaLog, parse_commit, plan_next, plan_start
from latecomer.ingest.options import IngestOptions
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.streams import DeltaTableSource

FEED = {"delta.enableChangeDataFeed": "true"}


def append(folder, values, **more):
    write_deltalake(str(folder), pa.table({"v": pa.array(values, pa.int64())}), mode="append", **more)


def planned(folder, plan):
    """The values of the planned files in their order, with the names of their parts and their places in the part."""
    rows = []
    for file in plan.files:
        values = pq.read_table(file.path, partitioning=None)["v"].to_pylist()
        rows += [(plan.parts[file.part], file.before + row, value) for row, value in enumerate(values)]
    return rows


def next_plan(folder, plan, on_change="refuse", progress=lambda line: None):
    return plan_next(DeltaLog(str(folder), "t"), plan.last, plan.last_us, on_change, progress)


def start(folder):
    return plan_start(DeltaLog(str(folder), "t"))


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "optimize", "property", "nothing"]), st.booleans()),
    min_size=1,
    max_size=7,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_split_into_calls_plans_the_same_rows(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("t")
    append(folder, [0, 1])
    truth, value = [("version 0", 0, 0), ("version 0", 1, 1)], 2
    plan = start(folder)
    rows, times = planned(folder, plan), [file.arrived_us for file in plan.files]
    for step, stops in steps:
        if step == "append":
            append(folder, [value, value + 1, value + 2])
            version = DeltaTable(str(folder)).version()
            truth += [(f"version {version}", place, value + place) for place in range(3)]
            value += 3
        elif step == "optimize":
            DeltaTable(str(folder)).optimize.compact()
        elif step == "property":
            DeltaTable(str(folder)).alter.set_table_properties({"delta.appendOnly": "false"})
        if stops:
            plan = next_plan(folder, plan)
            rows += planned(folder, plan)
            times += [file.arrived_us for file in plan.files]
    plan = next_plan(folder, plan)
    rows += planned(folder, plan)
    times += [file.arrived_us for file in plan.files]
    assert rows == truth
    assert times == sorted(times)
    whole = start(folder)
    assert planned(folder, whole) == truth
    assert [file.arrived_us for file in whole.files] == times
    assert whole.last_us == plan.last_us


def test_the_first_call_takes_the_rows_that_a_table_has(tmp_path):
    append(tmp_path, range(100))
    write_deltalake(str(tmp_path), pa.table({"v": pa.array(range(100, 200), pa.int64())}), mode="overwrite")
    append(tmp_path, [200])
    plan = start(tmp_path)
    assert [row[::2] for row in planned(tmp_path, plan)] == [("version 1", v) for v in range(100, 200)] + [
        ("version 2", 200)
    ]
    assert plan.first is None and plan.digest.endswith(":all..2")


@pytest.mark.parametrize("is_vacuumed", [False, True])
def test_moved_rows_keep_version_and_time_while_their_first_files_are_there(tmp_path, is_vacuumed):
    append(tmp_path, [1])
    append(tmp_path, [2])
    before = start(tmp_path)
    DeltaTable(str(tmp_path)).optimize.compact()
    if is_vacuumed:
        vacuum(tmp_path)
    plan = start(tmp_path)
    assert (plan.first is None) is is_vacuumed
    if is_vacuumed:
        assert {row[0] for row in planned(tmp_path, plan)} == {"version 2"}
        assert sorted(row[2] for row in planned(tmp_path, plan)) == [1, 2]
    else:
        assert plan.files == [*before.files]


def vacuum(folder):
    DeltaTable(str(folder)).vacuum(0, dry_run=False, enforce_retention_duration=False)


def drop_log(folder, until):
    """Make a checkpoint, and remove the commits before a version, as the log's retention does."""
    DeltaTable(str(folder)).create_checkpoint()
    for version in range(until):
        (Path(folder) / "_delta_log" / f"{version:020}.json").unlink()


def test_files_of_versions_that_the_log_lost_come_first(tmp_path):
    for value in range(4):
        append(tmp_path, [value])
    drop_log(tmp_path, 2)
    plan = start(tmp_path)
    assert planned(tmp_path, plan) == [
        ("files of earlier versions", 0, 0),
        ("files of earlier versions", 1, 1),
        ("version 2", 0, 2),
        ("version 3", 0, 3),
    ]
    times = [file.arrived_us for file in plan.files]
    assert times == sorted(times) and times[0] > 0


def test_a_gap_in_the_log_is_refused(tmp_path):
    append(tmp_path, [0])
    plan = start(tmp_path)
    for value in range(1, 7):
        append(tmp_path, [value])
    drop_log(tmp_path, 4)
    with pytest.raises(InputError, match=r"versions 1 to 3 are not ingested yet, and gone from its log; .*delta.logR"):
        next_plan(tmp_path, plan)


def test_removed_files_are_refused(tmp_path):
    append(tmp_path, [0])
    plan = start(tmp_path)
    append(tmp_path, [1])
    append(tmp_path, [2])
    DeltaTable(str(tmp_path)).optimize.compact()
    vacuum(tmp_path)
    with pytest.raises(InputError, match=r"2 files with rows that were not ingested yet are gone.*VACUUM"):
        next_plan(tmp_path, plan)


def test_a_table_that_was_put_back_is_refused(tmp_path):
    append(tmp_path, [0])
    append(tmp_path, [1])
    plan = start(tmp_path)
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(InputError, match="is at version 0, and version 1 of it was ingested"):
        next_plan(tmp_path, plan)


def change(folder, operation):
    table = DeltaTable(str(folder))
    rows = pa.table({"v": pa.array([2, 50], pa.int64())})
    if operation == "DELETE":
        table.delete("v = 1")
    elif operation == "UPDATE":
        table.update(updates={"v": "v + 10"}, predicate="v = 1")
    elif operation == "WRITE":
        write_deltalake(table, rows, mode="overwrite")
    elif operation == "RESTORE":
        table.restore(0)
    else:
        merge = table.merge(rows, "t.v = s.v", source_alias="s", target_alias="t")
        merge.when_matched_update({"v": "t.v + 10"}).when_not_matched_insert_all().execute()


OPERATIONS = {"DELETE": [], "UPDATE": [], "WRITE": [2, 50], "MERGE": [50]}


@pytest.mark.parametrize("operation", [*OPERATIONS, "RESTORE"])
def test_changed_rows_are_refused_or_passed_over(tmp_path, operation):
    append(tmp_path, [1, 2, 3])
    append(tmp_path, [4])
    plan = start(tmp_path)
    append(tmp_path, [5])
    change(tmp_path, operation)
    append(tmp_path, [6])
    with pytest.raises(InputError, match=rf"version 3 \({operation}\) .*insert_only.*skip"):
        next_plan(tmp_path, plan)
    lines = []
    rows = planned(tmp_path, next_plan(tmp_path, plan, "skip", lines.append))
    assert rows == [("version 2", 0, 5), ("version 4", 0, 6)]
    assert len(lines) == 1 and f"version 3 ({operation})" in lines[0]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_insert_only_reads_the_change_feed(tmp_path, operation):
    append(tmp_path, [1, 2, 3], configuration=FEED)
    plan = start(tmp_path)
    change(tmp_path, operation)
    inserted = []
    for file in next_plan(tmp_path, plan, "insert_only").files:
        rows = pq.read_table(file.path, partitioning=None)
        assert file.is_changes is ("_change_type" in rows.column_names)
        if file.is_changes:
            rows = rows.filter(pa.compute.equal(rows["_change_type"], "insert"))
        inserted += rows["v"].to_pylist()
    assert inserted == OPERATIONS[operation]


def test_insert_only_needs_the_change_feed(tmp_path):
    append(tmp_path, [1, 2, 3])
    plan = start(tmp_path)
    change(tmp_path, "MERGE")
    with pytest.raises(InputError, match=r"version 1 \(MERGE\).*ALTER TABLE .* SET TBLPROPERTIES \(delta.enableCh"):
        next_plan(tmp_path, plan, "insert_only")


def test_a_delete_inserts_nothing_whether_or_not_the_feed_is_on(tmp_path):
    append(tmp_path, [1])
    append(tmp_path, [2])
    plan = start(tmp_path)
    change(tmp_path, "DELETE")  # removes a file
    assert next_plan(tmp_path, plan, "insert_only").files == []


# ---- commits


def lines(*actions):
    return "\n".join(json.dumps(action) for action in actions)


@pytest.mark.parametrize(
    ("info", "time_us"),
    [
        ({"inCommitTimestamp": 3, "timestamp": 2}, 3000),
        ({"timestamp": 2}, 2000),
        ({}, 7),
    ],
)
def test_the_time_of_a_commit(info, time_us):
    assert parse_commit(0, lines({"commitInfo": info}), 7).time_us == time_us


ADD = {"path": "a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
REMOVE = {"path": "b.parquet", "dataChange": True}


@pytest.mark.parametrize(
    ("actions", "keeps_rows", "is_append"),
    [
        ([{"add": ADD}], False, True),
        ([{"add": ADD}, {"txn": {"appId": "x", "version": 1}}, {"domainMetadata": {}}], False, True),
        ([{"txn": {"appId": "x", "version": 1}}, {"protocol": {}}], True, False),
        ([{"add": ADD | {"dataChange": False}}, {"remove": REMOVE | {"dataChange": False}}], True, False),
        ([{"add": ADD}, {"remove": REMOVE}], False, False),
        ([{"remove": REMOVE}], False, False),
        ([{"add": ADD | {"deletionVector": {"storageType": "u"}}}], False, False),
        ([{"add": ADD}, {"commitInfo": {"operation": "RESTORE"}}], False, False),
        ([{"cdc": {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}}], False, False),
    ],
)
def test_what_a_commit_does_to_rows(actions, keeps_rows, is_append):
    commit = parse_commit(3, lines(*actions), 0)
    assert (commit.keeps_rows, commit.is_append) == (keeps_rows, is_append)


def test_times_never_fall(tmp_path):
    append(tmp_path, [0])
    append(tmp_path, [1])
    log = tmp_path / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = 5
    first = start(tmp_path).files[0].arrived_us
    log.write_text(lines(*actions))
    assert [file.arrived_us for file in start(tmp_path).files] == [first, first]


def test_rows_without_statistics_are_counted(tmp_path):
    append(tmp_path, [0, 1, 2])
    append(tmp_path, [3])
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    log.write_text(lines(*actions))
    assert [file.rows for file in start(tmp_path).files] == [3, 1]


def test_paths_in_the_log_are_encoded(tmp_path):
    rows = pa.table({"v": pa.array([1, 2], pa.int64()), "p": ["a b/é:%", None]})
    write_deltalake(str(tmp_path), rows, partition_by=["p"])
    plan = start(tmp_path)
    assert all(Path(file.path).is_file() for file in plan.files)
    assert {file.values["p"] for file in plan.files} == {"a b/é:%", None}


# ---- positions


def new_content(lake, folder):
    options = IngestOptions(stream="s", source=DeltaTableSource(str(folder)))
    return delta_source.new_content(lake, options, lambda line: None)


def commit(lake, number, source):
    row = {"number": number, "positions": json.dumps({"s": source.position})}
    lake.table("ingest", "committed").append(pa.Table.from_pylist([row]), "ingest", number)


def test_calls_go_on_at_the_position(tmp_path):
    lake, folder = Lake(tmp_path / "lake"), tmp_path / "t"
    append(folder, [0, 1])
    source = new_content(lake, folder)
    assert (source.origins, source.most_rows) == ([f"{folder}, version 0"], 2)
    commit(lake, 0, source)
    assert new_content(lake, folder) is None
    append(folder, [2])
    source = new_content(lake, folder)
    assert source.digests == [f"delta:{DeltaTable(str(folder)).metadata().id}:1..1"]
    commit(lake, 1, source)
    DeltaTable(str(folder)).optimize.compact()
    source = new_content(lake, folder)
    assert source.most_rows == 0 and source.position["version"] == 2
    commit(lake, 2, source)
    assert new_content(lake, folder) is None


def test_another_table_is_refused(tmp_path):
    lake = Lake(tmp_path / "lake")
    append(tmp_path / "t", [0])
    append(tmp_path / "u", [0])
    commit(lake, 0, new_content(lake, tmp_path / "t"))
    with pytest.raises(InputError, match="is another table than the one that stream s took its rows from"):
        new_content(lake, tmp_path / "u")


def test_files_that_vanish_before_the_commit_are_noticed(tmp_path):
    append(tmp_path / "t", [0])
    source = new_content(Lake(tmp_path / "lake"), tmp_path / "t")
    source.check_in_place()
    Path(source.plan.files[0].path).unlink()
    with pytest.raises(InputError, match=r"are gone|is gone"):
        source.check_in_place()


@pytest.mark.parametrize("name", ["missing", "/missing/folder", "s3:/x"])
def test_no_table(tmp_path, name):
    with pytest.raises(InputError, match=r"is no Delta table|neither a path nor a URI"):
        new_content(Lake(tmp_path / "lake"), name)


def test_a_feature_that_is_not_known_is_refused(tmp_path):
    append(tmp_path, [0])
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["fancy"], "writerFeatures": ["fancy"]}
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text(lines(*({"protocol": protocol} if "protocol" in action else action for action in actions)))
    with pytest.raises(InputError, match="fancy"):
        start(tmp_path)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('{"name": "a b", "type": "long"}', None),
        ('{"name": "_row", "type": "long"}', "_row"),
        ('{"name": "v", "type": "variant"}', "variant"),
        ('{"name": "v", "type": {"type": "array", "elementType": "interval day", "containsNull": true}}', "interval"),
        ('{"name": "v", "type": {"type": "struct", "fields": [{"name": "a b", "type": "long"}]}}', "a b"),
        ('{"name": "v", "type": "long"}, {"name": "V", "type": "long"}', "case does not"),
    ],
)
def test_columns_that_streams_do_not_have_are_refused(schema, problem):
    metadata = delta_source.Metadata("id", f'{{"type": "struct", "fields": [{schema}]}}', (), {})
    if problem is None:
        delta_source._refuse_schema("t", metadata)
        return
    with pytest.raises(InputError, match=problem):
        delta_source._refuse_schema("t", metadata)


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        ('"integer"', '"long"', True),
        ('"long"', '"integer"', False),
        ('"long"', '"double"', False),
        ('"integer"', '"decimal(12,2)"', True),
        ('"integer"', '"decimal(10,2)"', False),
        ('"decimal(5,2)"', '"decimal(7,3)"', True),
        ('"decimal(5,2)"', '"decimal(5,3)"', False),
        ('"string"', '"long"', False),
        (
            '{"type": "struct", "fields": [{"name": "a", "type": "integer"}]}',
            '{"type": "struct", "fields": [{"name": "b", "type": "long"}, {"name": "a", "type": "long"}]}',
            True,
        ),
        (
            '{"type": "array", "elementType": "integer", "containsNull": true}',
            '{"type": "array", "elementType": "string", "containsNull": true}',
            False,
        ),
    ],
)
def test_files_are_read_with_a_later_schema_that_loses_nothing(old, new, fits):
    texts = [f'{{"type": "struct", "fields": [{{"name": "v", "type": {kind}}}]}}' for kind in (new, old)]
    later, earlier = (delta_source.Metadata("id", text, (), {}) for text in texts)
    assert delta_source._extends(later, earlier) is fits
