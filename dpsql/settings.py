"""What an analyst may set, under `dpsql.`, and what SHOW says before. One list for sessions, clients and completion."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "epsilon": "default",
        "delta": "default",
        "margin": "default",
        "confidence": "0.95",
        "simultaneous": "off",
        "fresh": "off",
        "tidy": "off",
        "pure": "off",
    }
)
