"""Integers in the text of rows that are not plain digits, as PostgreSQL 16 reads them: 0x1F, 0o17, 0b101, 1_000.

Older servers do not read them. One number is left out, -2**63 with a base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

_BLANKS = "[ \t\n\v\f\r]*"
SHAPE = f"^{_BLANKS}[-+]?(?:[0-9]+(?:_[0-9]+)*|0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+){_BLANKS}$"
LONGEST_NUMBER = 300  # characters
_BITS = 63


def integer_in_text(
    readable: str, bits: str, digits: str, steps: Callable[[Sequence[Mapping[str, str]], str], str], result: str
) -> str:
    """The integer of a text that is NULL or has the shape above.

    Claim: defined for every such text. Because: a number with a base has at most 63 bits when it is read.
    Needs: `bits`, which reads {0} as x and hexadecimal digits or b and binary ones; `digits`, which reads a sign and
    any number of digits, and gives the same type; `result`, made of `dt.number`.
    """
    body = "ltrim(dt.digits, '-')"
    binary = "translate(dt.body, '01234567', 'ghijklmn')"
    for digit in range(8):
        # By way of letters: a digit that came in would be replaced as well.
        binary = f"replace({binary}, '{'ghijklmn'[digit]}', '{digit:03b}')"
    based = (
        "CASE WHEN dt.base = 'x' AND length(dt.body) <= CASE"
        " WHEN strpos('1234567', left(dt.body, 1)) > 0 THEN 16 ELSE 15 END"
        f" THEN 'x' || dt.body WHEN dt.base = 'b' AND length(dt.body) <= {_BITS} THEN 'b' || dt.body"
        f" WHEN dt.base = 'o' AND length(dt.body) <= {_BITS // 3} THEN 'b' || {binary} END"
    )
    sign = "CASE WHEN left(dt.digits, 1) = '-' THEN -1 ELSE 1 END"
    plain = digits.format("CASE WHEN dt.base NOT IN ('x', 'o', 'b') THEN dt.digits END")
    return steps(
        (
            {"digits": f"translate({readable}, 'ABCDEFOX+_ \t\n\v\f\r', 'abcdefox')"},
            {"digits": "dt.digits", "base": f"substring({body}, 2, 1)", "body": f"ltrim(substring({body}, 3), '0')"},
            {"digits": "dt.digits", "base": "dt.base", "body": "CASE WHEN dt.body = '' THEN '0' ELSE dt.body END"},
            {"digits": "dt.digits", "base": "dt.base", "bits": based},
            {"number": f"COALESCE({sign} * {bits.format('dt.bits')}, {plain})"},
        ),
        result,
    )
