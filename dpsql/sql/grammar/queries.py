"""Queries: clauses, sources and joins, set operations."""

from __future__ import annotations

from dpsql.sql.grammar.expressions import BEGINNINGS, CONTINUATIONS, Expressions
from dpsql.sql.tokens import Sort

_SIDES = ("left", "right", "full")


class Queries(Expressions):
    def statement(self) -> None:
        self.query()
        if self.word is not None:
            self.fail()

    def query(self) -> None:
        if self.takes("with"):
            self.takes("recursive")
            self._common_table()
            while self.takes(","):
                self._common_table()
        self._term()
        self.query_behind_parenthesis()

    def query_behind_parenthesis(self) -> None:
        """Set operations, order and limits behind the first part of a query."""
        while self.takes_one("union", "except", "intersect"):
            self.takes_one("all", "distinct")
            self._term()
        if self.sees("order"):
            self.order_by()
        self._limits()

    def _common_table(self) -> None:
        self.needs_column_name()
        if self.takes("("):
            self._names()
        self.needs("as")
        if self.takes("not"):
            self.needs("materialized")
        else:
            self.takes("materialized")
        self.needs("(")
        self.query()
        self.needs(")")

    def _names(self) -> None:
        self.needs_column_name()
        while self.takes(","):
            self.needs_column_name()
        self.needs(")")

    def _term(self) -> None:
        if self.takes("("):
            self.query()
            self.needs(")")
        elif self.takes("values"):
            self._values()
        elif self.takes("table"):
            self._table_name()
        else:
            self._select()

    def _values(self) -> None:
        while True:
            self.needs("(")
            self.expressions()
            self.needs(")")
            if not self.takes(","):
                break

    def _select(self) -> None:
        self.needs("select")
        if self.takes("distinct"):
            if self.takes("on"):
                self.needs("(")
                self.expressions()
                self.needs(")")
        else:
            self.takes("all")
        self._output()
        while self.takes(","):
            self._output()
        if self.takes("from"):
            self._source()
            while self.takes(","):
                self._source()
        if self.takes("where"):
            self.expression()
        if self.takes("group"):
            self._group_by()
        if self.takes("having"):
            self.expression()
        if self.takes("window"):
            self._windows()

    def _output(self) -> None:
        if self.takes("*"):
            return
        ahead = 0
        while self.is_column_name(ahead) and self.sees(".", ahead=ahead + 1):
            ahead += 2
            if self.sees("*", ahead=ahead):
                self.place += ahead + 1
                return
        self.expression()
        if self.takes("as"):
            self.needs_label()
        elif self.is_bare_label():
            self.place += 1

    # --- FROM ---

    def _source(self) -> None:
        """A table, or a chain of joins."""
        self._table()
        while self._is_join():
            self._join()

    def _is_join(self) -> bool:
        return self.sees("cross", "natural", "inner", "join", *_SIDES)

    def _join(self) -> None:
        if self.takes("cross"):
            self.needs("join")
            self._table()
            return
        natural = self.takes("natural")
        if self.takes_one(*_SIDES):
            self.takes("outer")
        else:
            self.takes("inner")
        self.needs("join")
        self._table()
        if natural:
            return
        while not self.sees("on", "using"):
            if not self._is_join():
                self.fail()
            self._join()
        if self.takes("on"):
            self.expression()
        else:
            self.needs("using", "(")
            self._names()

    def _table(self) -> None:
        if self.takes("lateral") and not self.sees("("):
            self.fail()
        if self.takes("("):
            self._in_parentheses()
            self.needs(")")
        elif self.sees("generate_series") and self.sees("(", ahead=1):
            self.place += 2
            self.expressions()
            self.needs(")")
        else:
            self._table_name()
            self.takes("*")  # with the tables that inherit from it, which is meant without the star as well
        self._alias()

    def _in_parentheses(self) -> bool:
        """A query, or joined tables: a table alone does not stand in parentheses. Whether it is a query."""
        if self.sees(*BEGINNINGS):
            self.query()
            return True
        if self.takes("("):
            is_query = self._in_parentheses()
            self.needs(")")
            if self.sees(")"):
                return is_query
            if is_query and self.sees(*CONTINUATIONS):
                self.query_behind_parenthesis()
                return True
            self._alias()
        else:
            self._table()
        if not self._is_join():
            self.fail()
        while self._is_join():
            self._join()
        return False

    def _table_name(self) -> None:
        self.needs_column_name()
        while self.takes("."):
            self.needs_label()

    def _alias(self) -> None:
        if self.takes("as"):
            self.needs_column_name()
        elif self.is_column_name():
            self.place += 1
        else:
            return
        if self.takes("("):
            self._names()

    # --- GROUP BY, WINDOW, ORDER BY, LIMIT ---

    def _group_by(self) -> None:
        self.needs("by")
        self.takes_one("all", "distinct")
        self._grouping()
        while self.takes(","):
            self._grouping()

    def _grouping(self) -> None:
        if self.sees("rollup", "cube") and self.sees("(", ahead=1):
            self.place += 2
            self._keys()
            self.needs(")")
        elif self.takes("grouping", "sets"):
            self.needs("(")
            self._grouping()
            while self.takes(","):
                self._grouping()
            self.needs(")")
        else:
            self._key()

    def _keys(self) -> None:
        self._key()
        while self.takes(","):
            self._key()

    def _key(self) -> None:
        """An expression, or several of them in parentheses."""
        if self.takes("(", ")"):
            return
        if not self.sees("("):
            self.expression()
            return
        first = self.place
        self.place += 1
        self.query_or_expressions()
        self.needs(")")
        self.rest(first)

    def _windows(self) -> None:
        while True:
            self.needs_column_name()
            self.needs("as", "(")
            self.window()
            self.needs(")")
            if not self.takes(","):
                break

    def order_by(self) -> None:
        self.needs("order", "by")
        while True:
            self.expression()
            self.takes_one("asc", "desc")
            if self.takes("nulls"):
                self.needs_one("first", "last")
            if not self.takes(","):
                break

    def _limits(self) -> None:
        limited = skipped = False
        while True:
            if not limited and self.takes("limit"):
                limited = True
                if not self.takes("all"):
                    self.expression()
            elif not skipped and self.takes("offset"):
                skipped = True
                first = self.place
                self.expression()
                if self.sees("row", "rows"):
                    self.place = first  # before ROWS only a number, or something in parentheses
                    self._number_of_rows()
                    self.needs_one("row", "rows")
            elif not limited and self.takes("fetch"):
                limited = True
                self._fetch()
            else:
                return

    def _fetch(self) -> None:
        self.needs_one("first", "next")
        if not self.sees("row", "rows"):
            self._number_of_rows()
        self.needs_one("row", "rows")
        self.needs("only")

    def _number_of_rows(self) -> None:
        if self.takes("("):
            self.expression()
            self.needs(")")
            return
        self.takes_one("+", "-")
        if not self.takes_sort(Sort.NUMBER, Sort.PARAMETER):
            self.fail()
