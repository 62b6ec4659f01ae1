"""Compares terrace's tokenizers with Hugging Face's `tokenizers` and with `tiktoken`: the same ids, and how much faster.

    compare_with_tokenizers.py TOOL FOLDER [--only ids|tiktoken|training|speed] [--megabytes N] [--ascii]

TOOL is tokenizer_tool, FOLDER a scratch folder. Vocabularies are trained here, on text from files of this machine and generated
text. Exit code 77: a Python package is absent.
"""

import argparse
import array
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

SKIPPED = 77
THREADS = 2
os.environ["RAYON_NUM_THREADS"] = str(THREADS)
os.environ["TOKENIZERS_PARALLELISM"] = "true"
try:
    import tiktoken
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install tokenizers tiktoken runs this test")
    sys.exit(SKIPPED)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER, SHORT = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": LLAMA3,
    "qwen2": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SHORT}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
VOCABULARY = 32000
SPECIAL = ["<|begin|>", "<|end|>"]


def files_of_this_machine(wanted):
    parts, size = [], 0
    for folder in ("/usr/share/perl", "/usr/share/common-licenses", "/usr/lib/python3", "/usr/include", "/usr/share/i18n/locales",
                   "/usr/share/vim", "/usr/share/doc"):
        taken = 0
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.suffix in (".gz", ".mo", ".so", ".pyc") or not path.is_file() or taken > wanted // 5:
                continue
            try:
                text = path.read_bytes()[:200000].decode()
            except (OSError, UnicodeDecodeError):
                continue
            parts.append(text)
            taken += len(text.encode())
        size += taken
        if size > wanted:
            break
    return parts


def generated(wanted, generator):
    """Words of many scripts, emoji with joiners, marks, numbers, white-space runs, and letters of any case."""
    scripts = [(0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x621, 0x64A),
               (0x904, 0x94D), (0xE01, 0xE4E), (0x3041, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F)]
    between = [" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "   \n", "\u00a0", "\u3000", ", ", ". ", "'s ", "'LL ", " - ", "…", "/",
               "\u200d", "\u0301", " 2024", " 1234567", "٣٤", "<|end|>", "    " * 4, "================"]
    parts, size = [], 0
    while size < wanted:
        text = ""
        for _ in range(400):
            low, high = generator.choice(scripts)
            text += "".join(chr(generator.randint(low, high)) for _ in range(generator.randint(1, 9)))
            text += generator.choice(between)
        parts.append(text)
        size += len(text.encode())
    return parts


def corpus(megabytes, ascii_only):
    generator = random.Random(20240520)
    parts = files_of_this_machine(megabytes * 800000)
    if ascii_only:
        parts = [part for part in parts if part.isascii()]
    else:
        size = sum(len(part.encode()) for part in parts)
        parts += generated(max(megabytes * 1000000 - size, megabytes * 200000), generator)
    generator.shuffle(parts)
    return parts


def byte_level(pattern):
    if pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(folder, documents):
    """A vocabulary of the library's own trainer, with the splits of Llama 3."""
    path = folder / "trained.json"
    if not path.exists():
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = byte_level("llama3")
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(documents, trainer)
        tokenizer.save(str(path))
    return json.loads(path.read_text())


def variants(base):
    """tokenizer.json texts, by name: each pattern, and each part that terrace reads."""
    def with_parts(**parts):
        return {**base, **parts}

    def part(of):
        return json.loads(of.__getstate__())

    out = {name: with_parts(pre_tokenizer=part(byte_level(name))) for name in PATTERNS}
    out["qwen2"]["normalizer"] = part(normalizers.NFC())
    merges = [" ".join(merge) for merge in base["model"]["merges"]]
    out["merges as texts"] = with_parts(model={**base["model"], "merges": merges})
    out["ignored merges"] = with_parts(model={**base["model"], "ignore_merges": True})
    out["prefix space"] = with_parts(pre_tokenizer=part(pre_tokenizers.ByteLevel(add_prefix_space=True)))
    out["own pattern"] = with_parts(pre_tokenizer=part(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\r\n]"), "isolated"), pre_tokenizers.Split(Regex(r"\s?\p{L}+"), "isolated"),
        pre_tokenizers.Split(Regex(r"[一-龥]+"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])))
    special = [{"id": len(base["model"]["vocab"]) + i, "content": content, "single_word": one, "lstrip": left, "rstrip": right,
                "normalized": normalized, "special": False}
               for i, (content, one, left, right, normalized) in enumerate([
                   ("theX", True, False, False, True), ("<left>", False, True, False, False), ("<right>", False, False, True, False),
                   ("<both|", False, True, True, True), ("<both||", False, False, False, False), ("é́", False, False, False, True)])]
    out["added tokens"] = with_parts(added_tokens=base["added_tokens"] + special, normalizer=part(normalizers.NFC()))
    template = processors.TemplateProcessing(single="<|begin|> $A <|end|>", special_tokens=[("<|begin|>", 0), ("<|end|>", 1)])
    out["template"] = with_parts(post_processor=part(template))
    letters = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}}
    for piece in ["▁", *"abcdefghijklmnopqrstuvwxyzé中", "th", "the", "▁the", "▁▁", "▁▁▁▁", "in", "ing"]:
        letters[piece] = len(letters)
    fallback = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": letters,
                "merges": [["t", "h"], ["th", "e"], ["▁", "the"], ["▁", "▁"], ["▁▁", "▁▁"], ["i", "n"], ["in", "g"]]}
    out["byte fallback"] = {**base, "added_tokens": [], "pre_tokenizer": None, "post_processor": None, "model": fallback,
        "normalizer": part(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
        "decoder": part(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)]))}
    return out


