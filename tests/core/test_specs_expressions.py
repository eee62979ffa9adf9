"""Expressions: nothing but the listed operations is parsed, texts survive a round trip, and logic has three values."""

from __future__ import annotations

import math
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.reference.expressions import evaluate
from latecomer.specs import expressions as ex
from latecomer.specs.aggregate import FUNCTIONS as AGGREGATES
from latecomer.specs.errors import SpecError

ALIASES = ("l", "r")
KNOWN = {"source": "q.yaml", "key": "where"}
CALL = {"source": "q.yaml", "key": "select.x", "aliases": ALIASES, "functions": AGGREGATES}


def parse(text, aliases=ALIASES):
    return ex.parse(text, aliases=aliases, **KNOWN)


def value(text, **row):
    return evaluate(parse(text, ("t",)), lambda column: row.get(column.name))


INJECTIONS = [
    "1; drop table x", "l.a = 1; --", "l.a = 1 -- x", "l.a /* x */ = 1", "l.a = (select max(a) from t)",
    "exists (select 1)", "l.a in (select 1)",
    "l.a = any (select 1)", "select 1", "l.a union select 1", "drop table x", "cast(l.a as int)", "l.a::int",
    "try_cast(l.a as int)", "sum(l.a)",
    "count(*)", "row_number() over ()", "l.*", "*", "columns(*)", "reflect('java.lang.System', 'exit', 1)",
    "java_method('a', 'b')", "eval(l.a)",
    "abs(l.a).b", "(l.a).b", "l.a.b[0]", "l.a.*", "l.a.b()", "a.b.l",
    "input_file_name()", "current_date", "now()", "rand()", "uuid()", "l.a[0]", "{'a': 1}", "[1, 2]",
    "x -> x + 1", "@a", ":a", "?", "$1",
    "l.a = `r`", "l.a like r.a", "l.a like 'x' escape '!'", "l.a ilike 'x'", "l.a similar to 'x'", "l.a rlike 'x'",
    "l.a ~ 'x'", "interval '1' day",
    "date '2020-01-01'", "case when l.a = 1 then 2 end", "if(l.a, 1, 2)", "l.a is true", "l.a is distinct from 1",
    "l.a between symmetric 1 and 2",
    "l.a & 1", "l.a | 1", "~l.a", "l.a << 1", "l.a // 2", "l.a || 'x'", "x", "m.a", "l.a as b", "l.a b", "l.a,", "(l.a",
    "l.a)", "l.a === 1", "'open",
    '"open', "e'\\n'", "$$x$$", "x'00'", "l.a = 1e400", "l.a = 92233720368547758080", "abs()", "abs(l.a, 1)",
    "substr(l.a)", "pow(l.a)", "round(l.a, r.a)", "round(l.a, 31)",
    "within_distance(l.x, l.y, r.x, r.y)", "within_distance(l.x, l.y, r.x, r.y, -1)",
    "within_distance(l.x, l.y, r.x, r.y, 1e151)", "within_distance(l.x, l.y, r.x, r.y, 1e-151)",
    "within_distance(l.x, l.y, r.x, r.y, l.z)", "distinct l.a",
    "l.a in ()", "l.a in (null)", "l.a in (r.a)", "l.a in r.a", "not " * 2000 + "l.a", "(" * 1500 + "1" + ")" * 1500,
    "l.a\x00", "", " ", "set a = 1", "if.a = 1",
    "l.a collate x", "l.a at time zone 'x'", "struct(l.a)", "l.a is not 5", "max(l.a)", "l.a; l.b", "\"x'y\" = 1; l.b",
    "unnest(l.a)", "l.a = 1 limit 1",
]  # fmt: skip


