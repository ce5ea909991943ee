#!/usr/bin/env python3
"""Files that are cut off, damaged, missing or something else: one clear message, a non-zero exit, no crash. A bit flip that harms nothing may also succeed."""
import os
import random
import shutil
import struct

from gguf_lite import Layout
from harness import DATA, EMBER, WORK, check, expect, finish, logits, made_model, stoker

N_FLIP = 300
TINY = DATA / 'tiny' / 'qwen3moe-bf16.gguf'


def attempt(path, tokens='1,2'):
    return stoker('logits', '-m', path, '--tokens', tokens, '-o', os.devnull, '-t', '1', timeout=120)


class Copy:
    """A copy of a model that is damaged and mended again."""

    def __init__(self, source, name):
        WORK.mkdir(exist_ok=True)
        self.path = WORK / name
        shutil.copyfile(source, self.path)
        self.data = source.read_bytes()
        self.layout = Layout(self.data)

    def with_bytes(self, at, new, function):
        with open(self.path, 'r+b') as f:
            f.seek(at)
            f.write(new)
        try:
            return function()
        finally:
            with open(self.path, 'r+b') as f:
                f.seek(at)
                f.write(self.data[at:at + len(new)])

    def with_field(self, name, value, function):
        at, n = self.layout.fields[name]
        new = value if isinstance(value, bytes) else (value % (1 << (8 * n))).to_bytes(n, 'little')
        return self.with_bytes(at, new, function)


