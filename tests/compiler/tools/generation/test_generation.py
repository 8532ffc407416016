"""Text generation held against eager: what is counted, what is compared, what is refused."""

import json
import types

import pytest
import torch
import transformers

from regraft.compiler.tools.generation import comparison, decoding
from regraft.compiler.tools.generation.comparison import compare_generation
from regraft.compiler.tools.generation.plan import Decoder, GenerationPlan
from regraft.compiler.tools.profile import limits
from regraft.compiler.tools.profile.contestants import contestants
from regraft.compiler.tools.targets.load import load_decoder
from regraft.compiler.tools.targets.target import Choices, TargetError
from regraft.rewrites.report.text import plain


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(comparison, "SECONDS", 0.0)
    monkeypatch.setattr(limits, "_known", lambda what, device, measure: 1e10)


def llama(**given):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 40}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **given})).eval()


def test_a_compiled_decoder_generates_what_eager_does(tmp_path):
    torch.manual_seed(3)
    made = compare_generation(llama(), contestants(["regraft"], ["default"]), GenerationPlan(2, 5, 4), name="small")
    eager, ours = made.contestants
    assert eager.error == 0 and ours.error < 1e-5 and eager.equal == ours.equal == 8 and not ours.failed
    assert len(ours.samples) == len(ours.prefill_samples) >= comparison.MIN_ROUNDS and ours.seconds > 0
    assert ours.cold_seconds > ours.cold_step_seconds > ours.seconds
    data = json.loads(made.write(tmp_path / "g.json").read_text())
    assert (data["schema"], data["version"], data["plan"]) == (
        "regraft-generate", 1, {"batch": 2, "prompt": 5, "tokens": 4}
    )  # fmt: skip
    assert [row["name"] for row in data["contestants"]] == ["eager", "regraft"]
    text = plain(made.view(), width=100)
    assert "8/8" in text and "4 tokens after 5, batch 2" in text and "roof" in text


def test_16_bits_are_held_against_float32():
    model = llama().to(torch.bfloat16)
    (eager,) = compare_generation(model, [Decoder("eager", "")], GenerationPlan(1, 4, 3)).contestants
    assert 0 < eager.error < 0.1 and 0 <= eager.equal <= 3
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


def test_a_wrong_backend_is_seen():
    def wrong(graph, inputs):
        return lambda *args: [out + 1 if out.is_floating_point() else out for out in graph(*args)]

    model = llama()
    chosen = [Decoder("eager", ""), Decoder(wrong, "")]
    eager, other = compare_generation(model, chosen, GenerationPlan(1, 4, 3)).contestants
    assert eager.error == 0 and other.error > 1e-3


def test_what_fails_is_told_and_left_out():
    def refuse(graph, inputs):
        raise RuntimeError("no such kernel")

    _, other = compare_generation(
        llama(), [Decoder("eager", ""), Decoder(refuse, "")], GenerationPlan(1, 4, 2)
    ).contestants
    assert "no such kernel" in other.failed and not other.seconds


def test_bytes_of_a_step():
    model = llama(tie_word_embeddings=False)
    whole = sum(p.nbytes for p in model.parameters())
    assert decoding.weight_bytes(model, 1) == whole - 40 * 16 * 4
    tied = llama(tie_word_embeddings=True)
    assert decoding.weight_bytes(tied, 1) == sum(p.nbytes for p in tied.parameters())
    cache = decoding.empty_cache(model, 10, 3)
    assert decoding.cache_bytes(cache, 5) == 3 * 2 * 5 * 16 * 4
    assert decoding.cache_bytes(cache, 50) == 3 * 2 * 10 * 16 * 4


def test_bytes_and_flops_of_experts():
    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, vocab_size=40, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=1,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).eval()
    experts = 4 * 3 * 24 * 16
    rest = sum(p.numel() for p in model.parameters()) - experts - 40 * 16
    assert decoding.weight_bytes(model, 1) == 4 * (rest + experts // 4)
    assert decoding.weight_bytes(model, 4) == decoding.weight_bytes(model, 9) == 4 * (rest + experts)
    vectors = sum(p.numel() for p in model.parameters() if p.dim() < 2)
    inner = rest - vectors - 40 * 16 + experts // 4
    assert decoding.prefill_flops(model, 2, 7) == 2 * 2 * (7 * inner + 40 * 16)


@pytest.mark.parametrize(
    ("target", "said"),
    [("hf:vit", "no model that predicts the next token"), ("hf:nothing", "no model type"), ("hf:t5", "no model that")],
)
def test_targets_that_generate_nothing(target, said):
    with pytest.raises(TargetError, match=said):
        load_decoder(target, Choices(tiny=True, layers=1), 8)


def test_models_without_a_cache_are_refused():
    with pytest.raises(TargetError, match="past_key_values"):
        decoding.require_decoder(torch.nn.Linear(2, 2), "mine")
    with pytest.raises(TargetError, match=r"no torch\.nn\.Module"):
        decoding.require_decoder(len, "mine")


@pytest.mark.parametrize("name", decoding.CACHE_NAMES)
def test_a_cache_goes_in_by_either_name(name):
    """transformers 5.24 calls `cache` what earlier versions call `past_key_values`."""

    class Stands(torch.nn.Module):
        config = types.SimpleNamespace(vocab_size=4)

        def answer(self, given):
            assert given == "a cache"
            return types.SimpleNamespace(logits=torch.zeros(1, 2, 4))

    namespace: dict = {}
    exec(f"def forward(self, input_ids, use_cache, {name}=None): return self.answer({name})", namespace)
    Stands.forward = namespace["forward"]
    model = Stands()
    decoding.require_decoder(model, "mine")
    assert decoding.forward(model, torch.zeros(1, 2), "a cache", None).shape == (1, 1, 4)


def test_positions_reach_as_far_as_the_text():
    loaded = load_decoder("hf:gpt2", Choices(tiny=True, layers=1, config={"n_positions": 8}), 20)
    (eager,) = compare_generation(loaded.model, [Decoder("eager", "")], GenerationPlan(1, 12, 3)).contestants
    assert eager.equal == 3
