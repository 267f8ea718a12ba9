"""The smaller services: parameters, logs, alarms, notifications, the firewall, the cache, secrets, certificates."""

from __future__ import annotations

import secrets
from typing import Any

from tests.emulator.api import Properties
from tests.emulator.kinds import Kind, Made


def _without(properties: Properties, *names: str) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in names}


def _pairs(tags: Properties) -> list[dict[str, Any]]:
    """CloudFormation's map of tags as most APIs want it."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _create_parameter(made: Made) -> None:
    made.properties = {"Name": made.id, **made.properties}
    made.id = made.properties["Name"]
    asked = _without(made.properties, "Tags")
    made.call("ssm", "put_parameter", **asked, Tags=_pairs(made.properties.get("Tags", {})))
    made.attributes = {"Type": asked["Type"], "Value": asked["Value"]}


def _update_parameter(made: Made, asked: Properties) -> None:
    made.call("ssm", "put_parameter", **{"Name": made.id, **_without(asked, "Tags")}, Overwrite=True)
    made.attributes = {"Type": asked["Type"], "Value": asked["Value"]}


def _delete_parameter(made: Made) -> None:
    made.call("ssm", "delete_parameter", Name=made.id)


def _create_log_group(made: Made) -> None:
    tags = {tag["Key"]: tag["Value"] for tag in made.properties.get("Tags", [])}
    made.call("logs", "create_log_group", logGroupName=made.id, tags=tags)
    found = made.call("logs", "describe_log_groups", logGroupNamePrefix=made.id)["logGroups"]
    made.attributes = {"Arn": next(group["arn"] for group in found if group["logGroupName"] == made.id)}
    _keep_logs(made, made.properties)


def _keep_logs(made: Made, asked: Properties) -> None:
    if "RetentionInDays" in asked:
        made.call("logs", "put_retention_policy", logGroupName=made.id, retentionInDays=asked["RetentionInDays"])


def _delete_log_group(made: Made) -> None:
    made.call("logs", "delete_log_group", logGroupName=made.id)


def _metric_filter(made: Made) -> dict[str, Any]:
    changes = [
        {name[0].lower() + name[1:]: value for name, value in change.items() if name != "Dimensions"}
        for change in made.properties["MetricTransformations"]
    ]
    return {
        "logGroupName": made.properties["LogGroupName"],
        "filterName": made.id,
        "filterPattern": made.properties["FilterPattern"],
        "metricTransformations": changes,
    }


def _create_metric_filter(made: Made) -> None:
    made.call("logs", "put_metric_filter", **_metric_filter(made))


def _delete_metric_filter(made: Made) -> None:
    made.call("logs", "delete_metric_filter", logGroupName=made.properties["LogGroupName"], filterName=made.id)


def _alarm_kind(type_: str, put: str) -> Kind:
    def create(made: Made) -> None:
        made.call("cloudwatch", put, **{**made.properties, "AlarmName": made.id})
        made.attributes = {"Arn": f"arn:aws:cloudwatch:{made.region}:123456789012:alarm:{made.id}"}

    def update(made: Made, asked: Properties) -> None:
        made.call("cloudwatch", put, **{**asked, "AlarmName": made.id})

    def delete(made: Made) -> None:
        made.call("cloudwatch", "delete_alarms", AlarmNames=[made.id])

    return Kind(type_, create, delete, update, name="AlarmName")


def _create_topic(made: Made) -> None:
    tags = made.properties.get("Tags", [])
    made.id = made.call("sns", "create_topic", Name=made.id, Tags=tags)["TopicArn"]
    made.attributes = {"TopicArn": made.id, "TopicName": made.id.rpartition(":")[2]}
    for name in ("DisplayName", "KmsMasterKeyId"):
        if name in made.properties:
            made.call(
                "sns",
                "set_topic_attributes",
                TopicArn=made.id,
                AttributeName=name,
                AttributeValue=made.properties[name],
            )


def _delete_topic(made: Made) -> None:
    made.call("sns", "delete_topic", TopicArn=made.id)


def _create_subscription(made: Made) -> None:
    made.id = made.call("sns", "subscribe", **made.properties, ReturnSubscriptionArn=True)["SubscriptionArn"]


def _delete_subscription(made: Made) -> None:
    made.call("sns", "unsubscribe", SubscriptionArn=made.id)


def _create_topic_policy(made: Made) -> None:
    for topic in made.properties["Topics"]:
        made.call(
            "sns",
            "set_topic_attributes",
            TopicArn=topic,
            AttributeName="Policy",
            AttributeValue=made.properties["PolicyDocument"],
        )


def _nothing(made: Made) -> None:
    """Goes with what it belongs to."""


def _create_firewall(made: Made) -> None:
    asked = {"Name": made.id, **made.properties}
    found = made.call("wafv2", "create_web_acl", **asked)["Summary"]
    made.attributes = {"Arn": found["ARN"], "Id": found["Id"], "Name": asked["Name"], "Scope": asked["Scope"]}
    made.id = f"{asked['Name']}|{found['Id']}|{asked['Scope']}"


def _firewall_key(made: Made) -> dict[str, str]:
    key = {name: made.attributes[name] for name in ("Name", "Scope", "Id")}
    return {**key, "LockToken": made.call("wafv2", "get_web_acl", **key)["LockToken"]}


def _update_firewall(made: Made, asked: Properties) -> None:
    made.call("wafv2", "update_web_acl", **{**_without(asked, "Tags", "Name", "Scope"), **_firewall_key(made)})


def _delete_firewall(made: Made) -> None:
    made.call("wafv2", "delete_web_acl", **_firewall_key(made))


def _associate_firewall(made: Made) -> None:
    asked = made.properties
    made.call("wafv2", "associate_web_acl", WebACLArn=asked["WebACLArn"], ResourceArn=asked["ResourceArn"])


def _release_firewall(made: Made) -> None:
    made.call("wafv2", "disassociate_web_acl", ResourceArn=made.properties["ResourceArn"])


def _log_firewall(made: Made) -> None:
    made.call("wafv2", "put_logging_configuration", LoggingConfiguration=made.properties)


def _unlog_firewall(made: Made) -> None:
    made.call("wafv2", "delete_logging_configuration", ResourceArn=made.properties["ResourceArn"])


def _create_cache(made: Made) -> None:
    asked = {"ReplicationGroupId": made.id, **made.properties}
    asked["CacheSecurityGroupNames"] = asked.get("CacheSecurityGroupNames", [])
    made.id = asked["ReplicationGroupId"].lower()
    made.call("elasticache", "create_replication_group", **{**asked, "ReplicationGroupId": made.id})
    port = str(asked.get("Port", 6379))
    for end in ("PrimaryEndPoint", "ReaderEndPoint", "ConfigurationEndPoint"):
        made.attributes |= {f"{end}.Address": f"{made.id}.{end.lower()}.cache.amazonaws.com", f"{end}.Port": port}


def _delete_cache(made: Made) -> None:
    made.call("elasticache", "delete_replication_group", ReplicationGroupId=made.id)


def _create_cache_subnets(made: Made) -> None:
    asked = _without(made.properties, "Description", "CacheSubnetGroupName")
    made.id = made.id.lower()
    words = made.properties["Description"]
    made.call(
        "elasticache",
        "create_cache_subnet_group",
        CacheSubnetGroupName=made.id,
        CacheSubnetGroupDescription=words,
        **asked,
    )


def _delete_cache_subnets(made: Made) -> None:
    made.call("elasticache", "delete_cache_subnet_group", CacheSubnetGroupName=made.id)


def _create_secret(made: Made) -> None:
    asked = {"Name": made.id, **made.properties}
    if "GenerateSecretString" in asked:
        asked["SecretString"] = secrets.token_hex(16)
    asked = _without(asked, "GenerateSecretString")
    made.id = made.call("secretsmanager", "create_secret", **asked)["ARN"]
    made.attributes = {"Id": made.id}


def _delete_secret(made: Made) -> None:
    made.call("secretsmanager", "delete_secret", SecretId=made.id, ForceDeleteWithoutRecovery=True)


def _create_key(made: Made) -> None:
    tags = [{"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in made.properties.get("Tags", [])]
    asked = made.api.takes(made.region, "kms", "create_key", _without(made.properties, "KeyPolicy", "Tags"))
    found = made.call("kms", "create_key", Policy=made.properties["KeyPolicy"], Tags=tags, **asked)["KeyMetadata"]
    made.id = found["KeyId"]
    made.attributes = {"Arn": found["Arn"], "KeyId": made.id}
    if made.properties.get("EnableKeyRotation"):
        made.call("kms", "enable_key_rotation", KeyId=made.id)


def _update_key(made: Made, asked: Properties) -> None:
    made.call("kms", "put_key_policy", KeyId=made.id, PolicyName="default", Policy=asked["KeyPolicy"])


def _delete_key(made: Made) -> None:
    days = made.properties.get("PendingWindowInDays", 30)
    made.call("kms", "schedule_key_deletion", KeyId=made.id, PendingWindowInDays=days)


KINDS = (
    Kind("AWS::KMS::Key", _create_key, _delete_key, _update_key),
    Kind("AWS::SSM::Parameter", _create_parameter, _delete_parameter, _update_parameter, name="Name"),
    Kind("AWS::Logs::LogGroup", _create_log_group, _delete_log_group, _keep_logs, name="LogGroupName"),
    Kind("AWS::Logs::MetricFilter", _create_metric_filter, _delete_metric_filter, name="FilterName"),
    _alarm_kind("AWS::CloudWatch::Alarm", "put_metric_alarm"),
    _alarm_kind("AWS::CloudWatch::CompositeAlarm", "put_composite_alarm"),
    Kind("AWS::SNS::Topic", _create_topic, _delete_topic, name="TopicName"),
    Kind("AWS::SNS::Subscription", _create_subscription, _delete_subscription),
    Kind("AWS::SNS::TopicPolicy", _create_topic_policy, _nothing),
    Kind("AWS::WAFv2::WebACL", _create_firewall, _delete_firewall, _update_firewall, name="Name"),
    Kind("AWS::WAFv2::WebACLAssociation", _associate_firewall, _release_firewall),
    Kind("AWS::WAFv2::LoggingConfiguration", _log_firewall, _unlog_firewall),
    Kind("AWS::ElastiCache::ReplicationGroup", _create_cache, _delete_cache, name="ReplicationGroupId"),
    Kind("AWS::SecretsManager::Secret", _create_secret, _delete_secret, name="Name"),
    Kind("AWS::ElastiCache::SubnetGroup", _create_cache_subnets, _delete_cache_subnets, name="CacheSubnetGroupName"),
)
