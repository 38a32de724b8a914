"""The OpenAPI description of the server: what may be sent, and every answer there is."""

from typing import Any

from tulip_ood.serving.limits import Limits
from tulip_ood.version import __version__

__all__ = ["openapi"]


def openapi(limits: Limits, *, root: str = "", guarded: bool = False) -> dict[str, Any]:
    """The document, in OpenAPI 3.1.

    Args:
        limits: What is refused.
        root: Where the application is mounted.
        guarded: Whether asking needs a token (changing always does).

    Example:
        >>> list(openapi(Limits())["paths"])
        ['/v1/score', '/v1/model', '/v1/threshold', '/healthz', '/metrics']
    """
    using: list[dict[str, list[str]]] = [{"token": []}] if guarded else []
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TULiP",
            "version": __version__,
            "summary": "Can this network's answer be trusted on this image?",
            "description": (
                "Scores are high where the network is unsure. An image is accepted if its score "
                "is within the threshold; a p-value is the share of in-distribution inputs that "
                "look at least as odd."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root or "/"}],
        "paths": {
            "/v1/score": {"post": _score(limits, using)},
            "/v1/model": {"get": _model(using)},
            "/v1/threshold": {"put": _threshold()},
            "/healthz": {
                "get": {
                    "operationId": "health",
                    "summary": "Is the server up?",
                    "security": [],
                    "responses": {"200": _json("Yes.", _object({"status": _string()}))}
                    | _errors(503),
                }
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "Counts for Prometheus",
                    "description": "p-values lie in 20 equal buckets: flat means no drift.",
                    "security": using,
                    "responses": {
                        "200": {
                            "description": "Prometheus' text format.",
                            "content": {"text/plain": {"schema": _string()}},
                        }
                    }
                    | _errors(401),
                }
            },
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _score(limits: Limits, security: list[dict[str, list[str]]]) -> dict[str, Any]:
    image = {"type": "string", "contentEncoding": "base64"}
    named = _object({"data": image, "name": {"type": "string"}}, required=["data"])
    many = {"type": "array", "minItems": 1, "maxItems": limits.images}
    return {
        "operationId": "score",
        "summary": "Judge one or many images",
        "description": (
            f"At most {limits.images} images, {limits.body:,} bytes in all, {limits.pixels:,} "
            f"pixels each. An image that cannot be read has an `error` in its place; if none can, "
            f"the request is refused."
        ),
        "security": security,
        "requestBody": {
            "required": True,
            "content": {
                "image/*": {"schema": {"type": "string", "format": "binary"}},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                "multipart/form-data": {
                    "schema": _object(
                        {"image": many | {"items": {"type": "string", "format": "binary"}}},
                        required=["image"],
                    )
                },
                "application/json": {
                    "schema": _object(
                        {"images": many | {"items": {"anyOf": [image, named]}}},
                        required=["images"],
                    )
                },
            },
        },
        "responses": {"200": _json("One entry an image, in order.", _reference("Answers"))}
        | _errors(400, 401, 408, 413, 415, 422, 500, 503, 504),
    }


def _model(security: list[dict[str, list[str]]]) -> dict[str, Any]:
    return {
        "operationId": "model",
        "summary": "What is fitted, and what is promised",
        "security": security,
        "responses": {"200": _json("The detector.", _reference("Model"))} | _errors(401),
    }


def _threshold() -> dict[str, Any]:
    rate = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    schema = {
        "anyOf": [
            _object({"false_alarm": rate}, required=["false_alarm"], closed=True),
            _object({"max_error": rate, "confidence": rate}, required=["max_error"], closed=True),
        ]
    }
    return {
        "operationId": "set_threshold",
        "summary": "Choose what is accepted, from now on",
        "description": (
            "`false_alarm`: refuse at most this share of in-distribution inputs. `max_error`: "
            "accept so many that accepted answers are wrong at most this often. A promise that "
            "the validation data cannot give is refused. Always needs a token."
        ),
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": _json("The threshold that holds now.", _reference("Threshold"))}
        | _errors(400, 401, 403, 408, 413, 415, 422),
    }


# ------------------------------------------------------------------------- pieces

_REASONS = {
    400: "The body cannot be parsed.",
    401: "A token is needed.",
    403: "The server was started without a token.",
    408: "The body did not come in time.",
    413: "Too many bytes, images or pixels.",
    415: "A Content-Type that is not known here.",
    422: "What was sent is no image that can be read, or cannot be promised.",
    500: "The detector failed.",
    503: "Too many images are under way, or the server is about to stop.",
    504: "The answer was not ready in time.",
}


def _string(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def _object(
    properties: dict[str, Any], *, required: list[str] | None = None, closed: bool = False
) -> dict[str, Any]:
    found = {"type": "object", "properties": properties}
    found["required"] = list(properties) if required is None else required
    return found | ({"additionalProperties": False} if closed else {})


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): _json(_REASONS[status], _reference("Error")) for status in statuses}


_NUMBER_OR_NULL = {"type": ["number", "null"]}
_SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_LABEL = {"type": ["integer", "array"], "items": {"type": "number"}}
_PROBLEM = _object({"code": _string(), "reason": _string()})
_SCHEMAS: dict[str, Any] = {
    "Answers": _object(
        {
            "model": _string(description="The detector's version."),
            "threshold": _NUMBER_OR_NULL,
            "results": {"type": "array", "items": _reference("Answer")},
        }
    ),
    "Answer": _object(
        {
            "name": {"type": ["string", "null"]},
            "decision": _string(enum=["accepted", "refused", "unreadable"]),
            "accepted": {"type": "boolean"},
            "label": _LABEL | {"description": "The network's own answer."},
            "class": {"type": ["string", "null"]},
            "probability": {
                "description": "Of that answer, before and after TULiP.",
                "type": ["object", "null"],
                "properties": {"before": _SHARE, "after": _SHARE},
            },
            "top": {
                "type": "array",
                "items": _object(
                    {
                        "label": {"type": "integer"},
                        "class": {"type": ["string", "null"]},
                        "before": _SHARE,
                        "after": _SHARE,
                    }
                ),
            },
            "score": _NUMBER_OR_NULL | {"description": "High = unsure; null if there is none."},
            "p_value": {"type": "number", "minimum": 0, "maximum": 1},
            "reason": _string(description="Why it was refused, in words."),
            "kind": _string(enum=["", "ambiguous", "unstable", "unfamiliar", "invalid"]),
            "error": _PROBLEM,
        },
        required=["name", "decision", "accepted"],
    ),
    "Model": _object(
        {
            "software": _string(),
            "method": _string(),
            "version": _string(),
            "task": _string(),
            "classes": {"type": ["array", "null"], "items": _string()},
            "threshold": {"anyOf": [_reference("Threshold"), {"type": "null"}]},
            "validation": {"type": "object"},
            "report": {"type": "object"},
            "report_text": _string(),
            "limits": {"type": "object"},
            "shadow": {"type": ["object", "null"]},
        }
    ),
    "Threshold": _object(
        {
            "value": _NUMBER_OR_NULL,
            "kind": _string(enum=["false_alarm", "max_error"]),
            "target": {"type": "number"},
            "confidence": _NUMBER_OR_NULL,
            "coverage": _SHARE,
            "promise": _string(),
        }
    ),
    "Error": _object(
        {"error": _PROBLEM, "results": {"type": "array", "items": _reference("Answer")}},
        required=["error"],
    ),
}
