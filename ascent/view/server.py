"""The HTTP server of the pages: where it listens, who may ask, and what every response forbids the browser.

On a loopback address the page needs no password: only this machine can reach it. On any other address each request
needs the token of the printed link, which becomes a cookie, so that it does not stay in the address bar.
"""

from __future__ import annotations

import hmac
import ipaddress
import mimetypes
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import URL, Headers, MutableHeaders, QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ascent.view.extra import CHARTS, chart_folder

STATIC = Path(__file__).parent / "static"
COOKIE = "ascent_token_"  # and the port: browsers share cookies between the ports of a host
# Nothing runs or loads but files of this server: no inline script or style, no other host, no frame, no plug-in.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def make_app(
    routes: Sequence[BaseRoute], *, host: str = "127.0.0.1", token: str | None = None
) -> Starlette:
    """The application of a page: its routes, the files in static/, and the guard in front of both.

    A ValueError or FileNotFoundError of a route is the user's: its text is the response, with status 400 or 404.
    """
    return Starlette(
        routes=[*routes, *_static_routes()],
        middleware=[Middleware(Guard, host=host, token=token)],
        exception_handlers={FileNotFoundError: _answer_with(404), ValueError: _answer_with(400)},
    )


def page(name: str) -> Route:
    """The route / of a page: a file in static/."""
    return _file_route("/", STATIC / name)


class Guard:
    """Refuses requests for another host name (DNS rebinding), without the token, and writes from another page; adds
    the security headers to every response."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], host: str, token: str | None
    ) -> None:
        self._app, self._host, self._token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._refuse(scope)

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (answer or self._app)(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_own_host(headers.get("host", "")):
            return PlainTextResponse("this page is served under another host name", 421)
        if self._token is not None:
            given = QueryParams(scope["query_string"]).get("token")
            if given is not None and self._matches(given):
                return self._set_cookie(scope)
            if not self._matches(cookie_parser(headers.get("cookie", "")).get(_cookie(scope), "")):
                return PlainTextResponse(
                    "open the link that the command printed: it has the token of this page", 403
                )
        if (
            scope["method"] not in ("GET", "HEAD")
            and urlsplit(headers.get("origin", "")).netloc != headers["host"]
        ):
            return PlainTextResponse("a change must come from this page itself", 403)
        return None

    def _is_own_host(self, name: str) -> bool:
        """Whether a Host header names the address that was chosen. The token guards an address that means any."""
        host = urlsplit(f"//{name}").hostname or ""
        return host == self._host or (
            is_loopback(host) if is_loopback(self._host) else self._token is not None
        )

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())

    def _set_cookie(self, scope: Scope) -> Response:
        query = [
            (name, value)
            for name, value in parse_qsl(scope["query_string"].decode())
            if name != "token"
        ]
        answer = RedirectResponse(
            URL(scope=scope).path + (f"?{urlencode(query)}" if query else ""), 303
        )
        answer.set_cookie(_cookie(scope), self._token or "", httponly=True, samesite="strict")
        return answer


def serve(app: Starlette, sock: socket.socket) -> None:
    """Answer requests until Ctrl-C or SIGTERM."""
    import uvicorn

    # No access log: it would hold the token.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[sock])


def listen(host: str, port: int) -> socket.socket:
    """Bind before any work: an address that is taken is known at once. Port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; choose another --port (0: a free one)"
        ) from None


def make_token(host: str) -> str | None:
    """A new token; None for loopback addresses, which need none."""
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def link(host: str, port: int, token: str | None) -> str:
    """The address to open. An address that means every interface is named by the machine's name."""
    name = (
        socket.gethostname()
        if host in ("0.0.0.0", "::", "")
        else f"[{host}]"
        if ":" in host
        else host
    )
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cookie(scope: Scope) -> str:
    return f"{COOKIE}{scope['server'][1]}"


def _static_routes() -> list[Route]:
    """The files of the pages and of the charts. They are few and small: a browser that opens a page gets them from
    memory, and no other name below /static leads to a file."""
    charts = chart_folder()
    own = [
        _file_route(f"/static/{path.name}", path)
        for path in sorted(STATIC.iterdir())
        if path.is_file()
    ]
    return [*own, *(_file_route(f"/static/charts/{name}", charts / name) for name in CHARTS)]


def _file_route(address: str, path: Path) -> Route:
    content, kind = path.read_bytes(), mimetypes.guess_type(path.name)[0]

    async def respond(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(address, respond)


def _answer_with(status: int) -> Callable[[Request, Exception], Response]:
    return lambda request, error: JSONResponse({"error": str(error)}, status)
