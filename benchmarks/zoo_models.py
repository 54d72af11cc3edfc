"""The 40 models of `make bench-zoo`: of torchvision, timm, transformers, torchaudio, torch_geometric; random weights.

The libraries are imported where a model of theirs is built. Inputs are small, so that a step takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from judged import Judged
from torch import Tensor, nn
from zoo_libraries import library

from threadcast.networks.registry import seeded


def load_zoo(name: str) -> Judged:
    """Build a model of `ZOO` with its inputs; the same in every process."""
    with seeded(0):
        model, inputs, named = ZOO[name]()
    return Judged(name, model, inputs, named)


Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _torchvision(name: str, *shape: int, group: str = "", **options: Any) -> Built:
    module = library(f"torchvision.models.{group}".rstrip("."))
    weights = {"weights_backbone": None} if group == "segmentation" else {}
    return getattr(module, name)(weights=None, **weights, **options), (torch.randn(shape),), {}


def _timm(name: str, *shape: int) -> Built:
    return library("timm").create_model(name, pretrained=False), (torch.randn(shape),), {}


def _text(kind: str, batch: int = 2, length: int = 64, *, decoder: bool = False, **options: Any) -> Built:
    """A model of transformers on tokens; encoder and decoder where `decoder` asks for it."""
    model_class = getattr(library("transformers"), kind)
    config = model_class.config_class(**options)
    config._attn_implementation = "sdpa" if getattr(model_class, "_supports_sdpa", True) else "eager"
    if hasattr(config, "use_cache"):
        config.use_cache = False
    tokens = torch.randint(3, 1_000, (batch, length))
    named = {"decoder_input_ids": torch.randint(3, 1_000, (batch, length // 2))} if decoder else {}
    return model_class(config), (tokens,), named


def _other_transformer(kind: str, *shape: int, **options: Any) -> Built:
    """A model of transformers on images or sound."""
    model_class = getattr(library("transformers"), kind)
    return model_class(model_class.config_class(**options)), (torch.randn(shape),), {}


def _torchaudio(name: str, inputs: Callable[[], tuple[Any, ...]], **options: Any) -> Built:
    return getattr(library("torchaudio.models"), name)(**options), inputs(), {}


def _geometric(name: str, nodes: int = 2_000, edges: int = 10_000, width: int = 64, **options: Any) -> Built:
    model = getattr(library("torch_geometric.nn.models"), name)(
        in_channels=width, num_layers=3, out_channels=16, **options
    )
    return model, (torch.randn(nodes, width), torch.randint(nodes, (2, edges))), {}


def _features(batch: int, time: int, bands: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, time, bands), torch.full((batch,), time)


_BERT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_LLAMA = _BERT | {"num_key_value_heads": 2, "vocab_size": 4_000}

ZOO: dict[str, Callable[[], Built]] = {
    "torchvision/resnet18": partial(_torchvision, "resnet18", 2, 3, 128, 128),
    "torchvision/mobilenet_v2": partial(_torchvision, "mobilenet_v2", 2, 3, 128, 128),
    "torchvision/mobilenet_v3_small": partial(_torchvision, "mobilenet_v3_small", 4, 3, 128, 128),
    "torchvision/efficientnet_b0": partial(_torchvision, "efficientnet_b0", 2, 3, 128, 128),
    "torchvision/densenet121": partial(_torchvision, "densenet121", 2, 3, 96, 96),
    "torchvision/squeezenet1_1": partial(_torchvision, "squeezenet1_1", 4, 3, 128, 128),
    "torchvision/shufflenet_v2_x1_0": partial(_torchvision, "shufflenet_v2_x1_0", 4, 3, 128, 128),
    "torchvision/regnet_y_400mf": partial(_torchvision, "regnet_y_400mf", 2, 3, 128, 128),
    "torchvision/googlenet": partial(_torchvision, "googlenet", 2, 3, 128, 128, aux_logits=False, init_weights=False),
    "torchvision/convnext_tiny": partial(_torchvision, "convnext_tiny", 1, 3, 96, 96),
    "torchvision/swin_t": partial(_torchvision, "swin_t", 1, 3, 96, 96),
    "torchvision/lraspp_mobilenet_v3_large": partial(
        _torchvision, "lraspp_mobilenet_v3_large", 2, 3, 128, 128, group="segmentation"
    ),
    "timm/deit_tiny_patch16_224": partial(_timm, "deit_tiny_patch16_224", 1, 3, 224, 224),
    "timm/resmlp_12_224": partial(_timm, "resmlp_12_224", 1, 3, 224, 224),
    "timm/levit_128s": partial(_timm, "levit_128s", 2, 3, 224, 224),
    "timm/mobilevit_xxs": partial(_timm, "mobilevit_xxs", 1, 3, 128, 128),
    "timm/edgenext_xx_small": partial(_timm, "edgenext_xx_small", 1, 3, 128, 128),
    "timm/poolformer_s12": partial(_timm, "poolformer_s12", 1, 3, 128, 128),
    "timm/repvgg_a0": partial(_timm, "repvgg_a0", 1, 3, 128, 128),
    "timm/ghostnet_100": partial(_timm, "ghostnet_100", 2, 3, 128, 128),
    "timm/xcit_nano_12_p16_224": partial(_timm, "xcit_nano_12_p16_224", 1, 3, 224, 224),
    "timm/hrnet_w18_small": partial(_timm, "hrnet_w18_small", 1, 3, 96, 96),
    "transformers/bert": partial(_text, "BertForMaskedLM", vocab_size=4_000, **_BERT),
    "transformers/distilbert": partial(
        _text, "DistilBertForSequenceClassification", dim=256, n_layers=4, n_heads=4, hidden_dim=1024, vocab_size=4_000
    ),
    "transformers/albert": partial(_text, "AlbertModel", vocab_size=4_000, **_BERT),
    "transformers/electra": partial(_text, "ElectraForSequenceClassification", vocab_size=4_000, **_BERT),
    "transformers/gpt2": partial(_text, "GPT2LMHeadModel", n_embd=256, n_layer=4, n_head=4, vocab_size=4_000),
    "transformers/llama": partial(_text, "LlamaForCausalLM", **_LLAMA),
    "transformers/qwen3": partial(_text, "Qwen3ForCausalLM", head_dim=64, **_LLAMA),
    "transformers/t5": partial(
        _text, "T5ForConditionalGeneration", decoder=True, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4,
        vocab_size=4_000,
    ),
    "transformers/vit": partial(_other_transformer, "ViTForImageClassification", 1, 3, 96, 96, image_size=96, **_BERT),
    "transformers/wav2vec2": partial(
        _other_transformer, "Wav2Vec2Model", 1, 8_000, conv_dim=(128,) * 7, apply_spec_augment=False, **_BERT
    ),
    "torchaudio/wav2letter": partial(
        _torchaudio, "Wav2Letter", lambda: (torch.randn(2, 64, 100),), input_type="mfcc", num_features=64
    ),
    "torchaudio/deepspeech": partial(
        _torchaudio, "DeepSpeech", lambda: (torch.randn(2, 1, 60, 40),), n_feature=40, n_hidden=512
    ),
    "torchaudio/conv_tasnet": partial(
        _torchaudio, "ConvTasNet", lambda: (torch.randn(1, 1, 4_000),), num_sources=2, enc_num_feats=128,
        msk_num_feats=64, msk_num_hidden_feats=128, msk_num_layers=4, msk_num_stacks=2,
    ),
    "torchaudio/conformer": partial(
        _torchaudio, "Conformer", lambda: _features(2, 100, 80), input_dim=80, num_heads=4, ffn_dim=256, num_layers=4,
        depthwise_conv_kernel_size=31,
    ),
    "torch_geometric/gcn": partial(_geometric, "GCN", hidden_channels=64),
    "torch_geometric/gat": partial(_geometric, "GAT", hidden_channels=64, heads=4),
    "torch_geometric/graph_sage": partial(_geometric, "GraphSAGE", hidden_channels=64),
    "torch_geometric/gin": partial(_geometric, "GIN", hidden_channels=64),
}  # fmt: skip
"""For each model, by library and name, what builds it, its inputs and its named inputs."""
