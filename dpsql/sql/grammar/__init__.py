"""PostgreSQL's grammar, of what dpsql answers: a reader of its own, beside the parser of many dialects.

It makes no tree. It refuses what PostgreSQL would refuse, and says what each operator binds, so that the parser can
be held against it. It knows less than PostgreSQL: a construct that it does not know is refused, too.
"""

from __future__ import annotations

from collections import Counter

from dpsql.sql.grammar.queries import Queries


def with_parentheses(text: str) -> str:
    """A statement of PostgreSQL's grammar with parentheses around each operator and its operands; or a refusal."""
    read = Queries(text)
    read.statement()
    # What stands between parentheses by itself needs none: the text must not become much deeper.
    spans = [span for span in read.spans if not read.is_between_parentheses(span)]
    opening = Counter(read.words[span.first].start for span in spans)
    closing = Counter(read.words[span.last].end for span in spans)
    parts = []
    before = 0
    for place in sorted({*opening, *closing}):
        parts += [text[before:place], ")" * closing[place], "(" * opening[place]]
        before = place
    return "".join([*parts, text[before:]])