def ranks_of(base):
    """The vocabulary as tiktoken has it: bytes in the order in which they merge."""
    letters = {}
    others = 0
    for byte in range(256):
        own = 0x21 <= byte <= 0x7E or (byte >= 0xA1 and byte != 0xAD)
        letters[chr(byte if own else 0x100 + others)] = byte
        others += not own
    vocabulary = [(ident, bytes(letters[c] for c in token)) for token, ident in base["model"]["vocab"].items() if token not in SPECIAL]
    return {token: rank for rank, (_, token) in enumerate(sorted(vocabulary))}, {byte: letter for letter, byte in letters.items()}


def file_of_ranks(base, ranks, letters):
    """The same as tokenizer.json: every way to make a token of two others is a merge."""
    def spelled(token):
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in ranks.items():
        parts = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += sorted((rank, ranks[left], ranks[right], left, right) for left, right in parts if left in ranks and right in ranks)
    model = {**base["model"], "ignore_merges": True, "vocab": {spelled(token): rank for token, rank in ranks.items()},
             "merges": [[spelled(left), spelled(right)] for *_, left, right in sorted(merges)]}
    return {**base, "added_tokens": [], "model": model}


class Compared:
    def __init__(self, tool, folder):
        self.tool, self.folder, self.failures = tool, folder, 0

    def terrace(self, file, text, *how):
        (self.folder / "text").write_bytes(text)
        subprocess.run([self.tool, "ids", file, self.folder / "text", self.folder / "ids", *how], check=True)
        ids = array.array("I")
        ids.frombytes((self.folder / "ids").read_bytes())
        return ids.tolist()

    def decoded(self, file):
        subprocess.run([self.tool, "text", file, self.folder / "ids", self.folder / "decoded"], check=True)
        return (self.folder / "decoded").read_bytes()

    def expect(self, name, ours, theirs):
        if ours == theirs:
            print(f"same: {name}, {len(ours)} {'bytes' if isinstance(ours, bytes) else 'ids'}")
            return
        self.failures += 1
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        print(f"DIFFERENT: {name} from {at} on: {ours[at:at + 8]} and {theirs[at:at + 8]}")


