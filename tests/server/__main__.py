"""`python -m tests.server` writes into the scripts what PostgreSQL answers. Then read the difference."""

from __future__ import annotations

from tests.server.connection import Address, Connection
from tests.server.plain import Plain
from tests.server.script import SCRIPTS, SETTINGS, Script, converse, read_file, written


def main() -> None:
    with Plain() as plain:
        for path in sorted(SCRIPTS.glob("*.txt")):
            file = read_file(path)
            lines = list(file.comment)
            lines += [f"let {name} {value}" for name, value in file.names.items()]
            for script in file.scripts:
                if not script.only_dpsql:
                    _answered(plain.address, file.names, script)
                lines += ["", f"== {script.title}", *script.comment]
                for exchange in script.exchanges:
                    lines += exchange.writes
                    lines += written(exchange.answer)
            path.write_text("\n".join(lines).lstrip("\n") + "\n")


def _answered(address: Address, names: dict[str, str], script: Script) -> None:
    """Put what the server answers into the script. Without an expectation all is read until nothing more comes."""
    with Connection(address, SETTINGS) as connection:
        for exchange in script.exchanges:
            exchange.answer = [event.short for event in converse(connection, names, exchange)]


if __name__ == "__main__":
    main()
