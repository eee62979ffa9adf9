"""The pages of the quality report, made from a ledger. Starts no Spark."""

import re

import pandas as pd
from latecomer.quality import messages, report
from latecomer.specs.loading import parse_query

JOIN = "name: {}\nkind: join\nstreams: {{l: a, r: b}}\nwindow: 1 min\nquality: {{recall: 0.95, period: 1 h}}\n"
COUNTS = {"rows_read": 1_234, "on_time": 500, "late": 7}
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
    return rows.assign(rows_held_mean=2.5, retention_l_us=[12_431_785_714, *[1 << 61] * (hours - 1)])


def text(page):
    return re.sub(r"<[^>]+>", "|", page.read_text(encoding="utf-8"))


def test_a_page_has_durations_and_marks_unknown_values(tmp_path):
    spec, pending = parse_query(JOIN.format("near")), messages.unjudged(1, 3, 7)
    page = report.write(tmp_path, spec, COUNTS, ledger(), [FINDING | {"success": True}], pending)
    page_text = text(page)
    assert "1 of 3 periods not judged yet, 7 late rows await repair." in page_text
    assert "Periods of 1 h, by their start (UTC)." in page_text
    assert "|retention_l|" in page_text and "|3 h 27 min|" in page_text and "|everything|" in page_text
    assert "2026-11-01 22:00:00" in page_text and "2026-11-02 00:00:00" in page_text and "|–|" in page_text
    assert "nan" not in page_text and "NaN" not in page_text
    (red,) = re.findall("<tr class=bad>.*?</tr>", page.read_text())
    assert "2026-11-01 22:00:00" in red and "0.9<" in red


def test_a_long_ledger_is_cut_with_a_note(tmp_path):
    page = report.write(tmp_path, parse_query(JOIN.format("near")), COUNTS, ledger(100), [FINDING | {"success": True}])
    assert "The last 60 of 100 periods of 1 h" in text(page)
    assert page.read_text().count("<tr><td>2026") + page.read_text().count("<tr class=bad><td>2026") == 60


def test_a_share_below_1_is_never_rounded_to_1(tmp_path):
    rows = ledger()
    rows.loc[0, "achieved_on_time"] = 0.999_99
    assert "|0.99999|recall, before repair|" in re.sub(
        r"\|+", "|", text(report.write(tmp_path, parse_query(JOIN.format("near")), COUNTS, rows, []))
    )


def test_the_index_has_a_line_per_query(tmp_path):
    (tmp_path / "older.html").write_text("<html><title>of another version</title>")
    for name, success, pending in (("good", True, ""), ("bad", False, ""), ("waits", True, messages.unjudged(1, 3, 1))):
        results = [FINDING | {"success": success}]
        report.write(tmp_path, parse_query(JOIN.format(name)), COUNTS, ledger(), results, pending)
    rows = re.findall(r"<tr><td>.*?</tr>", (tmp_path / "index.html").read_text())
    lines = {cells[1]: cells[2:-1] for row in rows for cells in [re.sub(r"(<[^>]+>)+", "|", row).split("|")]}
    assert set(lines) == {"good", "bad", "waits", "older"}
    assert lines["good"][:7] == ["all kept", "join", "target 0.95", "recall", "0.9001", "1", "7"]
    assert lines["bad"][:2] == ["1 broken", "join"]
    assert lines["waits"][:3] == ["all kept", "1 of 3 periods not judged yet, 1 late row awaits repair", "join"]
