"""Compares terrace's reading of sentencepiece's models with `sentencepiece`, and with `transformers`, which adds special tokens and
writes the same model as tokenizer.json: the same ids and texts.

    sentencepiece_models.py TOOL FOLDER

TOOL is tokenizer_tool, FOLDER a scratch folder. Models are trained here, on text from files of this machine and generated text.
Exit code 77: a Python package is absent.
"""

import array
import json
import pathlib
import random
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
SKIPPED, VOCABULARY = 77, 6000
try:
    import google.protobuf  # transformers needs it to read a tokenizer.model
    import sentencepiece
    import tokenizers
    import transformers
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend
    from compare_with_tokenizers import files_of_this_machine, generated
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install sentencepiece transformers tiktoken protobuf runs this test")
    sys.exit(SKIPPED)

KINDS = {
    # Settings like the models of Llama 2 and Mistral, like Gemma's, and two with the library's defaults.
    "bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
    "bpe without prefix": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False,
                               remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
    "unigram": dict(model_type="unigram"),
    "unigram with bytes": dict(model_type="unigram", byte_fallback=True, remove_extra_whitespaces=False),
}


def trained(folder, lines):
    files = {}
    for name, settings in KINDS.items():
        place = folder / name.replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        files[name] = place / "tokenizer.model"
        if not files[name].exists():
            # Gemma's special tokens have other ids than Llama's.
            own = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>") if "without" in name else {}
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=str(place / "tokenizer"), vocab_size=VOCABULARY,
                                                     character_coverage=0.98, num_threads=2, minloglevel=2, **settings, **own)
    return files


class Compared:
    def __init__(self, tool, folder):
        self.tool, self.folder, self.failures = tool, folder, 0

    def ids(self, file, text, *how):
        (self.folder / "text").write_bytes(text.encode())
        subprocess.run([self.tool, "ids", file, self.folder / "text", self.folder / "ids", *how], check=True)
        ids = array.array("I")
        ids.frombytes((self.folder / "ids").read_bytes())
        return ids.tolist()

    def decoded(self, file, ids):
        (self.folder / "ids").write_bytes(array.array("I", ids).tobytes())
        subprocess.run([self.tool, "text", file, self.folder / "ids", self.folder / "decoded"], check=True)
        return (self.folder / "decoded").read_bytes().decode(errors="replace")

    def expect(self, name, ours, theirs, as_good=lambda: False):
        if ours == theirs or as_good():
            print(f"same{'' if ours == theirs else ' score'}: {name}, {len(ours)} {'characters' if isinstance(ours, str) else 'ids'}")
            return
        self.failures += 1
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        print(f"DIFFERENT: {name} from {at} on: {ours[max(0, at - 4):at + 8]} and {theirs[max(0, at - 4):at + 8]}")


def as_probable(library, ours, theirs):
    def score(ids):
        return sum(library.get_score(i) for i in ids)

    return library.decode(ours) == library.decode(theirs) and abs(score(ours) - score(theirs)) < 1e-4 * len(ours)


def compare_library(compared, files, texts):
    for name, file in files.items():
        library = sentencepiece.SentencePieceProcessor(model_file=str(file))
        for kind, text in texts.items():
            theirs, ours = library.encode(text), compared.ids(file, text, "ordinary")
            # Of unigrams with equal scores, versions of the library choose different ones.
            compared.expect(f"{name}, {kind}, sentencepiece", ours, theirs, lambda: "unigram" in name and as_probable(library, ours, theirs))
            if library.unk_id() not in theirs:  # the library decodes it as " ⁇ "
                compared.expect(f"{name}, {kind}, decoded", compared.decoded(file, theirs), library.decode(theirs))


SPECIAL = "<s>Once</s> upon <|tool|>a<|tool|> time <|end|>  \n <s> <s>▁x\n</s>"


def directory(folder, name, model, config):
    place = folder / name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copy(model, place / "tokenizer.model")
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return place


def added(first, *tokens):
    return {str(first + i): {"content": token, "lstrip": False, "rstrip": right, "normalized": False, "single_word": False, "special": special}
            for i, (token, right, special) in enumerate(tokens)}