@pytest.mark.parametrize("text", INJECTIONS)
def test_other_texts_are_refused(text, caplog):
    with pytest.raises(SpecError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("q.yaml: where: ") and "\n" not in message and "; " in message
    assert not caplog.records


def test_the_refused_part_is_named():
    for text, part in (
        ("sqr(l.a) > 1", "sqr()"),
        ("l.a = cast(r.a as int)", "cast"),
        ("k.a = 1", "'k'"),
        ("a = 1", "write l.a"),
    ):
        with pytest.raises(SpecError, match=part.replace("(", r"\(").replace(")", r"\)")):
            parse(text)


def test_arguments_are_counted_as_written():
    for text, fault in (
        ("mod(l.a, 2, 3) = 1", "mod() takes 2 arguments, not 3; write, for example, mod(x, y)"),
        ("abs(mod(l.a, (2), concat(l.b, 'x,y'))) = 1", "mod() takes 2 arguments, not 3; write, for example, mod(x, y)"),
        ("l.a = mod()", "mod() takes 2 arguments, not 0; write, for example, mod(x, y)"),
        ("pow(l.a, 2, 3) > 1", "pow() takes 2 arguments, not 3; write, for example, pow(x, y)"),
        ("round() = 1", "round() takes 1 or 2 arguments, not 0; write, for example, round(x)"),
        ("substr(l.a) = 'x'", "substr() takes 2 or 3 arguments, not 1; write, for example, substr(x, 1, 3)"),
    ):
        with pytest.raises(SpecError) as caught:
            parse(text)
        assert str(caught.value) == f"q.yaml: where: {text!r}: {fault}"
    for text, count in (
        ("least(l.a, l.b,)", 2),
        ("substring(l.a from 2 for 3)", 3),
        ("concat(l.a, 'x,y(,')", 2),
        ("mod(l.a, 2)", 2),
    ):
        assert len(ex.children(parse(text))) == count


@pytest.mark.slow
def test_no_argument_of_any_function_is_dropped():
    from sqlglot.dialects.duckdb import DuckDB

    names = {name.lower() for name in (*DuckDB.Parser.FUNCTIONS, *DuckDB.Parser.FUNCTION_PARSERS, *ex.FUNCTIONS)}
    accepted = set()

    def parse_aggregate(text):
        name, args = ex.parse_call(text, **CALL)
        if name not in AGGREGATES:
            raise SpecError("q.yaml", "select.x", text, "is not an aggregate", "use one")
        return ex.Call(name, args)

    for name in sorted(names):
        for count in range(2, 6):
            text = f"{name}({', '.join(f'l.c{place}' for place in range(count))})"
            for parser in (parse, parse_aggregate):
                try:
                    expr = parser(text)
                except SpecError:
                    continue
                accepted.add(name)
                assert len(ex.columns(expr)) == count, text
    assert {"mod", "quantile", "quantile_cont", "least", "coalesce"} <= accepted


def test_only_a_function_with_a_similar_name_is_proposed():
    for text, near in (("sqr(l.a)", "sqrt"), ("celi(l.a)", "ceil"), ("lenght(l.a)", "length"), ("coalesc(l.a)",
            "coalesce")):  # fmt: skip
        with pytest.raises(SpecError, match=rf"; did you mean '{near}'\?$"):
            parse(text)
    for text in ("now()", "count(l.a)", "rand()"):
        with pytest.raises(SpecError, match=r"\(\), which cannot be used here; use one of abs, .*, within_distance$"):
            parse(text)


def test_the_remedy_of_a_cast_is_the_plain_value():
    for text, remedy in (
        ("l.a > date '2013-01-31'", r"write '2013-01-31' alone"),
        ("l.a > timestamp '2013-01-31 12:00:00'", r"write '2013-01-31 12:00:00' alone"),
        ("cast(l.a as int) = 1", "use the value as it is"),
        ("l.a::int = 1", "use the value as it is"),
    ):
        with pytest.raises(SpecError, match=rf"calls cast\(\), which cannot be used here; {remedy}"):
            parse(text)


def test_texts_and_their_trees():
    assert parse("l.a == 1") == parse("l.a = 1") == ex.Binary("=", ex.Column("l", "a"), ex.Literal(1))
    assert parse("l.a == '=='") == ex.Binary("=", ex.Column("l", "a"), ex.Literal("=="))
    assert parse("l.a between 1 and 2") == parse("l.a >= 1 and l.a <= 2")
    assert parse("a <> -1", ("t",)) == ex.Binary("!=", ex.Column("t", "a"), ex.Literal(-1))
    assert parse("l.a not in (1, 'x')") == ex.InList(ex.Column("l", "a"), (ex.Literal(1), ex.Literal("x")), True)
    assert parse("l.a not like 'x%'") == ex.Like(ex.Column("l", "a"), "x%", True)
    assert parse("l.a is not null") == ex.IsNull(ex.Column("l", "a"), True)
    assert parse("a + b * 2", ("t",)) == parse("a + (b * 2)", ("t",)) != parse("(a + b) * 2", ("t",))
    assert ex.columns(parse("within_distance(l.x, l.y, r.x, r.y, 5)")) == {ex.Column(a, c) for a in "lr" for c in "xy"}
    assert len(ex.conjuncts(parse("l.a = 1 and (l.b = 2 and l.c = 3) and (l.d = 4 or l.e = 5)"))) == 4
    assert ex.parse_item("l.a", aliases=ALIASES, **KNOWN).name == "l_a"
    assert ex.parse_item("a", aliases=("t",), **KNOWN).name == "a"
    assert ex.parse_item("l.a + 1 as b", aliases=ALIASES, **KNOWN).name == "b"
    assert ex.parse("a", aliases=ALIASES, default_alias="r", **KNOWN) == ex.Column("r", "a")


def test_a_short_text_whose_sql_would_be_gigabytes_is_refused():
    nested = {
        "abs": lambda depth: "abs(" * depth + "l.a" + ")" * depth + " > 1",
        "between": lambda depth: "(" * depth + "l.a" + " between false and true)" * depth,
        "within": lambda depth: "within_distance(0, 0, 0, " * depth + "l.a" + ", 1)" * depth,
        "text": lambda depth: "abs(" * depth + f"length('{'x' * 3000}')" + ")" * depth + " > 1",
        "list": lambda depth: f"(l.a in ({', '.join('1' * 900)}))" + " between false and true" * depth,
    }
    for name, deep, shallow in (("abs", 12, 7), ("between", 18, 9), ("within", 15, 9), ("text", 6, 2), ("list", 30, 2)):
        with pytest.raises(SpecError) as caught:
            parse(nested[name](deep))
        assert str(caught.value).startswith("q.yaml: where: ") and "longer than 10,000 parts" in str(caught.value)
        expr = parse(nested[name](shallow))
        assert max(len(ex.to_text(expr)), len(ex.to_spark_sql(expr, lambda column: column.name))) < 500_000
    with pytest.raises(SpecError, match="10,000 parts"):
        ex.parse_call(f"avg({nested['between'](18)})", source="q.yaml", key="select.x", aliases=ALIASES)
    with pytest.raises(SpecError, match="10,000 parts"):
        ex.parse_item(f"{nested['abs'](12)} as b", aliases=ALIASES, **KNOWN)
    parse(" and ".join(["abs(l.a - r.a) between abs(l.b) and 2"] * 38))


def test_digits_followed_by_letters_are_not_a_number():
    for text, part in (
        ("l.x = 1L", "1L"),
        ("l.x = 0x10", "0x10"),
        ("0x1F = l.x", "0x1F"),
        ("l.x = 'a1b' and r.y < 1.5f", "1.5f"),
        ("l.x = 5m", "5m"),
        ("l.x = 1e3s", "1e3s"),
    ):
        for parser in (parse, lambda text: ex.parse_item(text, aliases=ALIASES, **KNOWN)):
            with pytest.raises(SpecError) as caught:
                parser(text)
            fault = f": contains {part}, which is not a number; write it in decimal digits: 42, 0.5 or 1e6"
            assert str(caught.value).endswith(fault)
    for text in ("l.x = 1e3", "l.x = 1.5E-3", "l.x = 1_000", 'l."1L" = 1', "l.a1b = .5"):
        parse(text)
    for text in ("l.x = 1e3 y", "l.x = 'a 1L' y", "l.x as y"):
        with pytest.raises(SpecError, match="gives the expression a name"):
            parse(text)


def test_the_word_as_is_needed_to_name_a_result():
    for good in ("l.x_as as y", "l.x AS y ", 'l.x as "y"', "(l.x)as y", 'l."as"as y', 'l.x\nas\n"y"', "l.x + 1 as\ty"):
        assert ex.parse_item(good, aliases=ALIASES, **KNOWN).name == "y"
    for bad in ("l.x y", "l.x_as y", 'l.x_as "y"', "l.as y", 'l."as" y', "'as' y", "l.éas y"):
        with pytest.raises(SpecError, match="write `expression as name`"):
            ex.parse_item(bad, aliases=ALIASES, **KNOWN)


def test_dots_lead_to_fields():
    def column(text, aliases=("t",), default_alias=None):
        return ex.parse(text, aliases=aliases, default_alias=default_alias, **KNOWN)

    user_id = ex.Column("t", "payload", ("user", "id"))
    assert column("payload.user.id") == column("t.payload.user.id") == column('"payload"."user".id') == user_id
    assert column('"payload.user".id') == column('t."payload.user".id') == ex.Column("t", "payload.user", ("id",))
    assert column("payload.a.b.c.d.e.f").fields == tuple("abcdef")
    assert column('attributes."tail number"') == ex.Column("t", "attributes", ("tail number",))
    # the alias wins over a column of the same name
    assert column("t.x") == ex.Column("t", "x") and column("t.t.x") == ex.Column("t", "t", ("x",))
    assert column("l.a.b", ALIASES) == ex.Column("l", "a", ("b",))
    assert column("a.b", ALIASES, "r") == ex.Column("r", "a", ("b",)) != column("l.b", ALIASES, "r")
    with pytest.raises(SpecError, match="'a' is not an alias of the query's streams"):
        column("a.b", ALIASES)
    with pytest.raises(SpecError, match="more than 40 dots"):
        column("a" + ".b" * 41)
    assert len({ex.Column("l", "a"), ex.Column("l", "a", ("b",)), ex.Column("l", "a", ("c",))}) == 3
    for text, name in (("payload.user.id", "id"), ('a."tail number"', "tail_number"), ("a.b as c", "c")):
        assert ex.parse_item(text, aliases=("t",), **KNOWN).name == name
    assert ex.parse_item("l.payload.user.id", aliases=ALIASES, **KNOWN).name == "l_id"


def test_fields_are_rendered_and_evaluated():
    expr = parse('payload.user."i%d" > 1 and payload.tags is null', ("t",))
    text = ex.to_spark_sql(expr, lambda column: f"`{column.name}`")
    assert text == "((`payload`.`user`.`i%d` > 1L) AND (`payload`.`tags` IS NULL))"
    assert ex.to_spark_sql(ex.Column("t", "a", ("b`.`c",)), lambda column: "`a`") == "`a`.`b``.``c`"
    assert value("a.b.c + 1", a={"b": {"c": 2}}) == 3
    assert value("a.b.c", a={"b": None}) is None and value("a.b.c") is None and value("a.b", a={}) is None
    assert value("size(a.b)", a={"b": [1, 2]}) == 2
    assert ex.to_spark_sql(parse("size(a)", ("t",)), lambda column: column.name) == "CAST(size(a) AS BIGINT)"
    wide = ex.widen(parse("l.a.b * 2 > l.a", ALIASES), {ex.Column("l", "a", ("b",)): "bigint"})
    assert ex.to_spark_sql(wide, lambda column: column.name) == "(try_multiply(bigint(a.`b`), 2L) > a)"


USER = ex.Nested("struct<id:bigint,name:string>", {"id": "number", "name": "string"})
PAYLOAD = ex.Nested("struct<...>", {"user": USER, "at": "timestamp", "tags": "array<string>"})


def test_types_of_fields():
    types = {
        ("l", "payload"): PAYLOAD,
        ("l", "map"): ex.Nested("map<string,int>", values="number"),
        ("l", "x"): "number",
    }

    def kind(text):
        return ex.check_types(parse(text), types, **KNOWN)

    assert kind("l.payload.user.id") == "number" and kind("l.payload.user") == USER.name
    assert kind("l.map.anything") == "number" and kind("size(l.map)") == kind("size(l.payload.tags)") == "number"
    assert kind("l.payload.at < '2013-01-31T12:00:00Z' and l.payload.user.name = 'x'") == "bool"
    assert kind("l.unknown.field") is None
    for text, says in (
        ("l.payload.usr.id", r"l\.payload has no field 'usr'; did you mean one of its fields: user"),
        ("l.payload.zzz", r"l\.payload has no field 'zzz'; it has the fields user, at, tags"),
        ("l.payload.user.nmae", "did you mean one of its fields: name"),
        ("l.payload.user.id.x", r"l\.payload\.user\.id is a number, which has no fields"),
        ("l.payload.tags.x", "is a array<string>, which has no fields"),
        ("l.x.y", r"l\.x is a number, which has no fields; write l\.x"),
        ("l.payload.user.name > 1", "compares a string with a number"),
        ("l.payload.at < '2013'", "compares a timestamp with text"),
        ("l.map = l.map", "compares maps"),
        ("size(l.payload.user.name) = 1", "needs an array or a map; use length"),
        ("size(l.payload) = 1", "needs an array or a map"),
    ):
        with pytest.raises(SpecError, match=says):
            kind(text)


def test_the_suggested_name_of_a_column_can_be_pasted():
    schemas = {"t": ["tail_number", "id.orig_h", "end", "fare", "payload", "Ärger"]}

    def remedy(text):
        expr = parse(text, ("t",))
        with pytest.raises(SpecError) as caught:
            ex.check_columns(expr, schemas, **KNOWN)
        return str(caught.value).partition("; ")[2]

    for text, suggested in (
        ("id.orig_h = 1", '"id.orig_h"'), ("t.id.orig_h.x = 1", '"id.orig_h"'), ('"id.orig_g" = 1', '"id.orig_h"'),
        ("id.orig_g = 1", '"id.orig_h"'), ("endd > 1", '"end"'), ('"ärger" = 1', '"Ärger"'),
        ("trips.fare > 1", "t.fare"), ("taxi.fare > 1", "t.fare"), ("paylod.user.id = 1", "payload"),
        ("tail_nmber = 1", "tail_number"),
    ):  # fmt: skip
        assert remedy(text).endswith(suggested), (text, remedy(text))
        ex.check_columns(parse(f"{suggested} = 1", ("t",)), schemas, **KNOWN)
    assert '"id.orig_h", "end", fare' in remedy("zzz = 1")
    for text, name in (("tail number > 5", "tail_number"), ("fare > 1 and t.tail number = 'x'", "tail_number")):
        with pytest.raises(SpecError, match=f"'.*tail number' is a column's name with spaces, write {name}"):
            parse(text, ("t",))
    with pytest.raises(SpecError, match="if it is a column's name with spaces, write tail_number"):
        ex.parse_item("tail number", aliases=("t",), **KNOWN)


TRUTH_VALUES = [True, False, None]


@pytest.mark.parametrize("a", TRUTH_VALUES)
@pytest.mark.parametrize("b", TRUTH_VALUES)
def test_three_valued_logic(a, b):
    conjunction = False if False in (a, b) else None if None in (a, b) else True
    disjunction = True if True in (a, b) else None if None in (a, b) else False
    assert value("a and b", a=a, b=b) is conjunction
    assert value("a or b", a=a, b=b) is disjunction
    assert value("not a", a=a) is (None if a is None else not a)
    assert value("a is null", a=a) is (a is None)


def test_values_of_operations():
    assert (
        value("a = a") is None and value("a + 1") is None and value("a in (1)") is None and value("a like '%'") is None
    )
    assert value("a / 0", a=1) is None and value("a % 0", a=1) is None and value("a / 2", a=1) == 0.5
    assert (value("a % 3", a=-7), value("a % -3", a=7)) == (-1, 1)
    assert value("a + 1", a=(1 << 63) - 1) is None and value("a * 2", a=1.5) == 3.0
    assert (
        value("a = b", a=math.nan, b=math.nan) is True
        and value("a > 1", a=math.nan) is True
        and value("a < 1", a=math.nan) is False
    )
    assert (
        value("round(a, 1)", a=0.25),
        value("round(a)", a=-2.5),
        value("floor(a)", a=-1.5),
        value("ceil(a)", a=1.2),
    ) == (0.3, -3.0, -2, 2)
    assert [value("floor(a)", a=a) for a in (math.nan, math.inf, 1e19, 2.0**63, -(2.0**63))] == [None] * 4 + [-(2**63)]
    assert (
        value("substr(a, 2, 2)", a="abcd"),
        value("substr(a, -2)", a="abcd"),
        value("substr(a, 0, 1)", a="abcd"),
    ) == ("bc", "cd", "a")
    assert (
        value("a like 'x_%'", a="xy\nz") is True
        and value("a like 'x\\'", a="x\\") is True
        and value("a like '.'", a="x") is False
    )
    assert (
        value("least(a, b)", a=None, b=2) == 2
        and value("coalesce(a, b)", a=None, b=2) == 2
        and value("coalesce(a, b)") is None
    )
    assert (
        math.isnan(value("sqrt(a)", a=-1))
        and value("pow(a, 0.5)", a=4) == 2.0
        and value("concat(a, b)", a="x", b=None) is None
    )
    assert (
        value("within_distance(a, b, 0, 0, 5)", a=3, b=4) is True
        and value("within_distance(a, b, 0, 0, 5)", a=3, b=4.1) is False
    )
    assert (
        value("a > '1970-01-01T00:00:01Z'", a=1_000_001) is True
        and value("a = '1970-01-01T01:00:00+01:00'", a=0) is True
    )


def test_marks_inside_quotes_have_no_meaning():
    assert ex.columns(parse("""l."x==y" == 1 and l."a;b" = 'c==d;--' and l."it's" = 'e"f'""")) == {
        ex.Column("l", "x__y"), ex.Column("l", "a_b"), ex.Column("l", "it's"),
    }, "columns have their names in the lake"  # fmt: skip
    assert ex.to_text(parse("l.a == 'x==y'")) == "(l.a = 'x==y')"
    for bad in ("l.a = 'b; c", 'l."a; b', "l.a = 'b' ; c", "l.a = 'b' -- c"):
        with pytest.raises(SpecError):
            parse(bad)


def test_the_remedy_of_a_column_with_the_name_of_a_word_of_sql_is_quotes():
    for text, aliases, word, quoted in (
        ("l.select = 1", ALIASES, "select", 'l."select"'),
        ("l.a = '==' and 1 == r.Select and l.b > 2", ALIASES, "Select", 'r."Select"'),
        ("from > 3 and from < 5", ("t",), "from", 't."from"'),
        ("not case", ("t",), "case", 't."case"'),
        ("not t.not", ("t",), "not", 't."not"'),
        ("desc = 1", ("t",), "desc", 't."desc"'),
        ("if", ("t",), "if", 't."if"'),
    ):
        with pytest.raises(SpecError) as caught:
            parse(text, aliases)
        assert str(caught.value).endswith(f"; if {word} is a column, write it in double quotes: {quoted}")
        assert isinstance(parse(quoted, aliases), ex.Column)
    with pytest.raises(SpecError, match=r't."where"'):
        ex.parse_call("avg(where)", source="q.yaml", key="select.x", aliases=("t",))
    with pytest.raises(SpecError, match=r't."from"'):
        ex.parse_item("from as a", aliases=("t",), **KNOWN)
    for text in (
        "l.a = 1 or",
        "l.a in (select 1)",
        "case when l.a = 1 then 2 end",
        "distinct l.a",
        "m.a",
        "l.a desc",
        "x",
    ):
        with pytest.raises(SpecError) as caught:
            parse(text)
        assert "double quotes" not in str(caught.value), caught.value


def test_a_comparison_with_null_is_refused():
    for text, remedy in (
        ("l.x = null", "write `l.x is null`"),
        ("NULL == l.x", "write `l.x is null`"),
        ("l.a = 1 and not (l.x != (null))", "write `l.x is not null`"),
        ("l.x + 1 <> null", "write `x is not null`"),
        ('l."a b" < null', "write `l.a_b is null` or `l.a_b is not null`"),
        ("null >= r.x", "write `r.x is null` or `r.x is not null`"),
        ("l.x between 1 and null", "write `l.x is null` or `l.x is not null`"),
        ("l.x not between null and 1", "write `l.x is null` or `l.x is not null`"),
        ("null = null", "write `x is null`"),
    ):
        with pytest.raises(SpecError) as caught:
            parse(text)
        assert str(caught.value).endswith(f": compares with null, which never matches; {remedy}"), text
    with pytest.raises(SpecError, match=r"write `t\.x is null`"):
        ex.parse_call("max(x = null)", source="q.yaml", key="select.a", aliases=("t",))
    for text in ("l.x is null", "not l.x is null", "coalesce(l.x, null) = 1", "l.x = 'null'", 'l."null" = 1', "null"):
        parse(text)


def test_columns_and_types():
    schemas = {"l": ["depart", "origin", "note"], "r": ["depart"]}
    types = {("l", "depart"): "number", ("l", "origin"): "string", ("r", "depart"): "number", ("l", "flag"): "bool"}
    types |= {("l", "tags"): "array<map<string,int>>"}
    ex.check_columns(parse("l.depart = r.seq and l.event_ts < r.arrival_ts"), schemas, **KNOWN)
    with pytest.raises(SpecError, match="did you mean one of these columns: origin"):
        ex.check_columns(parse("l.orgin = 'x'"), schemas, **KNOWN)
    for good in (
        "l.depart = 1", "l.origin = 'x'", "l.flag and l.depart > 1", "l.unknown = 'x'",
        "l.event_ts > '2013-01-31T12:00:00Z'",
        "l.event_ts in ('2013-01-31 12:00:00+01:00', '2013-01-31 12:00:00-18:00', '2013-01-31 12:00:00+17:59')",
        "concat(l.origin, 'x') = 'y'", "l.depart = coalesce(null, 1)", "substr(l.origin, 1) = 'x'",
    ):  # fmt: skip
        ex.check_types(parse(good), types, **KNOWN)
    for bad in (
        "l.depart = 'x'", "l.origin > 1", "l.origin + 1 = 2", "l.depart and l.flag", "not l.depart", "-l.origin = 1",
        "l.depart like 'x'",
        "l.depart in ('x')", "l.event_ts > '2013-01-31'", "l.event_ts > '2013-13-31T12:00:00Z'", "l.event_ts = 5",
        "l.event_ts > l.origin", "abs(l.origin) = 1",
        "l.event_ts > '2013-01-31T12:00:00+19:00'", "l.event_ts > '2013-01-31T12:00:00+18:30'",
        "l.event_ts > '2013-01-31T12:00:00+05:99'",
        "l.tags = l.tags", "lower(l.depart) = 'x'", "concat(l.origin, l.depart) = 'x'", "least(l.origin, l.depart) = 1",
        "l.flag = 1", "substr(l.origin, 'x') = 'y'",
        "within_distance(l.origin, l.depart, 1, 2, 3)", "coalesce(l.depart, 'x') = 1",
    ):  # fmt: skip
        with pytest.raises(SpecError):
            ex.check_types(parse(bad), types, **KNOWN)


def test_rendering_as_sql():
    def sql(text):
        return ex.to_spark_sql(parse(text), lambda column: f"c_{column.name}")

    assert sql("l.a + 1 > r.b / 2") == "(try_add(c_a, 1L) > try_divide(CAST(c_b AS DOUBLE), CAST(2L AS DOUBLE)))"
    assert sql("l.a = 'it''s \\ \"x\"'") == "(c_a = 'it\\'s \\\\ \"x\"')"
    assert sql("l.a = 'é\n😀'") == "(c_a = '\\u00e9\\u000a\\ud83d\\ude00')"
    assert sql("l.a like 'x\\%'") == "(c_a LIKE 'x\\\\\\\\%')"
    assert sql("l.a = 0.1") == "(c_a = CAST('0.1' AS DOUBLE))"
    assert sql("l.a % 2 = -1") == "(try_mod(c_a, 2L) = -1L)"


LEAVES = st.one_of(
    st.builds(
        ex.Column,
        st.sampled_from(ALIASES),
        st.sampled_from(["a", "b", "Weird.col", 'q"uote', "select", "order", "left"]),
        st.lists(st.sampled_from(["a", "l", "x.y", 'q"', "`", "a b", "select", "end", "1"]), max_size=5).map(tuple),
    ),
    st.integers(-(1 << 63) + 1, (1 << 63) - 1).map(ex.Literal),
    st.floats(allow_nan=False, allow_infinity=False).map(ex.Literal),
    st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=8).map(ex.Literal),
    st.sampled_from([None, True, False]).map(ex.Literal),
)


