"""Checks that the parser read a statement as PostgreSQL would, by comparing its tree with PostgreSQL's grammar."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import Error, NotSupported
from dpsql.sql.grammar import with_parentheses
from dpsql.sql.parse import Statement, tree_of


def misreading(statement: Statement) -> Error | None:
    """The error in a statement that sqlglot reads differently from PostgreSQL; None if there is none.

    Claim: a statement without a misreading is one of PostgreSQL's, and its operators have the same operands as there.
    Because: `grammar` reads PostgreSQL's own language, and writes parentheses wherever operators bind; the parser must
    make the same tree of that text.
    Needs: a parser that respects parentheses.
    """
    try:
        written = with_parentheses(statement.text)
        if _without_parentheses(tree_of(written)) == _without_parentheses(statement.tree.copy()):
            return None
    except RecursionError:
        return NotSupported("the statement is nested too deeply")
    except Error as error:
        return error
    return NotSupported("ambiguous operator precedence", hint="Add parentheses.")


def _without_parentheses(tree: exp.Expression) -> exp.Expression:
    for found in list(tree.find_all(exp.Paren)):
        found.replace(found.this)
    return tree
