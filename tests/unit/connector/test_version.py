import pytest

from connector.version import KNOWN, UnsupportedVersion, release, require_known, streams_handle


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.32.0", "0.32"), ("0.33.0+cu130", "0.33"), ("0.29.0.1.2.0", "0.29"), ("0.31rc1", "0.31")],
)
def test_release(version: str, expected: str) -> None:
    assert release(version) == require_known(version) == expected


@pytest.mark.parametrize("version", ["0.28.1", "0.34.0", "1.0", "dev", "", "0.320.0"])
def test_an_unknown_version_is_refused_by_name_with_the_known_ones(version: str) -> None:
    with pytest.raises(UnsupportedVersion) as refusal:
        require_known(version)
    assert version in str(refusal.value)
    assert all(known in str(refusal.value) for known in KNOWN)


def test_only_versions_before_0_33_need_the_streaming_plugin() -> None:
    assert [known for known in KNOWN if streams_handle(known)] == ["0.33"]
