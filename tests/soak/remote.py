"""An index that a server serves, asked over HTTP."""

import time
from types import SimpleNamespace
from typing import Any

import httpx

from ctx_embed.errors import BusyError

ATTEMPTS = 5


class Remote:
    """The only index of a server.

    Args:
        url: the server's address.

    Raises:
        ConnectionError: nothing answers there.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(timeout=60)
        try:
            (facts,) = self._answer("GET", f"{url}/v1/indexes")["indexes"]
        except BaseException:
            self._http.close()
            raise
        self._url = f"{url}/v1/indexes/{facts['name']}"

    def search(self, query: str, **options: Any) -> list[SimpleNamespace]:
        found = self._answer("POST", f"{self._url}/search", {"query": query, **options})
        return [SimpleNamespace(**hit) for hit in found["hits"]]

    def get(self, identifier: str) -> SimpleNamespace | None:
        (document,) = self._answer("POST", f"{self._url}/get", {"ids": [identifier]})["documents"]
        return document and SimpleNamespace(**document)

    def upsert(self, texts: list[str], ids: list[str]) -> None:
        self._answer("POST", f"{self._url}/upsert", {"texts": texts, "ids": ids})

    def delete(self, ids: list[str]) -> None:
        self._answer("POST", f"{self._url}/delete", {"ids": ids})

    def close(self) -> None:
        self._http.close()

    def _answer(self, method: str, url: str, body: Any = None) -> Any:
        """Return the JSON of an answer; a busy server is asked again."""
        for _ in range(ATTEMPTS):
            try:
                answer = self._http.request(method, url, json=body)
            except httpx.HTTPError as error:
                raise ConnectionError(str(error)) from None
            if answer.status_code not in (429, 503):
                assert answer.status_code == 200, answer.text
                return answer.json()
            time.sleep(float(answer.headers["Retry-After"]))
        raise BusyError(answer.text)
