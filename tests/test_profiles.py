"""Profiles: lookup, precedence, origins, and errors that name file and key."""

import itertools

import pytest

from sparkserve import profiles
from sparkserve.errors import ConfigError, ExitCode
from sparkserve.model.profile import Profile

MINIMAL = '[model]\npath = "m"\nserved_name = "s"\n'


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    profiles.user_dir().mkdir(parents=True)
    builtin = tmp_path / "builtin"
    builtin.mkdir()
    monkeypatch.setattr("sparkserve.profiles.sources.builtin_dir", lambda: builtin)
    return tmp_path


def user(name, text):
    (profiles.user_dir() / f"{name}.toml").write_text(text)


def builtin(config, name, text):
    (config / "builtin" / f"{name}.toml").write_text(text)


def refusal(name, *layers):
    with pytest.raises(ConfigError) as caught:
        profiles.load(name, layers=layers)
    assert caught.value.exit_code == ExitCode.CONFIG
    return caught.value.message


def flat_keys(value, prefix=""):
    """An independent walk over the dumped profile: every leaf's dotted key."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat_keys(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix


def test_the_builtin_folder_of_this_checkout_exists():
    assert profiles.builtin_dir().name in ("profiles", "_profiles")


def test_a_minimal_profile_has_defaults_and_the_files_name():
    user("mine", MINIMAL)
    resolved = profiles.load("mine")
    assert resolved.profile == Profile(name="mine", model={"path": "m", "served_name": "s"})
    assert resolved.source.kind == "user"


def test_every_leaf_has_an_origin_defaults_included():
    user("mine", MINIMAL + '[adapters.a]\nx = 1\n[adapters.b]\n[fabric.nccl]\nNCCL_DEBUG = "W"\n')
    resolved = profiles.load("mine")
    assert set(resolved.origins) == set(flat_keys(resolved.profile.model_dump(mode="json")))
    assert resolved.origins["serving.port"] == "default"
    assert resolved.origins["model.path"] == "user profile mine.toml"
    assert resolved.origins["adapters.a.x"] == "user profile mine.toml"
    assert resolved.origins["adapters.b"] == "user profile mine.toml"
    assert resolved.origins["fabric.nccl.NCCL_DEBUG"] == "user profile mine.toml"


def test_the_stronger_layer_wins_for_every_pair_of_places():
    sources = {
        "--set": profiles.layer_from_settings(["serving.port=9001"]),
        "SPARKSERVE_SERVING__PORT": profiles.layer_from_environment(
            {"SPARKSERVE_SERVING__PORT": "9002"}
        ),
        "cluster four": profiles.layer_from_cluster("four", {"serving": {"port": 9003}}),
    }
    ports = {"--set": 9001, "SPARKSERVE_SERVING__PORT": 9002, "cluster four": 9003}
    for with_file in (True, False):
        user("mine", MINIMAL + ("[serving]\nport = 9004\n" if with_file else ""))
        for length in range(len(sources) + 1):
            for chosen in itertools.combinations(sources, length):
                resolved = profiles.load("mine", layers=[sources[name] for name in chosen])
                fallback = ("user profile mine.toml", 9004) if with_file else ("default", 8888)
                expected = (chosen[0], ports[chosen[0]]) if chosen else fallback
                got = (resolved.origins["serving.port"], resolved.profile.serving.port)
                assert got == expected


def test_a_later_setting_of_the_same_key_holds():
    user("mine", MINIMAL)
    layer = profiles.layer_from_settings(["serving.port=9001", "serving.port=9002"])
    assert profiles.load("mine", layers=[layer]).profile.serving.port == 9002


def test_overrides_change_single_keys_and_leave_their_neighbours():
    user("mine", MINIMAL + '[adapters.a]\nx = 1\ny = 2\n[engine]\nplugins = ["p", "sparkserve"]\n')
    layer = profiles.layer_from_settings(["adapters.a.x=5", 'engine.plugins=["sparkserve"]'])
    resolved = profiles.load("mine", layers=[layer])
    assert resolved.profile.adapters == {"a": {"x": 5, "y": 2}}
    assert resolved.profile.engine.plugins == ("sparkserve",)
    assert resolved.origins["adapters.a.x"] == "--set"
    assert resolved.origins["adapters.a.y"] == "user profile mine.toml"


@pytest.mark.parametrize(
    ("setting", "key", "expected"),
    [
        ("engine.version=0.5", "engine.version", "0.5"),
        ("model.revision=1234567", "model.revision", "1234567"),
        ("model.path=/a b/c", "model.path", "/a b/c"),
        ('model.path="quoted"', "model.path", "quoted"),
        ("model.served_name=none", "model.served_name", "none"),
        ("gate.prompt=a=b", "gate.prompt", "a=b"),
        ("gate.expect=", "gate.expect", ""),
        ("engine.image=none", "engine.image", None),
        ("context.kv_tokens=none", "context.kv_tokens", None),
        ("limits.no_progress_s=30", "limits.no_progress_s", 30.0),
        ("serving.metrics=false", "serving.metrics", False),
        ("fabric.nccl.NCCL_BUFFSIZE=1048576", "fabric.nccl.NCCL_BUFFSIZE", "1048576"),
        ("engine.extra_args=['--x', '{\"a\": 1}']", "engine.extra_args", ["--x", '{"a": 1}']),
    ],
)
def test_values_of_the_command_line_are_read_by_the_keys_type(setting, key, expected):
    user("mine", MINIMAL)
    resolved = profiles.load("mine", layers=[profiles.layer_from_settings([setting])])
    value = resolved.profile.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    assert value == expected
    assert type(value) is type(expected)
    assert resolved.origins[key] == "--set"


def test_none_takes_an_adapter_and_a_variable_away():
    user(
        "mine",
        MINIMAL + '[adapters.a]\nx = 1\n[adapters.b]\n[fabric.nccl]\nNCCL_DEBUG = "W"\n',
    )
    layer = profiles.layer_from_settings(["adapters.a=none", "fabric.nccl.NCCL_DEBUG=none"])
    resolved = profiles.load("mine", layers=[layer])
    assert resolved.profile.adapters == {"b": {}}
    assert resolved.profile.fabric.nccl == {}
    assert resolved.origins["fabric.nccl"] == "--set"
    assert not any(key.startswith("adapters.a") for key in resolved.origins)


def test_an_adapter_can_be_added_by_an_empty_table():
    user("mine", MINIMAL + "[adapters.a]\nx = 1\n")
    layer = profiles.layer_from_settings(["adapters.b={}", "adapters.a={}"])
    resolved = profiles.load("mine", layers=[layer])
    assert resolved.profile.adapters == {"a": {"x": 1}, "b": {}}
    assert resolved.origins["adapters.b"] == "--set"
    assert resolved.origins["adapters.a.x"] == "user profile mine.toml"


@pytest.mark.parametrize("text", ["serving.port", "=3", "", "a b=3", "serving..port=1", "[x]\na=1"])
def test_a_malformed_setting_is_refused(text):
    with pytest.raises(ConfigError, match="expected key=value"):
        profiles.layer_from_settings([text], option="-o")


def test_a_setting_with_an_open_bracket_is_refused_rather_than_taken_as_text():
    with pytest.raises(ConfigError, match="is not a TOML value"):
        profiles.layer_from_settings(['engine.plugins=["a"'])


def test_environment_names_are_levels_by_two_underscores():
    layer = profiles.layer_from_environment(
        {
            "SPARKSERVE_SERVING__PORT": "9000",
            "SPARKSERVE_FABRIC__NCCL__NCCL_DEBUG": "INFO",
            "SPARKSERVE_ADAPTERS__ENGRAM_ROWS__THREADS": "4",
            "SPARKSERVE_ENGINE_SPEC": "/run/engine.json",
            "SPARKSERVE_CLUSTER": "four",
            "OTHER__THING": "1",
        }
    )
    assert {(item.path, item.value) for item in layer.assignments} == {
        (("serving", "port"), 9000),
        (("fabric", "nccl", "NCCL_DEBUG"), "INFO"),
        (("adapters", "engram_rows", "threads"), 4),
    }


def test_an_environment_name_with_one_underscore_is_refused_not_ignored():
    with pytest.raises(ConfigError) as caught:
        profiles.layer_from_environment({"SPARKSERVE_SERVING_PORT": "9000"})
    assert "SPARKSERVE_SERVING__PORT" in caught.value.hint


def test_an_unknown_profile_names_the_nearest_and_lists_all(config):
    builtin(config, "dsv41-tp4", MINIMAL)
    user("mine", MINIMAL)
    message = refusal("dsv41-tp5")
    assert message == (
        "no profile 'dsv41-tp5' (did you mean dsv41-tp4?); there are: dsv41-tp4, mine"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[serving]\nprot = 1\n", "serving.prot is not a setting; did you mean serving.port?"),
        ("port = 1\n", "port is not a setting; did you mean serving.port?"),
        ("[srving]\nport = 1\n", "srving is not a setting; did you mean serving?"),
        ("[serving.port]\nx = 1\n", 'serving.port = {"x": 1}, expected a valid integer'),
        ("[zzzz]\nqqqq = 1\n", "zzzz is not a setting"),
        ('"a.b" = 1\n', '"a.b" is not a setting'),
        ("serving = 3\n", "serving = 3, expected a table"),
        ("adapters = 3\n", "adapters = 3, expected a table"),
        ('[serving]\nport = "9000"\n', 'serving.port = "9000", expected a valid integer'),
        ("[serving]\nport = 80\n", "serving.port = 80, expected greater than or equal to 1024"),
        ("[serving]\nmetrics = 1\n", "serving.metrics = 1, expected a valid boolean"),
        ("[engine]\nversion = 0.5\n", "engine.version = 0.5, expected a valid string"),
        ('[engine]\ndevice = "cud"\n', "engine.device = \"cud\", expected 'cuda' or 'cpu'"),
        ("[limits]\nno_progress_s = inf\n", "no_progress_s = Infinity, expected a finite number"),
        ("[adapters.a]\nx = [nan]\n", "adapters.a.x = [NaN], expected a finite number"),
        ("[adapters.a]\nx = 2026-01-01\n", 'adapters.a.x = "2026-01-01", expected no date'),
        ("[parallel]\ntp = 4\nep = 3\n", "parallel: ep must divide tp: tp = 4, ep = 3"),
        ('[serving]\nhost = "0.0.0.0"\n', "serving.api_key_file must name a key"),
        ('[serving]\nhost = "10.0.0.1"\n', "'127.0.0.1', 'localhost' or '0.0.0.0'"),
        ("[engine]\nplugins = []\n", "engine.plugins must hold sparkserve"),
        ("[fabric]\ndist_port = 8888\n", "ports must differ"),
    ],
)
def test_a_wrong_value_names_file_key_value_and_expectation(text, expected):
    head, _, _ = text.partition("[")
    user("mine", (text + MINIMAL) if head else (MINIMAL + text))
    message = refusal("mine")
    assert message.startswith("user profile mine.toml: ")
    assert expected in message


def test_an_error_of_an_override_names_the_override():
    user("mine", MINIMAL)
    layer = profiles.layer_from_environment({"SPARKSERVE_SERVING__PORT": "abc"})
    assert refusal("mine", layer) == (
        'SPARKSERVE_SERVING__PORT: serving.port = "abc", expected a valid integer'
    )


def test_all_problems_are_listed_at_once():
    user("mine", 'port = 1\n[model]\npath = "m"\n[serving]\nport = "x"\n[engine]\nkind = "y"\n')
    message = refusal("mine", profiles.layer_from_settings(["serving.hots=a"]))
    assert message.count("\n  - ") == 5
    for part in ("--set: serving.hots", "port is not", 'port = "x"', 'kind = "y"', "served_name"):
        assert part in message


def test_syntax_errors_name_the_line():
    user("mine", MINIMAL + "x = = 1\n")
    assert "line 4" in refusal("mine")


def test_the_users_profile_beats_the_builtin_one_and_says_so(config):
    builtin(config, "same", MINIMAL.replace('"m"', '"theirs"'))
    user("same", MINIMAL.replace('"m"', '"mine"'))
    resolved = profiles.load("same")
    assert resolved.profile.model.path == "mine"
    assert "instead of the built-in one" in resolved.source.note
    assert profiles.names() == ("same",)


def test_a_builtin_profile_alone_has_nothing_to_say(config):
    builtin(config, "one", MINIMAL)
    assert profiles.find("one").note is None
    assert profiles.load("one").origins["model.path"] == "profile one.toml"


def test_a_path_is_taken_as_it_is(config):
    file = config / "elsewhere.toml"
    file.write_text(MINIMAL)
    resolved = profiles.load(str(file))
    assert resolved.profile.name == "elsewhere"
    assert resolved.origins["model.path"] == f"profile {file}"
    assert "no profile file" in refusal(str(config / "absent.toml"))


def test_a_name_in_the_file_must_be_the_files_own():
    user("mine", f'name = "other"\n{MINIMAL}')
    assert '"other", expected the file\'s own name "mine"' in refusal("mine")
    user("mine", f'name = "mine"\n{MINIMAL}')
    assert profiles.load("mine").profile.name == "mine"


def test_an_extending_profile_takes_what_it_does_not_say(config):
    builtin(config, "base", f'name = "base"\n{MINIMAL}[serving]\nport = 9100\nmetrics = false\n')
    user("mine", 'extends = "base"\n[serving]\nport = 9200\n')
    resolved = profiles.load("mine")
    assert resolved.profile.name == "mine"
    assert (resolved.profile.serving.port, resolved.profile.serving.metrics) == (9200, False)
    assert resolved.origins["serving.port"] == "user profile mine.toml"
    assert resolved.origins["serving.metrics"] == "profile base.toml"


def test_a_user_profile_can_extend_the_builtin_one_of_its_own_name(config):
    builtin(config, "same", MINIMAL)
    user("same", 'extends = "same"\n[serving]\nport = 9200\n')
    resolved = profiles.load("same")
    assert resolved.profile.serving.port == 9200
    assert resolved.origins["model.path"] == "profile same.toml"


def test_a_path_extends_its_neighbour(config):
    (config / "a.toml").write_text('extends = "b.toml"\n')
    (config / "b.toml").write_text(MINIMAL)
    assert profiles.load(str(config / "a.toml")).profile.model.path == "m"


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_a_circle_of_profiles_is_refused(names):
    for name, base in zip(names, [*names[1:], names[0]], strict=True):
        user(name, f'extends = "{base}"\n{MINIMAL}')
    message = refusal("a")
    assert "in a circle: " + " -> ".join([*names, "a"]) in message


def test_an_unknown_base_names_the_file_that_wants_it():
    user("mine", 'extends = "nothing"\n')
    assert "mine.toml: extends: no profile 'nothing'" in refusal("mine")
    user("mine", "extends = 3\n")
    assert "extends = 3, expected a profile's name" in refusal("mine")


def test_adapter_names_are_not_judged_here():
    user("mine", MINIMAL + "[adapters.no_such_adapter]\nwhatever = [1, {a = true}]\n")
    assert profiles.load("mine").profile.adapters == {
        "no_such_adapter": {"whatever": [1, {"a": True}]}
    }
