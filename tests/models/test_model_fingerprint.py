"""The fingerprint of a model: of its bytes, wherever they lie."""

from __future__ import annotations

import shutil

import pytest
from tests.conversion.tiny_conversion import original

from termwise.models.naming import fingerprint


@pytest.fixture
def folder(tmp_path):
    original(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_has_the_same_fingerprint_at_two_places(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "renamed")
    (other / "README.md").write_text("of another day")
    assert fingerprint(folder) == fingerprint(other) and len(fingerprint(folder)) == 16


@pytest.mark.parametrize("place", [0.02, 0.5, 0.999])
def test_one_byte_of_the_weights_makes_another(folder, place):
    before, path = fingerprint(folder), folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)
    assert fingerprint(folder) != before


def test_other_settings_make_another_model_of_the_same_weights(folder):
    before, path = fingerprint(folder), folder / "config.json"
    path.write_text(path.read_text().replace("{", "{ ", 1))
    assert fingerprint(folder) != before


def test_a_gguf_file_is_known_by_what_it_holds(tmp_path):
    (tmp_path / "a").mkdir()
    for name, content in (("a/one.gguf", b"weights"), ("two.gguf", b"weights"), ("three.gguf", b"others")):
        (tmp_path / name).write_bytes(content)
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "a" / "one.gguf") == fingerprint(tmp_path / "two.gguf")
    assert fingerprint(tmp_path / "two.gguf") != fingerprint(tmp_path / "three.gguf")
