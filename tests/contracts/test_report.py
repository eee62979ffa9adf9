"""The pages of the quality report, made from a ledger. Starts no Spark."""

import re

import pandas as pd
from latecomer.core.time import FOREVER
from latecomer.quality import messages, promise, report
from latecomer.specs.loading import parse_query

JOIN = "name: {}\nkind: join\nstreams: {{l: a, r: b}}\nwindow: 1 min\nquality: {{recall: 0.95, period: 1 h}}\n"
COUNTS = {"rows_read": 1_234, "on_time": 500, "late": 7}
STANDING = pd.Series(["judged", "judged", "awaits repair"])
FINDING = {
    "says": "recall on time",
    "observed": "0.9",
    "expected": "0.95",
    "expectation": "expect_recall_to_meet_target",
}


def ledger(hours=3):
    start = pd.date_range("2026-11-01 22:00", periods=hours, freq="h", tz="UTC")
    share = [0.9, *[1.0] * (hours - 2), None]
    rows = pd.DataFrame({"period_start": start, "period_end": start + pd.Timedelta(hours=1), "target": 0.95})
    rows["expected"] = [10_000.0, *[10.0] * (hours - 2), None]
    rows["achieved_on_time"] = share
    rows["achieved_final"] = [1.0] * (hours - 1) + [None]
    rows["on_time"] = (rows["expected"] * rows["achieved_on_time"]).round()
    return rows.assign(rows=10, rows_held_mean=2.5, retention_l_us=[12_431_785_714, *[1 << 61] * (hours - 1)])


def write(folder, spec, rows, results, verdicts=None, remarks=()):
    """Write a page about a ledger whose known periods are judged."""
    judged_periods = promise.verdicts(spec, rows, FOREVER) if verdicts is None else verdicts
    judged = pd.Timestamp("2026-11-03", tz="UTC")
    judged_periods = judged_periods.assign(judgement=0, rows=0, rows_ahead=0, new=True, judged=judged)
    judgement = promise.weigh(spec, judged_periods)
    standing = promise.standing(rows, judged_periods["period_start"], FOREVER)
    given = {"judgement": judgement, "standing": standing, "remarks": remarks, "history": judged_periods}
    return report.write(folder, spec, COUNTS, rows, results, **given)


def text(page):
    return re.sub(r"<[^>]+>", "|", page.read_text(encoding="utf-8"))


def test_a_page_has_durations_and_marks_unknown_values(tmp_path):
    spec, pending = parse_query(JOIN.format("near")), messages.unjudged(STANDING, 7)
    page = write(tmp_path, spec, ledger(), [FINDING | {"success": True}], remarks=(pending,))
    page_text = text(page)
    assert "1 of 3 periods not judged yet, 7 late rows await repair." in page_text
    assert "Periods of 1 h, by their start (UTC)." in page_text
    assert "|retention_l|" in page_text and "|3 h 27 min|" in page_text and "|everything|" in page_text
    assert "2026-11-01 22:00:00" in page_text and "2026-11-02 00:00:00" in page_text and "|–|" in page_text
    assert "nan" not in page_text and "NaN" not in page_text
    verdict, red = re.findall("<tr class=bad>.*?</tr>", page.read_text())
    assert "2026-11-01 22:00:00" in red and "0.9<" in red
    assert "2026-11-01 22:00:00" in verdict and "|missed|" in re.sub("(<[^>]+>)+", "|", verdict)


def test_a_long_ledger_is_cut_with_a_note(tmp_path):
    page = write(tmp_path, parse_query(JOIN.format("near")), ledger(100), [FINDING | {"success": True}])
    assert "The last 60 of 100 periods of 1 h" in text(page)
    (rows,) = re.findall("<table class=ledger>.*?</table>", page.read_text())
    assert rows.count("<tr><td>2026") + rows.count("<tr class=bad><td>2026") == 60


def test_a_share_below_1_is_never_rounded_to_1(tmp_path):
    rows = ledger()
    rows.loc[0, "achieved_on_time"] = 0.999_99
    assert "|0.99999|recall, before repair|" in re.sub(
        r"\|+", "|", text(write(tmp_path, parse_query(JOIN.format("near")), rows, []))
    )


def test_the_index_has_a_line_per_query(tmp_path):
    (tmp_path / "older.html").write_text("<html><title>of another version</title>")
    for name, success, pending in (
        ("good", True, ""),
        ("bad", False, ""),
        ("waits", True, messages.unjudged(STANDING, 1)),
    ):
        results = [FINDING | {"success": success}]
        write(tmp_path, parse_query(JOIN.format(name)), ledger(), results, remarks=(pending,))
    rows = re.findall(r"<tr><td>.*?</tr>", (tmp_path / "index.html").read_text())
    lines = {cells[1]: cells[2:-1] for row in rows for cells in [re.sub(r"(<[^>]+>)+", "|", row).split("|")]}
    assert set(lines) == {"good", "bad", "waits", "older"}
    assert lines["good"][:7] == ["all kept", "join", "target 0.95", "recall", "0.9001", "1", "7"]
    assert lines["bad"][:2] == ["1 broken", "join"]
    assert lines["waits"][:3] == ["all kept", "1 of 3 periods not judged yet, 1 late row awaits repair", "join"]


def test_a_page_shows_what_counts_what_does_not_and_why(tmp_path):
    file = JOIN.format("near").replace(
        "period: 1 h", "period: 1 h, exclude: [{from: 2026-11-02, to: 2026-11-02 02:00:00, why: 'the <gateway> fell'}]"
    )
    rows = ledger(12).assign(learning=[True, True, *[False] * 10])
    page = write(tmp_path, parse_query(file), rows, [])
    shown = re.findall("<title>([^<]*)</title>", page.read_text())[1:]
    assert [line.partition(", ")[2] for line in shown] == [
        *["learning"] * 2,
        *["excluded (the &lt;gateway&gt; fell)"] * 2,
        *["kept"] * 7,
        "awaits repair",
    ]
    page_text = re.sub(r"\|+", "|", text(page))
    assert "|2026-11-02|2026-11-02 02:00:00|the &lt;gateway&gt; fell|2|" in page_text
    assert "|periods|7|0|1|kept|" in page_text and "the last 100 judged periods" in page_text
    assert "|learning|" in page_text and "|excluded|" in page_text
