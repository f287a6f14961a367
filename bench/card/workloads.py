"""What bench/card/pairs.py times: each entry of ALL takes a device and answers a function that does
the work once and answers what it computed. Where the work changes a model, the function has a
`prepare`, which puts all back as it was at first and is no part of what is timed. Models have random weights and real shapes; where only
what they ask of the host matters (bench/torch/idle_cuda.py), NARROWER divides all widths.
"""

import contextlib
import functools

import torch

ALL = {}
NARROWER = 1


def workload(function):
    ALL[function.__name__] = function
    return function


def variants(base, **named):
    """Register `base` with fixed arguments under other names."""
    for name, arguments in named.items():
        ALL[name] = functools.partial(base, **arguments)


def _model(make, device, dtype=torch.float32):
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return make().to(device)
    finally:
        torch.set_default_dtype(previous)


def _qwen3(layers, vocabulary=151936):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary // NARROWER,
            hidden_size=1024 // NARROWER,
            intermediate_size=3072 // NARROWER,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128 // NARROWER,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )


def _decode(device, batch, layers=28, tokens=64, **generation):
    """Qwen3-0.6B, bf16, eager generate of 64 tokens after 32."""
    model = _model(lambda: _qwen3(layers), device, torch.bfloat16).eval()
    ids = torch.randint(0, 1000, (batch, 32)).to(device)

    def run():
        with torch.inference_mode():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                do_sample=False, **generation,
            )
            return [found, model(found).logits[:, -1]]

    return run


variants(_decode, decode=dict(batch=1), decode_b8=dict(batch=8))


def _train(device, model, step_inputs, steps, amp=None, foreach=None):
    """Training steps alone. The first call makes the optimiser's state, as the first step of a training
    does, once in many thousand."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=foreach)
    saved = {name: value.clone() for name, value in model.state_dict().items()}

    def prepare():
        model.load_state_dict(saved)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
        torch.manual_seed(1)

    def run():
        losses = []
        for _ in range(steps):
            context = torch.autocast(device, amp) if amp else contextlib.nullcontext()
            with context:
                loss = model(**step_inputs).loss
            loss.backward()
            optimizer.step()
            gradient = next(model.parameters()).grad.clone()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, gradient, next(model.parameters())]

    run.prepare = prepare
    return run


def _train_qwen3(device, steps=20, amp=None, foreach=None, batch=2, length=128):
    """A small Qwen3 (4 layers), AdamW."""
    model = _model(lambda: _qwen3(4, 32000), device).train()
    ids = torch.randint(0, 32000, (batch, length)).to(device)
    return _train(device, model, dict(input_ids=ids, labels=ids), steps, amp, foreach)


variants(
    _train_qwen3,
    train_fp32=dict(),
    train_bf16=dict(amp=torch.bfloat16),
    train_for_loop=dict(foreach=False),
    train_50=dict(steps=50),
    train_50_for_loop=dict(steps=50, foreach=False),
)


def _bert_config(layers=12):
    from transformers import BertConfig

    return BertConfig(
        hidden_size=768 // NARROWER, intermediate_size=3072 // NARROWER, num_hidden_layers=layers
    )


@workload
def bert_train(device, layers=12, steps=20):
    """BERT-base shaped, dropout on, sequence 128, batch 8."""
    from transformers import BertForMaskedLM

    model = _model(lambda: BertForMaskedLM(_bert_config(layers)), device).train()
    ids = torch.randint(0, 30000, (8, 128)).to(device)
    return _train(device, model, dict(input_ids=ids, labels=ids), steps)


def _bert(device, batch, dtype):
    from transformers import BertModel

    model = _model(lambda: BertModel(_bert_config()), device, dtype).eval()
    ids = torch.randint(0, 30000, (batch, 64)).to(device)

    def run():
        with torch.inference_mode():
            for _ in range(10):
                out = model(ids).last_hidden_state
        return [out]

    return run


variants(_bert, bert_b1=dict(batch=1, dtype=torch.float16), bert_b64=dict(batch=64, dtype=torch.bfloat16))


@workload
def gptj(device, times=10):
    """Four layers of GPT-J 6B, fp16 forward: rotary embedding and repeat."""
    from transformers import GPTJConfig, GPTJModel

    config = GPTJConfig(
        n_layer=4, vocab_size=8192, n_embd=4096 // NARROWER, rotary_dim=64 // NARROWER
    )
    model = _model(lambda: GPTJModel(config), device, torch.float16).eval()
    ids = torch.randint(0, 8192, (1, 64)).to(device)

    def run():
        with torch.inference_mode():
            for _ in range(times):
                out = model(ids).last_hidden_state
        return [out]

    return run


@workload
def vit_b1(device):
    from transformers import ViTConfig, ViTModel

    model = _model(lambda: ViTModel(ViTConfig()), device, torch.float16).eval()
    image = torch.randn(1, 3, 224, 224).half().to(device)

    def run():
        with torch.inference_mode():
            for _ in range(10):
                out = model(image).last_hidden_state
        return [out]

    return run


@workload
def unet(device, times=5):
    """One denoise step of a Diffusers UNet2D, channels_last, small batch."""
    from diffusers import UNet2DModel

    model = _model(
        lambda: UNet2DModel(sample_size=64, block_out_channels=(128, 256, 256, 512)), device, torch.float16
    ).eval().to(memory_format=torch.channels_last)
    sample = torch.randn(2, 3, 64, 64).half().to(device).to(memory_format=torch.channels_last)

    def run():
        with torch.inference_mode():
            for _ in range(times):
                out = model(sample, 10).sample
        return [out]

    return run


@workload
def resnet_train(device, steps=20):
    """ResNet-50 shaped, batch 32."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = _model(lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)), device).train()
    images = torch.randn(32, 3, 224, 224).to(device)
    labels = torch.randint(0, 1000, (32,)).to(device)
    return _train(device, model, dict(pixel_values=images, labels=labels), steps)


@workload
def gemm(device):
    """Bound by the GPU: large matrix products."""
    a = torch.randn(4096, 4096, dtype=torch.bfloat16).to(device)

    def run():
        out = a
        for _ in range(500):
            out = (out @ a).mul_(0.01)
        return [out]

    return run


# The same work in pieces of some 50 to 100 ms: so short that the processor's speed seldom changes
# between the run of one side and that of the other, and many runs can be made. Training makes several
# steps, for the first finds the processor's caches full of what the other sides did.
SHORT = {
    "decode": dict(tokens=6),
    "train_fp32": dict(steps=5),
    "train_bf16": dict(steps=5),
    "bert_train": dict(steps=4),
    "gptj": dict(times=4),
    "unet": dict(times=2),
    "resnet_train": dict(steps=4),
}