def compound(inner):
    words = st.text("ab%_'\\;-/*", max_size=6)
    return st.one_of(
        st.builds(ex.Binary, st.sampled_from([*ex.ARITHMETIC, "and", "or"]), inner, inner),
        st.builds(ex.Binary, st.sampled_from(ex.COMPARISONS), *[inner.filter(lambda e: e != ex.Literal(None))] * 2),
        st.builds(ex.IsNull, inner, st.booleans()),
        st.builds(ex.Like, inner, words, st.booleans()),
        st.builds(
            lambda e, w, n: ex.InList(e, tuple(map(ex.Literal, w)), n),
            inner,
            st.lists(words, min_size=1, max_size=3),
            st.booleans(),
        ),
        st.builds(
            lambda name, args: ex.Call(name, tuple(args)),
            st.sampled_from(["least", "coalesce", "concat"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
        st.builds(
            lambda name, arg: ex.Call(name, (arg,)),
            st.sampled_from(["abs", "floor", "ceil", "sqrt", "lower", "upper", "length", "round", "size"]),
            inner,
        ),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(LEAVES, compound, max_leaves=8))
def test_texts_survive_a_round_trip(expr):
    text = ex.to_text(expr)
    assert ex.to_text(parse(text)) == text
    assert ex.columns(parse(text)) == ex.columns(expr)
    assert ex.to_spark_sql(expr, lambda column: "c").isascii()


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.text("lr.ab12 ()'\"=<>+-*/%,;andornt_", max_size=40))
def test_any_text_is_parsed_or_refused(text):
    try:
        expr = parse(text)
    except SpecError as error:
        assert "\n" not in str(error)
    else:
        assert ex.to_text(parse(ex.to_text(expr))) == ex.to_text(expr)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a.day >= '2023-11-15'", None),
        ("a.day in ('2023-11-15', '2023-11-16')", None),
        ("'2023-11-15' < a.day", None),
        ("a.day = '15.11.2023'", r"compares a date with text that is not a date; write it as '2013-01-31'"),
        ("a.day = '2023-02-30'", "compares a date with a date that does not exist"),
        ("a.day in ('2023-11-15', 'soon')", "compares a date with text that is not a date"),
        ("a.day = a.note", "compares a date with text that is not a date"),
        ("a.day = 3", "compares a date with a number"),
    ],
)
def test_a_date_is_compared_with_a_day_in_quotes(text, fault):
    expr = ex.parse(text, source="q.yaml", key="where", aliases=("a",))
    types = {("a", "day"): "date", ("a", "note"): "string"}
    if fault is None:
        assert ex.check_types(expr, types, source="q.yaml", key="where") == "bool"
        assert evaluate(expr, lambda column: date(2023, 11, 16)) is True
    else:
        with pytest.raises(SpecError, match=fault):
            ex.check_types(expr, types, source="q.yaml", key="where")


def test_the_least_whole_number_is_a_literal():
    assert parse("l.a >= -9223372036854775808") == ex.Binary(">=", ex.Column("l", "a"), ex.Literal(-(2**63)))
    for text in ("9223372036854775808", "-9223372036854775809"):
        with pytest.raises(SpecError, match=rf"number {text} does not fit 64 bits"):
            parse(f"l.a >= {text}")


def test_literals_that_python_holds_to_be_equal_differ():
    texts = ("1", "1.0", "true", "0", "0.0", "-0.0", "false", "null", "'1'")
    exprs = [parse(f"coalesce(l.a, {text})") for text in texts]
    assert len(set(exprs)) == len(texts) and all(parse(ex.to_text(expr)) == expr for expr in exprs)
