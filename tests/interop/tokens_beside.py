"""Compares the ids of tokens that only the files beside a tokenizer.json name, and of tokenizers with truncation and padding,
with Hugging Face's library.

    tokens_beside.py TOOL FOLDER [--directories N] [--seed N]

TOOL is tokenizer_tool, FOLDER a scratch folder. Exit code 77: a Python package is absent.
"""

import argparse
import array
import json
import pathlib
import random
import shutil
import subprocess
import sys

SKIPPED = 77
try:
    import tokenizers
    import transformers
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install transformers runs this test")
    sys.exit(SKIPPED)

WORDS = ["<x>", "<y>", "<end>", "<pad>", "<|im_end|>", "[MASK]", "the", "<é>", "<x>y", "word", "<unk>"]
NAMES = ["bos_token", "eos_token", "unk_token", "pad_token", "mask_token", "image_token"]


def trained():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, show_progress=False, initial_alphabet=alphabet)
    made.train_from_iterator(["the word of the other words and the end of them"] * 9, trainer)
    return json.loads(made.to_str())


class Directories:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.base = trained()

    def chance(self, p):
        return self.random.random() < p

    def flags(self):
        out = {key: self.chance(0.3) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        return out if self.chance(0.8) else {key: out[key] for key in ("normalized", "special")}

    def token(self):
        return self.random.choice(WORDS)

    def names(self, with_flags):
        out = {}
        for key in self.random.sample(NAMES, self.random.randrange(5)):
            token = self.token()
            out[key] = {"content": token, "__type": "AddedToken", **self.flags()} if with_flags and self.chance(0.4) else token
        return out

    def made(self):
        """The files of a directory."""
        file = json.loads(json.dumps(self.base))
        size = len(file["model"]["vocab"])
        if self.chance(0.5):
            file["normalizer"] = {"type": "NFC"}
        contents = self.random.sample(WORDS, self.random.randrange(4))
        for i, content in enumerate(contents):
            known = file["model"]["vocab"].get(content)
            every = {key: self.chance(0.3) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            file["added_tokens"].append({"id": size + i if known is None else known, "content": content, **every})
        ids = iter(range(size, size + 99))
        for token in file["added_tokens"]:  # tokens in the vocabulary leave no gap
            if token["content"] not in file["model"]["vocab"]:
                token["id"] = next(ids)
        file["added_tokens"].sort(key=lambda token: token["id"])
        if self.chance(0.3):
            file["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
        if self.chance(0.3):
            file["padding"] = {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": self.token()}
        files = {"tokenizer.json": file}
        config = self.names(True)
        if self.chance(0.3):
            config[self.random.choice(["extra_special_tokens", "additional_special_tokens"])] = self.random.sample(WORDS, 2)
        if self.chance(0.5):
            listed = self.random.sample(WORDS, self.random.randrange(5))
            config["added_tokens_decoder"] = {str(self.random.randrange(500)): {"content": content, **self.flags()} for content in listed}
            for token in file["added_tokens"]:
                if self.chance(0.5):  # each content occurs once
                    config["added_tokens_decoder"] = {key: one for key, one in config["added_tokens_decoder"].items() if one["content"] != token["content"]}
                    config["added_tokens_decoder"][str(token["id"])] = {key: value for key, value in token.items() if key != "id"}
        if self.chance(0.8):
            files["tokenizer_config.json"] = config
        if self.chance(0.5):
            files["special_tokens_map.json"] = self.names(False)
        if self.chance(0.5):
            files["added_tokens.json"] = dict(zip(self.random.sample(WORDS, 3), self.random.sample(range(size, 500), 3), strict=True))
        return files


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--directories", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20261128)
    words = parser.parse_args()
    transformers.logging.set_verbosity_error()
    made = Directories(words.seed)
    text = "the <x> word <y><end>  <pad> <|im_end|>the[MASK] <é> words<x>y [PAD] <unk>the end"
    seen = {"equal": 0, "refused by the library": 0, "different": 0}
    for i in range(words.directories):
        directory = words.folder / "directory"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        files = made.made()
        for name, content in files.items():
            (directory / name).write_text(json.dumps(content, ensure_ascii=False))
        (words.folder / "text").write_text(text)
        try:
            theirs = transformers.PreTrainedTokenizerFast.from_pretrained(directory)(text, add_special_tokens=False)["input_ids"]
        except (TypeError, ValueError, AttributeError) as error:
            seen["refused by the library"] += 1
            if seen["refused by the library"] <= 2:
                print(f"the library refuses: {error}")
            continue
        (words.folder / "ids").unlink(missing_ok=True)
        done = subprocess.run([words.tool, "ids", directory / "tokenizer.json", words.folder / "text", words.folder / "ids"], check=False)
        ours = array.array("I")
        if done.returncode == 0:
            ours.frombytes((words.folder / "ids").read_bytes())
        if done.returncode == 0 and ours.tolist() == theirs:
            seen["equal"] += 1
            continue
        seen["different"] += 1
        if seen["different"] <= 3:
            print("--- different", json.dumps({name: content if name != "tokenizer.json" else {k: v for k, v in content.items() if k != "model"} for name, content in files.items()}, ensure_ascii=False), f"library: {theirs}", f"terrace: {ours.tolist()}", sep="\n")
    print(f"{words.directories} directories, seed {words.seed}: " + ", ".join(f"{n} {what}" for what, n in seen.items()))
    sys.exit(0 if seen["different"] == 0 and seen["equal"] > words.directories // 2 else 1)


if __name__ == "__main__":
    main()