def compare_directories(compared, folder, files, texts):
    """Directories with a tokenizer.model, read by transformers and by terrace; and the tokenizer.json that transformers writes."""
    more = added(VOCABULARY, ("<|tool|>", False, False), ("<|end|>", True, True))
    plain = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "added_tokens_decoder": more}
    gemma = {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    cases = {
        "llama": (transformers.LlamaTokenizer, "bpe", {**plain, "legacy": False}),
        "llama with both marks": (transformers.LlamaTokenizer, "bpe", {**plain, "add_bos_token": True, "add_eos_token": True}),
        "gemma": (transformers.GemmaTokenizer, "bpe without prefix", gemma),
    }
    for name, (kind, model, config) in cases.items():
        place = directory(folder, name, files[model], config)
        library = kind.from_pretrained(place)
        library.save_pretrained(place / "saved")
        # The same rules as a tokenizer.json of older versions of transformers.
        written = {"tokenizer.model": place / "tokenizer.model", "tokenizer.json": place / "saved" / "tokenizer.json"}
        for text_name, text in {**texts, "special": SPECIAL.replace("<s>", config["bos_token"]).replace("</s>", config["eos_token"])}.items():
            theirs = library.encode(text, add_special_tokens=False)
            with_marks = library.encode(text)
            for file, path in written.items():
                if text.startswith(" ") and file == "tokenizer.model" and name != "gemma":
                    continue  # sentencepiece adds a space before it, and transformers 5 does not
                compared.expect(f"{name}, {text_name}, {file}", compared.ids(path, text), theirs)
                compared.expect(f"{name}, {text_name}, {file} with its template", compared.ids(path, text, "template"), with_marks)
                expected = library.decode(theirs, skip_special_tokens=False, clean_up_tokenization_spaces=False)
                compared.expect(f"{name}, {text_name}, {file}, decoded", compared.decoded(path, theirs), expected)


def compare_slow(compared, folder, files, texts):
    """The class of transformers that encodes with sentencepiece itself, where a space is set behind special tokens, too."""
    more = added(VOCABULARY, ("<|tool|>", False, False), ("<|end|>", False, True))
    marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    place = directory(folder, "slow", files["bpe"], {**marks, "legacy": True, "added_tokens_decoder": more})
    tokens = {int(i): tokenizers.AddedToken(**token) for i, token in more.items()}
    library = SentencePieceBackend(vocab_file=str(place / "tokenizer.model"), legacy=True, added_tokens_decoder=tokens, **marks)
    for kind, text in {**texts, "special": SPECIAL}.items():
        theirs = library.convert_tokens_to_ids(library.tokenize(text))
        compared.expect(f"slow, {kind}", compared.ids(place / "tokenizer.model", text), theirs)


def compare_older_form(compared, folder, files, texts):
    """tokenizer.json as transformers 4 converts Llama 2: normalizers that prepend and replace, and no pre-tokenizer."""
    place = directory(folder, "older form", files["bpe"], {"tokenizer_class": "LlamaTokenizer"})
    transformers.LlamaTokenizer.from_pretrained(place).save_pretrained(place / "saved")
    content = json.loads((place / "saved" / "tokenizer.json").read_text())
    content["pre_tokenizer"] = None
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                                 {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    file = place / "older.json"
    file.write_text(json.dumps(content, ensure_ascii=False))
    variants = {"older": content}
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            variants[f"{scheme} {split}"] = {**content, "normalizer": None, "pre_tokenizer": {
                "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}}
    for behavior in ("MergedWithPrevious", "MergedWithNext"):
        variants[behavior] = {**content, "normalizer": None, "pre_tokenizer": {
            "type": "Split", "pattern": {"String": "e "}, "behavior": behavior, "invert": False}}
    for name, variant in variants.items():
        file.write_text(json.dumps(variant, ensure_ascii=False))
        library = tokenizers.Tokenizer.from_file(str(file))
        for kind, text in {**texts, "special": SPECIAL, "spaces": "a  b   c  e  e e   e <s>  ▁▁ x "}.items():
            theirs = library.encode(text, add_special_tokens=False).ids
            compared.expect(f"{name}, {kind}, tokenizers", compared.ids(file, text), theirs)


def main():
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(20240402)
    parts = files_of_this_machine(400000) + generated(100000, generator)
    generator.shuffle(parts)
    lines = [line for part in parts for line in part.splitlines() if line.strip()][:20000]
    files = trained(folder, lines)
    texts = {"mixed text": "".join(parts)[:60000], "spaces": "  two  and   three \n\n ", "empty": "", "one letter": "a" * 3000}
    compared = Compared(tool, folder)
    compare_library(compared, files, texts)
    compare_directories(compared, folder, files, texts)
    compare_slow(compared, folder, files, texts)
    compare_older_form(compared, folder, files, texts)
    print(f"sentencepiece {sentencepiece.__version__}, transformers {transformers.__version__}: {compared.failures} differences")
    return 1 if compared.failures else 0


if __name__ == "__main__":
    sys.exit(main())
