"""Options: compile option, environment variable, default, and what is refused."""

import re
from pathlib import Path

import pytest
import thunder
import torch
from thunder.dynamo import ThunderCompiler, thunderfx
from traces import EXECUTORS, jit

from thunder_npu import options

DEFAULTS = {
    "softmax_aclnn_max_fuse_numel": 256,
    "log_softmax_aclnn_fallback": True,
    "safe_softmax_aclnn_fallback": True,
    "safe_softmax_keep_guard": True,
    "repeat_cat": True,
    "realize_tail_bcast": True,
}


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_defaults(name, value, monkeypatch):
    monkeypatch.delenv(options.OPTIONS[name].env, raising=False)
    assert options.get(name) == value
    assert type(options.get(name)) is type(value)


def test_environment_stands_behind_the_compile_option(monkeypatch):
    monkeypatch.setenv("THUNDER_NPU_SOFTMAX_ACLNN_MAX_FUSE_NUMEL", "1024")
    assert options.resolve("softmax_aclnn_max_fuse_numel", {}) == 1024
    assert options.resolve("softmax_aclnn_max_fuse_numel", {"softmax_aclnn_max_fuse_numel": 8}) == 8


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("On", True), ("0", False), ("no", False)])
def test_booleans_in_the_environment(text, value, monkeypatch):
    monkeypatch.setenv("THUNDER_NPU_REPEAT_CAT", text)
    assert options.resolve("repeat_cat", {}) is value


@pytest.mark.parametrize(
    ("name", "text"),
    [("repeat_cat", "maybe"), ("repeat_cat", ""), ("softmax_aclnn_max_fuse_numel", "-1"),
     ("softmax_aclnn_max_fuse_numel", "many"), ("tail_bcast_min_vec", "2.5")],
)  # fmt: skip
def test_a_wrong_environment_value_is_named(name, text, monkeypatch):
    variable = options.OPTIONS[name].env
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError, match=variable) as error:
        options.resolve(name, {})
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("softmax_aclnn_max_fuse_numel", -1, ValueError), ("softmax_aclnn_max_fuse_numel", "256", TypeError),
     ("softmax_aclnn_max_fuse_numel", True, TypeError), ("log_softmax_aclnn_fallback", 1, TypeError),
     ("repeat_cat", "no", TypeError)],
)  # fmt: skip
def test_a_wrong_compile_option_is_an_error_when_a_function_is_jitted(name, value, kind):
    with pytest.raises(kind, match=name) as error:
        jit(torch.sin, **{name: value})  # that is, before any call
    assert repr(value) in str(error.value)


def test_thunder_lists_the_options_that_were_used(capsys):
    jitted = jit(lambda x: torch.softmax(x, -1), softmax_aclnn_max_fuse_numel=2)
    jitted(torch.randn(2, 3))
    thunder.last_compile_options(jitted)
    used = capsys.readouterr().out.split("Unused")[0]
    assert "softmax_aclnn_max_fuse_numel" in used


MISSPELT = {
    "repeat_cats": "repeat_cat",  # an insertion
    "repat_cat": "repeat_cat",
    "repaet_cat": "repeat_cat",  # two replacements
    "Repeat_Cat": "repeat_cat",
    "safe_softmax_keep": "safe_softmax_keep_guard",  # a prefix
    "safe_softmax_keep_guard_rows": "safe_softmax_keep_guard",  # the other way round
    "tail_bcast_minvec": "tail_bcast_min_vec",
    "softmax_aclnn_max_fuse": "softmax_aclnn_max_fuse_numel",
}


def ways():
    """Every way of a user to compile with options, and to put our executors into the list."""
    model = torch.nn.Softmax(-1)
    names = ["aclnn", "triton_ascend"]
    return {
        "thunder.jit": lambda **o: jit(torch.sin, **o),
        "of a module": lambda **o: jit(model, **o),
        "by name": lambda **o: thunder.jit(torch.sin, executors=names, **o),
        "one of them": lambda **o: thunder.jit(torch.sin, executors=["triton_ascend"], **o),
        "thunderfx": lambda **o: thunderfx(model, executors=names, **o),
        "backend": lambda **o: ThunderCompiler(executors=EXECUTORS, **o),
    }


@pytest.mark.parametrize("way", ways())
def test_every_way_to_compile_refuses_a_misspelt_option(way):
    with pytest.raises(TypeError, match="unknown compile option 'repeat_cats': did you mean 'repeat_cat'"):
        ways()[way](repeat_cats=True)
    with pytest.raises(TypeError, match="repeat_cat takes True or False, got 1"):
        ways()[way](repeat_cat=1)
    ways()[way](repeat_cat=False, fusion_type="dataflow", somebody_elses=1)


@pytest.mark.parametrize(("given", "name"), MISSPELT.items())
def test_what_counts_as_misspelt(given, name):
    with pytest.raises(TypeError, match=f"{given!r}: did you mean {name!r}"):
        options.check_all({given: True})


@pytest.mark.parametrize("given", ["repQQQ_cat", "softness", "nv_store_fusion_inputs", "cat", "max_fuse_numel"])
def test_what_does_not(given):
    options.check_all({given: True})


def test_no_option_of_thunder_counts_as_misspelt():
    sources = [p.read_text(encoding="utf-8") for p in Path(thunder.__file__).parent.rglob("*.py")]
    calls = [call for text in sources for call in re.findall(r"get_compile_option\(\s*[\"'](\w+)", text)]
    assert "fusion_type" in calls
    assert len(set(calls)) > 10
    options.check_all(dict.fromkeys(set(calls), object()))


def test_without_our_executors_nothing_is_checked(monkeypatch):
    monkeypatch.setenv("THUNDER_NPU_REPEAT_CATS", "1")
    monkeypatch.setenv("THUNDER_NPU_REPEAT_CAT", "maybe")
    thunder.jit(torch.sin, repeat_cats=1, softmax_aclnn_max_fuse_numel="no")
    thunderfx(torch.nn.Softmax(-1), repeat_cats=1)


@pytest.mark.parametrize(
    ("variable", "name"),
    [("THUNDER_NPU_REPEAT_CATS", "THUNDER_NPU_REPEAT_CAT"), ("THUNDER_NPU_CACHEDIR", "THUNDER_NPU_CACHE_DIR"),
     ("THUNDER_NPU_SAFE_SOFTMAX_KEEP", "THUNDER_NPU_SAFE_SOFTMAX_KEEP_GUARD")],
)  # fmt: skip
def test_a_misspelt_environment_variable(variable, name, monkeypatch):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ValueError, match=f"{variable}: did you mean {name}"):
        jit(torch.sin)


def test_a_wrong_environment_value_is_an_error_when_a_function_is_jitted(monkeypatch):
    monkeypatch.setenv("THUNDER_NPU_TAIL_BCAST_MIN_VEC", "-3")
    with pytest.raises(ValueError, match=r"THUNDER_NPU_TAIL_BCAST_MIN_VEC.*-3"):
        jit(torch.sin)


def test_other_variables_are_left_alone(tmp_path, monkeypatch):
    for name in ("THUNDER_NPU_CACHE_DIR", "THUNDER_NPU_TEST_DEVICE", "THUNDER_NPU_SITE", "REPEAT_CATS"):
        monkeypatch.setenv(name, str(tmp_path))
    jit(torch.sin)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("kitten", "sitting", 3),
        ("flaw", "lawn", 2),
        ("ab", "ba", 2),
        ("abcdef", "abdf", 2),
    ],
)
def test_edit_distance(one, other, distance):
    assert options._edit_distance(one, other) == options._edit_distance(other, one) == distance
