"""Messages on their way out: those of one moment leave together, in one packet rather than one each."""

from __future__ import annotations

import asyncio


class Outbox:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting = bytearray()

    def put(self, data: bytes) -> None:
        """Send soon: when whoever puts something has nothing more to put at the moment."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting += data

    def flush(self) -> None:
        if self._waiting:
            if not self._writer.is_closing():  # else there is nobody to send it to
                self._writer.write(bytes(self._waiting))
            self._waiting.clear()

    async def drain(self) -> None:
        """Send now, and wait until the other side has room for more."""
        self.flush()
        await self._writer.drain()
