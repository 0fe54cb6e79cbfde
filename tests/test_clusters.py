"""Cluster files and host lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkserve import clusters
from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Cluster, Node


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    clusters.folder().mkdir(parents=True)


FOUR = Cluster(
    name="four",
    nodes=tuple(
        Node(
            name=f"spark{rank + 1}",
            host=f"10.0.0.{rank + 1}",
            user="spark",
            port=22 + rank,
            fabric_address=f"10.0.1.{rank + 1}",
            interface="enp1s0f0np0",
        )
        for rank in range(4)
    ),
    topology="ring",
    root="/srv/spark serve",
    identity_file="~/.ssh/id_ed25519",
    profile="dsv41-tp4",
)


def write(name, text):
    (clusters.folder() / f"{name}.toml").write_text(text)


def refusal(name):
    with pytest.raises(ConfigError) as caught:
        clusters.load(name)
    return caught.value.message


def test_a_cluster_reads_back_as_it_was_saved():
    path = clusters.save(FOUR, overrides={"serving": {"port": 9000}, "adapters": {"x": {}}})
    loaded = clusters.load("four")
    assert loaded.cluster == FOUR
    assert loaded.overrides == {"serving": {"port": 9000}, "adapters": {"x": {}}}
    assert loaded.path == path
    assert path.stat().st_mode & 0o777 == 0o600
    assert clusters.names() == ("four",)


def test_a_short_file_is_enough():
    write("two", '[[nodes]]\nname = "a"\nhost = "a"\n[[nodes]]\nname = "b"\nhost = "10.0.0.2"\n')
    cluster = clusters.load("two").cluster
    assert [node.name for node in cluster.nodes] == ["a", "b"]
    assert (cluster.name, cluster.root, cluster.topology) == ("two", "~/sparkserve", "switch")


NODE = '[[nodes]]\nname = "a"\nhost = "a"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "nodes is missing"),
        ("nodes = []\n", "nodes = []"),
        ('rot = "/x"\n' + NODE, "rot is not a setting; did you mean root?"),
        (NODE + 'usr = "x"\n', "nodes.0.usr is not a setting; did you mean user?"),
        (NODE + 'port = "22"\n', 'nodes.0.port = "22", expected a valid integer'),
        (NODE + "port = 70000\n", "port 70000 of a, expected 1 to 65535"),
        (NODE + NODE, "node names must differ"),
        (NODE.replace('name = "a"', 'name = "../a"'), "node name '../a'"),
        (NODE.replace('host = "a"', 'host = "-oProxyCommand=x"'), "is no name or address"),
        (NODE + 'user = "-x"\n', "user '-x' of a is no user name"),
        ("overrides = 3\n" + NODE, "overrides = 3, expected a table"),
        ('name = "other"\n' + NODE, "expected the file's own name 'bad'"),
        ("x = = 1\n", "not valid TOML"),
        ('topology = "star"\n' + NODE, 'topology = "star", expected'),
    ],
)
def test_a_wrong_file_is_named_with_the_key(text, expected):
    write("bad", text)
    message = refusal("bad")
    assert expected in message
    assert "bad.toml" in message


def test_an_unknown_cluster_names_the_nearest_and_lists_all():
    clusters.save(FOUR)
    assert refusal("fuor") == "no cluster 'fuor' (did you mean four?); there are: four"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_name_that_cannot_be_a_file_is_refused(name):
    assert "cluster name" in refusal(name)
    with pytest.raises(ConfigError, match="cluster name"):
        clusters.save(FOUR.model_copy(update={"name": name}))


def test_the_default_is_chosen_forgotten_and_checked():
    assert clusters.default_name() is None
    with pytest.raises(ConfigError, match="no cluster"):
        clusters.set_default("four")
    path = clusters.save(FOUR)
    clusters.set_default("four")
    assert clusters.default_name() == "four"
    path.unlink()
    with pytest.raises(ConfigError, match="default cluster 'four' has no file"):
        clusters.default_name()
    clusters.set_default(None)
    assert clusters.default_name() is None


def test_this_machine_is_one_local_node():
    cluster = clusters.this_machine()
    assert cluster.topology == "solo"
    assert [node.is_local for node in cluster.nodes] == [True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spark1", ("spark1", None, "spark1", 22)),
        ("spark1.local", ("spark1", None, "spark1.local", 22)),
        ("me@10.0.0.1", ("10.0.0.1", "me", "10.0.0.1", 22)),
        ("me@spark1:2222", ("spark1", "me", "spark1", 2222)),
        ("[fe80::1]", ("fe80-1", None, "fe80::1", 22)),
        ("u@[fe80::1%eth0]:23", ("fe80-1-eth0", "u", "fe80::1%eth0", 23)),
        ("local", ("local", None, "local", 22)),
        ("localhost", ("local", None, "local", 22)),
        ("localhost:2222", ("localhost", None, "localhost", 2222)),
    ],
)
def test_a_host_text_is_read(text, expected):
    node = clusters.parse_host(text)
    assert (node.name, node.user, node.host, node.port) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "@a", "a@", "a:", "a:0", "a:65536", "a:x", "a:²", "a b", "-oProxyCommand=x", "a/b",
        "fe80::1", "[fe80::1", "[fe80::1]22", "[nonsense]:22", "a;b", "u$(x)@a", "a\nb",
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ConfigError):
        clusters.parse_host(text)


@given(st.text())
def test_any_text_is_a_safe_node_or_a_config_error(text):
    try:
        node = clusters.parse_host(text)
    except ConfigError:
        return
    for word in (node.host, node.name, node.user or "x"):
        assert not word.startswith("-")
        assert not set(word) & set(" \t\n;$`'\"\\/&|<>()")
    assert 1 <= node.port <= 65535


def test_a_host_list_keeps_its_order_as_ranks():
    cluster = clusters.from_hosts("b, me@a:23 ,[fe80::2]:24")
    assert [(node.host, node.port) for node in cluster.nodes] == [
        ("b", 22), ("a", 23), ("fe80::2", 24),
    ]  # fmt: skip
    assert clusters.from_hosts(["b", "me@a:23", "[fe80::2]:24"]) == cluster


@pytest.mark.parametrize(("count", "topology"), [(1, "solo"), (2, "pair"), (3, "switch")])
def test_small_topologies_follow_from_the_count(count, topology):
    assert clusters.from_hosts([f"h{n}" for n in range(count)]).topology == topology


def test_equal_short_names_are_told_apart():
    assert [n.name for n in clusters.from_hosts("a.x,a.y").nodes] == ["a.x", "a.y"]
    assert [n.name for n in clusters.from_hosts("127.0.0.1:1,127.0.0.1:2").nodes] == [
        "127.0.0.1-1",
        "127.0.0.1-2",
    ]


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("a,,b", "an empty host"),
        ("", "an empty host"),
        ([], "no hosts given"),
        ("a,b,a", "the same host and port twice"),
        ("a,me@a", "the same host and port twice"),
        (",".join(f"h{n}" for n in range(17)), "17 hosts given, expected at most 16"),
    ],
)
def test_a_wrong_host_list_is_refused(hosts, message):
    with pytest.raises(ConfigError, match=message):
        clusters.from_hosts(hosts)


def test_a_hosts_file_has_comments_and_line_numbers(tmp_path):
    path = tmp_path / "lab.txt"
    path.write_bytes(b"\xef\xbb\xbf# lab\r\n\r\nspark1 # head\r\nme@spark2:23\r\n")
    cluster = clusters.from_hosts_file(path)
    assert cluster.name == "lab"
    assert [node.host for node in cluster.nodes] == ["spark1", "spark2"]
    path.write_text("a\n\nb c\n")
    with pytest.raises(ConfigError, match=r"lab\.txt line 3"):
        clusters.from_hosts_file(path)
    with pytest.raises(ConfigError, match="cannot read hosts file"):
        clusters.from_hosts_file(tmp_path / "absent")
