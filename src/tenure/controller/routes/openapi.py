"""The page that describes this API (OpenAPI 3.1)."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from tenure.controller.auth import Reader
from tenure.controller.replies import encode

router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, caller: Reader) -> Response:
    """The description of every route, made when it is first asked for."""
    app = request.app
    if getattr(app.state, "openapi_text", None) is None:
        from tenure.controller.schema import describe

        app.state.openapi_text = encode(describe(app))
    return Response(app.state.openapi_text, media_type="application/json")