def every_code_point():
    """Each alone, and between what the patterns tell apart; of planes that have no letters only alone."""
    def around(c):
        return f"a{c}b '{c} {c}1\n{c}A" if ord(c) < 0x33000 or 0xE0000 <= ord(c) < 0xE1000 else c

    return "".join(around(chr(code)) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


def compare_ids(compared, files, texts):
    for name, file in files.items():
        library = tokenizers.Tokenizer.from_file(str(file))
        subprocess.run([compared.tool, "copy", file, compared.folder / "copy.json"], check=True)
        if json.loads((compared.folder / "copy.json").read_text()) != json.loads(file.read_text()):
            compared.failures += 1
            print(f"DIFFERENT: {name}, written back")
        for kind, text in texts.items():
            if kind == "every code point" and name not in PATTERNS:
                continue
            if name == "byte fallback":  # the whole text is one word, for which the library needs minutes
                text = text[:1000000]
            how = ["template"] if name == "template" else []
            theirs = library.encode(text, add_special_tokens=bool(how))
            compared.expect(f"{name}, {kind}, tokenizers", compared.terrace(file, text.encode(), *how), theirs.ids)
            if name in ("gpt2", "o200k", "byte fallback") and "\ufffd" not in text:
                compared.expect(f"{name}, {kind}, decoded", compared.decoded(file), library.decode(theirs.ids, skip_special_tokens=False).encode())


def compare_tiktoken(compared, files, texts, ranks):
    for name, pattern in PATTERNS.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for kind, text in texts.items():
            theirs = encoding.encode_ordinary(text)
            compared.expect(f"{name}, {kind}, tiktoken", compared.terrace(files[f"ranks {name}"], text.encode(), "ordinary"), theirs)


def compare_trainers(compared, documents):
    lines = compared.folder / "documents.jsonl"
    lines.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    for pattern in ("gpt2", "llama3"):
        library = tokenizers.Tokenizer(models.BPE())
        library.pre_tokenizer = byte_level(pattern)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=SPECIAL, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        theirs = seconds_of(lambda: library.train_from_iterator(documents, trainer))
        for threads in (1, 2):
            out = compared.folder / "own.json"
            command = [compared.tool, "train", out, lines, "8000", pattern, str(threads), *SPECIAL]
            ours = seconds_of(lambda: subprocess.run(command, check=True))
            compared.expect(f"trained with {pattern} and {threads} threads", list(json.loads(out.read_text()).items()),
                            list(json.loads(library.to_str()).items()))
        print(f"speed: training with {pattern}: {theirs:.1f} s by tokenizers, {ours:.1f} s by terrace")


def seconds_of(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare_speed(compared, files, documents, ranks):
    megabytes = sum(len(document.encode()) for document in documents) / 1e6
    (compared.folder / "documents").write_bytes(b"\0".join(document.replace("\0", "").encode() for document in documents))
    for name in ("gpt2", "llama3", "o200k"):
        library = tokenizers.Tokenizer.from_file(str(files[f"ranks {name}"]))
        encoding = tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
        command = [compared.tool, "time", files[f"ranks {name}"], compared.folder / "documents", str(THREADS)]
        times = {"tokenizers": [], "tokenizers, fast": [], "tiktoken": [], "terrace": []}
        for _ in range(5):
            times["tokenizers"].append(seconds_of(lambda: library.encode_batch(documents)))
            times["tokenizers, fast"].append(seconds_of(lambda: library.encode_batch_fast(documents)))
            times["tiktoken"].append(seconds_of(lambda: encoding.encode_ordinary_batch(documents, num_threads=THREADS)))
            times["terrace"].append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]))
        for other, seconds in times.items():
            ratios = [theirs / ours for theirs, ours in zip(seconds, times["terrace"])]
            print(f"speed: {name}, {THREADS} threads, {other}: {megabytes / statistics.median(seconds):.1f} MB/s; "
                  f"terrace is {statistics.median(ratios):.1f} times as fast ({min(ratios):.1f} to {max(ratios):.1f})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", choices=["ids", "tiktoken", "training", "speed"], action="append")
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--ascii", action="store_true", help="only files of this machine, and of them those in ASCII")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    documents = corpus(given.megabytes, given.ascii)
    base = trained(given.folder, documents)
    ranks, letters = ranks_of(base)
    of_ranks = file_of_ranks(base, ranks, letters)
    texts = {**variants(base), **{f"ranks {n}": {**of_ranks, "pre_tokenizer": json.loads(byte_level(n).__getstate__())} for n in PATTERNS}}
    files = {}
    for name, content in texts.items():
        files[name] = given.folder / f"{name.replace(' ', '-')}.json"
        files[name].write_text(json.dumps(content, ensure_ascii=False))
    compared = Compared(given.tool, given.folder)
    # An e with two acute accents: after normalisation it looks like the added token with that spelling.
    mixed = "".join(documents) + " theX theXa <left> <right> \n x <both|| a <both| b e\u0301\u0301 \ue000 \u212b \u1100\u1161\u11a8"
    cases = {"mixed text": mixed, "every code point": every_code_point(), "one letter": "a" * 1000000, "spaces": "x" + " " * 100000}
    parts = {"training": lambda: compare_trainers(compared, documents), "ids": lambda: compare_ids(compared, files, cases),
             "tiktoken": lambda: compare_tiktoken(compared, files, cases, ranks),
             "speed": lambda: compare_speed(compared, files, documents, ranks)}
    for name in given.only or parts:
        parts[name]()
    print(f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}: {compared.failures} differences")
    return 1 if compared.failures else 0


if __name__ == "__main__":
    sys.exit(main())
