"""Every bound that a checkpoint file is held to before anything of its size is allocated.

It holds numbers only. Each is far above what real checkpoints need and far below what would hurt.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20

# JSON files beside the weights.
CONFIG_BYTES_MAX: Final = 1 * MIB
TOKENIZER_CONFIG_BYTES_MAX: Final = 16 * MIB
TOKENIZER_BYTES_MAX: Final = 128 * MIB
TEMPLATE_BYTES_MAX: Final = 1 * MIB
INDEX_BYTES_MAX: Final = 64 * MIB
MANIFEST_BYTES_MAX: Final = 64 * MIB

# safetensors. The format allows a header of 100 MB; parsing that much hostile JSON takes gigabytes,
# and the largest header in real use is below 2 MiB.
SAFETENSORS_HEADER_BYTES_MAX: Final = 16 * MIB
TENSORS_MAX: Final = 1 << 17
TENSOR_NAME_CHARS_MAX: Final = 512
TENSOR_DIMENSIONS_MAX: Final = 8
TENSOR_VALUES_MAX: Final = 1 << 40
SHARDS_MAX: Final = 4096

# GGUF.
GGUF_METADATA_BYTES_MAX: Final = 128 * MIB
GGUF_KEYS_MAX: Final = 4096
GGUF_KEY_BYTES_MAX: Final = 1024
GGUF_STRING_BYTES_MAX: Final = 16 * MIB
GGUF_ARRAY_LENGTH_MAX: Final = 2_000_000
GGUF_DIMENSIONS_MAX: Final = 4
GGUF_ALIGNMENT_MAX: Final = 64 * KIB

# The model's own numbers.
LAYERS_MAX: Final = 4096
EXPERTS_MAX: Final = 4096
WIDTH_MAX: Final = 1 << 20
VOCAB_MAX: Final = 1 << 24
CONTEXT_MAX: Final = 1 << 30

# Reading and converting.
READ_PIECE_BYTES: Final = 1 * MIB
CONVERT_PIECE_BYTES: Final = 4 * MIB
HASH_PIECE_BYTES: Final = 4 * MIB
DISK_SPARE_BYTES: Final = 64 * MIB
CONVERSION_LOCK_SECONDS: Final = 3600.0
LOCK_POLL_SECONDS: Final = 0.05

# A digest is not remembered for a file that changed this shortly before it was hashed: a second
# change within the same clock tick would leave the stat equal (git's racy rule).
RACY_NANOSECONDS: Final = 2_000_000_000

# Chat templates.
RENDER_CHARS_MAX: Final = 4 * MIB
RENDER_WORK_CHARS_MAX: Final = 64 * MIB
RENDER_NUMBER_MAX: Final = 100_000
RENDER_SECONDS: Final = 5.0
