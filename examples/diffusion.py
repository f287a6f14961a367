"""Make an image with a diffusion pipeline of diffusers, from a generator of the device. The network
is small and its weights are random, so the image is noise; the calls are those of a real one."""

import diffusers
import torch

torch.manual_seed(0)
network = diffusers.UNet2DModel(
    sample_size=16,
    block_out_channels=(16, 16),
    norm_num_groups=4,
    layers_per_block=1,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
pipeline = diffusers.DDPMPipeline(network, diffusers.DDPMScheduler()).to("flagos")
pipeline.set_progress_bar_config(disable=True)


def image(seed):
    generator = torch.Generator("flagos").manual_seed(seed)
    return pipeline(generator=generator, num_inference_steps=4, output_type="np").images[0]


first, again, other = image(1), image(1), image(2)
print(f"an image of {first.shape}; the same seed gives the same image: {(first == again).all()}")
assert (first == again).all() and (first != other).any()
