"""Vocabularies of 512 entries: byte-level BPE trained on the text below, and a sentencepiece-like one.

`make(kind)` gives what the GGUF needs; `encode(vocabulary, text)` gives golden ids: for BPE by the tokenizers library,
for the sentencepiece kind by a plain loop over its definition.
"""

from collections import Counter
from dataclasses import dataclass, field
import re

from specs import VOCABULARY

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

TEXT = """
The cache keeps what the model has seen, so that the next word costs one row and not the whole page. A block holds the
keys and the values of sixteen tokens; when it is full it is sealed, and a sealed block never changes. Two people who
ask about the same book share the same blocks, and the second one waits for nothing. When memory runs short, blocks that
nobody reads are given away first, and those that come back are loaded again. The window layers look back a little way
only, while the full layers look at everything that was said before. If the rope turns by the wrong angle, the words
lose their places and the answer makes no sense. There is a test for that, and a test for the test.
Hello, world! How are you today? I'm fine, thank you; it's a good day for a walk. She doesn't know where they've gone,
but we'll find them, and he'd be happy. Once upon a time there was a small house near the river, where an old man lived
with his cat. Every morning the cat would sit at the window and watch the boats. What is the capital of France? It is
Paris. Write a function that returns the sum of a list:
def total(values):
    result = 0
    for value in values:
        result += value
    return result
int main() { return 0; }
"""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else "
    "message['role'] %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
SPACE = "\u2581"

# Splitting rules of the pre-tokenizers used here, as the formats' description gives them.
_LETTERS_FIRST = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT = {"llama-bpe": _LETTERS_FIRST.replace("DIGITS", r"\p{N}{1,3}"),
          "qwen2": _LETTERS_FIRST.replace("DIGITS", r"\p{N}")}


@dataclass
class Vocabulary:
    model: str  # gpt2 or llama
    pre: str
    tokens: list[str]
    types: list[int]
    template: str
    ids: dict[str, int]  # bos, eos, unk, pad
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    flags: dict[str, bool] = field(default_factory=dict)  # add_bos_token and such, when written
    starts_with_bos: bool = False
    space_prefix: bool = False


def make(kind):
    return _sentencepiece(kind == "spm-prefix") if kind.startswith("spm") else _byte_level(kind)


