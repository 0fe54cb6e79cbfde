"""Import of the published recipes' env files: used or reported, never lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkserve import profiles
from sparkserve.errors import ConfigError
from sparkserve.interop import import_env_file, import_env_text

TP4 = """\
# four Sparks
HEAD_IP=10.0.0.1
WORKER_IPS="10.0.0.2, 10.0.0.3 10.0.0.4"
WORKER_HOSTS=spark2,spark3,spark4
HEAD_HOST=spark1.lan
NNODES=4
TP_SIZE=4
WORKER_USER=spark
WORKER_PASS=hunter2
SSH_KEY=~/.ssh/id_spark
SERVER_PORT=8000
DIST_INIT_ADDR=10.0.0.1:20001
SERVED_MODEL_NAME=deepseek-v4.1-flash
MODEL_DIR=/models/v41
CONTEXT_LENGTH=262144
CHUNKED_PREFILL_SIZE=4096
MAX_RUNNING_REQUESTS=8
MAX_TOTAL_TOKENS=8000000
MEM_FRACTION_STATIC=0.85
SPEC_ALGO=DSPARK
DSPARK_BLOCK_SIZE=5
NCCL_SOCKET_IFNAME==enp1s0f0np0
GLOO_SOCKET_IFNAME=enp1s0f0np0
NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0
NCCL_IB_GID_INDEX=3
NCCL_BUFFSIZE=1048576
NCCL_HOST_DIR=/opt/nccl
DSV41_TP_PAD=0
SGLANG_RUST_BUILD_MODE=never
API_KEY=sk-verysecret
EXTRA_SGLANG_ARGS="--sleep-on-idle --watchdog-timeout 1800"
EXTRA_CONTAINER_ENV="NCCL_DEBUG=WARN FOO=bar"
READY_TIMEOUT=360
UNHEARD_OF=1
EMPTY=
"""


def read(text, **kwargs):
    return import_env_text(text, where=".env", name="lab", **kwargs)


def refusal(text, **kwargs):
    with pytest.raises(ConfigError) as caught:
        read(text, **kwargs)
    return caught.value.message


def reasons(imported):
    return {item.key: item.reason for item in imported.dropped}


def test_a_whole_file_becomes_a_cluster_and_profile_values():
    imported = read(TP4)
    cluster = imported.cluster
    assert [(n.name, n.host, n.fabric_address, n.user, n.interface) for n in cluster.nodes] == [
        ("spark1", "spark1.lan", "10.0.0.1", "spark", "enp1s0f0np0"),
        ("spark2", "spark2", "10.0.0.2", "spark", "enp1s0f0np0"),
        ("spark3", "spark3", "10.0.0.3", "spark", "enp1s0f0np0"),
        ("spark4", "spark4", "10.0.0.4", "spark", "enp1s0f0np0"),
    ]
    assert (cluster.name, cluster.topology, cluster.identity_file) == (
        "lab", "switch", "~/.ssh/id_spark",
    )  # fmt: skip
    assert imported.overrides == {
        "parallel": {"tp": 4, "ep": 4},
        "serving": {"port": 8000},
        "model": {"served_name": "deepseek-v4.1-flash", "path": "/models/v41"},
        "context": {
            "length_tokens": 262144,
            "chunked_prefill_tokens": 4096,
            "max_running_requests": 8,
            "kv_tokens": 8000000,
            "mem_fraction_static": 0.85,
        },
        "speculation": {"algorithm": "DSPARK", "block_tokens": 5},
        "fabric": {
            "dist_port": 20001,
            "hca": ["rocep1s0f0", "roceP2p1s0f0"],
            "gid_index": 3,
            "nccl": {"NCCL_BUFFSIZE": "1048576", "NCCL_DEBUG": "WARN"},
        },
        "engine": {"extra_args": ["--sleep-on-idle", "--watchdog-timeout", "1800"]},
    }


def test_the_overrides_are_accepted_by_a_profile(tmp_path):
    file = tmp_path / "v41.toml"
    file.write_text('[model]\npath = "x"\nserved_name = "y"\n')
    layer = profiles.layer_from_cluster("lab", read(TP4).overrides)
    resolved = profiles.load(str(file), layers=[layer])
    assert resolved.profile.parallel.tp == 4
    assert resolved.origins["context.kv_tokens"] == "cluster lab"


def test_everything_else_is_reported_with_its_reason():
    told = reasons(read(TP4))
    assert set(told) == {
        "WORKER_PASS", "NCCL_HOST_DIR", "DSV41_TP_PAD", "SGLANG_RUST_BUILD_MODE", "API_KEY",
        "READY_TIMEOUT", "UNHEARD_OF", "EMPTY", "NCCL_SOCKET_IFNAME", "EXTRA_CONTAINER_ENV FOO",
    }  # fmt: skip
    assert "never stored" in told["WORKER_PASS"]
    assert "0600" in told["API_KEY"]
    assert "[adapters.NAME]" in told["DSV41_TP_PAD"]
    assert told["UNHEARD_OF"] == "the importer does not know it"
    assert told["EMPTY"] == "it is empty"


def test_no_secret_is_shown_or_kept():
    shown = repr(read(TP4))
    assert "hunter2" not in shown
    assert "verysecret" not in shown
    for line in ("SUDO_PASSWORD=hunter2", "HF_TOKEN=hunter2", "MY_SECRET=hunter2"):
        assert "hunter2" not in repr(read(line))
    imported = read('EXTRA_SGLANG_ARGS="--api-key hunter2 --a --admin-api-key=hunter2 --b"')
    assert imported.overrides["engine"]["extra_args"] == ["--a", "--b"]
    assert "hunter2" not in repr(imported)
    assert "EXTRA_SGLANG_ARGS --api-key" in reasons(imported)


def test_an_empty_file_is_this_machine():
    imported = read("# nothing\n")
    assert [node.host for node in imported.cluster.nodes] == ["local"]
    assert (imported.overrides, imported.dropped) == ({}, ())


def test_the_old_numbered_form_is_read():
    cluster = read("HEAD_IP=a\nWORKER1_IP=b\nWORKER2_IP=c\n").cluster
    assert [node.host for node in cluster.nodes] == ["a", "b", "c"]
    cluster = read("HEAD_IP=h\nWORKER1_IP=10.0.0.2\nWORKER1_HOST=w\n").cluster
    assert [(n.host, n.fabric_address) for n in cluster.nodes] == [("h", None), ("w", "10.0.0.2")]


def test_the_list_wins_over_the_numbered_form_and_says_so():
    imported = read("HEAD_IP=h\nWORKER_IPS=a\nWORKER1_IP=b\n")
    assert imported.cluster.nodes[1].host == "a"
    assert "WORKER_IPS is set and wins" in reasons(imported)["WORKER1_IP"]


def test_the_head_can_be_this_machine():
    node = read(TP4, head_is_local=True).cluster.nodes[0]
    assert (node.host, node.user, node.fabric_address) == ("local", None, "10.0.0.1")


def test_addresses_alone_give_numbered_names():
    names = [node.name for node in read("HEAD_IP=10.0.0.1\nWORKER_IPS=10.0.0.2").cluster.nodes]
    assert names == ["spark1", "spark2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HEAD_IP=h\nWORKER_IPS=a,b\nWORKER_HOSTS=a", "names 1 workers, WORKER_IPS 2"),
        ("HEAD_IP=h\nWORKER_IPS=a,b\nNNODES=4", "NNODES = 4, but the head and 2 workers are 3"),
        ("HEAD_IP=h\nWORKER_IPS=a,b\nTP_SIZE=4", "TP_SIZE = 4, but the head and 2 workers are 3"),
        ("WORKER_IPS=a,b", "HEAD_IP is missing"),
        ("HEAD_IP=a\nWORKER_IPS=a", "two nodes have the same host and port"),
        ("HEAD_IP=a\nMASTER_ADDR=b", "contradicts another name of the head"),
        ("HEAD_IP=a\nDIST_INIT_ADDR=b:20000", "contradicts another name of the head"),
        ("HEAD_IP=a\nDIST_INIT_ADDR=a:x", "expected address:port"),
        ("HEAD_IP=h\nWORKER_IPS='a;id b'", "holds 'a;id', which is no host"),
        ("HEAD_IP=-oProxyCommand=x", "is no host or address"),
        ("HEAD_IP=h\nWORKER2_IP=a", "is numbered 2, expected 1 to 1 in a row"),
        ("HEAD_IP=h\nWORKER_IPS=" + ",".join("abcdefgh"), "makes 9 nodes, expected at most 8"),
        ("NNODES=x", "NNODES = 'x', expected a whole number"),
        ("\nCONTEXT_LENGTH=64k", ".env line 2: CONTEXT_LENGTH = '64k', expected a whole number"),
        ("MEM_FRACTION_STATIC=much", "expected a number"),
        ("SERVER_PORT=8000\nPORT=8001", "PORT = 8001, but SERVER_PORT says 8000"),
        ("HEAD_IP=h\nWORKER_IPS=a\nEP_SIZE=3", "EP_SIZE = 3, expected a divisor of 2"),
        ("SSH_PORT=70000", "expected 1 to 65535"),
        ("EXTRA_CONTAINER_ENV='A=1 nonsense'", "holds 'nonsense', expected KEY=VALUE pairs"),
        ("EXTRA_SGLANG_ARGS='--a \"b'", "cannot be split into arguments"),
        ("HEAD_IP=h\nWORKER_IPS=$(scan)", "WORKER_IPS cannot be read: it runs a command"),
        ("nonsense", "no KEY=VALUE"),
    ],
)
def test_a_contradiction_is_refused_with_its_place(text, message):
    assert message in refusal(text)


def test_a_repeated_key_is_reported_and_the_last_one_holds():
    imported = read("SERVER_PORT=8000\nSERVER_PORT=8001\n")
    assert imported.overrides == {"serving": {"port": 8001}}
    assert reasons(imported) == {"SERVER_PORT": "line 1 is replaced by line 2"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("IMAGE=lmsysorg/sglang:dev", "not pinned by digest"),
        ("SPEC_ALGO=EAGLE", "speculation by EAGLE is unknown"),
        ("SPEC_ALGO=none", "speculation is off"),
        ("NCCL_IB_HCA=^mlx5_0", "not those to leave out"),
        ("NCCL_SOCKET_IFNAME=a,b", "binds one interface"),
        ("API_KEY=none", "no key is the default"),
        ("HOST=0.0.0.0", "stays on loopback"),
        ("MODEL_DIR=$HOME/models", "refers to $HOME"),
        ("WORKER_NCCL_IB_GID_INDEX=3", "found on each node"),
        ("NFS_SHARE=1", "preparing nodes"),
    ],
)
def test_what_cannot_be_taken_over_says_why(line, reason):
    imported = read(line)
    assert reason in reasons(imported)[line.partition("=")[0]]
    assert imported.used == {}


def test_an_index_for_every_container_is_not_taken_for_all_ranks():
    imported = read('EXTRA_CONTAINER_ENV="NCCL_DEBUG=WARN NCCL_IB_GID_INDEX=3"')
    assert imported.overrides["fabric"] == {"nccl": {"NCCL_DEBUG": "WARN"}}
    assert "each node" in reasons(imported)["EXTRA_CONTAINER_ENV NCCL_IB_GID_INDEX"]


def test_a_pinned_image_means_containers():
    image = "name@sha256:" + "0" * 64
    assert read(f"IMAGE={image}").overrides == {"engine": {"image": image, "runtime": "container"}}


KNOWN = [line.partition("=")[0] for line in TP4.splitlines() if "=" in line and line[0] != "#"]


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from([*KNOWN, "WORKER_NCCL_X", "PORT", "IMAGE", "HOST", "WORKER1_IP"]),
            st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True),
        ),
        st.sampled_from(["", "1", "2", "a", "none", "8000", "10.0.0.9", "^x", "a,b", "--x", "K=V"]),
        max_size=12,
    )
)
def test_every_key_is_used_or_reported_and_never_both(table):
    text = "".join(f"{key}='{value}'\n" for key, value in table.items())
    try:
        imported = read(text)
    except ConfigError:
        return
    told = set(reasons(imported)) & set(table)
    assert set(imported.used) | told == set(table)
    assert set(imported.used) & told == set()


def test_a_file_is_read_from_disk(tmp_path):
    path = tmp_path / ".env.tp4"
    path.write_bytes(b"\xef\xbb\xbf" + TP4.replace("\n", "\r\n").encode())
    assert import_env_file(path, name="lab") == read(TP4)
    with pytest.raises(ConfigError, match="cannot read"):
        import_env_file(tmp_path / "absent", name="lab")
    path.write_bytes(b"A=\xff")
    with pytest.raises(ConfigError, match="cannot read"):
        import_env_file(path, name="lab")
