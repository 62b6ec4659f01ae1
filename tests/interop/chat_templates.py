"""Compares chat templates with Hugging Face's library: the text, what {% generation %} marks, and the ids.

    chat_templates.py TOOL FOLDER [--random N] [--seed N] [--show N]

TOOL is template_tool, FOLDER a scratch folder. family_templates.py has templates with the constructs of the known families, and
random_templates.py makes others. A template of the latter may be refused as not supported, which is counted; any other difference
fails. Exit code 77: a Python package is absent.
"""

import argparse
import datetime
import json
import logging
import pathlib
import subprocess
import sys
import types

SKIPPED = 77
try:
    import tokenizers
    import transformers
    from jinja2.exceptions import TemplateError
    from transformers.utils import chat_template_utils
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install transformers jinja2 runs this test")
    sys.exit(SKIPPED)

import family_templates
import random_templates

NOW = datetime.datetime.fromtimestamp(1_700_000_000)  # as in template_tool.cpp
chat_template_utils.datetime = types.SimpleNamespace(now=lambda: NOW)  # for strftime_now
logging.getLogger("transformers").setLevel(logging.ERROR)


def tool(program, folder, what, cases, *words):
    (folder / "cases").write_text("".join(json.dumps(case, ensure_ascii=True) + "\n" for case in cases))
    subprocess.run([program, what, *words, folder / "cases", folder / "out"], check=True)
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def expected(case):
    """The text and the marked bytes, or why there is none."""
    compiled = chat_template_utils._compile_jinja_template(case["template"])
    messages = chat_template_utils._alias_reasoning_fields(chat_template_utils._normalize_chat_messages(case["messages"]))
    text, spans = chat_template_utils._render_with_assistant_indices(
        compiled, messages, None, None, case["add_generation_prompt"], **case["variables"]
    )
    return text, [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in spans]


def compare_random(program, folder, count, seed, show):
    made = random_templates.Templates(seed)
    cases = [{"template": made.template(), "messages": random_templates.MESSAGES, "variables": random_templates.VARIABLES,
              "add_generation_prompt": i % 2 == 0} for i in range(count)]  # fmt: skip
    seen = {"equal": 0, "refused by both": 0, "not supported": 0, "different": 0}
    why = {}
    for case, ours in zip(cases, tool(program, folder, "write", cases), strict=True):
        try:
            theirs = expected(case)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, AssertionError, RecursionError, SyntaxError) as error:
            theirs = error
        if "error" in ours and "is not supported" in ours["error"]:
            seen["not supported"] += 1
            what = ours["error"].split(": ", 1)[1].split("\n")[0]
            why[what] = why.get(what, 0) + 1
            continue
        # Jinja computes a slice of a literal that has no slices, such as 1[1:], at compile time, and the result is undefined.
        if "error" in ours and (isinstance(theirs, Exception) or "has no slices" in ours["error"]):
            seen["refused by both"] += 1
            continue
        if not isinstance(theirs, Exception) and ours.get("text") == theirs[0] and ours["generated"] == theirs[1]:
            seen["equal"] += 1
            continue
        seen["different"] += 1
        if seen["different"] <= show:
            print(f"--- seed {seed}\n{case['template']!r}\nlibrary: {theirs!r}\nterrace: {ours!r}")
    print(f"{count} random templates, seed {seed}: " + ", ".join(f"{n} {what}" for what, n in seen.items()))
    for what, n in sorted(why.items(), key=lambda item: -item[1])[:show]:
        print(f"  {n} not supported: {what}")
    return seen["different"] == 0 and seen["equal"] > count // 3 and seen["not supported"] < count // 5


def compare_large_integers(program, folder):
    schema = {"maximum": 2**64, "minimum": -(2**63) - 1, "int64": 2**63 - 1, "uint64": 2**63, "all": [10**20, 1e20, -(10**300), 0]}
    templates = ["{{ schema | tojson }}", "{{ schema | tojson(indent=2) }}", "{{ schema }}", "{{ schema['all'][0] in schema['all'] }}",
                 "{% for k, v in schema.items() %}{{ k }}={{ v }};{{ v is integer }}{{ v is number }}{{ v == v }}{{ v == 1 }}{% endfor %}"]  # fmt: skip
    cases = [{"template": template, "messages": [], "variables": {"schema": schema}, "add_generation_prompt": False} for template in templates]
    different = [(case["template"], expected(case)[0], ours) for case, ours in zip(cases, tool(program, folder, "write", cases), strict=True)
                 if ours.get("text") != expected(case)[0]]  # fmt: skip
    for difference in different:
        print("---", *difference, sep="\n")
    print(f"integers of more than 64 bits: {len(cases) - len(different)} of {len(cases)} texts agree")
    return not different


def trained_tokenizer(folder, special, prepends):
    """A byte-level vocabulary, or one that sets ▁ before a text, as SentencePiece's."""
    corpus = [json.dumps(case, ensure_ascii=False) for case in family_templates.CONVERSATIONS] * 4 + [" ".join(family_templates.TEMPLATES)]
    if prepends:
        made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        made.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")])
        decoders = tokenizers.decoders
        made.pre_tokenizer = tokenizers.pre_tokenizers.Split("▁", "merged_with_next")
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", *[f"<0x{b:02X}>" for b in range(256)]], show_progress=False)
    else:
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(corpus, trainer)
    if prepends:  # in such vocabularies bytes are pieces, not special tokens, and words are not cut apart
        file = json.loads(made.to_str())
        file["added_tokens"] = file["added_tokens"][:1]
        file["pre_tokenizer"] = None
        made = tokenizers.Tokenizer.from_str(json.dumps(file))
    made.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in special])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return made


