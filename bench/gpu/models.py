"""The models of the acceptance tests, as flags of terrace and as numbers for MFU."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Llama:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 128256
    tied: bool = False
    seq: int = 4096
    device_mebibytes: int = 2  # a budget with which a small model is offloaded

    def flags(self):
        return ["--model", "llama", "--layers", self.layers, "--hidden", self.hidden, "--heads", self.heads, "--kv-heads",
                self.kv_heads, "--ffn", self.ffn, "--vocab", self.vocab, "--seq-len", self.seq] + ([] if self.tied else ["--untied"])

    def block_parameters(self):
        width = self.hidden // self.heads * self.kv_heads
        return self.hidden * (2 * self.hidden + 2 * width + 3 * self.ffn)

    def parameters(self):
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self.block_parameters() + (1 if self.tied else 2) * self.vocab * self.hidden + norms

    def flops_a_token(self):
        """Six per weight of a matrix product, and half of full attention for causal attention; recomputation is not counted."""
        weights = self.layers * self.block_parameters() + self.vocab * self.hidden
        return 6 * weights + 6 * self.layers * self.hidden * self.seq


LLAMA_1B = Llama(16, 2048, 32, 8, 8192, tied=True)
LLAMA_3B = Llama(28, 3072, 24, 8, 8192, tied=True)
LLAMA_8B = Llama(32, 4096, 32, 8, 14336)
HEAD_64 = Llama(3, 256, 4, 2, 320, vocab=1000, seq=128, device_mebibytes=16)
HEAD_128 = Llama(2, 256, 2, 1, 320, vocab=509, seq=521, tied=True, device_mebibytes=16)
TINY = Llama(2, 64, 4, 2, 128, vocab=1000, seq=64)


def of_size(billions, small=False):
    """A model of at least that many parameters: as many blocks as needed, in the shape of Llama 70B's."""
    if small:
        return dataclasses.replace(TINY, layers=2 + int(billions) // 20)
    shape = Llama(1, 8192, 64, 8, 28672)
    layers = 1
    while dataclasses.replace(shape, layers=layers).parameters() < billions * 1e9:
        layers += 1
    return dataclasses.replace(shape, layers=layers)
