"""The address of a PostgreSQL database. It may hold a password, so it is never shown unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """An address as libpq reads it. Its text form leaves out password and options."""

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError if this is not the address of a database; the error quotes nothing of it."""
        if not self.url.startswith(_SCHEMES) or not self._parts().get("dbname"):
            raise ValueError("not the address of a PostgreSQL database")

    def __str__(self) -> str:
        parts = self._parts()
        user = f"{_quoted(parts['user'])}@" if parts.get("user") else ""
        port = f":{parts['port']}" if parts.get("port") else ""
        return f"postgresql://{user}{_quoted(parts.get('host') or '')}{port}/{_quoted(parts['dbname'])}"

    def _parts(self) -> dict[str, str]:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            return {name: str(value) for name, value in conninfo_to_dict(self.url).items()}
        except (ProgrammingError, UnicodeError):
            raise ValueError("not the address of a PostgreSQL database") from None


def _quoted(text: str) -> str:
    return quote(text, safe=",")
