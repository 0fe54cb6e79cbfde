"""What leaves the house: no secret, no person, no public address; equal things stay equal."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

import pytest

from sparkserve.checks.diagnose import diagnose
from sparkserve.model.reading import Reading
from sparkserve.ops.mask import mask
from tests.casefiles import ALL, Variant


def masked(*texts: str) -> list[str]:
    readings = [Reading(text=text, node=f"spark{n}", what="w") for n, text in enumerate(texts, 1)]
    return [reading.text for reading in mask(readings)]


@pytest.mark.parametrize(
    "line",
    [
        "HF_TOKEN=hf_QWERTYuiopASDFghjk1234567890",
        "export HUGGING_FACE_HUB_TOKEN='hf_QWERTYuiopASDFghjk1234567890'",
        '{"api_key": "HIDDENabc123"}',
        "python -m sglang --api-key HIDDENabc123 --port 8888",
        "--api-key=HIDDENabc123",
        "Authorization: Bearer HIDDENabc123",
        "curl -H 'Authorization: Bearer HIDDENabc123' http://127.0.0.1:8888/v1",
        "https://alice:HIDDENabc123@example.org/repo.git",
        "NGC_API_KEY=HIDDENabc123",
        "password: HIDDENabc123",
        "wifi-sec.psk=HIDDENabc123",
        "AWS_SECRET_ACCESS_KEY=HIDDENabc123",
        "AKIAHIDDENABC1234567",
        "nvapi-HIDDENabc123HIDDENabc123",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nHIDDENabc\nHIDDEN\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_secret_is_gone(line: str) -> None:
    (text,) = masked(f"before\n{line}\nafter\n")
    assert "HIDDEN" not in text
    assert "QWERTY" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


@pytest.mark.parametrize(
    "line",
    [
        "full_token=1234567, available_bytes=99",
        "max_total_tokens: 8000000",
        "--max-total-tokens 8000000",
        '"completion_tokens": 12',
        'pad_token: "<pad>"',
        "api_key_file = /etc/sparkserve/key",
        "the token is refused",
        "SSH_AUTH_SOCK=/run/user/1000/ssh",
        "NCCL version 2.30.7+cuda13.0",
        "nvidia-cublas 13.1.0.3",
        "firmware 28.45.4028 (NVD0000000087)",
        "libcudnn 9.13.0.50, driver 580.173.02",
        "inet 192.168.100.11/24 scope global enp1s0f0np0",
        "inet 100.64.3.7/10 tailscale0",
        "getty@tty1.service loaded active running",
        "sha256:" + "0123456789abcdef" * 4,
        "0000:01:00.0 Ethernet controller: Mellanox [15b3:1021]",
        "fe80:0000:0000:0000:a288:c2ff:fe03:ab12",
        "drwxr-xr-x 2 nvidia nvidia 4096 /home/nvidia/models",
        "ff:ff:ff:ff:ff:ff",
    ],
)
def test_what_judges_need_stays(line: str) -> None:
    assert masked(line) == [line]


def test_people_get_the_same_other_name_everywhere() -> None:
    one, other = masked(
        "home=/home/marianne\nuser=marianne\n-rw-r--r-- 1 marianne users 9 key\n",
        "/home/bob2/.cache and /home/marianne/.cache; marianne@spark2\n",
    )
    assert "marianne" not in one + other
    assert "bob2" not in other
    assert one == "home=/home/user1\nuser=user1\n-rw-r--r-- 1 user1 users 9 key\n"
    assert other == "/home/user2/.cache and /home/user1/.cache; user1@spark2\n"


def test_people_are_known_by_accounts_and_connections_too() -> None:
    (text,) = masked(
        "marianne:x:1000:1000:Marianne Smith,,,:/srv/m:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n"
        '{"user": "bobby"}\ngone to bobby, marianne\nSSID: Smith Home\n'
    )
    assert text.startswith("user2:x:1000:1000::/srv/m:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n")
    assert "gone to user1, user2\n" in text
    assert "Smith" not in text


def test_a_user_called_as_a_node_leaves_the_node_its_name() -> None:
    assert masked("/home/spark1/x /home/vllm/y") == ["/home/spark1/x /home/vllm/y"]


def test_paths_and_labels_are_masked_as_the_texts_are() -> None:
    (reading,) = mask(
        [Reading(text="x", label="ls /home/marianne/models", command="ls /home/marianne/models")]
    )
    assert reading.command == reading.label == "ls /home/user1/models"


def test_public_addresses_keep_their_network_and_their_hexadecimal_form() -> None:
    (text,) = masked(
        "inet 84.112.7.9/24 dev eth0\ninet 84.112.7.10/24 dev eth1\n"
        "gid 0000:0000:0000:0000:0000:ffff:5470:0709\nssh to 84.112.7.9\n"
        "inet6 2a02:8070:1:2::7/64\n"
    )
    assert "84.112" not in text
    assert "5470" not in text
    assert "2a02" not in text
    assert "inet 198.18.0.9/24 dev eth0\ninet 198.18.0.10/24" in text
    assert "ffff:c612:0009" in text
    assert "ssh to 198.18.0.9" in text
    assert "inet6 2001:db8::" in text


def test_serials_and_macs_differ_as_before_and_keep_their_shape() -> None:
    readings = [
        Reading(text=f"{value}\n", node=node, path="/etc/machine-id")
        for node, value in (("a", "1" * 32), ("b", "1" * 32), ("c", "2" * 32))
    ]
    first, same, other = (reading.text for reading in mask(readings))
    assert first == same != other
    assert len(first) == 33
    assert first != readings[0].text
    here, there = masked("link/ether a0:88:c2:11:22:33 brd", "lladdr A0:88:C2:11:22:33 STALE")
    assert here.split()[1].lower() == there.split()[1].lower()
    assert here.startswith("link/ether a0:88:c2:")
    assert "11:22:33" not in here
    assert "GB10S0123" not in masked("Serial Number: GB10S0123")[0]


def test_masking_twice_changes_nothing_more() -> None:
    once = mask([Reading(text="HF_TOKEN=hf_abcdefghijklmnopqrst /home/zoe/x 8.8.8.8:53", what="w")])
    assert mask(once)[0].text.replace("user1", "") == once[0].text.replace("user1", "")


def test_long_texts_take_linear_time() -> None:
    """A text without blanks is the worst there is; a slow expression would need hours."""
    random.seed(7)
    words = "".join(random.choices(string.ascii_letters + "-_:.0123456789", k=400_000))
    assert len(masked(words)[0]) > 300_000


@pytest.mark.parametrize("variant", ALL, ids=lambda variant: variant.id)
def test_masked_texts_are_judged_as_before(variant: Variant) -> None:
    def judged(readings: Sequence[Reading]) -> list[tuple[str, str, str]]:
        findings = diagnose(readings).findings
        return sorted((f.check_id, f.node or "", f.verdict) for f in findings)

    hidden = mask(variant.readings)
    assert judged(hidden) == judged(variant.readings)
    assert diagnose(hidden).unread == diagnose(variant.readings).unread
