"""Which fields of a config.json cannot change what a stage computes, and which must have one value.

It is data only; ``family.py`` applies it. A field that is in no table here and is not read there is
refused by name.
"""

from __future__ import annotations

from typing import Final

ARCHITECTURES: Final = {
    "llama": ("LlamaForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
}

# Names, training and generation settings, and what transformers writes for its own use.
HARMLESS: Final = (
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "max_window_layers",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
)

# Fields with one value that is implemented; another one changes the computation.
FIXED: Final[dict[str, tuple[object, ...]]] = {
    "attn_logit_softcapping": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "is_decoder": (False, True),
    "logits_scaling": (1, 1.0),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1, 1.0),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (False,),
    "use_qk_norm": (False,),
}

QUANTIZATION: Final = ("quantization_config", "quantization", "compression_config")
