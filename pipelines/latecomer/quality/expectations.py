"""Expectations about queries, on top of Great Expectations' built-in ones.

Each is a built-in expectation under a name that states a promise about a query, so that a failure and the Data Docs
name the promise that was broken.
"""

from __future__ import annotations

from great_expectations import expectations as gxe


class ExpectRecallToMeetTarget(gxe.ExpectColumnPairValuesAToBeGreaterThanB):
    """Recall on time reaches the target in the promised share of periods."""

    description: str = "Recall on time (or hit rate) reaches the target, in as many periods as promised"


class ExpectErrorWithinPromise(gxe.ExpectColumnPairValuesAToBeGreaterThanB):
    """The share of answers within the error reaches the promised probability, less what chance alone explains."""

    description: str = "Enough of each period's answers are within the error, in as many periods as promised"


class ExpectWholeToMeetPromise(gxe.ExpectColumnPairValuesAToBeGreaterThanB):
    """The results on time are as many as the promise comes to, over all periods that count."""

    description: str = "Of everything due in the periods that count, as much was on time as the promise comes to"


class ExpectFalsePositivesBounded(gxe.ExpectColumnPairValuesAToBeGreaterThanB):
    """Absent elements that passed the filters are no more than the false-positive rate and chance explain."""

    description: str = (
        "The filters let through no more absent elements than their false-positive rate and chance explain"
    )


class ExpectCompleteAfterRepair(gxe.ExpectColumnValuesToBeBetween):
    """After repair every period is complete: recall is exactly 1."""

    description: str = "After repair every period has all the results that were counted for it"


class ExpectRowsHeldBounded(gxe.ExpectColumnValuesToBeBetween):
    """No period held more rows than the query's ``rows_held``; without one, than two copies of the whole input."""

    description: str = "No period held more rows than quality.rows_held, or, without it, than twice the rows read"


class ExpectStreamsHeard(gxe.ExpectColumnValuesToBeBetween):
    """No stream's last event time lies further behind the latest of the query's streams than ``quality.silence``."""

    description: str = "No stream is silent for longer than quality.silence while others are heard"


class ExpectConservation(gxe.ExpectColumnPairValuesToBeEqual):
    """Rows in = on time + late pending + repaired: nothing is dropped silently."""

    description: str = "Every row is accounted for: the tables hold as many rows as were counted when they were written"


class ExpectNoDuplicateResult(gxe.ExpectColumnPairValuesToBeEqual):
    """No result row is stored twice: the tables that `run` and `repair` write have as many identities as rows."""

    description: str = "No result is stored twice"


class ExpectResultsAsRecomputed(gxe.ExpectColumnValuesToBeBetween):
    """No result of an audited period is missing, extra or different from the answer of SQL over all stored rows."""

    description: str = "In audited periods the results are the answers of plain SQL over all stored rows"
