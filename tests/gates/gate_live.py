#!/usr/bin/env python3
"""What changes while a run goes on, at the command line: parameters, --warm, --resize-at, --stats, each with a trace that a replay verifies."""
import json
import re

from harness import EMBER, WORK, all_ram, check, expect, finish, least_ram, made_model, stoker

PROMPT = 'Once upon a time there was a king who had three sons.'
# How far below the long run a warm start may be. lfu counts for good, and learned looks for what resembles the text so far: their long run fits the very
# text that they have seen.
MARGIN = {'lfu': 4, 'learned': 4}
LIVE_POLICIES = ('lru', 'lru2', 'slru', 'lfu', 'lrfu:decay=0.9', 's3fifo', 'mrs', 'learned', 'random')


def run(*flags, prompt=PROMPT, n=64, model=EMBER, temp=0, seed=1):
    return stoker('run', '-m', model, '-p', prompt, '-n', n, '--temp', temp, '--ignore-eos', '--seed', seed, *flags).expect_success()


def spans(r):
    """(tokens, hit rate in %) of each line of --stats."""
    return [(int(m[1]), float(m[2])) for m in re.finditer(r'stats +(\d+) tokens .*? hits +([\d.]+) % memory', r.err.decode())]


def verified(trace):
    expect(b'equals the recorded run' in stoker('replay', trace, '--verify').expect_success().out, 'the replay does not say that it is equal')


def warm_rate(policy, ram):
    """
    Runs that start cold and settle, and after each a warm one with another text: in the mean, its first 64 tokens hit within 3 points of the rate that the
    others settle at. Texts are drawn, as a greedy one soon repeats itself, and read token by token.
    """
    warm, trace = WORK / 'live.warm', WORK / 'live.trace'
    cold, steady, first = [], [], []
    for seed in range(4):
        warm.unlink(missing_ok=True)
        flags = ('-b', 1, '--policy', policy, '--predictor', 'none', '--ram', ram, '--warm', warm, '--stats', 64)
        rates = [rate for _, rate in spans(run(*flags, n=240, temp=1, seed=seed))]
        cold.append(rates[0])
        steady += rates[1:]
        first.append(spans(run(*flags, '--trace', trace, n=64, temp=1, seed=100 + seed))[0][1])
        verified(trace)
    cold, steady, first = (sum(x) / len(x) for x in (cold, steady, first))
    expect(first >= steady - MARGIN.get(policy, 3), f'{first:.1f} % in the first 64 tokens, {steady:.1f} % in the long run, {cold:.1f} % cold')
    return f'{cold:.1f} % cold, {first:.1f} % warm, {steady:.1f} % in the long run'


def refused(path, word):
    before = path.read_bytes()
    r = stoker('run', '-m', EMBER, '-p', 'x', '-n', 1, '--warm', path)
    r.expect_failure(word, rc=r.rc)
    expect(r.rc in (1, 2), f'ended with {r.rc}')
    expect(path.read_bytes() == before, 'the file was changed')


def resized():
    least = least_ram(EMBER)
    want = run('--ram', all_ram(EMBER), n=120).out
    trace = WORK / 'live.trace'
    for policy in LIVE_POLICIES:
        steps = f'30={4 * least},50={3 * least},70={all_ram(EMBER)},90={3 * least}'
        r = run('--ram', 6 * least, '--policy', policy, '--resize-at', steps, '--trace', trace, n=120)
        expect(r.out == want, f'{policy}: another text')
        expect(len(re.findall(rb'memory +experts have', r.err)) == 4, f'{policy}: not resized four times')
        verified(trace)
    left_out = 'resized 4 times; this replay keeps its own budget'
    expect(left_out not in stoker('replay', trace, '--policy', 'lru', '--json').expect_success().text(), 'resizes are said to be left out of their own replay')
    expect(stoker('replay', trace, '--ram', 4 * least).expect_success().text().count(left_out) == 1, 'no word of resizes that are left out')
    stoker('run', '-m', EMBER, '-p', 'x', '-n', 1, '--resize-at', '10:4G').expect_failure('TOKENS=SIZE', rc=2)


def parameters():
    trace = WORK / 'live.trace'
    stoker('run', '-m', EMBER, '-p', 'x', '-n', 1, '--policy', 'lrfu:decay=2').expect_failure('decay', '0.001 to 1', rc=2)
    stoker('run', '-m', EMBER, '-p', 'x', '-n', 1, '--policy', 's3fifo:big=2').expect_failure('small, ghost', rc=2)
    stoker('run', '-m', EMBER, '-p', 'x', '-n', 1, '--ram', least_ram(EMBER), '--predictor', 'path:big=2').expect_failure('depth, back, mib, rate', rc=2)
    counts = set()
    for policy in ('lrfu:decay=0.5', 'lrfu:decay=0.999', 'lrfu'):
        run('--policy', policy, '--predictor', 'none', '--ram', 4 * least_ram(EMBER), '--trace', trace)
        verified(trace)
        counts.add(json.loads(stoker('replay', trace, '--json').expect_success().out)['misses'])
        other = json.loads(stoker('replay', trace, '--policy', policy, '--json').expect_success().out)['misses']
        expect(other in counts, f'{policy}: a replay with the same parameters has {other} misses')
    expect(len(counts) > 1, 'the parameter changes nothing')
    for topic, words in (('policies', ('lrfu', 'decay', 'belady')), ('predictors', ('history', 'keep', 'mix'))):
        out = stoker('help', topic).expect_success().out.decode()
        expect(all(w in out for w in words), f'help {topic} lacks one of {words}')


def stats():
    least = least_ram(EMBER)
    r = run('--ram', 3 * least, '--stats', 10, '-c', 200, n=41)
    expect(len(spans(r)) >= 4, f'{len(spans(r))} lines')
    expect(len(spans(run('--ram', 3 * least, '--stats', n=80))) >= 2, 'no lines without a number')
    out = json.loads(run('--ram', 3 * least, '--json').out)['stats']
    expect(0 < out['prefetch_precision'] <= 1 and 0 <= out['prefetch_waste'] < 1, f'precision {out["prefetch_precision"]}, waste {out["prefetch_waste"]}')
    expect(abs(out['hit_rate'] * out['n_lookup'] - out['n_hit']) < 1, 'hit_rate is not that of the counters')


def main():
    WORK.mkdir(exist_ok=True)
    check('live: parameters of policies and predictors', parameters)
    for policy in LIVE_POLICIES:
        check(f'live: a warm start, {policy}', warm_rate, policy, all_ram(EMBER) // 4)
    other = made_model('r768', 'r768')
    foreign = WORK / 'foreign.warm'
    foreign.unlink(missing_ok=True)
    run('--warm', foreign, model=other, n=2)
    check('live: the warm file of another model is refused', refused, foreign, 'another model')
    text = WORK / 'text.warm'
    text.write_text('a letter to a friend')
    check('live: a file that is none is refused', refused, text, 'name another')
    check('live: resizes', resized)
    check('live: --stats and --json', stats)
    finish()


main()
