"""Secrets as people write them down: with blanks, in lists, in headers, over several lines."""

from __future__ import annotations

import random

import pytest

from sparkserve.ops.mask_secrets import without_secrets

SECRETS = """\
PASSWORD=Qz1abc Qz2 with blanks
export DB_PASSWORD="Qz1 \\"Qz2\\" Qz3"
PASSWORD=/Qz1+Qz2=
PASSWORD=-Qz1
PASSWORD=$Qz1
PASSWORD=Qz1,Qz2;Qz3}Qz4
  password: Qz1 Qz2 Qz3
password: 'Qz1, Qz2; Qz3'
"password" : "Qz1 Qz2, Qz3"
"password": ["Qz1", "Qz2"]
["python3","-m","x","--api-key", "Qz1", "--port", "1"]
['--api-key','Qz1']
[\\"--api-key\\",\\"Qz1\\"]
--api-key=Qz1 --port 1
--admin-api-key Qz1
-e HF_TOKEN=Qz1 image
"Env":["PASSWORD=Qz1 Qz2","MY_SECRET=Qz3"]
{"name":"HF_TOKEN","value":"Qz1"}
ServerArgs(api_key='Qz1', admin_api_key='Qz2')
HF_TOKEN   Qz1abc7890
WANDB_KEY=Qz1
DB_PASS=Qz1
MYSQL_PWD=Qz1
wpa_passphrase=Qz1 Qz2
wpa-psk "Qz1 Qz2"
credentials: Qz1
Authorization: token Qz1
{"authorization":"Custom Qz1 Qz2"}
sent authorization: Custom Qz1, host: x
curl -H 'X-Api-Key: Qz1' http://x
Cookie: a=Qz1; b=Qz2
"auth": "Qz1abcdef=="
curl -u alice:Qz1 http://x
curl -s --user alice:Qz1 http://x
sshpass -p Qz1 ssh a@b
machine x login bob password Qz1
https://alice:Qz1@Qz2@host/x
https://Qz1@host/x.git
https://Qz1:@host/x.git
redis://:Qz1@host:6379
https://host/x?a=1&sig=Qz1&token=Qz2
https://s3/x?X-Amz-Signature=Qz1
https://hooks.slack.com/services/T0/B0/Qz1
ghu_Qz1QWERTYuiopASDFghjk
npm_Qz1QWERTYuiopASDFghjk1234567890
dckr_pat_Qz1QWERTYuiopASDF
pypi-Qz1AgEIcHlwaS5vcmc
AIzaQz1QWERTYuiopASDFghjk1234567890ab
sk-proj-Qz1QWERTYuiopASDFghjk
"""
BLOCKS = [
    "password: |\n  Qz1\n  Qz2\nport: 1",
    'password = """Qz1\nQz2"""\nport = 1',
    "- name: HF_TOKEN\n  value: Qz1\nport: 1",
    '"--api-key",\n  "Qz1",\n  "--port"',
    "HF_TOKEN=Qz1 Qz2\0PORT=1\0",
    "-----BEGIN RSA PRIVATE KEY-----\nQz1\nQz2\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nQz1\n-----END PGP PRIVATE KEY BLOCK-----",
    '"key": "-----BEGIN PRIVATE KEY-----\\nQz1\\n-----END PRIVATE KEY-----\\n", "port": 1',
    "Private-Lines: 2\nQz1\nQz2\nPrivate-MAC: 1",
]


@pytest.mark.parametrize("text", [*SECRETS.splitlines(), *BLOCKS])
def test_no_part_of_a_secret_is_left(text: str) -> None:
    hidden = without_secrets(f"before\n{text}\nafter\n")
    assert "Qz" not in hidden
    assert "***" in hidden
    assert hidden.startswith("before\n")
    assert hidden.endswith("after\n")


def test_a_key_that_is_cut_off_is_gone_to_the_end() -> None:
    assert "Qz" not in without_secrets("-----BEGIN OPENSSH PRIVATE KEY-----\nQz1\nQz2\n")


def test_no_part_of_many_secrets_in_one_text_is_left() -> None:
    assert "Qz" not in without_secrets("\n".join([SECRETS, *BLOCKS[:-2]]))


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("HF_TOKEN=Qz1 NCCL_DEBUG=INFO python -m x --port 1",
         "HF_TOKEN=*** NCCL_DEBUG=INFO python -m x --port 1"),
        ('["sh","-c","HF_TOKEN=Qz1 python -m x"]', '["sh","-c","HF_TOKEN=*** python -m x"]'),
        ("--api-key Qz1 --tp 4", "--api-key *** --tp 4"),
        ("PASSWORD=Qz1 Qz2 # old\nTP=4", "PASSWORD=*** # old\nTP=4"),
        ('{"api_key": "Qz1", "tp": 4}', '{"api_key": "***", "tp": 4}'),
        ("x(api_key='Qz1', tp=4)", "x(api_key='***', tp=4)"),
        ("curl -H 'Authorization: Bearer Qz1' http://x", "curl -H 'Authorization: ***' http://x"),
    ],
)  # fmt: skip
def test_what_stands_around_a_secret_stays(text: str, hidden: str) -> None:
    assert without_secrets(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "spark@10.0.0.2's password: ",
        "sudo: a password is required",
        "[sudo] password for spark: ",
        "Permission denied (publickey,password).",
        "Enter passphrase for key '/root/.ssh/id_ed25519': ",
        "HF_TOKEN is not set",
        '{"token": " the", "logprob": -0.25, "bytes": [32]}',
        '["token", "count"]',
        '"eos_token": "<|im_end|>", "pad_token": null',
        "api_key=None, tp=4",
        "API_KEY=${API_KEY}",
        "docker run --user 1000:1000 image",
        "sk-ecdsa-sha2-nistp256@openssh.com",
        "ssh://spark@10.0.0.2:22",
        "PWD=/root",
        "private_key=/etc/ssh/key",
        "4096 token: 12.5 ms",
    ],
)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "word", ["token=", 'token="', "a_KEY=b ", "login ", "curl -u ", "\\", "://a:"]
)
def test_long_lines_take_linear_time(word: str) -> None:
    """A line of one word is the worst there is; a slow expression would need hours."""
    text = word * (300_000 // len(word))
    assert len(without_secrets(text)) > 0


def test_any_text_is_taken() -> None:
    random.seed(11)
    pieces = [
        "token",
        "=",
        ":",
        '"',
        "'",
        "\\",
        "\n",
        "\0",
        " ",
        "[",
        "|",
        "--api-key",
        ",",
        "value",
    ]
    for _ in range(3000):
        text = "".join(random.choices(pieces, k=12))
        assert isinstance(without_secrets(text), str)
