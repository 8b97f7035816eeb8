"""Calls to the admin port of engine masters (docs/contracts.md, section 6)."""

from __future__ import annotations

from typing import Any

import httpx

CALL_SECONDS = 3.0


class MasterError(Exception):
    """A master that does not answer or refuses; `unauthorized` says that the token is not its own."""

    def __init__(self, message: str, unauthorized: bool = False) -> None:
        super().__init__(message)
        self.unauthorized = unauthorized


class MasterClient:
    """One client for all masters."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False)

    async def state(self, address: str, token: str) -> dict[str, Any]:
        """Returns `GET /state`; raises MasterError."""
        return await self._call("GET", address, "/state", token, None)

    async def put(self, address: str, token: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Changes topology or scheduler and returns the state after it; raises MasterError."""
        return await self._call("PUT", address, path, token, body)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def _call(self, method: str, address: str, path: str, token: str, body: Any) -> dict[str, Any]:
        try:
            answer = await self._client.request(
                method, f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"}, json=body
            )
            if answer.status_code >= 400:
                raise MasterError(f"{path}: {answer.status_code} {answer.text[:300]}", answer.status_code == 401)
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise MasterError(f"{address}{path}: {error}") from error
        return found
