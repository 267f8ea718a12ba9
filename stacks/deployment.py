"""A configuration's stacks, joined: what each hands to the next."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk

from stacks.config import Config, ConfigError, Fault, load, overlaid, paths
from stacks.engines import EnginesStack
from stacks.faults import faults
from stacks.images import ImagesStack
from stacks.network import NetworkStack
from stacks.observability import ObservabilityStack
from stacks.parameters import ParametersStack
from stacks.routing import RoutingStack


class Deployment:
    """Everything one endpoint needs, as stacks of `app`; without pinned images only what comes before them."""

    def __init__(self, app: cdk.App, config: Config) -> None:
        env = cdk.Environment(region=config.region)
        name = config.name
        self.config = config
        self.network = NetworkStack(app, f"{name}-network", config=config, env=env)
        self.images = ImagesStack(app, f"{name}-images", config=config, network=self.network, env=env)
        self.parameters = ParametersStack(app, f"{name}-parameters", config=config, env=env)
        self.stacks: list[cdk.Stack] = [self.network, self.images, self.parameters]
        balancer = None
        if config.images.engine and config.images.router:
            self.engines = EnginesStack(
                app, f"{name}-engines", config=config, network=self.network, image=config.images.engine, env=env
            )
            self.routing = RoutingStack(
                app, f"{name}-routing", config=config, network=self.network, image=config.images.router, env=env
            )
            # Nodes read their tunables at boot.
            for nodes in (self.engines, self.routing):
                nodes.add_stack_dependency(self.parameters)
            self.stacks += [self.engines, self.routing]
            balancer = self.routing.balancer.attr_load_balancer_full_name
        observability = ObservabilityStack(app, f"{name}-observability", config=config, balancer=balancer, env=env)
        self.stacks.append(observability)
        for key, value in (("project", "kv-roundtrip"), ("kv-roundtrip:deployment", name)):
            cdk.Tags.of(app).add(key, value)


def configuration(context: Mapping[str, Any]) -> Config:
    """The profile that `context` names, with what else it sets. Raises `ConfigError`."""
    profiles = context.get("profiles") or {}
    chosen = context.get("profile")
    if chosen not in profiles:
        known = ", ".join(profiles) or "none; cdk.json has no profiles"
        raise ConfigError([Fault("profile", f"is {chosen!r}", f"give -c profile=NAME; known are {known}")])
    profile = profiles[chosen]
    names = [*paths(), *(name for name in context if name.startswith("tunables."))]
    changes = {name: context[name] for name in names if context.get(name) is not None}
    return load(overlaid(profile, changes), profile, lambda config: [*misspelt(context), *faults(config)])


def misspelt(context: Mapping[str, Any]) -> list[Fault]:
    """Context that looks like a setting and is none: the CDK takes any name there and says nothing."""
    known = paths()
    parts = {name.partition(".")[0] for name in known}
    found = []
    for name in context:
        if name in known or name in ("profile", "profiles") or name.startswith(("tunables.", "@", "aws:")):
            continue
        near = difflib.get_close_matches(name, known, 1, 0.8)
        if near or name.partition(".")[0] in parts:
            found.append(
                Fault(name, "is not a setting", f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")
            )
    return found
