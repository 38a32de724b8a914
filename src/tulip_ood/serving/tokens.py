"""Who may ask: bearer tokens, compared in constant time."""

import hmac
from dataclasses import dataclass

from tulip_ood.errors import InputError
from tulip_ood.serving.refusal import RefusalError

__all__ = ["Tokens"]

_SHORTEST = 8


@dataclass(frozen=True)
class Tokens:
    """What has to be known to use a server, and to change it.

    Attributes:
        use: For everything under `/v1` and for `/metrics`; None lets everyone in.
        change: For a new threshold; by default the same. If neither is set, nobody may change it.

    Example:
        >>> Tokens(use="correct horse").check_use("Bearer wrong horse")
        Traceback (most recent call last):
        ...
        tulip_ood.serving.refusal.RefusalError: this needs the server's token: send the header \
'Authorization: Bearer <token>'
    """

    use: str | None = None
    change: str | None = None

    def __post_init__(self) -> None:
        for token in (self.use, self.change):
            if token is not None and (len(token) < _SHORTEST or not token.isascii()):
                raise InputError(
                    f"a token must have at least {_SHORTEST} characters of ASCII, got {len(token)}"
                )

    def check_use(self, authorization: str) -> None:
        """Refuse a client that may not ask; who may change the server may also use it."""
        known = [token for token in (self.use, self.change) if token is not None]
        if self.use is not None and not _any_equal(authorization, known):
            raise _unauthorized("this needs the server's token")

    def check_change(self, authorization: str) -> None:
        """Refuse a client that may not change anything."""
        wanted = self.use if self.change is None else self.change
        if wanted is None:
            raise RefusalError(
                403,
                "no-token-set",
                "this server was started without a token, so nobody may change it: start it with "
                "--admin-token",
            )
        if not _any_equal(authorization, [wanted]):
            raise _unauthorized("changing the server needs its token")


def _any_equal(authorization: str, tokens: list[str]) -> bool:
    scheme, _, given = authorization.partition(" ")
    told = given.strip().encode("latin-1", "replace")
    equal = [hmac.compare_digest(told, token.encode()) for token in tokens]  # always all of them
    return scheme.lower() == "bearer" and any(equal)


def _unauthorized(why: str) -> RefusalError:
    return RefusalError(
        401,
        "token-needed",
        f"{why}: send the header 'Authorization: Bearer <token>'",
        headers=[("www-authenticate", "Bearer")],
    )