def truncations(copy):
    """Every point of the first bytes, points all over the header, around every kind of boundary, and some in the weights."""
    header, size = copy.layout.header_bytes, len(copy.data)
    points = {*range(0, 40), *range(40, header, max(1, header // 60)), *(header + d for d in (-1, 0, 1, 31)), *range(header + 32, size, size // 12), size - 1}
    for at in sorted(points, reverse=True):
        os.truncate(copy.path, at)
        attempt(copy.path).expect_failure(copy.path.name)
    copy.path.write_bytes(copy.data)
    return f'{len(points)} points'


def flips(copy, n, seed):
    """Random single bits and bytes, more of them where the header is dense in meaning; a flip may go unnoticed, but not crash or hang."""
    rng, dense, refused = random.Random(seed), [x for x in copy.layout.fields.values() if x[1]], 0
    for i in range(n):
        at, size = rng.choice(dense) if i % 3 else (0, copy.layout.header_bytes)
        at += rng.randrange(size)
        new = bytes([copy.data[at] ^ (1 << rng.randrange(8)) if i % 2 else rng.randrange(256)])
        r = copy.with_bytes(at, new, lambda: attempt(copy.path)).expect_clean()
        if r.rc:
            refused += 1
            try:
                r.expect_failure()
            except Exception as e:
                raise type(e)(f'byte {at} = {new.hex()}: {e}') from None
    expect(refused > n // 10, f'only {refused} of {n} flips were refused')
    return f'{refused} of {n} refused'


def damaged_weights(copy, n, seed):
    """Weights may be anything: NaN scales too. The run ends well."""
    rng = random.Random(seed)
    for _ in range(n):
        at = copy.layout.header_bytes + rng.randrange(len(copy.data) - copy.layout.header_bytes - 64)
        copy.with_bytes(at, rng.choice([b'\xff' * 64, b'\x00' * 64, rng.randbytes(64)]), lambda: attempt(copy.path)).expect_success()


def fields_of(layout):
    """(what, field, value, words of the message): damage that must be refused."""
    arch = 'qwen3moe.'
    huge = [1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
    yield from (('another magic number', 'magic', b'GGML', ()), ('version 1', 'version', 1, ('version',)), ('version 4', 'version', 4, ('version',)),
                ('the other byte order', 'version', struct.pack('>I', 3), ()))
    for v in huge:
        yield f'{v} tensors', 'n_tensor', v, ()
        yield f'{v} keys', 'n_key', v, ()
        yield f'a string of {v} bytes', 'general.name.length', v, ()
        yield f'a key of {v} bytes', 'general.architecture.key', v, ()
        yield f'an array of {v} strings', 'tokenizer.ggml.tokens.length', v, ()
        yield f'an array of {v} numbers', 'tokenizer.ggml.token_type.length', v, ()
        yield f'a dimension of {v}', 'blk.0.attn_q.weight.dim0', v, ()
        yield f'a dimension of {v} rows', 'blk.0.ffn_up_exps.weight.dim1', v, ()
        yield f'{v} experts in a tensor', 'blk.0.ffn_up_exps.weight.dim2', v, ()
        yield f'a tensor at {v}', 'blk.1.ffn_down_exps.weight.offset', v, ()
    yield from (('another architecture', 'general.architecture', b'qwen9moe', ('qwen9moe',)), ('an unknown value type', 'general.name.type', 77, ()),
                ('an unknown item type', 'tokenizer.ggml.tokens.item', 77, ()), ('an array of arrays', 'tokenizer.ggml.tokens.item', 9, ()),
                ('a tensor of no dimensions', 'blk.0.attn_q.weight.dims', 0, ()), ('a tensor of 5 dimensions', 'blk.0.attn_q.weight.dims', 5, ()),
                ('a dimension of 0', 'blk.0.attn_q.weight.dim0', 0, ()), ('a transposed shape', 'blk.0.attn_q.weight.dim0', 512, ('attn_q',)),
                ('a tensor off its alignment', 'blk.1.ffn_down_exps.weight.offset', 1, ()), ('a type nobody knows', 'blk.0.ffn_up_exps.weight.type', 200, ('ffn_up_exps',)),
                ('a type without kernels', 'blk.0.ffn_up_exps.weight.type', 10, ('ffn_up_exps',)), ('a norm that is quantized', 'blk.0.attn_norm.weight.type', 8, ('attn_norm',)),
                ('a missing tensor', 'blk.0.attn_q.weight.name', b'blk.0.attn_X.weight', ('attn_q',)), ('a tensor twice', 'blk.0.attn_q.weight.name', b'blk.1.attn_q.weight', ()))
    for key, values in {'block_count': (0, 7, 1 << 30), 'embedding_length': (0, 1, 255, 1 << 30), 'attention.head_count': (0, 7, 1 << 30), 'attention.head_count_kv': (0, 3, 1 << 30),
                        'attention.key_length': (0, 33, 1 << 30), 'expert_count': (0, 31, 1 << 30), 'expert_used_count': (0, 33, 1 << 30), 'expert_feed_forward_length': (0, 1 << 30)}.items():
        for v in values:
            yield f'{key} = {v}', arch + key, v, ()


def main():
    copy = Copy(EMBER, 'damaged.gguf')
    for what, field, value, words in fields_of(copy.layout):
        if field not in copy.layout.fields:
            check(f'files: {what}', lambda: expect(False, f'the model has no field {field}'))
            continue
        check(f'files: {what}', lambda: copy.with_field(field, value, lambda: attempt(copy.path)).expect_failure(copy.path.name, *words) and None)
    check('files: the copy is whole again', lambda: expect(copy.path.read_bytes() == copy.data, 'the gate damaged its own copy'))
    check('files: cut off', truncations, copy)
    check('files: flipped', flips, copy, N_FLIP, 1)
    check('files: damaged weights', damaged_weights, copy, 12, 2)
    tiny = Copy(TINY, 'damaged-tiny.gguf')
    check('files: flipped, a model without a tokenizer', flips, tiny, N_FLIP, 3)
    check('files: cut off, a model without a tokenizer', truncations, tiny)
    first = made_model('split', 'r352', 'parts=3')
    parts = [first.with_name(first.name.replace('00001-of', f'0000{i}-of')) for i in (1, 2, 3)]
    for i, part in enumerate(parts):
        hidden = part.with_suffix('.hidden')
        part.rename(hidden)
        try:
            check(f'files: part {i + 1} of 3 is missing', lambda: attempt(parts[(i + 1) % 3]).expect_failure(part.name) and None)
        finally:
            hidden.rename(part)
    for part in parts:
        check(f'files: opened by {part.name[-19:]}', lambda: expect(logits(part, [1, 2]) == logits(first, [1, 2]), 'other logits than by the first part'))
    empty, text = WORK / 'empty.gguf', WORK / 'text.gguf'
    empty.write_bytes(b'')
    text.write_text('This is no model.\n' * 100)
    for what, path in {'a directory': WORK, 'an empty file': empty, 'a text': text, 'nothing': WORK / 'nothing.gguf', '/dev/null': '/dev/null'}.items():
        check(f'files: {what}', lambda: attempt(path).expect_failure(os.path.basename(path)) and None)
        check(f'files: inspecting {what}', lambda: stoker('inspect', path).expect_failure(os.path.basename(path)) and None)
    finish()


main()
