"""Frameworks on flagos with the code that their users write: tiny models, random weights, no
network.

Those that take a device's name get flagos. What looks for cuda alone, through lists of its own,
runs under torch_fl.as_cuda (fixture `ported`), as it does under `python -m torch_fl run`.
"""

import contextlib
import os
import warnings

import pytest
import torch
from conftest import run_python

import torch_fl

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_DATASETS_OFFLINE="1")

pytestmark = [
    pytest.mark.platforms("cpu", "cuda"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]
D = "flagos"


@pytest.fixture
def ported():
    """as_cuda, and no memory of it in accelerate, which keeps the device for the process."""
    accelerate = pytest.importorskip("accelerate")

    def forget():
        for state in (accelerate.state.AcceleratorState, accelerate.state.PartialState):
            state._reset_state()

    forget()
    with torch_fl.as_cuda():
        yield
    forget()


@pytest.fixture(scope="module")
def transformers():
    module = pytest.importorskip("transformers")
    module.utils.logging.set_verbosity_error()
    return module


@pytest.fixture(scope="module")
def folder(transformers, tmp_path_factory):
    """A causal language model with its tokenizer, saved as people find them on a hub."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *"abcdefghijklmnop "])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    path = tmp_path_factory.mktemp("model")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


# --- transformers --------------------------------------------------------------------------------


@pytest.mark.parametrize("device_map", [D, {"": 0}, {"": "flagos:0"}], ids=str)
def test_from_pretrained_with_a_device_map(transformers, folder, device_map):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=device_map)
    assert {weight.device for weight in model.parameters()} == {torch.device(D, 0)}
    assert model(torch.tensor([[1, 2]], device=D)).logits.device.type == D


def test_an_automatic_device_map(transformers, folder, ported):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="auto")
    assert all(weight.is_cuda for weight in model.parameters())


def generate(transformers, folder, device, cache=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).to(device).eval()
    ids = torch.tensor([[1, 4, 5, 6]]).to(device)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    if cache is not None:
        options.update(cache_implementation=cache, disable_compile=True)
    return model.generate(ids, **options).tolist()


@pytest.mark.parametrize("cache", [None, "dynamic", "static", "hybrid"])
def test_generate_with_each_kind_of_cache(transformers, folder, cache):
    assert generate(transformers, folder, D, cache) == generate(transformers, folder, "cpu")


@pytest.mark.parametrize("cache", ["offloaded", "offloaded_static"])
def test_generate_with_caches_that_use_streams_of_cuda(transformers, folder, ported, cache):
    assert generate(transformers, folder, "cuda", cache) == generate(transformers, folder, "cpu")


def test_pipeline(transformers, folder):
    generator = transformers.pipeline("text-generation", str(folder), device=D)
    (result,) = generator("abc", max_new_tokens=4, do_sample=True)
    assert generator.device.type == D and result["generated_text"].startswith("a")


PLACES = [{}, {"device_map": D}, {"device_map": f"{D}:0"}, {"device_map": {"": D}}, {"device": 0}]
PLACES += [{"device": f"{D}:0"}, {"device": torch.device(D)}]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_pipeline_is_where_it_was_asked_to_be(transformers, folder, place):
    if torch.cuda.is_available() and not any(D in str(value) for value in place.values()):
        pytest.skip("transformers takes the card")
    generator = transformers.pipeline("text-generation", str(folder), **place)
    assert generator.device.type == generator.model.device.type == D
    wanted = transformers.pipeline("text-generation", str(folder), device="cpu")
    assert wanted.device.type == wanted.model.device.type == "cpu"
    for each in (transformers.pipeline("text-generation", str(folder), device=-1), wanted):
        assert each.model.device.type == "cpu"
    texts = [each("abc", max_new_tokens=4, do_sample=False) for each in (generator, wanted)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("place", [{}, {"device_map": "cuda"}, {"device_map": "auto"}, {"device": 0}])
def test_a_pipeline_as_cuda(transformers, folder, ported, place):
    generator = transformers.pipeline("text-generation", str(folder), **place)
    assert generator.device.type == generator.model.device.type == "cuda"
    assert generator("abc", max_new_tokens=4)[0]["generated_text"].startswith("a")


def test_no_framework_is_imported_for_it():
    code = """
import sys, torch, torch_fl
from torch_fl import _wrapped
_wrapped.install()
assert "transformers" not in sys.modules and "accelerate" not in sys.modules
waited_for = [finder.name for finder in sys.meta_path if "Arrival" in type(finder).__name__]
assert sorted(waited_for) == ["accelerate.state", "transformers.pipelines.base"], waited_for
"""
    done = run_python(code, TORCH_FL_PLATFORM=torch_fl.platform()["name"])
    assert done.returncode == 0, done.stderr


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        ids = (torch.arange(8) + index) % 16 + 3
        return {"input_ids": ids, "labels": ids}


def test_trainer(transformers, folder, tmp_path, ported):

    def trainer(steps):
        arguments = transformers.TrainingArguments(
            tmp_path,
            max_steps=steps,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            eval_strategy="steps",
            eval_steps=10,
            save_steps=10,
            logging_steps=5,
            bf16=True,
            report_to=[],
            disable_tqdm=True,
            seed=3,
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        return transformers.Trainer(
            model, arguments, train_dataset=Sentences(), eval_dataset=Sentences()
        )

    first = trainer(20)
    assert first.args.device == torch.device("cuda", 0) and first.args.n_gpu == 1
    first.train()
    losses = [entry["eval_loss"] for entry in first.state.log_history if "eval_loss" in entry]
    assert len(losses) == 2 and losses[1] < losses[0]
    resumed = trainer(20)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert resumed.state.global_step == 20
    for one, other in zip(first.model.parameters(), resumed.model.parameters()):
        assert one.is_flagos or one.is_cuda
        assert torch.equal(one, other)


# --- accelerate ----------------------------------------------------------------------------------


@pytest.fixture
def fresh():
    """accelerate without a memory of earlier tests."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.PartialState._reset_state()
    yield
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.PartialState._reset_state()


def test_the_accelerator_is_flagos(fresh):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    assert accelerator.device.type == D
    model, seen = torch.nn.Sequential(torch.nn.Linear(4, 1)), []
    model[0].register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        assert batch.is_flagos
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[1] < losses[0] and set(seen) == {torch.bfloat16}
    assert accelerator.gather(torch.ones(2, device=D)).tolist() == [1, 1]


def test_the_cpu_where_a_script_asks_for_it(transformers, tmp_path, fresh):
    accelerate = pytest.importorskip("accelerate")
    assert accelerate.Accelerator(cpu=True).device == torch.device("cpu")
    assert os.environ["ACCELERATE_TORCH_DEVICE"] == D
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    arguments = transformers.TrainingArguments(tmp_path, use_cpu=True, report_to=[])
    assert arguments.device == torch.device("cpu")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.Accelerator().device.type == D


def test_a_precision_that_nobody_knows():
    pytest.importorskip("lightning")
    from torch_fl.lightning import FlagosStrategy

    with pytest.raises(ValueError, match="'8-true'.*known are 32-true"):
        FlagosStrategy(precision="8-true")


def test_the_trainer_of_transformers_is_on_flagos(transformers, folder, tmp_path, fresh):
    # It asks for CUDA before it asks for the accelerator.
    asks = torch.cuda.is_available()
    with torch_fl.as_cuda() if asks else contextlib.nullcontext():
        arguments = transformers.TrainingArguments(
            tmp_path, max_steps=4, report_to=[], disable_tqdm=True, save_strategy="no"
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        trainer = transformers.Trainer(model, arguments, train_dataset=Sentences())
        assert arguments.device.type == ("cuda" if asks else D)
        trainer.train()
        assert trainer.model.device.type == arguments.device.type
        assert trainer.state.global_step == 4
    assert next(trainer.model.parameters()).device.type == D


def test_accelerator(ported):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    assert accelerator.device.type == "cuda"
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        assert batch.is_cuda
        accelerator.backward(model(batch).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert accelerator.gather(torch.ones(2).cuda()).tolist() == [1, 1]


def test_big_model_dispatch_with_offload(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    wanted = model(torch.ones(2, 8))
    places = {"0": 0, "1": "cpu", "2": "disk"}
    offloaded = accelerate.dispatch_model(model, places, main_device=0, offload_dir=str(tmp_path))
    result = offloaded(torch.ones(2, 8))
    assert offloaded[0].weight.device.type == D and offloaded[2].weight.device.type == "meta"
    torch.testing.assert_close(result.cpu(), wanted)
    accelerate.cpu_offload(torch.nn.Linear(2, 2), D)(torch.ones(1, 2))


def test_what_fits_where(ported):
    accelerate = pytest.importorskip("accelerate")
    with accelerate.init_empty_weights():
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    assert accelerate.infer_auto_device_map(model) == {"": 0}
    assert accelerate.utils.get_max_memory()[0] > 0


# --- diffusers -----------------------------------------------------------------------------------


def image(device):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    network = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = diffusers.DDPMPipeline(network, diffusers.DDPMScheduler()).to(device)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator(device).manual_seed(5)
    return pipeline(generator=generator, num_inference_steps=2, output_type="np").images


@pytest.mark.platforms("cpu")
def test_a_diffusion_pipeline_with_a_generator_of_the_device():
    assert (image(D) == image("cpu")).all()


# --- sentence-transformers -----------------------------------------------------------------------


def test_sentence_transformers_training(transformers, folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    losses = pytest.importorskip("sentence_transformers.losses")
    try:
        from sentence_transformers.models import Pooling, Transformer
    except ImportError:
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    words = Transformer(str(folder))
    modules = [words, Pooling(16, "mean")]
    model = sentence_transformers.SentenceTransformer(modules=modules, device=D)
    assert model.device.type == D
    batch_to_device = sentence_transformers.util.batch_to_device
    loss = losses.MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    pairs = [["abc", "bcd", "ghi"], ["abd", "bce", "ghj"]]
    values = []
    for _ in range(3):
        features = [batch_to_device(model.tokenize(texts), D) for texts in pairs]
        value = loss(features, None)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0]
    assert model.encode(["abc"], convert_to_tensor=True).device.type == D
    assert model.similarity(model.encode(["abc"]), model.encode(["abc"])).item() > 0.99


# --- torchmetrics and Lightning ------------------------------------------------------------------


def test_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics")
    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3).to(D)
    confusion = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=3).to(D)
    error = torchmetrics.MeanSquaredError().to(D)
    guesses, truth = torch.tensor([0, 1, 2, 2], device=D), torch.tensor([0, 1, 1, 2], device=D)
    for metric in (accuracy, confusion, error):
        metric.update(guesses, truth)
    assert accuracy.compute().item() == 0.75 and accuracy.compute().device.type == D
    assert confusion.compute().sum().item() == 4
    assert error.compute().item() == 0.25


def lightning_on(trainer_options, type_of_device, folder):
    """Two epochs, a checkpoint, and a third epoch from it."""
    lightning = pytest.importorskip("lightning")
    seen = set()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            assert batch[0].device.type == self.device.type == type_of_device
            output = self.layer(batch[0])
            seen.add(output.dtype)
            loss = output.float().square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("validation", self.layer(batch[0]).float().square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=4
    )

    def trainer(epochs):
        return lightning.Trainer(
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **trainer_options(),
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = trainer(2)
        first.fit(Module(), data, data)
        assert first.callback_metrics["validation"].item() < 10
        first.save_checkpoint(folder / "last.ckpt")
        again = trainer(3)
        again.fit(Module(), data, data, ckpt_path=str(folder / "last.ckpt"))
        assert again.global_step == 12
    return seen


@pytest.mark.parametrize(
    "precision, dtype",
    [
        ("32-true", torch.float32),
        ("64-true", torch.float64),
        ("bf16-true", torch.bfloat16),
        ("16-true", torch.float16),
        ("bf16-mixed", torch.bfloat16),
        ("16-mixed", torch.float16),
    ],
)
def test_lightning(tmp_path, precision, dtype):
    pytest.importorskip("lightning")
    from torch_fl.lightning import FlagosStrategy

    assert lightning_on(
        lambda: {"strategy": FlagosStrategy(precision=precision)}, D, tmp_path
    ) == {dtype}


def test_lightning_as_cuda(tmp_path, ported):
    options = {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed"}
    assert lightning_on(lambda: options, "cuda", tmp_path) == {torch.bfloat16}


# --- torch's own tools ---------------------------------------------------------------------------


def test_benchmark_timer():
    from torch.utils.benchmark import Timer

    timer = Timer("x @ x", globals={"x": torch.ones(8, 8, device=D)})
    assert timer.timeit(10).mean > 0
    assert timer.blocked_autorange(min_run_time=0.01).median > 0
