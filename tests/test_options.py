"""Options: compile option, environment variable, default, and what is refused."""

import pytest
import thunder
import torch
from traces import jit

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
    assert options.get(name) is value or options.get(name) == value
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
def test_a_wrong_compile_option_stops_the_compilation(name, value, kind):
    def fn(x):
        return torch.softmax(torch.cat((x, x)), -1)

    with pytest.raises(kind, match=name) as error:
        jit(fn, **{name: value})(torch.randn(2, 3))
    assert repr(value) in str(error.value)


def test_thunder_lists_the_options_that_were_used(capsys):
    jitted = jit(lambda x: torch.softmax(x, -1), softmax_aclnn_max_fuse_numel=2)
    jitted(torch.randn(2, 3))
    thunder.last_compile_options(jitted)
    used = capsys.readouterr().out.split("Unused")[0]
    assert "softmax_aclnn_max_fuse_numel" in used
