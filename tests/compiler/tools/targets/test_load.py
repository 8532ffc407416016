import pytest
import torch
from support.versions import release

from regraft.compiler.tools.targets.hugging_face import _require_settings, _smaller
from regraft.compiler.tools.targets.load import load
from regraft.compiler.tools.targets.target import Choices, TargetError

transformers = pytest.importorskip("transformers")

TINY = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}


def run(target):
    with torch.no_grad():
        return target.model(*target.args, **target.kwargs)


def tiny(model_type: str = "bert", **choices):
    return load(f"hf:{model_type}", Choices(**{"layers": 1, "config": TINY, **choices}))


def test_bert():
    target = tiny()
    assert target.kwargs["input_ids"].shape == (1, 128) and set(target.kwargs) == {"input_ids"}
    assert target.model.config._attn_implementation == "eager"
    assert len(target.model.encoder.layer) == 1 and not target.model.training
    assert run(target).last_hidden_state.shape == (1, 128, 32)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"hidden_size": "abc"}, "hf:bert cannot be configured with hidden_size=abc: Field 'hidden_size' expected int"),
        ({"hidden_act": "foo"}, "hf:bert cannot be built with hidden_act=foo: 'foo' is not known"),
        (
            {"hidden_size": 768, "num_attention_heads": 5},
            "hf:bert cannot be built with hidden_size=768, num_attention_heads=5: The hidden size (768) is not a "
            "multiple of the number of attention heads (5)",
        ),
    ],
)
def test_settings_that_fail_are_told_in_the_words_of_transformers_alone(setting, told):
    with pytest.raises(TargetError) as raised:
        tiny(config=setting)
    assert str(raised.value).startswith(told) and "Error" not in str(raised.value)


def test_choices_are_followed():
    target = tiny(batch=3, seq=20, mask=True, train=True, dtype=torch.bfloat16)
    assert target.kwargs["input_ids"].shape == (3, 20)
    mask = target.kwargs["attention_mask"]
    assert mask.sum(1).tolist() == [20, 20, 15] and mask[-1, -1] == 0
    assert target.model.training and target.model.dtype == torch.bfloat16


def test_same_weights_and_inputs_every_time():
    one, two = tiny(), tiny()
    assert torch.equal(one.kwargs["input_ids"], two.kwargs["input_ids"])
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("model_type", "config", "inputs"),
    [
        ("gpt2", {"n_embd": 32, "n_head": 2, "vocab_size": 99}, {"input_ids", "attention_mask"}),
        ("xlm_roberta", TINY, {"input_ids", "attention_mask"}),
        (
            "t5",
            {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "vocab_size": 99},
            {"input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"},
        ),
        (
            "whisper",
            {"d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_source_positions": 50},
            {"input_features", "attention_mask", "decoder_input_ids", "decoder_attention_mask"},
        ),
    ],
)
def test_masked_families(model_type, config, inputs):
    target = tiny(model_type, mask=True, config=config)
    assert set(target.kwargs) == inputs
    assert run(target) is not None


@pytest.mark.parametrize(
    ("model_type", "key"), [("vit", "pixel_values"), ("swin", "pixel_values"), ("wav2vec2", "input_values")]
)
def test_families_without_tokens(model_type, key):
    layers = {name: value for name, value in TINY.items() if name != "vocab_size"}
    small = {
        "vit": {**layers, "image_size": 32},
        "swin": {"embed_dim": 24, "image_size": 128, "window_size": 4},
        "wav2vec2": {**layers, "vocab_size": 99},
    }[model_type]
    assert key in tiny(model_type, config=small).kwargs


def test_no_padding_mask_for_images():
    with pytest.raises(TargetError, match="takes no padding mask"):
        tiny("swin", mask=True, config={"embed_dim": 24, "image_size": 128, "window_size": 4})


def test_layers_of_stages_and_parts():
    from transformers import CLIPConfig, LlamaConfig, SwinConfig

    assert _smaller(SwinConfig(), Choices(layers=2))["depths"] == (2, 2, 2, 2)
    parts = _smaller(CLIPConfig(), Choices(layers=3))
    assert parts["text_config"].num_hidden_layers == parts["vision_config"].num_hidden_layers == 3
    assert _smaller(LlamaConfig(), Choices(layers=1))["num_hidden_layers"] == 1


def test_unknown_model_type_is_answered_with_suggestions():
    with pytest.raises(TargetError, match=r"no model type 'brt'; did you mean .*bert"):
        load("hf:brt")


def test_a_setting_that_nothing_reads_is_refused():
    with pytest.raises(TargetError, match="no setting 'hiden_size'; did you mean hidden_size"):
        load("hf:bert", config={"hiden_size": 64})


@pytest.mark.parametrize("name", ["num_labels", "n_embd", "rope_theta"])
def test_settings_with_older_names_are_read(name):
    kind = {"num_labels": "bert", "n_embd": "gpt2", "rope_theta": "llama"}[name]
    _require_settings(kind, transformers.CONFIG_MAPPING[kind], {name: 8})


def test_a_model_that_does_not_fit_is_refused_before_it_is_built():
    with pytest.raises(TargetError, match=r"needs \d+ GiB"):
        load("hf:llama", layers=2000)


@pytest.mark.parametrize("name", ["bert", "", "hf:", ":bert"])
def test_no_target(name):
    with pytest.raises(TargetError):
        load(name)


