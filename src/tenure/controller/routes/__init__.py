"""Thin routes, one resource a file: parse, call the controller, render."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from tenure.controller.service import Controller


async def _controller(connection: HTTPConnection) -> Controller:
    found: Controller = connection.app.state.controller
    return found


Service = Annotated[Controller, Depends(_controller)]
