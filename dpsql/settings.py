"""The one table of session settings: what an analyst may set under `dpsql.`.

SET, SHOW and RESET, the options of the command line, completion, the twin's parameters and the reference page follow
from it. `answering.session.SessionSettings` has a field of each name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import MappingProxyType

from dpsql.errors import BadSetting

Setting = Fraction | bool | None  # None: not set; the default applies

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?", re.IGNORECASE | re.ASCII)
_LONGEST_NUMBER = 100  # characters; exact arithmetic on longer numbers would be slow
_SWITCH = dict.fromkeys(("on", "true", "t", "yes", "1"), True) | dict.fromkeys(("off", "false", "f", "no", "0"), False)
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = Fraction(1, 2), 1 - Fraction(1, 10**9)


class Takes(Enum):
    NUMBER = "a positive number"
    CONFIDENCE = "a number from 0.5 to less than 1"
    SWITCH = "on or off"


@dataclass(frozen=True, slots=True)
class SessionSetting:
    name: str
    takes: Takes
    default: str  # the value that SHOW prints before it is set
    meaning: str  # one sentence, for --help and the reference

    @property
    def unset(self) -> Setting:
        return False if self.takes is Takes.SWITCH else None

    def read(self, text: str) -> Setting:
        """Parse the text of SET; raises BadSetting."""
        match self.takes:
            case Takes.NUMBER:
                return _positive(self.name, text)
            case Takes.CONFIDENCE:
                return _confidence(self.name, text)
            case Takes.SWITCH:
                if text.lower() not in _SWITCH:
                    raise BadSetting(f'parameter "dpsql.{self.name}" requires a Boolean value')
                return _SWITCH[text.lower()]

    def shown(self, value: Setting) -> str:
        """The value as SHOW prints it."""
        if value is None:
            return self.default
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{float(value):.12g}"


SETTINGS: Mapping[str, SessionSetting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            SessionSetting(
                "epsilon", Takes.NUMBER, "default", "The price of each query that follows, instead of the policy's."
            ),
            SessionSetting(
                "delta", Takes.NUMBER, "default", "The part of delta that each query may spend on unknown keys."
            ),
            SessionSetting(
                "margin",
                Takes.NUMBER,
                "default",
                "The 95 % error wanted for counts, instead of a price: the least price that keeps it is paid.",
            ),
            SessionSetting(
                "confidence", Takes.CONFIDENCE, "0.95", "The probability with which each margin holds. Free."
            ),
            SessionSetting(
                "simultaneous", Takes.SWITCH, "off", "Margins hold for all numbers of an answer at once. Free."
            ),
            SessionSetting("fresh", Takes.SWITCH, "off", "Buy a new answer even if this query was answered before."),
            SessionSetting(
                "tidy",
                Takes.SWITCH,
                "off",
                "Show counts below zero as zero and rounded fractions. Do not add up such counts.",
            ),
            SessionSetting(
                "pure", Takes.SWITCH, "off", "Laplace noise and no delta, paid as pure where the policy allows it."
            ),
        )
    }
)


def setting_named(name: str) -> SessionSetting:
    if name not in SETTINGS:
        raise BadSetting(
            f'unrecognized configuration parameter "dpsql.{name}"',
            hint=f"There are {', '.join([*SETTINGS][:-1])} and {[*SETTINGS][-1]}.",
        )
    return SETTINGS[name]


def _positive(name: str, text: str) -> Fraction:
    if len(text) > _LONGEST_NUMBER:
        raise BadSetting(f'"dpsql.{name}" is longer than {_LONGEST_NUMBER} characters')
    if _NUMBER.fullmatch(text.strip()) is None:
        raise BadSetting(f'"dpsql.{name}" must be a number', hint="Write it as in 0.5 or 1e-6.")
    value = Decimal(text.strip())
    if value <= 0:
        raise BadSetting(f'"dpsql.{name}" must be positive')
    if not -100 < value.adjusted() < 100:
        raise BadSetting(f'"dpsql.{name}" is out of range')
    return Fraction(value)


def _confidence(name: str, text: str) -> Fraction:
    value = _positive(name, text)
    if not _LEAST_CONFIDENCE <= value <= _MOST_CONFIDENCE:
        raise BadSetting(f'"dpsql.{name}" must be at least 0.5 and less than 1', hint="Write it as in 0.99.")
    return value