FACTORIES = """
import torch

def pair():
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)

def named():
    return torch.nn.Linear(4, 4), {"input": torch.ones(2, 4)}

def single(batch=2):
    return torch.nn.Linear(4, 4), torch.ones(batch, 4)

def wrong():
    return 7

def broken():
    raise RuntimeError("no luck")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "factories_of_test.py"
    path.write_text(FACTORIES)
    return path


@pytest.mark.parametrize("name", ["pair", "named", "single"])
def test_factory_in_a_file(file, name):
    target = load(f"{file}:{name}", dtype=torch.float64)
    assert run(target).shape == (2, 4) and run(target).dtype == torch.float64


def test_factory_in_a_module(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert run(load("factories_of_test:pair")).shape == (2, 4)


def test_factory_gets_the_choices_it_takes(file):
    assert load(f"{file}:single", batch=5).args[0].shape == (5, 4)
    with pytest.raises(TargetError, match="takes no --layers, --mask: its factory has the parameters batch"):
        load(f"{file}:single", layers=2, mask=True)
    with pytest.raises(TargetError, match="takes no --tiny, --set: that is for models"):
        load(f"{file}:single", tiny=True, config={"hidden_size": 8})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "expected .model, inputs."),
        ("broken", "no luck"),
        ("none", "it defines broken, named, pair, single, wrong"),
        ("pairs", "did you mean pair"),
    ],
)
def test_wrong_factories(file, name, message):
    with pytest.raises(TargetError, match=message):
        load(f"{file}:{name}")


@pytest.mark.parametrize("target", ["nowhere.py:f", "no_such_module_at_all:f"])
def test_missing_factories(target):
    with pytest.raises(TargetError, match=r"no file|ModuleNotFoundError"):
        load(target)


def test_choices_shown_as_on_the_command_line():
    assert Choices().changed() == {}
    changed = Choices(layers=2, mask=True, dtype=torch.bfloat16, config={"a": 1}).changed()
    assert changed == {"layers": "2", "mask": "", "dtype": "bfloat16", "set": "a=1"}


SMALL = {"layers": 1, "tiny": True}


def test_a_family_with_several_base_models():
    assert run(tiny("funnel", config={}, tiny=True)).last_hidden_state.shape[:2] == (1, 128)


def test_companions_of_the_main_input():
    target = load("hf:lxmert", **SMALL)
    assert set(target.kwargs) == {"input_ids", "visual_feats", "visual_pos"} and run(target) is not None


def test_a_time_series():
    target = load("hf:informer", **SMALL)
    assert {"past_values", "past_time_features", "past_observed_mask"} < set(target.kwargs) and run(target) is not None


def test_a_series_of_any_frequency():
    target = load("hf:timesfm", **SMALL)
    assert set(target.kwargs) == {"past_values", "past_values_padding", "freq"} and run(target) is not None


def test_channels_of_sound():
    target = load("hf:dia", **SMALL, seq=8)
    assert target.kwargs["decoder_input_ids"].shape == (1, 8, 9) and run(target) is not None


def test_a_pair_of_images():
    few = {"gnn_layers_types": ["self", "cross"], "sinkhorn_iterations": 1}
    target = load("hf:superglue", **SMALL, config=few)
    assert target.kwargs["pixel_values"].shape[1] == 2 and run(target) is not None


@pytest.mark.skipif(release("transformers") < (5, 20), reason="transformers 5.17 refuses its own default")
def test_a_model_that_takes_a_part_of_the_configuration():
    assert run(load("hf:musicgen", **SMALL, seq=8)) is not None


def test_patches_and_the_grid_that_they_lie_on():
    target = load("hf:qwen3_vl_vision", **SMALL, batch=2)
    assert set(target.kwargs) == {"hidden_states", "grid_thw"} and target.kwargs["grid_thw"].shape == (2, 3)
    assert len(target.kwargs["hidden_states"]) == target.kwargs["grid_thw"].prod(-1).sum() and run(target) is not None


@pytest.mark.parametrize("model_type", ["qwen2_5_vl_text", "glm4v_text"])
def test_parts_of_heads_that_turn_apart(model_type):
    target = load(f"hf:{model_type}", **SMALL)
    assert target.model.config.hidden_size == 64 and run(target) is not None


def test_as_many_heads_for_keys_as_for_queries_where_nothing_is_said():
    assert run(load("hf:nemotron", **SMALL)) is not None


def test_a_part_of_a_model_without_an_auto_class():
    target = load("hf:clvp_decoder", **SMALL)
    assert type(target.model).__name__ == "ClvpDecoder" and run(target) is not None


def test_backbones_need_no_library_that_is_missing(monkeypatch):
    from regraft.compiler.tools.targets.hugging_face import _own_backbones

    config = pytest.importorskip("transformers").ConditionalDetrConfig()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (backbone,) = _own_backbones(config).values()
    assert backbone.model_type == "resnet" and list(backbone.out_indices) == list(config.backbone_config.out_indices)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert _own_backbones(config) == {}


def test_a_mask_that_does_not_fit_is_refused():
    with pytest.raises(TargetError, match="takes no padding mask of its input's shape: attention_mask failed"):
        load("hf:audio-spectrogram-transformer", **SMALL, mask=True)
