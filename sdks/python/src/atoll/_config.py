"""Server URL and API key: from parameters, the environment, or the file that `atoll login` writes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .errors import InvalidConfiguration

if TYPE_CHECKING:
    from ssl import SSLContext

#: The default address of `atoll serve`.
LOCAL = "http://127.0.0.1:8080"


class Address:
    """The parsed URL of a server."""

    __slots__ = ("base", "key", "path", "proxied", "secure", "socket", "url")

    def __init__(self, url: str, key: str | None) -> None:
        remedy = f"give a URL such as {LOCAL} or unix:///PATH/OF/A/SOCKET, or set ATOLL_URL"
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise InvalidConfiguration(f"{url!r} is not a URL: {error}", remedy=remedy) from None
        if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
            raise InvalidConfiguration("the API key is empty or has invalid characters", remedy="check ATOLL_API_KEY")
        self.key = key.strip() if key else None
        #: The path of the Unix socket, for `unix://` URLs.
        self.socket = url.removeprefix("unix://") if url.startswith("unix:///") else None
        if self.socket is not None:
            self.url, self.secure, self.path = url, False, ""
            self.base, self.proxied = "http://localhost", False
            return
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidConfiguration(f"{url!r} is not the URL of a server", remedy=remedy)
        if parts.username is not None:
            raise InvalidConfiguration("the URL contains a user name", remedy="give the key as api_key")
        #: `base` is what requests are sent to: the same, but for a Unix socket.
        self.url = self.base = url.rstrip("/")
        self.secure = parts.scheme == "https"
        #: The path of the URL, if the server is below one.
        self.path = parts.path.rstrip("/")
        #: Whether the proxies of the environment apply. They do not reach this machine's own loopback.
        self.proxied = not _is_loopback(parts.hostname)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    # Imported by httpx anyway.
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _profile(wanted: str | None) -> dict[str, str] | None:
    """The profile with the given name, or the default profile, or `None`."""
    place = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")  # noqa: PTH111, PTH118
    file = os.path.join(place, "atoll", "config.toml")  # noqa: PTH118
    try:
        # Without pathlib and tomllib, which are slow to import and rarely needed here.
        with open(file, "rb") as opened:  # noqa: PTH123
            written = opened.read().decode()
    except FileNotFoundError:
        written = ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{file} cannot be read: {error}") from None
    if not written.strip():
        if wanted is None:
            return None
        raise InvalidConfiguration(f"there is no profile {wanted!r} in {file}", remedy="create it with `atoll login`")
    import tomllib

    try:
        config = tomllib.loads(written)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(f"{file} is not TOML: {error}", remedy="write it again with `atoll login`") from None
    name = wanted or config.get("default")
    profile = config.get("profiles", {}).get(name) if name is not None else None
    if profile is None and name is not None:
        raise InvalidConfiguration(f"there is no profile {name!r} in {file}", remedy="create it with `atoll login`")
    return profile if isinstance(profile, dict) else None


def find(url: str | None, key: str | None, profile: str | None) -> Address:
    """Finds the server. Parameters override the environment, which overrides a profile. A profile's key is used only
    for the profile's server."""
    if profile is None:
        url = url or os.environ.get("ATOLL_URL") or None
        key = key or os.environ.get("ATOLL_API_KEY") or None
    if url is None:
        found = _profile(profile) or {}
        url = found.get("url")
        key = key or (found.get("api_key") if url else None)
    return Address(url or LOCAL, key)


def tls(address: Address) -> SSLContext:
    """The TLS context: trusts the certificates in `ATOLL_CA_FILE`, or those of the system. For `http://` it loads none,
    as loading takes longer than a request."""
    import ssl

    if not address.secure:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file = os.environ.get("ATOLL_CA_FILE") or None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        # Also an `OSError` if the file has no certificate.
        raise InvalidConfiguration(f"{file} cannot be used: {error}", remedy="look at ATOLL_CA_FILE") from None
