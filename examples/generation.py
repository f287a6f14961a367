"""Generate text with a language model of transformers. Its weights are random, so that nothing has
to be downloaded; `from_pretrained(name, device_map="flagos")` is all that a real one needs."""

import torch
import transformers

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = transformers.LlamaForCausalLM(config).eval().to("flagos")
prompt = torch.tensor([list(b"Once upon a time")], device="flagos")
mask = torch.ones_like(prompt)
options = {"attention_mask": mask, "max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None}

greedy = model.generate(prompt, do_sample=False, **options)
torch.flagos.manual_seed(1)
sampled = model.generate(prompt, do_sample=True, temperature=0.8, **options)
print("greedy: ", greedy[0, prompt.shape[1] :].tolist())
print("sampled:", sampled[0, prompt.shape[1] :].tolist())
assert greedy.shape == sampled.shape == (1, prompt.shape[1] + 12)