def _byte_symbols():
    """The printable stand-ins for bytes: printable Latin-1 characters stand for themselves, the others follow 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def _train(words, count):
    """The `count` most frequent pair merges, ties by text; words are Counter of tuples of symbols."""
    merges = []
    while len(merges) < count:
        pairs = Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        words = _merge_all(words, best)
    return merges


def _merge_all(words, pair):
    merged = Counter()
    for word, times in words.items():
        out = []
        for symbol in word:
            if out and (out[-1], symbol) == pair:
                out[-1] += symbol
            else:
                out.append(symbol)
        merged[tuple(out)] += times
    return merged


def _byte_level(pre):
    symbols = _byte_symbols()
    pieces = re.findall(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", TEXT)
    words = Counter(tuple(symbols[b] for b in piece.encode()) for piece in pieces)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = _train(words, VOCABULARY - 256 - len(special))
    normal = [symbols[b] for b in sorted(symbols, key=lambda b: ord(symbols[b]))] + [a + b for a, b in merges]
    first = pre == "smollm"  # SmolLM has its control tokens first, the others last
    tokens = special + normal if first else normal + special
    types = [CONTROL] * 3 + [NORMAL] * len(normal) if first else [NORMAL] * len(normal) + [CONTROL] * 3
    text_end, turn_start, turn_end = (tokens.index(s) for s in special)
    with_bos = pre == "llama-bpe"
    return Vocabulary(
        "gpt2", pre, tokens, types, ("{{ bos_token }}" if with_bos else "") + CHATML,
        ids={"bos": turn_start if first else text_end, "eos": turn_end, "unk": text_end, "pad": turn_end},
        merges=[f"{a} {b}" for a, b in merges],
        flags={} if with_bos else {"add_bos_token": False}, starts_with_bos=with_bos,
    )


def _sentencepiece(space_prefix):
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    user = ["\n\n", "  "]
    byte = [f"<0x{b:02X}>" for b in range(256)]
    text = TEXT.replace(" ", SPACE)
    single = sorted(set(text) | set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"))
    words = Counter(tuple(w) for w in re.findall(SPACE + r"?[A-Za-z]+|[^A-Za-z" + SPACE + "]", text))
    pairs = _train(words, VOCABULARY - len(control) - len(user) - len(byte) - len(single))
    merged = [a + b for a, b in pairs]
    assert len(set(merged)) == len(merged) and not set(merged) & set(single)
    tokens = control + user + byte + merged + single
    types = [CONTROL] * 3 + [UNKNOWN] + [CONTROL] * 2 + [USER_DEFINED] * 2 + [BYTE] * 256
    types += [NORMAL] * (len(merged) + len(single))
    scores = [0.0] * (len(tokens) - len(merged) - len(single)) + [-float(i) for i in range(len(merged) + len(single))]
    flags = {"add_bos_token": True, "add_eos_token": False}
    if not space_prefix:
        flags["add_space_prefix"] = False  # left out: the default is true
    return Vocabulary(
        "llama", "default", tokens, types, TURNS, ids={"bos": 2, "eos": 1, "unk": 3, "pad": 0},
        scores=scores, flags=flags, starts_with_bos=True, space_prefix=space_prefix,
    )


def encode(vocabulary, text, parse_special=False, bos=True):
    """Golden ids. parse_special: control tokens written in the text become single tokens."""
    body = _encode_bpe if vocabulary.model == "gpt2" else _encode_pieces
    prefix = [vocabulary.ids["bos"]] if bos and vocabulary.starts_with_bos else []
    return prefix + body(vocabulary, text, parse_special)


def _encode_bpe(vocabulary, text, parse_special):
    from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    index = {t: i for i, t in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(BPE(index, [tuple(m.split(" ")) for m in vocabulary.merges],
                              ignore_merges=vocabulary.pre == "llama-bpe"))
    if vocabulary.pre in _SPLIT:
        split = pre_tokenizers.Split(Regex(_SPLIT[vocabulary.pre]), "isolated")
        steps = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if vocabulary.pre == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if vocabulary.pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if parse_special:
        special = [t for t, kind in zip(vocabulary.tokens, vocabulary.types) if kind == CONTROL]
        tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    return tokenizer.encode(text, add_special_tokens=False).ids


def _encode_pieces(vocabulary, text, parse_special):
    """Cut at special and user-defined pieces, then merge the neighbours whose joined piece scores highest."""
    index = {t: i for i, t in enumerate(vocabulary.tokens)}
    whole = [t for t, kind in zip(vocabulary.tokens, vocabulary.types)
             if kind == USER_DEFINED or parse_special and kind == CONTROL]
    if vocabulary.space_prefix:
        text = " " + text
    parts = re.split("(" + "|".join(re.escape(t) for t in sorted(whole, key=len, reverse=True)) + ")", text)
    ids = []
    for part in parts:
        if part in whole:
            ids.append(index[part])
            continue
        pieces = list(part.replace(" ", SPACE))
        while True:
            joined = [(-vocabulary.scores[index[a + b]], i) for i, (a, b) in enumerate(zip(pieces, pieces[1:]))
                      if vocabulary.types[index.get(a + b, 0)] == NORMAL]
            if not joined:
                break
            i = min(joined)[1]
            pieces[i:i + 2] = [pieces[i] + pieces[i + 1]]
        for piece in pieces:
            ids += [index[piece]] if piece in index else [index[f"<0x{b:02X}>"] for b in piece.encode()]
    return ids


def render(vocabulary, messages):
    from jinja2 import Environment

    return Environment(trim_blocks=True, lstrip_blocks=True).from_string(vocabulary.template).render(
        messages=messages, add_generation_prompt=True, bos_token=vocabulary.tokens[vocabulary.ids["bos"]])
