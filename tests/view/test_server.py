"""Who may ask: host names, the token, writes from elsewhere; what a browser may do with a response."""

from __future__ import annotations

import re
import socket
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ascent.view.server import HEADERS, is_loopback, link, listen, make_app, make_token, page
from tests.view.browser import serving


def fail(request: Request) -> JSONResponse:
    raise {"value": ValueError, "file": FileNotFoundError}[request.path_params["kind"]](
        "step -1 is no step"
    )


def accept(request: Request) -> JSONResponse:
    return JSONResponse("written")


ROUTES = [
    page("index.html"),
    Route("/fail/{kind}", fail),
    Route("/write", accept, methods=["POST"]),
]


def test_every_response_forbids_foreign_and_inline_code() -> None:
    with serving(make_app(ROUTES)) as url:
        for path in (
            "",
            "static/base.js",
            "static/charts/uPlot.iife.js",
            "fail/value",
            "none",
            "static/none",
        ):
            headers = httpx.get(url + path).headers
            assert all(headers[name] == value for name, value in HEADERS.items()), path
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy and "*" not in policy and "default-src 'none'" in policy


def test_errors_carry_their_words() -> None:
    with serving(make_app(ROUTES)) as url:
        for kind, status in (("value", 400), ("file", 404)):
            answer = httpx.get(f"{url}fail/{kind}")
            assert (answer.status_code, answer.json()) == (status, {"error": "step -1 is no step"})


@pytest.mark.parametrize(
    ("name", "status"), [("localhost", 200), ("127.0.0.1", 200), ("[::1]:80", 200)]
)
def test_loopback_names_are_answered(name: str, status: int) -> None:
    with serving(make_app(ROUTES)) as url:
        assert httpx.get(url, headers={"host": name}).status_code == status


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:80", "", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_another_host_name_is_refused(name: str) -> None:
    """A page of another site whose name resolves to 127.0.0.1 would otherwise read everything (DNS rebinding)."""
    with serving(make_app(ROUTES)) as url:
        assert httpx.get(url, headers={"host": name}).status_code == 421


def test_files_outside_static_are_not_served() -> None:
    with serving(make_app(ROUTES)) as url:
        for path in (
            "static/../server.py",
            "static/%2e%2e/server.py",
            "static//etc/passwd",
            "static/charts/__init__.py",
        ):
            port = int(url.split(":")[2].strip("/"))
            assert raw_status(port, path) == 404, path


def raw_status(port: int, path: str) -> int:
    """Without a client that tidies the path."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        return int(client.recv(64).split()[1])


def test_other_addresses_need_the_token_of_the_link() -> None:
    assert (
        make_token("127.0.0.1") is None
        and make_token("::1") is None
        and make_token("localhost") is None
    )
    token = make_token("0.0.0.0")
    assert token is not None and len(token) >= 32 and token != make_token("0.0.0.0")
    with serving(make_app(ROUTES, host="0.0.0.0", token=token), token=token) as url:
        bare = url.partition("?")[0]
        for wrong in (
            bare,
            f"{bare}?token=",
            f"{bare}?token={token[:-1]}",
            f"{bare}static/base.js",
        ):
            assert httpx.get(wrong).status_code == 403, wrong
        assert httpx.get(bare, headers={"cookie": "ascent_token_1=x"}).status_code == 403
        first = httpx.get(f"{url}&run=a%2Fb")
        assert first.status_code == 303 and first.headers["location"] == "/?run=a%2Fb"
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        with httpx.Client(cookies=first.cookies) as client:
            assert client.get(bare).status_code == 200
            assert client.get(f"{bare}static/base.js").status_code == 200


def test_a_write_must_come_from_the_page_itself() -> None:
    with serving(make_app(ROUTES)) as url:
        own = url.rstrip("/")
        assert httpx.post(f"{url}write", headers={"origin": own}).json() == "written"
        for headers in (
            {},
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": own + "1"},
        ):
            assert httpx.post(f"{url}write", headers=headers).status_code == 403, headers


def test_links_and_addresses() -> None:
    assert link("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert link("::1", 80, None) == "http://[::1]:80/"
    assert link("0.0.0.0", 80, "t") == f"http://{socket.gethostname()}:80/?token=t"
    assert (
        is_loopback("127.3.2.1") and not is_loopback("10.0.0.1") and not is_loopback("example.org")
    )
    with (
        listen("127.0.0.1", 0) as taken,
        pytest.raises(ValueError, match=r"cannot listen at 127.0.0.1 port \d+.*--port"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ValueError, match=r"cannot listen at no\.such\.host\.invalid"):
        listen("no.such.host.invalid", 0)


def test_an_empty_page_loads_in_a_browser(open_page: Any) -> None:
    runs = Route(
        "/api/runs", lambda request: JSONResponse({"runs": [], "pending": 0, "revision": ""})
    )
    with serving(make_app([*ROUTES, runs])) as url:
        assert open_page(url).inner_text(".brand") == "Ascent"


def test_no_file_has_inline_code_or_another_host() -> None:
    for path in (Path(__file__).parents[2] / "ascent/view/static").iterdir():
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "javascript:",
            "https://",
        ):
            assert word not in text, (path.name, word)
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), path.name


# What people see who lack one kind of cone, as matrices on linear RGB (Machado, Oliveira and Fernandes, 2009).
VISIONS = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
XYZ = [
    [0.43395, 0.37622, 0.18984],
    [0.21267, 0.71515, 0.07217],
    [0.01776, 0.10947, 0.87277],
]  # by the white point


def linear(color: str) -> Any:
    values = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(color: str, vision: str) -> Any:
    found = np.array(XYZ) @ np.clip(np.array(VISIONS[vision]) @ linear(color), 0, 1)
    x, y, z = np.where(found > 0.008856, np.cbrt(found), 7.787 * found + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(("theme", "surface"), [(0, "#ffffff"), (1, "#16191d")])
def test_the_lines_of_charts_differ_for_every_color_vision(theme: int, surface: str) -> None:
    css = (Path(__file__).parents[2] / "ascent/view/static/base.css").read_text()
    colors = [
        each[theme] for each in re.findall(r"--series-\d: light-dark\((#\w{6}), (#\w{6})\)", css)
    ]
    assert len(colors) == 8
    for vision in VISIONS:
        for one, other in combinations(colors, 2):
            distance = np.linalg.norm(lab(one, vision) - lab(other, vision))
            assert distance > 15, (vision, one, other)  # 2.3 can just be told apart
    behind = linear(surface) @ [0.2126, 0.7152, 0.0722]
    for color in colors:
        bright = linear(color) @ [0.2126, 0.7152, 0.0722]
        assert (max(bright, behind) + 0.05) / (min(bright, behind) + 0.05) > 3, (
            color
        )  # as WCAG asks of graphics
