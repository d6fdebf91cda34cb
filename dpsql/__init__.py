"""dpsql: ordinary SQL in, differentially private answers out."""

from __future__ import annotations

__version__ = "0.1.0"