def compare_family(program, folder, name, family):
    problems = []
    tokens = family["tokens"]
    cases = []
    for conversation in family_templates.CONVERSATIONS:
        for prompt in (False, True):
            variables = {"tools": conversation.get("tools"), "documents": None, **conversation.get("chat_template_kwargs", {}), **tokens}
            cases.append({"template": family["template"], "messages": conversation["messages"], "variables": variables, "add_generation_prompt": prompt})
    equal = refused = 0
    for case, ours in zip(cases, tool(program, folder, "write", cases), strict=True):
        variables = {k: v for k, v in case["variables"].items() if k not in ("tools", "documents")}
        try:
            compiled = chat_template_utils._compile_jinja_template(case["template"])
            messages = chat_template_utils._alias_reasoning_fields(chat_template_utils._normalize_chat_messages(case["messages"]))
            text, spans = chat_template_utils._render_with_assistant_indices(
                compiled, messages, case["variables"]["tools"], None, case["add_generation_prompt"], **variables
            )
        except TemplateError as error:
            refused += 1
            if "error" not in ours or str(error) not in ours["error"]:
                problems.append((name, case, f"refused: {error}", ours))
            continue
        spans = [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in spans]
        if ours.get("text") != text or ours["generated"] != spans:
            problems.append((name, case, text, ours))
        equal += 1

    of_family = folder / name
    made = trained_tokenizer(of_family, [*family["special"]], family.get("prepends", False))
    (of_family / "tokenizer_config.json").write_text(json.dumps({**tokens, "tokenizer_class": "PreTrainedTokenizerFast"}))
    (of_family / "chat_template.jinja").write_text(family["template"])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **tokens)
    theirs.chat_template = family["template"]
    documents = answers = 0
    usable = [c for c in family_templates.CONVERSATIONS if "tools" not in c or family.get("tools")]
    for conversation, ours in zip(usable, tool(program, folder, "encode", usable, of_family), strict=True):
        if not isinstance(ours, list):
            if family_templates.CONVERSATIONS.index(conversation) not in family.get("refuses", []):
                problems.append((name, conversation, "no documents", ours))
            continue
        if family_templates.CONVERSATIONS.index(conversation) in family.get("refuses", []):
            problems.append((name, conversation, "refused", ours))
        documents += len(ours)
        more = {"tools": conversation.get("tools"), **conversation.get("chat_template_kwargs", {})}
        learned = []
        for ids, mask in ours:
            text = theirs.decode(ids) if not family.get("prepends") else None
            learned += [theirs.decode([i for i, m in zip(ids, mask, strict=True) if m])]
            # The conversation up to one of its answers, as the library encodes it.
            whole = [theirs.apply_chat_template(conversation["messages"][: n + 1], return_dict=False, tokenize=True, **more)
                     for n, message in enumerate(conversation["messages"]) if n > 0 and message["role"] == "assistant"]  # fmt: skip
            if ids not in whole and ids != theirs.apply_chat_template(conversation["messages"], return_dict=False, tokenize=True, **more):
                problems.append((name, conversation, whole[-1], (ids, text)))
        answers += sum(message["role"] == "assistant" for message in conversation["messages"])
        if "{% generation" in family["template"] or "{%- generation" in family["template"]:
            out = theirs.apply_chat_template(conversation["messages"], return_dict=True, return_assistant_tokens_mask=True, **more)
            if len(ours) != 1 or ours[0][0] != out["input_ids"] or [int(m) for m in ours[0][1]] != out["assistant_masks"]:
                problems.append((name, conversation, out["assistant_masks"], ours))
        end = family["end"]
        for text in learned:
            if not text.endswith(end):
                problems.append((name, conversation, f"answers end with {end}", text))
    prompts = [c for c in usable if c["messages"][-1]["role"] == "user"]
    for conversation, ours in zip(prompts, tool(program, folder, "prompt", prompts, of_family), strict=True):
        if "tools" in conversation or "chat_template_kwargs" in conversation:
            continue
        ids = theirs.apply_chat_template(conversation["messages"], add_generation_prompt=True, return_dict=False)
        if ids != ours:
            problems.append((name, conversation, ids, ours))
    print(f"{name}: {equal} texts, {refused} refusals, {documents} documents of {answers} answers agree" if not problems else f"{name}: DIFFERS")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("--show", type=int, default=5)
    words = parser.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    sane = True
    for name, family in family_templates.FAMILIES.items():
        for problem in compare_family(words.tool, words.folder, name, family)[: words.show]:
            sane = False
            print("---", *problem, sep="\n")
    sane = compare_large_integers(words.tool, words.folder) and sane
    sane = compare_random(words.tool, words.folder, words.random, words.seed, words.show) and sane
    sys.exit(0 if sane else 1)


if __name__ == "__main__":
    main()
