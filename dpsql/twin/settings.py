"""The configuration of the twin's server: small, silent, and open to nobody but dpsql."""

from __future__ import annotations

from pathlib import Path

PORT = 5432  # no port is opened: it is a part of the socket's name
MAX_CONNECTIONS = 500  # 200 clients, a second session for some of them, and dpsql's own

_MAP = "dpsql"


def configuration(socket_folder: Path, config_folder: Path) -> str:
    settings: dict[str, str | int] = {
        # Who comes in: through a socket in a folder that only dpsql can enter, and no other way.
        "listen_addresses": "",
        "port": PORT,
        "unix_socket_directories": _quoted_folder(socket_folder),
        "unix_socket_permissions": "0700",
        "hba_file": str(config_folder / "pg_hba.conf"),
        "ident_file": str(config_folder / "pg_ident.conf"),
        "max_connections": MAX_CONNECTIONS,
        "superuser_reserved_connections": 20,
        # Statements hold released values, and errors may quote them: neither is written down.
        "log_statement": "none",
        "log_min_duration_statement": -1,
        "log_min_error_statement": "panic",
        "log_min_messages": "log",  # which leaves out errors
        "log_error_verbosity": "terse",  # what a crashed process was running is a detail
        "log_checkpoints": "off",
        "log_autovacuum_min_duration": -1,
        "log_parameter_max_length": 0,
        "log_timezone": "UTC",
        # Own sessions can be seen and ended by number; dpsql.twin.system_catalogue hides those of others.
        "track_activities": "on",
        # Little memory, no helpers.
        "shared_buffers": "16MB",
        "work_mem": "4MB",
        "maintenance_work_mem": "16MB",
        "max_wal_size": "64MB",
        "min_wal_size": "32MB",
        "huge_pages": "off",
        "jit": "off",
        "max_worker_processes": 0,
        "max_logical_replication_workers": 0,
        "max_parallel_workers_per_gather": 0,
        "autovacuum_max_workers": 1,  # temporary tables leave dead rows in the system's own
        "wal_level": "minimal",
        "max_wal_senders": 0,
        "max_prepared_transactions": 0,
        # The settings of roles survive a crash. Little else is ever written, so this costs nothing.
        "fsync": "on",
        "synchronous_commit": "on",
        # What one session may spill to disk. Temporary tables are not bounded by it.
        "temp_file_limit": "1GB",
        "timezone": "UTC",
        "datestyle": "ISO, MDY",
        "lc_messages": "C",
        "default_text_search_config": "pg_catalog.english",
    }
    return "".join(f"{name} = {_quoted(str(value))}\n" for name, value in settings.items())


def host_based_authentication() -> str:
    """Only the operating system's word counts, so not even another process of the server's user gets in."""
    return f"local all all peer map={_MAP}\n"


def user_map(system_user: str) -> str:
    return f'{_MAP} "{system_user}" all\n'


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _quoted_folder(folder: Path) -> str:
    """An element of a list of folders, in which a comma separates."""
    return '"' + str(folder).replace('"', '""') + '"'
