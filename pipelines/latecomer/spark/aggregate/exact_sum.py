"""Sums of floating-point columns that do not depend on the order of the rows.

The addition of doubles is not associative, so a sum would change with partitions, files and micro-batch cuts. Here
every double is cut, exactly, into five integers on fixed grids (2^32, 1, 2^-32, 2^-64, 2^-96) [1]_. The integers are
summed as bigints. Only the final sums are put together again, after each grid has carried its excess into the next, so
that values cancel in integers alone. Any order gives the same bits, and all but the last are those of the exact sum.

That covers ``2^-43 <= |x| < 2^62`` and 0. A value outside (NaN and infinities too) is *wild*: it is a grouping key of
its own in the first aggregation. The few wild values, each times its rows, are added in sorted order at the end.
Integers are cut into two halves, so that no sum overflows on the way, and so are decimals of many digits
(:mod:`latecomer.spark.engine.decimals`).

References
----------
.. [1] Demmel and Nguyen, "Fast reproducible floating-point summation", ARITH 2013; fixed grids in place of running
       ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from latecomer.spark.engine import decimals
from latecomer.spark.engine.types import FLOATING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.window import WindowSpec

_LEAST, _MOST = repr(2.0**-43), repr(2.0**62)
_STEP = 4294967296


@dataclass(frozen=True)
class ExactSum:
    """The sum of one column.

    Parameters
    ----------
    column
        Name of a numeric column without characters that need quoting.
    kind
        Its Spark type.
    tame
        No value is known to be wild: there is no key for wild values and no list of them, which costs more than all
        else where keys are many.
    """

    column: str
    kind: str
    tame: bool = False

    @property
    def floating(self) -> bool:
        """True where the values are doubles or floats."""
        return self.kind in FLOATING

    @property
    def may_be_wild(self) -> bool:
        """True where values may be wild."""
        return self.floating and not self.tame

    @property
    def wild(self) -> str:
        """The name of the wild key, a column made by :meth:`prepare` where values may be wild."""
        return f"{self.column}_wild"

    def is_wild(self) -> str:
        """Return the SQL of whether the value of a row is wild."""
        return f"{self._value} is not null and not {self._in_range}" if self.floating else "false"

    def prepare(self) -> dict[str, str]:
        """Return columns to add before grouping by :attr:`wild`, if it is there: name to SQL over one another."""
        if not self.floating:
            return {}
        c, x = self.column, self._value
        columns = {} if self.tame else {self.wild: f"case when {self.is_wild()} then {x} end"}
        columns[f"{c}_r"] = f"case when {self._in_range} then {x} else 0D end"
        # what a grid adds to the one before: steps of both are whole, so that the difference is exact
        grids = [f"rint({c}_r{f' * {float(_STEP**place)!r}D' if place else ''})" for place in range(4)]
        digits = [grids[0], *(f"{fine} - {grid} * {_STEP}D" for grid, fine in itertools.pairwise(grids))]
        return columns | {
            f"{c}_{letter}": f"cast({digit} as bigint)" for letter, digit in zip("abcd", digits, strict=True)
        }

    def partial(self) -> dict[str, str]:
        """Return aggregates over rows, name to SQL."""
        c = self.column
        if self.floating:
            columns = {f"{c}_sh": f"sum(shiftright({c}_a, 32))", f"{c}_sl": f"sum({c}_a & {_STEP - 1}L)"}
            columns |= {f"{c}_s{letter}": f"sum({c}_{letter})" for letter in "bcd"}
        elif self._halved:
            high, low = decimals.halves(c, self._scale)
            columns = {f"{c}_sh": f"sum({high})", f"{c}_sl": f"sum({low})"}
        elif self._decimal:
            columns = {f"{c}_s": f"sum(cast({c} as decimal(38,{self._scale})))"}
        else:
            whole = f"cast({c} as bigint)"
            columns = {f"{c}_sh": f"sum(shiftright({whole}, 32))", f"{c}_sl": f"sum({whole} & {_STEP - 1}L)"}
        return columns | {f"{c}_n": f"count({c})"}

    def merge(self) -> dict[str, str]:
        """Return aggregates over partial rows, under the same names."""
        c = self.column
        columns = {name: f"sum({name})" for name in self.partial()}
        if self.may_be_wild:
            columns[f"{c}_w"] = (
                f"collect_list(case when {self.wild} is not null then struct({self.wild} as x, {c}_n as n) end)"
            )
        return columns

    def running(self, window: WindowSpec) -> dict[str, Column]:
        """Return running sums over merged rows, under the same names: of a row and those before it in the `window`."""
        from pyspark.sql import functions as F

        columns = {name: F.expr(f"sum({name})").over(window) for name in self.merge()}
        if self.may_be_wild:
            columns[f"{self.column}_w"] = F.flatten(F.expr(f"collect_list({self.column}_w)").over(window))
        return columns

    def totals(self) -> dict[str, str]:
        """Return columns to add for :attr:`total` and :meth:`mean`: name to SQL over merged columns and one another."""
        c, columns = self.column, dict[str, str]()
        if self._decimal:
            total = decimals.together(f"{c}_sh", f"{c}_sl", self._scale) if self._halved else f"{c}_s"
        elif not self.floating:
            # as decimals: the high part alone may lie beyond 64 bits where the sum does not
            total = f"try_cast(cast({c}_sh as decimal(20,0)) * {_STEP}BD + cast({c}_sl as decimal(20,0)) as bigint)"
        else:
            total = self.tame_total()
        if self.may_be_wild:
            # the large ones in steps of 2^100, so that no sum of them is infinite on its way
            columns[f"{c}_large"] = self._added(f"filter({c}_w, each -> abs(each.x) >= 1D)", f" * {2.0**-100!r}D")
            small = self._added(f"filter({c}_w, each -> abs(each.x) < 1D)")
            total = f"{total} + ({c}_large * {2.0**100!r}D + {small})"
        return columns | {self.total: f"case when {c}_n > 0 then {total} end"}

    @property
    def total(self) -> str:
        """The name of the sum; null where all values are null, or a sum of integers or decimals does not fit."""
        return f"{self.column}_total"

    def tame_total(self) -> str:
        """Return the SQL of the sum of tame values over merged or partial columns; 0 where there is none."""
        c = self.column
        terms, carried = [], "0L"
        for part, unit in ((f"{c}_sd", 2.0**-96), (f"{c}_sc", 2.0**-64), (f"{c}_sb", 2.0**-32), (f"{c}_sl", 1.0)):
            digit, carried = _carried(f"coalesce({part}, 0L) + {carried}")
            terms.append(f"cast({digit} as double) * {unit!r}D")
        terms.append(f"cast(coalesce({c}_sh, 0L) + {carried} as double) * {float(_STEP)!r}D")
        return f"({' + '.join(terms)})"

    @staticmethod
    def _added(values: str, scale: str = "") -> str:
        """Return the SQL of the sum of values in order; a value is multiplied once, however its rows were gathered."""
        start = "named_struct('sum', 0D, 'x', 0D, 'n', 0L)"
        same = "named_struct('sum', acc.sum, 'x', acc.x, 'n', acc.n + each.n)"
        other = f"named_struct('sum', acc.sum + acc.x{scale} * acc.n, 'x', each.x, 'n', each.n)"
        step = f"(acc, each) -> if(acc.x = each.x, {same}, {other})"
        return f"aggregate(array_sort({values}), {start}, {step}, acc -> acc.sum + acc.x{scale} * acc.n)"

    def mean(self) -> str:
        """Return the SQL of the mean as a double, over merged columns and :meth:`totals`."""
        c, total = self.column, f"cast({self.total} as double)"
        if self.may_be_wild:
            large = f"{c}_large / {c}_n * {2.0**100!r}D"
            return f"case when abs({total}) = double('infinity') then {large} else {total} / {c}_n end"
        if self._halved:
            step = f"{10.0 ** (decimals.CUT - self._scale)!r}D"
            return f"coalesce({total}, cast({c}_sh as double) * {step} + cast({c}_sl as double)) / {c}_n"
        if self.floating or self._decimal:
            return f"{total} / {c}_n"
        low, carried = _carried(f"{c}_sl")
        whole = f"(cast({low} as double) + cast({c}_sh + {carried} as double) * {_STEP}D)"
        return f"case when {c}_n > 0 then {whole} / {c}_n end"

    @property
    def _decimal(self) -> bool:
        return self.kind.startswith("decimal")

    @property
    def _scale(self) -> int:
        return decimals.digits_of(self.kind)[1]

    @property
    def _halved(self) -> bool:
        return self._decimal and decimals.is_wide(self.kind)

    @property
    def _value(self) -> str:
        return f"cast({self.column} as double)"

    @property
    def _in_range(self) -> str:
        return f"({self._value} = 0D or (abs({self._value}) >= {_LEAST}D and abs({self._value}) < {_MOST}D))"


def _carried(whole: str) -> tuple[str, str]:
    """Return the SQL of the part of a bigint that a grid keeps, -2^31 to 2^31 - 1, and of the steps it carries over."""
    above = f"({whole} + {_STEP // 2}L)"
    return f"(({above} & {_STEP - 1}L) - {_STEP // 2}L)", f"shiftright({above}, 32)"
