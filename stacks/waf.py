"""An optional web application firewall, which must not block an ordinary chat history."""

from __future__ import annotations

from aws_cdk import aws_wafv2 as waf
from constructs import Construct

# Rules of AWSManagedRulesCommonRuleSet that look into bodies: prompts hold code, markup and more than 8 KB.
_BODY_RULES = (
    "SizeRestrictions_BODY",
    "CrossSiteScripting_BODY",
    "GenericLFI_BODY",
    "GenericRFI_BODY",
    "EC2MetaDataSSRF_BODY",
)
_REQUESTS_IN_5_MINUTES = 10_000


class Firewall(Construct):
    def __init__(self, scope: Construct, construct_id: str, *, balancer_arn: str) -> None:
        super().__init__(scope, construct_id)
        acl = waf.CfnWebACL(
            self,
            "Acl",
            scope="REGIONAL",
            default_action=waf.CfnWebACL.DefaultActionProperty(allow={}),
            visibility_config=_seen("firewall"),
            rules=[self._common(), self._rate()],
        )
        waf.CfnWebACLAssociation(self, "Association", resource_arn=balancer_arn, web_acl_arn=acl.attr_arn)

    def _common(self) -> waf.CfnWebACL.RuleProperty:
        counted = [
            waf.CfnWebACL.RuleActionOverrideProperty(
                name=name, action_to_use=waf.CfnWebACL.RuleActionProperty(count={})
            )
            for name in _BODY_RULES
        ]
        return waf.CfnWebACL.RuleProperty(
            name="common",
            priority=1,
            override_action=waf.CfnWebACL.OverrideActionProperty(none={}),
            visibility_config=_seen("common"),
            statement=waf.CfnWebACL.StatementProperty(
                managed_rule_group_statement=waf.CfnWebACL.ManagedRuleGroupStatementProperty(
                    vendor_name="AWS", name="AWSManagedRulesCommonRuleSet", rule_action_overrides=counted
                )
            ),
        )

    def _rate(self) -> waf.CfnWebACL.RuleProperty:
        return waf.CfnWebACL.RuleProperty(
            name="rate",
            priority=2,
            action=waf.CfnWebACL.RuleActionProperty(block={}),
            visibility_config=_seen("rate"),
            statement=waf.CfnWebACL.StatementProperty(
                rate_based_statement=waf.CfnWebACL.RateBasedStatementProperty(
                    aggregate_key_type="IP", limit=_REQUESTS_IN_5_MINUTES
                )
            ),
        )


def _seen(name: str) -> waf.CfnWebACL.VisibilityConfigProperty:
    return waf.CfnWebACL.VisibilityConfigProperty(
        cloud_watch_metrics_enabled=True, metric_name=f"kv-roundtrip-{name}", sampled_requests_enabled=False
    )
