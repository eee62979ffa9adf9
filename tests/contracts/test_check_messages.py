"""The messages of `check`: plain words first, and expectation, observed value and period in each. Starts no Spark."""

import pandas as pd
import pyarrow as pa
import pytest
from latecomer.core.time import FOREVER
from latecomer.quality import checks, duplicates, messages, promise
from latecomer.specs.loading import parse_query

JOIN = """\
name: q
kind: join
streams: {l: a, r: b}
window: 1 min
quality: {recall: 0.95, period: 1 d, rows_held: 10, silence: 1 h}
"""
HOUR = 3_600_000_000
DAYS = [f"2013-02-{day:02d} 00:00:00+00:00" for day in range(1, 7)]


def frames(recall, final, held, left=5, twice=(), other=0, behind=HOUR, new=True):
    again = pa.table({"l_seq": pa.array(twice, pa.int64()), "r_seq": pa.array(twice, pa.int64())})
    stored = duplicates.StoredResults({"on_time": 3, "corrections": 1}, ("l_seq", "r_seq"), again, len(twice), [])
    return {
        "promises": pd.DataFrame({"period_start": DAYS, "achieved": recall, "needed": 0.95, "due": 2_000}).assign(
            on_time=lambda rows: (rows["achieved"] * 2_000).astype(int), new=new
        ),
        "filters": pd.DataFrame(),
        "ledger": pd.DataFrame({"period_start": DAYS, "achieved_final": final, "rows_held_max": held}),
        "books": pd.DataFrame([{"law": "rows in = rows out", "left": left, "right": 5}]),
        "results": checks._unique(stored),
        "streams": pd.DataFrame(
            {"stream": ["a", "b"], "last_event": DAYS[:2], "behind_us": [behind, 0], "ahead": ["b", "b"]}
        ),
        "audit": pd.DataFrame([audited(0, DAYS[0]), audited(other, DAYS[3])]),
    }


def audited(other, day):
    """Return the row of an audited period with `other` differences."""
    some = pa.table({"l_seq": [7], "r_seq": [9], "is": ["has l_v 3, should be 4"]}) if other else pa.table({})
    counts = {
        "results": 1_000,
        "missing": 2 * other,
        "extra": 0,
        "other": other,
        "wrong": 3 * other,
        "audited": "2026-01-01 00:00 UTC",
    }
    return {"period_start": day, **counts, "some": messages.differing(some)}


def validated(*given):
    return checks._validate(parse_query(JOIN), frames(*given), None, 5)


def test_a_failure_has_the_observed_value_its_place_and_the_expectation():
    outcome = validated(
        [0.5, 0.94999, 1.0, 0.9, 0.9, 1.0], [1.0, 0.99999, *[1.0] * 4], [11, *[3] * 5], 4, [1], 1, 29 * HOUR
    )
    assert not outcome.success and outcome.failures == [
        "recall on time: 4 of 6 periods below 0.95, all new (2013-02-01: 0.5, 1,000 of 2,000 on time; "
        "2013-02-02: 0.94999, 1,899 of 2,000 on time; 2013-02-04: 0.9, 1,800 of 2,000 on time; ...); expected: at "
        "least 0.95 in 5 of 6 periods (by chance, 1 may miss, at 95%) [expect_recall_to_meet_target]",
        "complete after repair: 1 of 6 periods below 1 (2013-02-02: 0.99999); "
        "expected: everything in every period [expect_complete_after_repair]",
        "rows held: 1 of 6 periods above 10 (2013-02-01: 11); "
        "expected: at most 10 (quality.rows_held) [expect_rows_held_bounded]",
        "streams heard: nothing of stream a after 2013-02-01, 1 d 5 h before the last of b; "
        "expected: none more than 1 h behind the others (quality.silence) [expect_streams_heard]",
        "every row accounted for: 1 of 1 counts differ (rows in = rows out: 4 against 5); "
        "expected: both sides of every count are equal [expect_conservation]",
        "no result twice: 1 of 4 rows are duplicates (l_seq 1, r_seq 1); "
        "expected: every l_seq, r_seq once [expect_no_duplicate_result]",
        "results as recomputed: 1 of 2 audited periods differ (2013-02-04: 2 missing, 1 other (l_seq 7, r_seq 9 "
        "has l_v 3, should be 4), as of 2026-01-01 00:00 UTC); "
        "they count as wrong until `check --audit` finds them right; "
        "expected: the answers of plain SQL over all stored rows [expect_results_as_recomputed]",
    ]


def test_successes_and_failures_have_the_same_words():
    outcome = validated([1.0, 0.9, *[1.0] * 4], [1.0] * 6, [3, 3, 4, 3, 4, 3])
    assert outcome.success and outcome.failures == []
    assert {result["says"]: result["observed"] for result in outcome.results} == {
        "recall on time": "1 of 6 periods below 0.95, all new (2013-02-02: 0.9, 1,800 of 2,000 on time)",
        "complete after repair": "everything in all 6 periods",
        "rows held": "most 4 (2013-02-03), of 6 periods",
        "streams heard": "each within 1 h of the last",
        "every row accounted for": "all counts agree",
        "no result twice": "all 4 rows are unique",
        "results as recomputed": "all 2,000 results of 2 periods agree (2013-02-01, 2013-02-04)",
    }


