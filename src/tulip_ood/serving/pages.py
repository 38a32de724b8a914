"""The pages for people, with all that they need: nothing is loaded from elsewhere."""

import hashlib
from functools import cache
from importlib import resources

from tulip_ood.serving.exchange import Response

__all__ = ["page"]

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Only what this server itself sends may run, be shown or be asked; no other page may frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES = {
    "/": ("tulip_ood.serving", "assets/index.html"),
    "/docs": ("tulip_ood.serving", "assets/docs.html"),
    "/assets/report.css": ("tulip_ood.report", "style.css"),
    "/assets/page.css": ("tulip_ood.serving", "assets/page.css"),
    "/assets/page.js": ("tulip_ood.serving", "assets/page.js"),
    "/assets/charts.js": ("tulip_ood.serving", "assets/charts.js"),
    "/assets/docs.js": ("tulip_ood.serving", "assets/docs.js"),
    "/assets/tulip.svg": ("tulip_ood.serving", "assets/tulip.svg"),
}


def page(path: str, known: str = "") -> Response | None:
    """A page, a script or a style sheet; None if there is none at this path.

    Args:
        path: What is asked for.
        known: The entity tag of what the browser has already.

    Example:
        >>> page("/").content_type
        'text/html; charset=utf-8'
        >>> page("/etc/passwd") is None
        True
    """
    if path not in _FILES:
        return None
    content, tag = _read(path)
    kind = _TYPES[_FILES[path][1].rpartition(".")[2]] + "; charset=utf-8"
    headers = [
        ("etag", tag),
        ("cache-control", "no-cache"),
        ("content-security-policy", _POLICY),
        ("referrer-policy", "no-referrer"),
    ]
    if known == tag:
        return Response(304, b"", kind, headers)
    return Response(200, content, kind, headers)


@cache
def _read(path: str) -> tuple[bytes, str]:
    package, name = _FILES[path]
    content = resources.files(package).joinpath(name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
