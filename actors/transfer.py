"""Gets new weights into a running vLLM model. As vLLM's worker extension this is imported, and so registered, in every
worker before it loads. Invariant: after `finish_weight_update` the model has the new weights alone, or it raised."""

import warnings
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from core.errors import WeightError
from core.machine import Memory, peak_memory
from core.weights import Weights, unpack

BACKEND = "retrospect"


@dataclass
class Update(WeightTransferUpdateInfo):
    """All weights, in Hugging Face's names and layout."""

    weights: Weights


class BufferTransfer(WeightTransferEngine[WeightTransferInitInfo, Update]):
    """Loads flat buffers through vLLM's layer-wise reload, which repeats the kernels' preparation of the first load."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = Update

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """Nothing to connect to: the buffers are in this process."""

    def start_weight_update(self) -> None:
        """Give the layers their checkpoint layout back (a plain `load_weights` fails on prepacked CPU layers)."""
        self._expected = {name for name, _ in self.model.named_parameters()}
        if self.device.type == "cpu":  # vLLM 0.32 packs experts only where they have no kernel yet
            for module in self.model.modules():
                method = getattr(module, "quant_method", None)
                if getattr(method, "moe_kernel", None) is not None:
                    method.moe_kernel = None  # type: ignore[union-attr]
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        """Load all tensors. Raises WeightError when a parameter of the model is not among them."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")  # it is only read
            # one by one, as the layers take them: never a second copy of the whole model on the engine's device
            pairs = ((name, tensor.to(self.device)) for name, tensor in unpack(update_info.weights))
            loaded = self.model.load_weights(pairs)
        missing = self._expected - set(loaded)
        if missing:
            version = update_info.weights.manifest.version
            raise WeightError(f"weights of version {version} lack {sorted(missing)[0]} ({len(missing)} parameters)")

    def finish_weight_update(self) -> None:
        """Prepare the kernels again. With tied embeddings vLLM 0.32 on CPU keeps the output layer's packed copy of the
        *old* embedding (log-probabilities are off by 12 nats from Hugging Face), so it is packed again here."""
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if self.device.type == "cpu" and isinstance(getattr(head, "weight", None), torch.Tensor):
            dispatch_cpu_unquantized_gemm(head, remove_weight=False)

    def shutdown(self) -> None:
        """Nothing to close."""


class WorkerExtension:
    """vLLM mixes this into its worker class, and so imports this module in every worker."""

    def peak_memory(self) -> Memory:
        """Of the worker's process."""
        return peak_memory()


WeightTransferEngineFactory.register_engine(BACKEND, BufferTransfer)
