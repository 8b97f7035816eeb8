"""`spec.model` of the OrcaDeployment API: the model and where it comes from."""

from __future__ import annotations

from typing import Annotated

from orca_contract.model_choices import MAX_ADAPTERS, MAX_NAME_LENGTH, Dtype, KvCacheDtype, Quantization
from pydantic import Field

from orca_operator.api_types import Part, Quantity, SecretKey, Text

URI = r"^(hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+|pvc://[a-z0-9][a-z0-9.-]*/[^ ]+|s3://[^ ]+|oci://[^ ]+|file:///[^ ]+)$"
OCI_REPOSITORY = "([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*"
OCI_TAG, OCI_DIGEST = ":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", "@sha256:[a-f0-9]{64}"
OCI_URI = (
    f"^oci://((?P<latest>{OCI_REPOSITORY})"
    f"|(?P<image>{OCI_REPOSITORY}({OCI_TAG}({OCI_DIGEST})?|{OCI_DIGEST}))(?P<path>/[^ ]*)?)$"
)
"""An image without a tag, or an image and a path in it: the tag or digest ends the image's name."""
S3_URI = "^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^ ]*)?$"


class Cache(Part):
    """Cache of a downloaded model."""

    claim_name: Text | None = Field(
        None,
        description="PersistentVolumeClaim that all pods share (ReadWriteMany on several nodes). If unset, every pod "
        "downloads its own part into an emptyDir.",
    )
    size_limit: Quantity | None = Field(None, description="Size limit of the emptyDir.")


class Adapter(Part):
    """An adapter (LoRA) in PEFT's format."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)] = Field(
        description="Name by which requests choose the adapter, in place of the model's name."
    )
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]*$")] = Field(
        description="PEFT directory: a path below the model's folder, for pvc://, oci:// and file:// models, or an "
        "absolute path in the workers' pods."
    )


class Model(Part):
    """The model to serve."""

    uri: Annotated[str, Field(pattern=URI, max_length=1024)] = Field(
        description="Location of the model: hf://ORGANISATION/NAME, s3://BUCKET/PREFIX, pvc://CLAIM/PATH, "
        "oci://IMAGE:TAG/PATH for an image volume, or file:///PATH for a model in the images."
    )
    name: Text | None = Field(None, description="Model name in the API; the OrcaDeployment's name by default.")
    revision: Text | None = Field(None, description="Branch, tag or commit of an hf:// model; main by default.")
    dtype: Dtype = Field("auto", description="Type of weights and activations; auto is the checkpoint's.")
    quantization: Quantization | None = Field(
        None,
        description="Quantization when the weights are loaded, on CPUs: of weights (int8, int4), or of weights and "
        "activations (w8a8, w4a8). Default: none.",
    )
    kv_cache_dtype: KvCacheDtype | None = Field(
        None,
        description="Type of cached keys and values; int8, on CPUs, has room for more tokens. Default: auto, the "
        "activations' type.",
    )
    adapters: Annotated[list[Adapter], Field(max_length=MAX_ADAPTERS)] | None = Field(
        None, description="Adapters (LoRA) that are served beside the model."
    )
    draft_path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]*$")] | None = Field(
        None,
        description="Speculative decoding: directory of a smaller model with the same tokens, which drafts up to "
        "scheduler.speculativeTokens tokens per request and iteration: a path below the model's folder, for pvc://, "
        "oci:// and file:// models, or an absolute path in the workers' pods.",
    )
    max_model_len: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Maximum sequence length in tokens; the model's own by default."
    )
    secret_ref: SecretKey | None = Field(
        None,
        description="Access token of the Hugging Face Hub. For s3://: a Secret whose entries are environment variables "
        "of the download, such as AWS_ACCESS_KEY_ID; `key` is not used.",
    )
    cache: Cache | None = Field(None, description="Cache of an hf:// or s3:// model.")
