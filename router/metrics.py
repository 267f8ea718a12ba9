"""Prometheus metrics. No label holds an address, an engine id or a client's id."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("kvr_requests", "Requests answered.", ["endpoint", "code"], registry=registry)
        self.ttft = Histogram(
            "kvr_ttft_seconds",
            "From the request's last byte to the answer's first.",
            ["reuse"],
            buckets=SECONDS,
            registry=registry,
        )
        self.prefill = Histogram("kvr_prefill_seconds", "Prefill's part of a turn.", buckets=SECONDS, registry=registry)
        self.decode_first_byte = Histogram(
            "kvr_decode_first_byte_seconds",
            "From decode's request to its first byte.",
            buckets=SECONDS,
            registry=registry,
        )
        self.prompt_tokens = Counter("kvr_prompt_tokens", "Prompt tokens, as prefill counted them.", registry=registry)
        self.pulled_tokens = Counter(
            "kvr_pulled_tokens", "Prompt tokens that decode gave back to prefill.", registry=registry
        )
        self.refused = Counter(
            "kvr_handles_refused", "Handles that prefill did not use, by its reason.", ["reason"], registry=registry
        )
        self.handles = Counter("kvr_handles", "Handles, by what became of them.", ["fate"], registry=registry)
        self.stored = Gauge("kvr_handles_stored", "Handles kept now.", registry=registry)
        self.retries = Counter(
            "kvr_retries", "Attempts after the first, by the leg that failed.", ["leg"], registry=registry
        )
        self.upstream_errors = Counter(
            "kvr_upstream_errors", "Engine requests that failed.", ["leg"], registry=registry
        )
        self.stranded = Counter(
            "kvr_stranded_prefills", "Finished prefills whose decode did not follow.", registry=registry
        )
        self.released = Counter(
            "kvr_released_prefills", "Stranded prefills whose blocks decode then fetched.", registry=registry
        )
        self.without_params = Counter(
            "kvr_prefills_without_params", "Prefill answers that named no blocks.", registry=registry
        )
        self.engines = Gauge("kvr_engines", "Engines by role and state.", ["role", "state"], registry=registry)
        self.tunables_changed = Counter(
            "kvr_tunables_changed", "Live values taken over from the node's file.", ["tunable"], registry=registry
        )
        self.open_requests = Gauge("kvr_open_requests", "Requests being served.", registry=registry)

    def count_handle(self, fate: str, number: int) -> None:
        self.handles.labels(fate).inc(number)
