"""Generate text with a causal language model from transformers. Written for CUDA; the weights are
random, so that nothing has to be downloaded."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


class Letters:
    """A tokenizer of one letter a token."""

    def __call__(self, text):
        return torch.tensor([[ord(letter) % 128 for letter in text]])

    def decode(self, ids, **options):
        return "".join(chr(32 + int(i) % 95) for i in ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--length", type=int, default=12)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    print("device:", device)
    if device == "cuda" and torch.cuda.get_device_capability()[0] >= 8:
        torch.backends.cuda.enable_flash_sdp(True)
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=128,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
            )
        )
    model = model.to(dtype=getattr(torch, args.dtype)).eval()
    assert model.device.type == "cuda"

    tokenizer = Letters()
    ids = tokenizer(args.prompt).to(model.device)
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
    with torch.inference_mode(), torch.cuda.device(0):
        greedy = model.generate(ids, max_new_tokens=args.length, do_sample=False, **options)
        torch.cuda.manual_seed(7)
        first = model.generate(ids, max_new_tokens=args.length, do_sample=True, **options)
        torch.cuda.manual_seed(7)
        again = model.generate(ids, max_new_tokens=args.length, do_sample=True, **options)
    assert greedy.is_cuda and greedy.shape[1] == ids.shape[1] + args.length
    assert torch.equal(first, again)
    noise = torch.randn(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
    assert noise.device == torch.device("cuda:0")
    torch.cuda.synchronize()
    print("greedy: ", tokenizer.decode(greedy[0]))
    print("sampled:", tokenizer.decode(first[0]))
    print(f"memory: {torch.cuda.memory_allocated()} bytes")


if __name__ == "__main__":
    main()
