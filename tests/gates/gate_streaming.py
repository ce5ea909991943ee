#!/usr/bin/env python3
"""Streaming is real: under the least RAM every token equals the run with all experts in RAM, misses happen, the bytes read are those that the kernel
counts, and the page cache holds none of the file."""
import ctypes
import mmap
import os
import shutil

from harness import EMBER, PROBE, WORK, Skipped, all_ram, check, expect, finish, least_ram, made_model, numbers, probe, stoker

DEMO = ['run', '-p', 'Once upon a time', '-n', '96', '--temp', '0.8', '--seed', '1', '--ignore-eos']


def cold(path):
    """Puts a file on the disk and out of the page cache."""
    with open(path, 'rb') as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_pages(path):
    """Which pages of a file the page cache holds, as page numbers."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = os.path.getsize(path)
    n_page = -(-size // mmap.PAGESIZE)
    with open(path, 'rb') as f:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, f.fileno(), 0)
        expect(at != ctypes.c_void_p(-1).value, 'mmap failed')
        held = ctypes.create_string_buffer(n_page)
        rc = libc.mincore(at, size, held)
        libc.munmap(at, size)
    expect(rc == 0, 'mincore failed')
    return [i for i in range(n_page) if held.raw[i] & 1]


def private_copy(path, name):
    """A copy that no other test reads, out of the page cache."""
    WORK.mkdir(exist_ok=True)
    copy = WORK / name
    shutil.copyfile(path, copy)
    cold(copy)
    left = cached_pages(copy)
    if left:
        raise Skipped(f'this file system keeps {len(left)} pages in the page cache')
    return copy


def same_tokens(model, least, everything):
    want = stoker(*DEMO, '-m', model, '--ram', everything).expect_success().out
    expect(len(want) > 100, f'only {len(want)} bytes of text')
    for ram in (least, 3 * least):
        for flags in (('--predictor', 'none'), ('--predictor', 'gate'), ('--predictor', 'gate', '--lookahead', '3')):
            got = stoker(*DEMO, '-m', model, '--ram', ram, *flags).expect_success().out
            expect(got == want, f'the text with --ram {ram} {" ".join(flags)} differs from that with all experts in RAM')


def counted_run(model, n, **keys):
    """The probe's counters, and what the kernel says the process read from the disk (rchar and read_bytes of /proc/PID/io)."""
    out = WORK / 'counted.out'
    with open(out, 'wb') as f:
        pid = os.posix_spawn(PROBE, [str(PROBE), 'stats', str(model), 'tokens=3', f'n={n}', 'ctx=512', *(f'{k}={v}' for k, v in keys.items())], os.environ,
                             file_actions=[(os.POSIX_SPAWN_DUP2, f.fileno(), 1)])
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with open(f'/proc/{pid}/io') as io:
            kernel = {k: int(v) for k, v in (line.split(': ') for line in io)}
        _, status = os.waitpid(pid, 0)
    expect(status == 0, f'the probe ended with status {status}')
    lines = out.read_text().strip().split('\n')
    return numbers(dict(x.split(' ', 1) for x in lines)), kernel['read_bytes']


def bytes_read(model, **keys):
    """What a longer run reads more than a shorter one of the same start is experts alone: there counters and kernel must agree to the byte. Nothing is
    read ahead: what of that is given up on the way has been read in part."""
    keys['predictor'] = 'none'
    counted_run(model, 2, **keys)  # the program itself is in memory from here on
    short, kernel_short = counted_run(model, 2, **keys)
    long, kernel_long = counted_run(model, 60, **keys)
    expect(long['n_miss'] > short['n_miss'], 'the longer run misses no more than the shorter one')
    ours, kernels = long['read_bytes'] - short['read_bytes'], kernel_long - kernel_short
    expect(ours == kernels, f'the counters say {ours} bytes, the kernel {kernels}')
    expect(long['bytes'] <= long['read_bytes'] <= kernel_long, f'{long["bytes"]} payload, {long["read_bytes"]} asked for, {kernel_long} by the kernel')
    return f'{ours} bytes'


def none_cached(model, **keys):
    cold(model)
    counted_run(model, 40, **keys)
    held = cached_pages(model)
    expect(not held, f'{len(held)} pages of the file are in the page cache, the first at byte {held[0] * mmap.PAGESIZE if held else 0}')


def misses(model, least):
    s = numbers(probe('stats', model, tokens=3, n=60, ram=least))
    expect(s['n_miss'] > 0, 'no misses')
    expect(s['n_miss'] + s['n_hit'] == s['n_lookup'], f'{s["n_hit"]} hits and {s["n_miss"]} misses of {s["n_lookup"]} lookups')
    expect(s['n_evict'] > 0, 'nothing was evicted')
    expect(s['ram_bytes'] <= least, f'{s["ram_bytes"]} bytes of slots for --ram {least}')
    return f'{s["n_miss"]} misses of {s["n_lookup"]} lookups'


def warm(model, everything):
    """With everything in RAM, an expert is read once."""
    s = numbers(probe('stats', model, tokens=3, n=60, ram=everything))
    expect(s['n_evict'] == 0, f'{s["n_evict"]} evictions')
    expect(s['n_miss'] <= s['n_expert'], f'{s["n_miss"]} misses of {s["n_expert"]} experts')


def main():
    check('streaming demo: least RAM and all RAM print the same', same_tokens, EMBER, least_ram(EMBER), all_ram(EMBER))
    for name, source in {'ember': EMBER, 'r768': made_model('r768', 'r768')}.items():
        model = check(f'streaming {name}: a cold copy', lambda: str(private_copy(source, f'stream-{name}.gguf')))
        if not model:
            continue
        least = least_ram(model)
        check(f'streaming {name}: misses', misses, model, least)
        check(f'streaming {name}: with all RAM no evictions', warm, model, all_ram(model))
        for io in ('auto', 'pread'):
            check(f'streaming {name}: bytes read, {io}', bytes_read, model, ram=least, io=io)
            check(f'streaming {name}: page cache, {io}', none_cached, model, ram=least, io=io)
        os.unlink(model)
    finish()


main()
