"""What an instance knows about itself, from EC2's instance metadata service, version 2 (a token for every read)."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request

from runtime import direct

_TOKEN_S = 300
_TIMEOUT_S = 1.0
_PAUSES_S = (0.1, 0.3, 1.0)
"""Before the second, third and fourth try: the service is a hop away, but new at boot and limited in rate."""


class MetadataError(RuntimeError):
    """The service does not answer. The text has a hint."""


class Metadata:
    """Owns one token and renews it when the service no longer takes it."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._token = ""

    def get(self, path: str) -> str | None:
        """The text at `path`, like "local-ipv4"; None where the instance has no such entry. Raises `MetadataError`."""
        for pause in (*_PAUSES_S, None):
            try:
                return self._read(path)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                    if error.code == 404:
                        return None
                    if error.code == 401:
                        self._token = ""
                fault = str(getattr(error, "reason", "") or error)
            if pause is not None:
                time.sleep(pause)
        raise MetadataError(
            f"instance metadata at {self._url} does not give {path}: {fault}. hint: this runs on EC2 instances with metadata "
            "enabled; in a container the launch template's hop limit has to be 2"
        )

    def require(self, path: str) -> str:
        """As `get`, for an entry that every instance has. Raises `MetadataError`."""
        found = self.get(path)
        if not found:
            raise MetadataError(f"instance metadata at {self._url} has no {path}. hint: this runs on EC2 instances")
        return found

    def _read(self, path: str) -> str:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._token = self._ask("/latest/api/token", "PUT", ttl)
        return self._ask(f"/latest/meta-data/{path}", "GET", {"X-aws-ec2-metadata-token": self._token})

    def _ask(self, path: str, method: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self._url + path, method=method, headers=headers)
        with direct.opener.open(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read()).decode()
