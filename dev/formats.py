# dev/formats.py: the files that the program shares with llm.c, for the scripts of dev/: model.bin,
# token shards. Header: 256 little-endian int32. Arrays are numpy.
import glob

import numpy as np

MODEL_MAGIC, SHARD_MAGIC, SHARD32_MAGIC = 20240326, 20240520, 20240801
DEBUG_MAGIC, EVAL_MAGIC = 20240327, 20240522
TEXT_EOT = 256


def header(*values):
    h = np.zeros(256, "<i4")
    h[: len(values)] = values
    return h.tobytes()


def padded(V):
    return (V + 127) // 128 * 128


# (name, shape of one layer, per layer?) in the order of the file.
def tensors(T, V, C):
    return [
        ("wte", (padded(V), C), False), ("wpe", (T, C), False),
        ("ln1w", (C,), True), ("ln1b", (C,), True),
        ("qkvw", (3 * C, C), True), ("qkvb", (3 * C,), True),
        ("attprojw", (C, C), True), ("attprojb", (C,), True),
        ("ln2w", (C,), True), ("ln2b", (C,), True),
        ("fcw", (4 * C, C), True), ("fcb", (4 * C,), True),
        ("fcprojw", (C, 4 * C), True), ("fcprojb", (C,), True),
        ("lnfw", (C,), False), ("lnfb", (C,), False),
    ]  # fmt: skip


def bf16_bits(x):
    """fp32 array to bfloat16 bits, to nearest even."""
    u = np.ascontiguousarray(x, "<f4").view("<u4").astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2")


def bf16_round(x):
    return (bf16_bits(x).astype("<u4") << 16).view("<f4")


def write_model(path, config, params, bf16=False):
    """config: dict of T, V, L, NH, C. params: name -> array, with a leading L where it is per layer."""
    T, V, L, NH, C = (config[k] for k in ("T", "V", "L", "NH", "C"))
    with open(path, "wb") as f:
        f.write(header(MODEL_MAGIC, 5 if bf16 else 3, T, V, L, NH, C, padded(V)))
        for name, _, _ in tensors(T, V, C):
            f.write(bf16_bits(params[name]).tobytes() if bf16 else params[name].astype("<f4").tobytes())


def read_model(path):
    raw = open(path, "rb").read()
    h = np.frombuffer(raw, "<i4", 256)
    assert h[0] == MODEL_MAGIC and h[1] in (3, 5), f"{path} is not a model.bin"
    config = dict(T=int(h[2]), V=int(h[3]), L=int(h[4]), NH=int(h[5]), C=int(h[6]))
    data = np.frombuffer(raw, "<f4" if h[1] == 3 else "<u2", offset=1024)
    if h[1] == 5:
        data = (data.astype("<u4") << 16).view("<f4")
    params, at = {}, 0
    for name, shape, layered in tensors(config["T"], config["V"], config["C"]):
        shape = ((config["L"],) if layered else ()) + shape
        size = int(np.prod(shape))
        params[name] = data[at : at + size].reshape(shape).copy()
        at += size
    assert at == len(data), f"{path}: expected {at} parameters, found {len(data)}"
    return config, params


def read_text(path):
    """A text to the byte: line ends stay as they are."""
    with open(path, "rb") as f:
        raw = f.read()
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SystemExit(f"{path}: expected UTF-8, found UTF-16; iconv -f UTF-16 -t UTF-8 {path} makes it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise SystemExit(
            f"{path}: expected UTF-8, found byte {raw[e.start]:#04x} at {e.start}; "
            f"if it is Latin-1: iconv -f LATIN1 -t UTF-8 {path}"
        ) from None


def write_shard(path, tokens):
    """Tokens of 16 bits, as all files of a data set have to be alike."""
    tokens = np.asarray(tokens)
    wrong = np.flatnonzero((tokens < 0) | (tokens > 0xFFFF))
    if len(wrong):
        raise SystemExit(f"{path}: expected tokens from 0 to 65535, found {tokens[wrong[0]]} at {wrong[0]}")
    with open(path, "wb") as f:
        f.write(header(SHARD_MAGIC, 1, len(tokens)))
        f.write(tokens.astype("<u2").tobytes())


def read_tokens(path):
    """Tokens of a shard or of a text file (end-of-text, then its bytes)."""
    raw = open(path, "rb").read()
    h = np.frombuffer(raw, "<i4", 3) if len(raw) >= 12 else (0, 0, 0)
    if h[0] not in (SHARD_MAGIC, SHARD32_MAGIC):
        return np.concatenate([[TEXT_EOT], np.frombuffer(raw, np.uint8)]).astype(np.int64)
    tokens = np.frombuffer(raw, "<u2" if h[0] == SHARD_MAGIC else "<u4", offset=1024)
    assert len(tokens) == h[2], f"{path}: expected {h[2]} tokens, found {len(tokens)}"
    return tokens.astype(np.int64)


def read_samples(pattern, T):
    """All samples of T + 1 tokens in the unshuffled order: (n, T + 1)."""
    rows = []
    for path in sorted(glob.glob(pattern)):
        tokens = read_tokens(path)
        rows += [tokens[k * T : k * T + T + 1] for k in range((len(tokens) - 1) // T)]
    assert rows, f"{pattern}: no sample of {T + 1} tokens"
    return np.stack(rows)


def write_debug_state(path, x, y, logits, loss, grads, config):
    """x, y (B,T) int; logits (B,T,V); grads like params; wte's padded rows are zero."""
    B, T = x.shape
    with open(path, "wb") as f:
        f.write(header(DEBUG_MAGIC, 2, B, T))
        f.write(x.astype("<i4").tobytes() + y.astype("<i4").tobytes())
        f.write(logits.astype("<f4").tobytes() + np.float32(loss).tobytes())
        for name, _, _ in tensors(config["T"], config["V"], config["C"]):
            f.write(grads[name].astype("<f4").tobytes())


def write_eval(path, examples):
    """examples: of each the label, the tokens of the context, and a list of those of each ending."""
    words, longest = [], 0
    for number, (label, context, endings) in enumerate(examples):
        body = [number & 0xFFFF, label, len(endings), len(context), *context]
        for ending in endings:
            body += [len(ending), *ending]
        bytes = 2 * (2 + len(body))
        assert bytes < 65536, f"example {number} has {bytes} bytes"
        words += [65535, bytes, *body]
        longest = max(longest, bytes)
    with open(path, "wb") as f:
        f.write(header(EVAL_MAGIC, 1, len(examples), longest))
        f.write(np.asarray(words, "<u2").tobytes())