def messages_about(outcome, subject):
    """Return the observed and the expected values of one subject's expectations, by their names."""
    results = [result for result in outcome.results if result["subject"] == subject]
    return {result["says"]: (result["observed"], result["expected"]) for result in results}


def test_an_observed_value_is_never_rounded_to_the_bound():
    outcome = validated([1.0, 0.9501, *[1.0] * 4], [1.0] * 6, [3] * 6)
    (recall,) = messages_about(outcome, "promises").values()
    enough = "at least 0.95 in 5 of 6 periods (by chance, 1 may miss, at 95%)"
    assert recall == ("lowest 0.9501 (2013-02-02), of 6 periods", enough)
    assert messages_about(outcome, "ledger")["rows held"] == ("3 in all 6 periods", "at most 10 (quality.rows_held)")
    unbounded = parse_query(JOIN.replace(", rows_held: 10, silence: 1 h", ""))
    outcome = checks._validate(unbounded, frames([1.0] * 6, [1.0] * 6, [1, 1093, *[3] * 4]), None, 4_000)
    assert messages_about(outcome, "promises")["recall on time"][0] == "1 in all 6 periods"
    assert messages_about(outcome, "ledger")["rows held"] == (
        "most 1,093 (2013-02-02), of 6 periods",
        "no bound stated (quality.rows_held), so only 8,000, twice the rows read",
    )


def test_an_aggregate_counts_the_answers_that_chance_allows():
    spec = parse_query(
        "name: q\nkind: aggregate\nstreams: {f: a}\nwindow: 1 h\nselect: {n: count()}\n"
        "quality: {error: 0.05, probability: 0.95, period: 1 d}\n"
    )
    start = pd.to_datetime(pd.Series(DAYS))
    ledger = pd.DataFrame({"period_start": start, "period_end": start + pd.Timedelta(days=1), "expected": 500})
    ledger["windows"], ledger["windows_off"] = [1, *[144] * 5], [1, *[3] * 5]

    def judged(rows):
        rows = rows.assign(achieved_on_time=1 - rows["windows_off"] / rows["windows"], on_time=400)
        verdicts = promise.verdicts(spec, rows, FOREVER).assign(judgement=0, rows=0, rows_ahead=0, new=False)
        given = frames([1.0] * 6, [1.0] * 6, [3] * 6) | checks._promised(promise.weigh(spec, verdicts))
        return messages_about(checks._validate(spec, given, None, 5), "promises")

    assert judged(ledger) == {
        "answers within the error": (
            "1 of 6 periods with too few answers within the error, 0 new and 1 known before "
            "(2013-02-01: 0 of 1 answers, needed 1, 400 of 500 rows on time); 5 of 6 periods reach 0.95 itself",
            "at least 0.95 of a period's answers, fewer where chance explains it (2013-02-01: needed 1 of 1), "
            "in 5 of 6 periods (by chance, 1 may miss, at 95%)",
        )
    }
    assert judged(ledger[1:]) == {
        "answers within the error": (
            "0.9792 in all 5 periods",
            "at least 0.95 of a period's answers, fewer where chance explains it (2013-02-02: needed 132 of 144), "
            "in 4 of 5 periods (by chance, 1 may miss, at 95%)",
        )
    }
    ledger["windows_off"] = [0, *[9] * 5]
    ((observed, _),) = judged(ledger).values()
    assert observed == "lowest 0.9375 (2013-02-02), of 6 periods; 1 of 6 periods reach 0.95 itself"


def test_a_failure_names_what_is_new_first():
    frame = frames([0.5, 1.0, 0.6, 0.7, 0.8, 0.9], [1.0] * 6, [3] * 6, new=[False, True, False, False, False, True])
    (failure,) = checks._validate(parse_query(JOIN), frame, None, 5, "wait longer").failures
    assert "5 of 6 periods below 0.95, 1 new and 4 known before (2013-02-06: 0.9, " in failure
    assert failure.endswith("at 95%); wait longer [expect_recall_to_meet_target]")


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "0 s"),
        (12, "12 us"),
        (999_600, "1 s"),
        (-714_000_000, "-11 min 54 s"),
        (59_960_000, "1 min"),
        (12_431_785_714, "3 h 27 min"),
        (3_599_600_000, "1 h"),
        (86_399_000_000, "1 d"),
        (40 * 86_400_000_000 + 3_600_000_000, "40 d 1 h"),
    ],
)
def test_durations_are_formatted_in_two_units_at_most(time_us, text):
    assert messages.duration(time_us) == text
