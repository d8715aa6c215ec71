"""A response body that is read as it arrives. `_async/stream.py` is the async half."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

import httpx

from .._deadline import STALLED
from .._transport import ConnectionBroken, transport_errors


class Stream:
    """A response whose body has not been read yet.

    Each read has its own deadline. httpx knows only one read timeout for the whole body and closes the connection when
    it expires, so `read` lets a thread do it, and the next `read` continues to wait for that thread.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.status, self.headers = response.status_code, response.headers
        self._response = response
        self._reader: _Reader | None = None
        self._closed = False

    def read(self, until: float) -> bytes:
        """The next bytes; none at the end. After a `TimeoutError` it can be called again."""
        if self._closed:
            raise ConnectionBroken("the response was closed")
        if self._reader is None:
            self._response.request.extensions["timeout"]["read"] = STALLED
            self._reader = _Reader(self._response)
        with transport_errors():
            return self._reader.read(until)

    def read_all(self, until: float) -> bytes:
        """The rest of the body. The connection is closed if that fails."""
        parts = []
        try:
            with transport_errors():
                for piece in self._response.iter_bytes():
                    parts.append(piece)
                    if monotonic() > until:
                        raise TimeoutError
        except BaseException:
            self.close()
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Closes the connection, unless the body was read to its end. Can be called from any thread."""
        if self._closed:
            return
        self._closed = True
        if self._reader is not None:
            self._reader.stop()
        else:
            self._response.close()

    def __del__(self) -> None:
        self.close()


class _Reader:
    """Reads pieces of a body in a thread: one for each request, so that it is never ahead of the caller."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        #: Whether the thread is to read another piece, or to end.
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._pieces: SimpleQueue[bytes | Exception] = SimpleQueue()
        self._waiting = False
        # The thread refers to neither of the two objects: otherwise they would never be collected.
        self._thread = threading.Thread(
            target=_read, args=(response, self._requests, self._pieces), daemon=True, name="atoll-stream"
        )
        self._thread.start()

    def read(self, until: float) -> bytes:
        """The next piece; a `TimeoutError` if there is none until then."""
        if not self._waiting:
            self._requests.put(True)
            self._waiting = True
        try:
            piece = self._pieces.get(timeout=max(0.0, until - monotonic()))
        except Empty:
            raise TimeoutError from None
        self._waiting = False
        if isinstance(piece, Exception):
            raise piece
        return piece

    def stop(self) -> None:
        """Ends the thread, which closes the response."""
        self._requests.put(False)
        connection = self._response.extensions.get("network_stream")
        # A custom transport need not have a socket; the thread then ends with the next piece.
        end = connection.get_extra_info("socket") if connection is not None else None
        if self._waiting:
            if end is None:
                return
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        # A finalizer can run in any thread.
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)


def _read(response: httpx.Response, requests: SimpleQueue[bool], pieces: SimpleQueue[bytes | Exception]) -> None:
    try:
        body = response.iter_bytes()
        while requests.get():
            piece = next(body, b"")
            pieces.put(piece)
            if not piece:
                break
    except Exception as error:
        pieces.put(error)
    finally:
        response.close()
