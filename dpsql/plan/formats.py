"""The formats of to_char for dates: pieces that every engine writes alike.

PostgreSQL pads Month and Day with blanks, and names depend on a language: only those pieces are known that come out the
same everywhere, beside digits and letters in double quotes. A format is read into pieces once; engines and Python write
the same ones.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time

# A piece as PostgreSQL writes it, with the unit of date_trunc below which it does not look, and strftime's name for it.
_PIECES: dict[str, tuple[str, str]] = {
    "YYYY": ("year", "%Y"),
    "YY": ("year", "%y"),
    "IYYY": ("week", "%G"),
    "MM": ("month", "%m"),
    "Mon": ("month", "%b"),
    "FMMonth": ("month", "%B"),
    "IW": ("week", "%V"),
    "DDD": ("day", "%j"),
    "DD": ("day", "%d"),
    "Dy": ("day", "%a"),
    "FMDay": ("day", "%A"),
    "HH24": ("hour", "%H"),
    "MI": ("minute", "%M"),
    "SS": ("second", "%S"),
}
# Longer pieces first: DDD is not DD and a D.
_PIECE = re.compile("|".join(sorted(_PIECES, key=len, reverse=True)) + r"|[-/.,:; _0-9]+" + '|"[A-Za-z ]+"')
_FINEST = ("second", "minute", "hour", "day", "week", "month", "year")

PIECES = tuple(_PIECES)


def pieces(written: str) -> list[str] | None:
    """The pieces of a format, or None if one of them is not known."""
    found = _PIECE.findall(written)
    return found if found and "".join(found) == written else None


def finest_unit(format_: str) -> str:
    """The unit of date_trunc that loses nothing a format shows. Weeks do not nest in months: then it is the day."""
    units = {_PIECES[piece][0] for piece in pieces(format_) or [] if piece in _PIECES}
    if "week" in units and units != {"week"}:
        units.add("day")
    return next(unit for unit in (*_FINEST, "year") if unit in units or unit == "year")


def as_strftime(format_: str) -> str:
    return "".join(_PIECES[piece][1] if piece in _PIECES else piece.strip('"') for piece in pieces(format_) or [])


def written(moment: date, format_: str) -> str:
    """What to_char makes of a moment."""
    at = moment if isinstance(moment, datetime) else datetime.combine(moment, time())
    iso = at.isocalendar()
    values = {
        "YYYY": f"{at.year:04}",
        "YY": f"{at.year % 100:02}",
        "IYYY": f"{iso.year:04}",
        "MM": f"{at.month:02}",
        "Mon": _MONTHS[at.month - 1][:3],
        "FMMonth": _MONTHS[at.month - 1],
        "IW": f"{iso.week:02}",
        "DDD": f"{at.timetuple().tm_yday:03}",
        "DD": f"{at.day:02}",
        "Dy": _DAYS[at.weekday()][:3],
        "FMDay": _DAYS[at.weekday()],
        "HH24": f"{at.hour:02}",
        "MI": f"{at.minute:02}",
        "SS": f"{at.second:02}",
    }
    return "".join(values.get(piece, piece.strip('"')) for piece in pieces(format_) or [])


# What to_timestamp reads, each with as many digits as it has when it is written.
_DIGITS = {"YYYY": 4, "MM": 2, "DD": 2, "HH24": 2, "MI": 2, "SS": 2, "MS": 3, "US": 6}
_READ = re.compile("|".join(_DIGITS) + r"|[-/.,:; _]")


def moment(text: str, format_: str) -> datetime | None:
    """What to_timestamp makes of a text, or None if the text is not written in the format to the letter.

    Raises KeyError for a format that is not known: a year, and each piece once, is what it needs. Case does not matter
    for numbers.
    """
    format_ = format_.upper()
    found = _READ.findall(format_)
    known = [piece for piece in found if piece in _DIGITS]
    if "".join(found) != format_ or "YYYY" not in known or len(set(known)) < len(known):
        raise KeyError(format_)
    shape = "".join(f"(?P<{p}>[0-9]{{{_DIGITS[p]}}})" if p in _DIGITS else re.escape(p) for p in found)
    read = re.fullmatch(shape, text)
    if read is None:
        return None
    value = {piece: int(read[piece]) for piece in known}
    try:
        return datetime(
            value["YYYY"], value.get("MM", 1), value.get("DD", 1), value.get("HH24", 0), value.get("MI", 0),
            value.get("SS", 0), value.get("US", 0) + 1000 * value.get("MS", 0),
        )  # fmt: skip
    except ValueError:
        return None


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
