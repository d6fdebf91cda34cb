"""Texts that are cheap to write and may be dear to compile: each is a family of statements over the toy tables.

A size is how often a text repeats its part: terms, aggregates, levels. Compiling a text of twice the size must cost in
proportion, whether it is answered or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _repeated(part: str, count: int, between: str = ", ") -> str:
    """`part` for each number below `count`, which stands where it says `#`."""
    return between.join(part.replace("#", str(i)) for i in range(count))


def _levels(first: str, level: str, last: str, count: int) -> str:
    """A chain of common table expressions c0, c1, …; `level` reads c@ at each of them."""
    chain = [f"c0 AS ({first})"] + [f"c{i} AS ({level.replace('@', str(i - 1))})" for i in range(1, count + 1)]
    return f"WITH {', '.join(chain)} {last.replace('@', str(count))}"


def _below(step: str, start: str = "age") -> Callable[[int], str]:
    """Arithmetic through many levels of private rows, then a sum."""
    return lambda n: _levels(
        f"SELECT id, {start} AS a FROM people", f"SELECT id, {step} AS a FROM c@", "SELECT SUM(a) FROM c@", n
    )


def _above(step: str, start: str = "COUNT(*)") -> Callable[[int], str]:
    """Arithmetic through many levels above a release."""
    return lambda n: _levels(
        f"SELECT 1 AS id, {start} AS a FROM people", f"SELECT id, {step} AS a FROM c@", "SELECT a FROM c@", n
    )


def _chosen(items: str, tail: str = "", between: str = ", ") -> Callable[[int], str]:
    return lambda n: f"SELECT {_repeated(items, n, between)} FROM people{tail}"


def _where(condition: str, between: str, select: str = "COUNT(*)") -> Callable[[int], str]:
    return lambda n: f"SELECT {select} FROM people WHERE {_repeated(condition, n, between)}"


def _nested(before: str, core: str, after: str, around: str = "SELECT SUM(@) FROM people") -> Callable[[int], str]:
    """An expression within itself."""
    return lambda n: around.replace("@", before * n + core + after * n)


def _twice(step: str, start: str, around: str = "SELECT SUM(@) FROM people", most: int = 8) -> Callable[[int], str]:
    """An expression with a part that stands within itself twice or more: the text doubles, so sizes are levels."""

    def text(n: int) -> str:
        found = start
        for _ in range(min(n, most)):
            found = step.replace("@", found)
        return around.replace("@", found)

    return text


TEXTS: Mapping[str, Callable[[int], str]] = {
    # arithmetic below a release, through levels
    "squares of integers": _below("a * a"),
    "squares cast to integers": _below("(a * a)::int"),
    "squares of doubles": _below("a * a", "age::float8"),
    "squares of numerics": _below("a * a", "age::numeric"),
    "squares of decimals": _below("a * a", "age / 7.0"),
    "doubled integers": _below("a + a"),
    "doubled doubles": _below("a + a", "age::float8"),
    "cubes": _below("a * a * a", "age::float8 / 100"),
    "powers": _below("power(a, 2)", "age::float8"),
    "exponentials": _below("exp(a)", "age::float8"),
    "quotients": _below("a / 3.7", "age::float8"),
    "inverses": _below("1 / (a + 1)", "age::float8"),
    "remainders": _below("a % 1000 + a"),
    "rounded": _below("round(a * 1.1, 2)", "age::numeric"),
    "chosen by a case": _below("CASE WHEN a > 5 THEN a ELSE a * a END"),
    "least of two": _below("least(a, a + 1)"),
    "greatest of two": _below("greatest(a - 1, a)"),
    "first of two": _below("coalesce(a, a + 1)"),
    "null if": _below("nullif(a, a)"),
    "absolute": _below("abs(a - 50)"),
    "conditions on squares": lambda n: _levels(
        "SELECT id, age AS a FROM people", "SELECT id, a * a AS a FROM c@", "SELECT COUNT(*) FROM c@ WHERE a > 5", n
    ),
    "keys of squares": lambda n: _levels(
        "SELECT id, age AS a FROM people",
        "SELECT id, a * a AS a FROM c@",
        "SELECT a % 3, COUNT(*) FROM c@ GROUP BY a % 3",
        n,
    ),
    "concatenated levels": lambda n: _levels(
        "SELECT id, state AS a FROM people",
        "SELECT id, a || a AS a FROM c@",
        "SELECT COUNT(*) FROM c@ WHERE a = 'x'",
        n,
    ),
    "keys of concatenated levels": lambda n: _levels(
        "SELECT id, state AS a FROM people",
        "SELECT id, a || a AS a FROM c@",
        "SELECT a, COUNT(*) FROM c@ GROUP BY a",
        n,
    ),
    "filters through levels": lambda n: _levels(
        "SELECT id, age FROM people", "SELECT * FROM c@ WHERE age > @", "SELECT COUNT(*) FROM c@", n
    ),
    "all columns through levels": lambda n: _levels(
        "SELECT p.*, p.age + 1 AS b, p.age + 2 AS c FROM people p", "SELECT * FROM c@", "SELECT COUNT(*) FROM c@", n
    ),
    "limits through levels": lambda n: _levels(
        "SELECT id, age FROM people", "SELECT id, MAX(age) AS age FROM c@ GROUP BY id", "SELECT AVG(age) FROM c@", n
    ),
    # arithmetic above a release, through levels
    "doubled counts": _above("a + a"),
    "squared counts": _above("a * a"),
    "doubled averages": _above("a + a", "AVG(age)"),
    "squared averages": _above("a * a", "AVG(age)"),
    "divided counts": _above("a / (a + 1.0)"),
    "chosen counts": _above("CASE WHEN a > 5 THEN a ELSE a + 1 END"),
    "least counts": _above("least(a, a + 1)"),
    "coalesced counts": _above("coalesce(a, a)"),
    "concatenated counts": _above("a || a", "COUNT(*)::text"),
    "ends of counts": _above("a + 1", "dp_low(COUNT(*))"),
    "sorted levels": lambda n: _levels(
        "SELECT state, COUNT(*) AS a FROM people GROUP BY state",
        "SELECT state, a + 1 AS a FROM c@ ORDER BY a LIMIT 3",
        "SELECT * FROM c@",
        n,
    ),
    "running totals through levels": lambda n: _levels(
        "SELECT state, COUNT(*) AS a FROM people GROUP BY state",
        "SELECT state, SUM(a) OVER (ORDER BY state) AS a FROM c@",
        "SELECT * FROM c@",
        n,
    ),
    "sums of sums": lambda n: _levels(
        "SELECT state, COUNT(*) AS a FROM people GROUP BY state",
        "SELECT state, SUM(a + a) AS a FROM c@ GROUP BY state",
        "SELECT * FROM c@",
        n,
    ),
    # long sums
    "a sum of counts": _chosen("COUNT(*)", between=" + "),
    "a sum of different counts": _chosen("COUNT(*) FILTER (WHERE age > #)", between=" + "),
    "a sum of sums of columns": _chosen("SUM(age)", between=" + "),
    "a count and ones": lambda n: f"SELECT COUNT(*){' + 1' * n} FROM people",
    "a count and fractions": lambda n: f"SELECT COUNT(*){' + 1.5' * n} FROM people",
    "a count times": lambda n: f"SELECT COUNT(*){' * 1.01' * n} FROM people",
    "a count less": lambda n: f"SELECT COUNT(*){' - 1' * n} FROM people",
    "a sum of columns": lambda n: f"SELECT SUM({_repeated('age', n, ' + ')}) FROM people",
    "an average of columns": lambda n: f"SELECT AVG({_repeated('age', n, ' + ')}) FROM people",
    "a sum of products": lambda n: f"SELECT SUM({_repeated('age * #', n, ' + ')}) FROM people",
    "a product of columns": lambda n: f"SELECT SUM({_repeated('age', n, ' * ')}) FROM people",
    "a sum of double columns": lambda n: f"SELECT SUM({_repeated('income', n, ' + ')}) FROM people",
    "a score of cases": lambda n: (
        f"SELECT AVG({_repeated('CASE WHEN age > # THEN 1 ELSE 0 END', n, ' + ')}) FROM people"
    ),
    "a score as a key": lambda n: (
        f"SELECT {_repeated('CASE WHEN age > # THEN 1 ELSE 0 END', n, ' + ')} AS k, COUNT(*) FROM people GROUP BY k"
    ),
    "a score in a condition": lambda n: (
        f"SELECT COUNT(*) FROM people WHERE {_repeated('CASE WHEN age > # THEN 1 ELSE 0 END', n, ' + ')} > 3"
    ),
    # many aggregates
    "filtered counts": _chosen("COUNT(*) FILTER (WHERE age = #)"),
    "filtered ranges": _chosen("COUNT(*) FILTER (WHERE age >= # AND age < # + 1)"),
    "filtered sums": _chosen("SUM(income) FILTER (WHERE age = #)"),
    "filtered texts": _chosen("COUNT(*) FILTER (WHERE sex = 's#')"),
    "overlapping counts": _chosen("COUNT(*) FILTER (WHERE age > #)"),
    "sums of cases": _chosen("SUM(CASE WHEN age = # THEN 1 ELSE 0 END)"),
    "pivoted sums": _chosen("SUM(CASE WHEN sex = 's#' THEN income ELSE 0 END)"),
    "pivoted sums by key": _chosen("SUM(CASE WHEN age = # THEN income ELSE 0 END)", " GROUP BY state"),
    "averages of sums": _chosen("AVG(income + #)"),
    "sums of differences": _chosen("SUM(income - #)"),
    "averages and spreads": _chosen("AVG(age + #), STDDEV(age + #)"),
    "many correlations": _chosen("CORR(age + #, income)"),
    "counts and numbers": _chosen("COUNT(*) + #"),
    "the same count": _chosen("COUNT(*)"),
    "the same average": _chosen("AVG(age)"),
    "distinct counts": _chosen("COUNT(DISTINCT age + #)"),
    "mixed aggregates by key": _chosen(
        "COUNT(*) FILTER (WHERE age > #), SUM(age + #), AVG(income + #)", " GROUP BY state"
    ),
    "maxima": _chosen("MAX(age + #)"),
    "minima by key": _chosen("MIN(age + #)", " GROUP BY state"),
    "ranks": lambda n: f"SELECT PERCENTILE_CONT(ARRAY[{_repeated('0.1#', n)}]) WITHIN GROUP (ORDER BY age) FROM people",
    "single ranks": _chosen("PERCENTILE_CONT(0.1#) WITHIN GROUP (ORDER BY age)"),
    "medians": _chosen("PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY age + #)"),
    "sums of many rows": lambda n: f"SELECT {_repeated('SUM(fee + #)', n)} FROM visits",
    "averages of many rows": lambda n: f"SELECT {_repeated('AVG(fee) FILTER (WHERE fee = #)', n)} FROM visits",
    "many columns over few sums": lambda n: (
        f"WITH s AS (SELECT COUNT(*) AS a, AVG(age) AS b FROM people) SELECT {_repeated('a + b * #', n)} FROM s"
    ),
    "conditions on groups": lambda n: (
        f"SELECT state FROM people GROUP BY state HAVING {_repeated('COUNT(*) > #', n, ' AND ')}"
    ),
    "sorted by many": lambda n: (
        f"SELECT state, COUNT(*) FROM people GROUP BY state ORDER BY {_repeated('COUNT(*) + #', n)}"
    ),
    # conditions
    "alternatives": _where("age = #", " OR "),
    "alternatives of texts": _where("sex = 's#'", " OR "),
    "conjunctions": _where("age <> #", " AND "),
    "ranges": _where("age BETWEEN # AND # + 10", " OR "),
    "negated ranges": _where("NOT (age BETWEEN # AND # + 1)", " AND "),
    "patterns": _where("sex LIKE '%#%'", " OR "),
    "tests for null": _where("sex IS NOT NULL", " AND "),
    "a list": lambda n: f"SELECT COUNT(*) FROM people WHERE age IN ({_repeated('#', n)})",
    "a list of texts": lambda n: "SELECT COUNT(*) FROM people WHERE sex IN (" + _repeated("'s#'", n) + ")",
    "a list of pairs": lambda n: "SELECT COUNT(*) FROM people WHERE (age, sex) IN (" + _repeated("(#, 's#')", n) + ")",
    "lists": _where("age IN (1, 2, #)", " AND "),
    "keys in a list": lambda n: f"SELECT age, COUNT(*) FROM people WHERE age IN ({_repeated('#', n)}) GROUP BY age",
    "negations": lambda n: f"SELECT COUNT(*) FROM people WHERE {'NOT ' * n}smoker",
    # cases
    "branches": lambda n: f"SELECT SUM(CASE {_repeated('WHEN age = # THEN #', n, ' ')} ELSE 0 END) FROM people",
    "branches as keys": lambda n: (
        f"SELECT CASE {_repeated('WHEN age = # THEN #', n, ' ')} ELSE -1 END AS k, COUNT(*) FROM people GROUP BY k"
    ),
    "branches of texts as keys": lambda n: (
        "SELECT CASE " + _repeated("WHEN age < # THEN 't#'", n, " ") + " ELSE 'x' END, COUNT(*) FROM people GROUP BY 1"
    ),
    "branches of noisy numbers": lambda n: (
        f"SELECT CASE {_repeated('WHEN COUNT(*) < # THEN #', n, ' ')} ELSE 0 END FROM people"
    ),
    "cases within cases": _nested("CASE WHEN age > 1 THEN 1 ELSE ", "age", " END"),
    "cases within conditions": _nested(
        "CASE WHEN ", "age > 1", " THEN age ELSE 0 END > 1", "SELECT COUNT(*) FROM people WHERE @"
    ),
    "noisy cases within cases": _nested(
        "CASE WHEN COUNT(*) > 1 THEN 1 ELSE ", "COUNT(*)", " END", "SELECT @ FROM people"
    ),
    # expressions within themselves
    "parentheses": _nested("(", "age", " + 1)"),
    "negated numbers": _nested("-(", "age", ")"),
    "nested absolutes": _nested("abs(", "age", " - 50)"),
    "nested least": _nested("least(", "age", ", 100)"),
    "nested greatest": _nested("greatest(1, ", "age", ")"),
    "nested coalesce": _nested("coalesce(", "age", ", 1)"),
    "nested nullif": _nested("nullif(", "age", ", 1)"),
    "nested casts": _nested("", "age", "::float8::int"),
    "nested rounds": _nested("round(", "age", ", 1)", "SELECT SUM(@::numeric) FROM people"),
    "nested square roots": _nested("sqrt(", "age", ")"),
    "nested upper": _nested("upper(", "state", ")", "SELECT @, COUNT(*) FROM people GROUP BY 1"),
    "nested upper of unknown keys": _nested("upper(", "sex", ")", "SELECT COUNT(*) FROM people WHERE @ = 'a'"),
    "nested least above": _nested("least(", "COUNT(*)", ", 100)", "SELECT @ FROM people"),
    "nested coalesce above": _nested("coalesce(", "COUNT(*)", ", 1)", "SELECT @ FROM people"),
    "nested remainders as a key": _nested("(", "age", " + 1) % 7", "SELECT @, COUNT(*) FROM people GROUP BY 1"),
    "nested keys": _nested("abs(", "age", " - 50)", "SELECT @, COUNT(*) FROM people GROUP BY 1"),
    "nested dates": _nested(
        "date_trunc('month', ", "joined", ")", "SELECT COUNT(*) FROM people WHERE @ > '2020-01-01'"
    ),
    "shifted dates": lambda n: f"SELECT COUNT(*) FROM people WHERE joined{' + 1' * n} > '2020-01-01'",
    "shifted timestamps": lambda n: (
        "SELECT COUNT(*) FROM visits WHERE seen" + " + INTERVAL '1 month'" * n + " > '2020-01-01'"
    ),
    # texts
    "concatenation": lambda n: f"SELECT COUNT(*) FROM people WHERE {_repeated('sex', n, ' || ')} = 'x'",
    "concatenation as a key": lambda n: f"SELECT {_repeated('state', n, ' || ')} AS k, COUNT(*) FROM people GROUP BY k",
    "concatenation above": lambda n: f"SELECT {_repeated('state', n, ' || ')}, COUNT(*) FROM people GROUP BY state",
    # relations
    "unions": lambda n: (
        f"SELECT COUNT(*) FROM ({_repeated('SELECT id, age FROM people WHERE age = #', n, ' UNION ALL ')}) u"
    ),
    "unions of counts": lambda n: _repeated("SELECT # AS k, COUNT(*) FROM people", n, " UNION ALL "),
    "unions of public rows": lambda n: _repeated("SELECT code FROM states", n, " UNION ALL "),
    "joins of public tables": lambda n: (
        f"SELECT COUNT(*) FROM people p {_repeated('JOIN states s# ON s#.code = p.state', n, ' ')}"
    ),
    "joins of one table": lambda n: (
        f"SELECT COUNT(*) FROM people p {_repeated('JOIN people p# ON p#.id = p.id', n, ' ')}"
    ),
    "left joins": lambda n: (
        f"SELECT COUNT(*) FROM people p {_repeated('LEFT JOIN states s# ON s#.code = p.state', n, ' ')}"
    ),
    "a chain of joins": lambda n: (
        "SELECT COUNT(*) FROM people p0 "
        + " ".join(f"JOIN people p{i} ON p{i}.id = p{i - 1}.id AND p{i}.age > {i}" for i in range(1, n + 1))
    ),
    "joins of counts": lambda n: (
        "SELECT * FROM (SELECT state, COUNT(*) AS a FROM people GROUP BY state) t0 "
        + " ".join(
            f"JOIN (SELECT state, COUNT(*) FILTER (WHERE age > {i}) AS a FROM people GROUP BY state) t{i} USING (state)"
            for i in range(1, n + 1)
        )
    ),
    "scalar subqueries": lambda n: f"SELECT {_repeated('(SELECT COUNT(*) FROM people WHERE age = #)', n)}",
    "correlated subqueries": _where(
        "EXISTS (SELECT 1 FROM visits v WHERE v.patient_id = people.id AND v.fee > #)", " AND "
    ),
    "nested subqueries": _nested("SELECT * FROM (", "SELECT id, age FROM people", ") t", "SELECT COUNT(*) FROM (@) u"),
    "unused expressions": lambda n: (
        f"WITH {_repeated('c# AS (SELECT COUNT(*) AS a FROM people)', n)} SELECT COUNT(*) FROM people"
    ),
    # windows and grouping sets
    "windows": lambda n: (
        "SELECT state, " + _repeated("SUM(COUNT(*) + #) OVER (ORDER BY state)", n) + " FROM people GROUP BY state"
    ),
    "shares of windows": lambda n: (
        "SELECT state, "
        + _repeated("SUM(COUNT(*)) OVER (ORDER BY state) / SUM(COUNT(*)) OVER () + #", n)
        + " FROM people GROUP BY state"
    ),
    "ranked windows": lambda n: (
        f"SELECT state, {_repeated('rank() OVER (ORDER BY COUNT(*) + #)', n)} FROM people GROUP BY state"
    ),
    "grouping sets": lambda n: (
        f"SELECT state, smoker, COUNT(*) FROM people GROUP BY GROUPING SETS ({_repeated('(state), (smoker)', n)})"
    ),
    "years of dates": lambda n: f"SELECT EXTRACT(year FROM joined + {n}) AS y, COUNT(*) FROM people GROUP BY 1",
    "days as keys": lambda n: (
        f"SELECT joined, {_repeated('COUNT(*) FILTER (WHERE age = #)', n)} FROM people GROUP BY joined"
    ),
    "values": lambda n: f"SELECT * FROM (VALUES {_repeated('(#)', n)}) t(a)",
    "values of an aggregate": lambda n: f"SELECT SUM(a) FROM (VALUES {_repeated('(#)', n)}) t(a)",
    "outputs": lambda n: f"SELECT {_repeated('age AS a#', n)} FROM people",
    "ones": lambda n: f"SELECT {_repeated('1', n, ' + ')}",
    # grouping sets, set operations and levels of them
    "grouping sets of many keys": lambda n: (
        f"SELECT COUNT(*) FROM people GROUP BY GROUPING SETS ({_repeated('(state, age % (# + 2))', n)})"
    ),
    "keys of one column": lambda n: (
        f"SELECT COUNT(*) FROM people GROUP BY {_repeated('CASE WHEN age > # THEN 1 ELSE 0 END', n)}"
    ),
    "equal keys": lambda n: f"SELECT COUNT(*) FROM people GROUP BY {_repeated('state', n)}",
    "intersections": lambda n: (
        f"SELECT COUNT(*) FROM ({_repeated('SELECT id FROM people WHERE age > #', n, ' INTERSECT ')}) u"
    ),
    "differences": lambda n: (
        f"SELECT COUNT(*) FROM ({_repeated('SELECT id FROM people WHERE age > #', n, ' EXCEPT ')}) u"
    ),
    "unions of keys": lambda n: _repeated("SELECT state, COUNT(*) FROM people GROUP BY state", n, " UNION ALL "),
    "unions of averages": lambda n: _repeated("SELECT AVG(age + #) FROM people", n, " UNION ALL "),
    "a sum over unions": lambda n: (
        f"SELECT SUM(a) FROM ({_repeated('SELECT COUNT(*) AS a FROM people', n, ' UNION ALL ')}) u"
    ),
    "distinct levels": lambda n: _levels(
        "SELECT id, age FROM people", "SELECT DISTINCT id, age FROM c@", "SELECT COUNT(*) FROM c@", n
    ),
    "levels with subqueries": lambda n: _levels(
        "SELECT COUNT(*) AS a FROM people",
        "SELECT a + (SELECT COUNT(*) FROM people) AS a FROM c@",
        "SELECT a FROM c@",
        n,
    ),
    "semijoins": _where("id IN (SELECT patient_id FROM visits WHERE fee > #)", " AND "),
    "negated semijoins": _where("id NOT IN (SELECT patient_id FROM visits WHERE fee > #)", " AND "),
    "nested semijoins": _nested(
        "id IN (SELECT id FROM people WHERE ", "age > 5", ")", "SELECT COUNT(*) FROM people WHERE @"
    ),
    "public lists": _where("state IN (SELECT code FROM states WHERE region = 'r#')", " OR "),
    "correlated sums": _where(
        "(SELECT SUM(fee) FROM visits v WHERE v.patient_id = people.id AND v.fee > #) > 5", " AND "
    ),
    # joins
    "crossed public tables": lambda n: f"SELECT COUNT(*) FROM {_repeated('states s#', n)}",
    "crossed public tables beside": lambda n: f"SELECT COUNT(*) FROM people, {_repeated('states s#', n)}",
    "join conditions": lambda n: (
        f"SELECT COUNT(*) FROM people p JOIN visits v ON v.patient_id = p.id AND {_repeated('v.fee > #', n, ' AND ')}"
    ),
    "columns of a join": lambda n: (
        f"SELECT {_repeated('SUM(v.fee + p.age + #)', n)} FROM people p JOIN visits v ON v.patient_id = p.id"
    ),
    # arithmetic of noisy numbers
    "sums of averages": _chosen("AVG(age + #)", between=" + "),
    "sums of spreads": _chosen("STDDEV(age + #)", between=" + "),
    "quotients of counts": _chosen("COUNT(*) FILTER (WHERE age > #) / COUNT(*)::float8"),
    "sums of quotients": _chosen("COUNT(*) FILTER (WHERE age > #) / COUNT(*)::float8", between=" + "),
    "products of counts": _chosen("COUNT(*)", between=" * "),
    "products of different counts": _chosen("COUNT(*) FILTER (WHERE age > #)", between=" * "),
    "sums of products of counts": _chosen("COUNT(*) FILTER (WHERE age > #) * COUNT(*)", between=" + "),
    "least of different counts": lambda n: (
        f"SELECT LEAST({_repeated('COUNT(*) FILTER (WHERE age > #)', n)}) FROM people"
    ),
    "coalesced different counts": lambda n: (
        f"SELECT COALESCE({_repeated('COUNT(*) FILTER (WHERE age > #)', n)}) FROM people"
    ),
    "branches of counts": lambda n: (
        "SELECT CASE "
        + _repeated("WHEN state = 's#' THEN COUNT(*) FILTER (WHERE age > #)", n, " ")
        + " ELSE 0 END FROM people GROUP BY state"
    ),
    "rounded counts": _chosen("ROUND(COUNT(*) * 0.3, 1)", between=" + "),
    "ends of intervals": _chosen("dp_low(AVG(age + #)), dp_high(AVG(age + #))"),
    "texts of counts": _chosen("COUNT(*)::text", between=" || "),
    "noisy conditions": lambda n: (
        f"SELECT state FROM people GROUP BY state HAVING {_repeated('AVG(age + #) > 5', n, ' OR ')}"
    ),
    # windows
    "windows within windows": lambda n: _levels(
        "SELECT state, COUNT(*) AS a FROM people GROUP BY state",
        "SELECT state, LAG(a) OVER (ORDER BY state) AS a FROM c@",
        "SELECT * FROM c@",
        n,
    ),
    "moving averages": lambda n: (
        "SELECT state, "
        + _repeated("AVG(COUNT(*)) OVER (ORDER BY state ROWS BETWEEN # PRECEDING AND CURRENT ROW)", n)
        + " FROM people GROUP BY state"
    ),
    "named windows": lambda n: (
        f"SELECT {_repeated('SUM(COUNT(*)) OVER w#', n)} FROM people GROUP BY state"
        f" WINDOW {_repeated('w# AS (ORDER BY state)', n)}"
    ),
    # many aggregates of other kinds
    "spreads": _chosen("STDDEV(income + #)"),
    "spreads by key": _chosen("VARIANCE(age + #)", " GROUP BY state"),
    "regressions": _chosen("REGR_SLOPE(age + #, income)"),
    "modes": _chosen("MODE() WITHIN GROUP (ORDER BY age + #)"),
    "truths": _chosen("BOOL_AND(age > #), BOOL_OR(age < #)"),
    "ranks by key": _chosen("PERCENTILE_DISC(0.#1) WITHIN GROUP (ORDER BY income)", " GROUP BY state"),
    "filtered medians": _chosen("PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY age) FILTER (WHERE age > #)"),
    "arrays of ranks": _chosen("PERCENTILE_CONT(ARRAY[0.1, 0.5]) WITHIN GROUP (ORDER BY age + #)"),
    "counts of unknown keys": _chosen("COUNT(*) FILTER (WHERE age > #)", " GROUP BY sex"),
    # words
    "patterns within": lambda n: f"SELECT COUNT(*) FROM people WHERE sex LIKE '{'%a_' * n}'",
    "patterns of keys": _where("state LIKE '%#%'", " OR "),
    "a long text": lambda n: f"SELECT COUNT(*) FROM people WHERE sex = '{'x' * 100 * n}'",
    "escapes": lambda n: "SELECT COUNT(*) FROM people WHERE sex = '" + "''" * 100 * n + "'",
    "comments": lambda n: f"SELECT {'/* x */ ' * n}COUNT(*) FROM people",
    "nested comments": lambda n: f"SELECT {'/*' * n}{'*/' * n} COUNT(*) FROM people",
    "lines of comments": lambda n: "SELECT COUNT(*) " + "-- x\n" * n + "FROM people",
    "blanks": lambda n: f"SELECT{' ' * 100 * n}COUNT(*) FROM people",
    "plain parentheses": _nested("(", "age", ")"),
    "parentheses around queries": _nested("(", "SELECT COUNT(*) FROM people", ")", "@"),
    "quoted names": _chosen('COUNT(*) AS "a b #"'),
    "long names": lambda n: f'SELECT COUNT(*) AS "{"x" * 10 * n}" FROM people',
    "qualified names": _where("people.age <> #", " AND "),
    "casts": lambda n: f"SELECT COUNT(*) FROM people WHERE age{'::text::int' * n} > 5",
    "casts of texts": _where("sex::date > '2020-01-01'::date + #", " OR "),
    "dates": _where("joined = DATE '2020-01-01' + #", " OR "),
    "parts of dates": _where("EXTRACT(month FROM joined) = #", " OR "),
    "days of dates": _chosen("COUNT(*) FILTER (WHERE date_trunc('month', joined) = DATE '2020-01-01' + #)"),
    "zones": lambda n: (
        "SELECT COUNT(*) FROM visits WHERE seen"
        + " AT TIME ZONE 'Europe/Berlin' AT TIME ZONE 'UTC'" * n
        + " > '2021-06-01'"
    ),
    "keys of months": lambda n: (
        "SELECT date_trunc('month', joined), "
        + _repeated("COUNT(*) FILTER (WHERE age = #)", n)
        + " FROM people GROUP BY 1"
    ),
    "keys of months and years": lambda n: (
        f"SELECT {_repeated('EXTRACT(year FROM joined) + #', n)}, COUNT(*) FROM people"
        " GROUP BY EXTRACT(year FROM joined)"
    ),
    "replaced texts": _nested("replace(", "sex", ", 'a', 'b')", "SELECT COUNT(*) FROM people WHERE @ = 'x'"),
    "parts of texts": _nested("substring(", "sex", " from 2)", "SELECT COUNT(*) FROM people WHERE @ = 'x'"),
    "longer texts": _nested("concat(", "sex", ", 'aaaaaaaaaa')", "SELECT COUNT(*) FROM people WHERE @ = 'x'"),
    "a list beside columns": lambda n: f"SELECT COUNT(*) FROM people WHERE age IN ({_repeated('id + #', n)})",
    "a series": lambda n: f"SELECT COUNT(*) FROM generate_series(1, {n * 10}) g",
    "series": lambda n: f"SELECT COUNT(*) FROM {_repeated('generate_series(1, 3) g#', n)}",
    "rows of values": lambda n: "SELECT COUNT(*) FROM people WHERE state IN (VALUES " + _repeated("('s#')", n) + ")",
    "sorted by columns": lambda n: f"SELECT state, COUNT(*) FROM people GROUP BY state ORDER BY {_repeated('1', n)}",
    "a numeral": lambda n: f"SELECT COUNT(*) + 1{'0' * n} FROM people",
    "a decimal": lambda n: f"SELECT COUNT(*) * 1.{'0' * n}1 FROM people",
    "powers of powers": _nested("power(", "age", ", 2)"),
    # expressions that stand in themselves twice: 2 to the power of the size, up to a text of some kilobytes
    "least of itself": _twice("least(@, @ + 1)", "age"),
    "coalesce of itself": _twice("coalesce(@, @ + 1)", "age"),
    "case of itself": _twice("CASE WHEN @ > 1 THEN @ ELSE 0 END", "age", most=6),
    "product of itself": _twice("(@ * @)", "age"),
}
