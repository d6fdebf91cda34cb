"""From a policy file to a running server, and back to an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dpsql.dataset import open_dataset
from dpsql.errors import Error, PolicyError
from dpsql.policy.loader import load
from dpsql.policy.model import Policy
from dpsql.policy.server_reader import state_folder
from dpsql.twin import start_twin
from dpsql.wire.door import open_door
from dpsql.wire.server import Server

_log = logging.getLogger("dpsql.wire")


def serve(path: Path, *, host: str | None, port: int | None, ready: Callable[[Server], None]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reads the policy file again. `ready` is called once it listens."""

    def read() -> Policy:
        policy = load(path)
        server = policy.server
        return replace(policy, server=replace(server, host=host or server.host, port=port or server.port))

    policy = read()
    engine = open_dataset(path)
    try:
        twin = start_twin(state_folder(policy), engine.catalog, policy.users, address=policy.server.twin)
        try:
            server = Server(policy, engine, twin, open_door(policy, twin.database))
            asyncio.run(_run(server, read, ready))
            engine = server.engine
        finally:
            twin.stop()
    finally:
        engine.close()


async def _run(server: Server, read: Callable[[], Policy], ready: Callable[[Server], None]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(_reload(server, read))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    try:
        await server.start()
    except OSError as error:
        raise PolicyError(
            f"cannot listen on {server.policy.server.host}:{server.policy.server.port}: {error.strerror}",
            hint="Choose another port with --port, or in [server] of the policy.",
        ) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        ready(server)
        await ended.wait()
    finally:
        await server.stop()


async def _reload(server: Server, read: Callable[[], Policy]) -> None:
    """Take the policy file as it is now; one that does not load changes nothing."""
    try:
        policy = await asyncio.to_thread(read)
        engine = await asyncio.to_thread(open_dataset, policy.path)
        try:
            await server.reload(policy, engine, open_door(policy, server.twin.database, server.door.throttle))
        except BaseException:
            engine.close()
            raise
    except Error as error:
        _log.error("the policy was not reloaded: %s", error.message)
    except Exception:
        _log.exception("the policy was not reloaded")
    else:
        _log.info("the policy was reloaded")
