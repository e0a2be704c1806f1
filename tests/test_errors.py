import json

import pytest

import ctx_embed
from ctx_embed.errors import InputError, installation, unknown_name


def test_an_unknown_name():
    assert issubclass(InputError, ValueError)
    assert ctx_embed.InputError is InputError
    error = unknown_name("task", "SUBJJ", ["SUBJ", "MR"])
    assert isinstance(error, InputError)
    assert str(error) == "unknown task 'SUBJJ': did you mean 'SUBJ'? known are MR, SUBJ"
    assert str(unknown_name("task", "xyz", {"SUBJ": 1, "MR": 2})) == "unknown task 'xyz': known are MR, SUBJ"


def test_an_extra_is_installed_from_where_the_package_came_from(tmp_path):
    wheel = tmp_path / "a wheel.whl"
    wheel.touch()
    origin = json.dumps({"url": wheel.as_uri(), "archive_info": {}})
    assert installation("peers", origin) == f'pip install "{wheel}[peers]"'
    assert installation("", origin) == f"pip install '{wheel}'"
    clone = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert installation("peers", clone) == f'pip install -e "{tmp_path}[peers]"'


@pytest.mark.parametrize("url", [None, "file:///nowhere/ctx_embed.whl", "https://example.org/ctx_embed.whl"])
def test_an_installation_from_an_index_or_from_what_is_gone_goes_by_name(url):
    origin = json.dumps({"url": url, "archive_info": {}}) if url else ""
    assert installation("peers", origin) == 'pip install "ctx-embed[peers]"'
    assert installation(origin=origin) == "pip install ctx-embed"
