"""HTTP to this node itself and to what only it can reach: never through a proxy that the environment names."""

from __future__ import annotations

import urllib.request

opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
