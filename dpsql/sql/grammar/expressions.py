"""Expressions, by PostgreSQL's precedence. What binds how is noted, so that another reader can be held against it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from dpsql.errors import NotSupported
from dpsql.sql.grammar.words import Words
from dpsql.sql.tokens import Sort

# From loose to tight. Of two comparisons side by side none is first: that is an error.
_OR, _AND, _NOT, _IS, _COMPARE, _MATCH, _ESCAPE, _OTHER, _ADD, _MULTIPLY, _POWER, _ZONE, _SIGN, _CAST = range(1, 15)
_LEVELS = {
    **dict.fromkeys(("=", "<", ">", "<=", ">=", "<>", "!="), _COMPARE),
    **dict.fromkeys(("||", "^@"), _OTHER),
    **dict.fromkeys(("+", "-"), _ADD),
    **dict.fromkeys(("*", "/", "%"), _MULTIPLY),
    "^": _POWER,
    "or": _OR,
    "and": _AND,
}
_CHAINS = (_OR, _AND, _OTHER, _ADD, _MULTIPLY, _CAST)  # read from left to right by everybody
_TYPES = frozenset(
    "int integer int2 int4 int8 smallint bigint numeric decimal dec float float8 real text varchar boolean bool date "
    "timestamp timestamptz interval double character".split()
)
_FIELDS = ("year", "month", "day", "hour", "minute", "second")

_VALUES = ("true", "false", "null", "current_date", "current_timestamp", "localtimestamp")

BEGINNINGS = ("select", "with", "values", "table")  # of a query
CONTINUATIONS = ("union", "except", "intersect", "order", "limit", "offset", "fetch")  # behind one in parentheses


@dataclass(slots=True)
class Span:
    """The words of one operator with its operands."""

    first: int
    last: int


class Expressions(Words):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.spans: list[Span] = []

    def is_between_parentheses(self, span: Span) -> bool:
        before, behind = span.first - 1, span.last + 1
        return (
            before >= 0
            and behind < len(self.words)
            and (self.words[before].text, self.words[behind].text) == ("(", ")")
            and self.words[before].sort is self.words[behind].sort is Sort.OPERATOR
        )

    @abstractmethod
    def query(self) -> None: ...

    @abstractmethod
    def order_by(self) -> None: ...

    def expressions(self) -> None:
        self.expression()
        while self.takes(","):
            self.expression()

    def expression(self, loosest: int = _OR) -> None:
        """An expression of operators that bind at least as tight."""
        first = self.place
        self._operand()
        self.rest(first, loosest)

    def rest(self, first: int, loosest: int = _OR) -> None:
        """What follows an operand that has been read."""
        closed = 0  # the level of the comparison that has just ended: none of the same may follow
        run: tuple[int, Span] | None = None
        while (level := self._level()) >= loosest:
            if level == closed:
                self.fail()
            closed, is_open = 0, self._operator(level)
            if is_open and level in (_IS, _COMPARE, _MATCH):
                closed = level
            if run is not None and run[0] == level and level in _CHAINS:
                run[1].last = self.place - 1
            else:
                run = level, Span(first, self.place - 1)
                self.spans.append(run[1])

    def _level(self) -> int:
        """How tight the operator binds that comes next; 0 if none does."""
        if self.sees("::"):
            return _CAST
        if self.sees("is", "isnull", "notnull"):
            return _IS
        if self.sees("between", "in", "like", "ilike"):
            return _MATCH
        if self.sees("not"):
            return _MATCH if self.sees("between", "in", "like", "ilike", ahead=1) else 0
        if self.sees("at"):
            return _ZONE if self.sees("time", ahead=1) else 0
        word = self.word
        if word is None or word.sort not in (Sort.WORD, Sort.OPERATOR):
            return 0
        return _LEVELS.get(word.text, 0)

    def _operator(self, level: int) -> bool:
        """An operator and what stands behind it; whether its last operand is open to what follows."""
        if level == _CAST:
            self.needs("::")
            self.type_name()
            return False
        if level == _IS:
            return self._is()
        if level == _MATCH:
            return self._match()
        if level == _ZONE:
            self.needs("at", "time", "zone")
            self.expression(_ZONE + 1)
            return True
        self.place += 1
        if level == _COMPARE and self.takes_one("any", "some", "all"):
            self.needs("(")
            if self._begins_query():
                self.query()
            else:
                self._array()
            self.needs(")")
            return False
        self.expression(level + 1)
        return True

    def _is(self) -> bool:
        if self.takes_one("isnull", "notnull"):
            return False
        self.needs("is")
        self.takes("not")
        if self.takes("distinct"):
            self.needs("from")
            self.expression(_IS + 1)
            return True
        self.needs_one("null", "true", "false", "unknown")
        return False

    def _match(self) -> bool:
        self.takes("not")
        if self.takes("in"):
            self.needs("(")
            if self._begins_query():
                self.query_or_expressions()
            else:
                self.expressions()
            self.needs(")")
            return False
        if self.takes("between"):
            self.takes_one("symmetric", "asymmetric")
            if self.sees("not"):
                self.fail()
            self.expression(_OTHER)
            self.needs("and")
            self.expression(_MATCH + 1)
            return True
        self.needs_one("like", "ilike")
        self.expression(_MATCH + 1)
        if self.takes("escape"):
            self.expression(_ESCAPE + 1)
        return True

    def _array(self) -> None:
        """What may stand for an array: its items, its text or a parameter, and its type behind it."""
        if self.takes("array"):
            self.needs("[")
            self.expressions()
            self.needs("]")
        elif not self.takes_sort(Sort.STRING, Sort.PARAMETER):
            self.fail()
        if self.takes("::"):
            self.type_name()
            self.needs("[", "]")

    # --- operands ---

    def _operand(self) -> None:
        first = self.place
        if self.takes("not"):
            self.expression(_NOT)
        elif self.takes("-"):
            self.expression(_SIGN)
        elif self.sees("+"):
            # The parser forgets it; yet ORDER BY +1 means no position, and text has no plus.
            at = self.words[first].start + 1
            raise NotSupported("a unary plus is not supported", hint="Leave it out.", position=at)
        else:
            self._primary()
            return
        self.spans.append(Span(first, self.place - 1))

    def _primary(self) -> None:
        if self.takes_sort(Sort.NUMBER, Sort.PARAMETER, Sort.STRING) or self.takes_one(*_VALUES):
            return
        if self.sees("("):
            self._parenthesis()
        elif self.takes("case"):
            self._case()
        elif self.sees("exists") and self.sees("(", ahead=1):
            self.place += 2
            self.query()
            self.needs(")")
        elif self.takes("array", "["):
            self.expressions()
            self.needs("]")
        elif self._is_typed_literal():
            self._typed_literal()
        elif self.sees("(", ahead=1):
            self._call()
        else:
            self._column()

    def _parenthesis(self) -> bool:
        """Something in parentheses; whether it is a query."""
        self.needs("(")
        is_query = self.query_or_expressions(rows=False)
        self.needs(")")
        if not is_query:
            self._subscript()
        return is_query

    def query_or_expressions(self, *, rows: bool = True) -> bool:
        """What stands in parentheses; a query in parentheses of its own may turn out to be the first operand."""
        if self.sees(*BEGINNINGS):
            self.query()
            return True
        first = self.place
        if self.sees("(") and self._parenthesis():
            if self.sees(")"):
                return True
            if self.sees(*CONTINUATIONS):
                self.query_behind_parenthesis()
                return True
            self.rest(first)
        elif self.place > first:
            self.rest(first)
        else:
            self.expression()
        while rows and self.takes(","):
            self.expression()
        return False

    @abstractmethod
    def query_behind_parenthesis(self) -> None: ...

    def _begins_query(self) -> bool:
        ahead = 0
        while self.sees("(", ahead=ahead):
            ahead += 1
        return self.sees(*BEGINNINGS, ahead=ahead)

    def _case(self) -> None:
        if not self.sees("when"):
            self.expression()
        self.needs("when")
        while True:
            self.expression()
            self.needs("then")
            self.expression()
            if not self.takes("when"):
                break
        if self.takes("else"):
            self.expression()
        self.needs("end")

    def _column(self) -> None:
        self.needs_column_name()
        while self.takes("."):
            self.needs_label()
        self._subscript()

    def _subscript(self) -> None:
        if self.takes("["):
            self._number()
            self.needs("]")

    # --- types ---

    def type_name(self) -> None:
        if self.takes("double"):
            self.needs("precision")
        elif self.takes("character"):
            self.needs("varying")
        elif self.takes("timestamp"):
            if self.takes_one("with", "without"):
                self.needs("time", "zone")
        elif self.word is not None and self.word.sort is Sort.WORD and self.word.text in _TYPES:
            is_sized = self.takes_one("numeric", "decimal", "dec")
            self.place += not is_sized
            if is_sized and self.takes("("):
                self._number()
                if self.takes(","):
                    self._number()
                self.needs(")")
        else:
            self.fail()

    def _number(self) -> None:
        if not self.takes_sort(Sort.NUMBER):
            self.fail()

    def _is_typed_literal(self) -> bool:
        if self.word is None or self.word.sort is not Sort.WORD or self.word.text not in _TYPES:
            return False
        is_zoned = self.sees("timestamp") and self.sees("with", "without", ahead=1) and self.sees("zone", ahead=3)
        behind = self.place + (4 if is_zoned else 2 if self.sees("double", "character") else 1)
        return behind < len(self.words) and self.words[behind].sort is Sort.STRING

    def _typed_literal(self) -> None:
        is_interval = self.sees("interval")
        self.type_name()
        if not self.takes_sort(Sort.STRING):
            self.fail()
        if is_interval:
            self.takes_one(*_FIELDS)

    # --- calls ---

    def _call(self) -> None:
        name = self.word.text if self.word is not None and self.word.sort is Sort.WORD else ""
        special = {
            "cast": self._cast, "extract": self._extract, "position": self._position,
            "substring": self._substring, "trim": self._trim,
        }.get(name)  # fmt: skip
        if special is not None:
            self.place += 2
            special()
            self.needs(")")
            return
        if name in ("coalesce", "nullif", "greatest", "least", "grouping"):
            self.place += 2
            self.expressions()
            self.needs(")")
            return
        if not self.is_function_name():
            self.fail()
        self.place += 2
        self._arguments()
        self.needs(")")
        self._behind_call()

    def _arguments(self) -> None:
        if self.sees(")") or self.takes("*"):
            return
        self.takes_one("all", "distinct")
        self.expressions()

    def _behind_call(self) -> None:
        if self.takes("within"):
            self.needs("group", "(")
            self.order_by()
            self.needs(")")
        if self.takes("filter"):
            self.needs("(", "where")
            self.expression()
            self.needs(")")
        if self.takes("over"):
            if self.takes("("):
                self.window()
                self.needs(")")
            else:
                self.needs_column_name()

    def _cast(self) -> None:
        self.expression()
        self.needs("as")
        self.type_name()

    def _extract(self) -> None:
        if not self.takes_sort(Sort.WORD, Sort.NAME, Sort.STRING):
            self.fail()
        self.needs("from")
        self.expression()

    def _position(self) -> None:
        self.expression(_OTHER)
        self.needs("in")
        self.expression(_OTHER)

    def _substring(self) -> None:
        self.expression()
        if self.takes(","):
            self.expressions()
            return
        if self.takes("from"):
            self.expression()
        if self.takes("for"):
            self.expression()

    def _trim(self) -> None:
        self.takes_one("both", "leading", "trailing")
        if self.takes("from"):
            self.expressions()
            return
        self.expression()
        if self.takes("from"):
            self.expression()
        while self.takes(","):
            self.expression()

    # --- windows ---

    def window(self) -> None:
        """What stands between the parentheses of OVER."""
        if not self.sees("partition", "order", "rows", "range", "groups", ")"):
            self.needs_column_name()
        if self.takes("partition"):
            self.needs("by")
            self.expressions()
        if self.sees("order"):
            self.order_by()
        if self.takes_one("rows", "range", "groups"):
            self._frame()

    def _frame(self) -> None:
        if self.takes("between"):
            self._bound()
            self.needs("and")
            self._bound()
        else:
            self._bound()
        if self.takes("exclude") and not (self.takes("current", "row") or self.takes("no", "others")):
            self.needs_one("group", "ties")

    def _bound(self) -> None:
        if self.takes("current", "row"):
            return
        if not self.takes("unbounded"):
            self.expression()
        self.needs_one("preceding", "following")
