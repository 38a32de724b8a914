"""Connections on which nobody asks, or listens: uvicorn waits for either as long as it takes.

A client that opens connections and sends nothing, or a head that never ends, or does not take its
answers, would hold them all. And one whose body breaks off into something else, while it is being
answered, is told of twice by uvicorn, and the second time is a traceback in the log.
"""

import contextlib
from typing import Any

__all__ = ["hurried"]


def hurried(protocol: type[Any], seconds: float) -> type[Any]:
    """One of uvicorn's HTTP protocols that closes a connection without a request in time.

    And one whose client does not take the answers that wait for it.

    Args:
        protocol: uvicorn's class.
        seconds: From the first byte (or the connection) to the end of the request's head; and for
            answers to go out that do not fit into the system's buffers.

    Example:
        >>> class Plain: ...
        >>> issubclass(hurried(Plain, 5.0), Plain)
        True
    """

    class Hurried(protocol):  # type: ignore[misc]
        _late: Any = None
        _stuck: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            self._move()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """What came is no HTTP. It ends the connection, and the answer under way, if any."""
            import h11

            cycle = self.cycle if self._asked() else None
            if cycle is None or not cycle.response_started:
                # It cannot be said where the answer is out, and the rest of the request was read.
                with contextlib.suppress(h11.LocalProtocolError):
                    super().send_400_response(msg)
            self.transport.close()
            if cycle is not None:
                cycle.disconnected = True  # what else is sent goes nowhere
                cycle.message_event.set()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            self._move()
            super().resume_writing()

        def _move(self) -> None:
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None

        def _asked(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _watch(self) -> None:
            if self._asked():
                self._forget()
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self._give_up)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _give_up(self) -> None:
            self._late = None
            if not self._asked():
                self.transport.close()

    return Hurried
