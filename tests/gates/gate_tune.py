#!/usr/bin/env python3
"""`stoker tune`: a profile that runs take and that verifies, a report that needs nothing but itself, a search that goes on after Ctrl-C."""
import json
import re
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ET

from harness import EMBER, STOKER, TESTS, WORK, Skipped, check, expect, finish, stoker

WORK.mkdir(exist_ok=True)
TRACE, PROFILE, REPORT = WORK / 'tune.trace', WORK / 'tune.profile', WORK / 'tune.html'
SAMPLES = TESTS.parent / 'traces' / 'samples'
IO = 'emu:300M,100us'
RUN = ('run', '-m', EMBER, '-p', 'Once upon a time', '--temp', 0, '-t', 2, '--ignore-eos')
PHONE, DESK = 390, 1280


def record():
    stoker(*RUN, '-n', 96, '--ram', '6M', '--io', IO, '--lookahead', 3, '--trace', TRACE, '-q').expect_success()


def tune(*args, out=PROFILE):
    """What the search found, as JSON."""
    return json.loads(stoker('tune', TRACE, '-o', out, '--json', '-q', *args).expect_success().out)


def finds():
    r = tune('--fraction', 0.25, '--io', IO, '--report', REPORT)
    expect(r['timed'] and r['margin'] > -0.02, f'margin {r["margin"]}')
    expect(r['margin_low'] <= r['margin_high'] and r['parts'] >= 2, f'{r}')
    expect(r['tied'] >= 1 and r['tie_margin'] >= -1e-9, f'{r}')
    expect(0 < r['default_cache_hit_rate'] <= r['bound_hit_rate'] and 0 < r['cache_hit_rate'] <= r['bound_hit_rate'] + 0.02, f'{r}')
    profile = json.loads(PROFILE.read_text())
    expect(profile['stoker_profile'] == 1 and profile['policy'] == r['policy'] and profile['model']['name'] == 'ember 40M', f'{profile}')
    expect(not (WORK / 'tune.profile.state').exists(), 'the state was left behind')
    return f'{r["policy"]} {r["scope"]} {r["predictor"]}@{r["lookahead"]}, margin {100 * r["margin"]:.1f} %, {r["replays"]} replays'


def with_profile(profile, *args):
    trace = WORK / 'tuned.trace'
    r = stoker(*RUN, '-n', 48, '--io', IO, '--profile', profile, '--trace', trace, '--json', '-q', *args).expect_success()
    stoker('replay', trace, '--verify', '-q').expect_success()
    return json.loads(r.out), json.loads(stoker('trace', 'info', trace, '--json').expect_success().out)


def runs():
    """A run with the profile, and with profiles of every kind of cache: its trace verifies, its text is what it was."""
    plain = json.loads(stoker(*RUN, '-n', 48, '--json', '-q').expect_success().out)
    base = json.loads(PROFILE.read_text())
    variants = [base]
    for policy, predictor, slots in (('lrfu:decay=0.9', 'mix', None), ('learned', 'gate', [9, 8, 8, 10, 9, 8]), ('lru', 'matrices:matrices=8', [4, 5, 6, 7, 8, 18])):
        variants.append(base | {'policy': policy, 'predictor': predictor, 'scope': 'layer', 'lookahead': 2})
        if slots:
            variants[-1]['layer_slots'] = slots
    for i, variant in enumerate(variants):
        path = WORK / f'tune-{i}.profile'
        path.write_text(json.dumps(variant))
        out, info = with_profile(path)
        info = info[0] if isinstance(info, list) else info
        info = info.get('traces', [info])[0]
        expect(out['tokens'] == plain['tokens'], f'{variant["policy"]}: other text')
        expect(info['policy'] == variant['policy'].split(':')[0], f'the trace says policy {info["policy"]}')
        r = stoker('replay', TRACE, '--profile', path, '--json', '-q').expect_success()
        expect(json.loads(r.out)['scope'] == variant['scope'], 'replay --profile has another scope')
    return f'{len(variants)} profiles'


def resized():
    """A cache for each layer with a profile's shares, resized while it runs, verifies and writes the same text."""
    plain = json.loads(stoker(*RUN, '-n', 48, '--json', '-q').expect_success().out)
    for profile in (WORK / 'tune-2.profile', WORK / 'tune-3.profile'):
        out, _ = with_profile(profile, '--resize-at', '16=8M,32=7M')
        expect(out['tokens'] == plain['tokens'], 'other text')


def mixed():
    """The recorded routers stand in for those of a run with the mix: it foresees as much. What it reads ahead depends on times only where
    it is chosen by them; and then the virtual clock's, so that it is the same each time. A live run's clock is the machine's, so that its
    hits are not compared."""
    args = (*RUN, '-n', 96, '--temp', 1, '-s', 3, '--ram', '6M', '--io', 'emu:1G,20us', '--watch', 'off')
    live = json.loads(stoker(*args, '--predictor', 'mix', '--json', '-q').expect_success().out)
    trace = WORK / 'tune-gate.trace'
    stoker(*args, '--trace', trace, '-q').expect_success()

    def replay(*more):
        return json.loads(stoker('replay', trace, '--predictor', 'mix', '--lookahead', 1, '--json', '-q', *more).expect_success().out)

    untimed, timed = replay('--ahead', 'likely'), replay('--ahead', 'likely', '--io', 'emu:1G,20us')
    same = ('n_hit', 'n_prefetch', 'n_prefetch_used', 'bytes')
    expect(untimed['stats']['n_prefetch'] > 0, 'nothing was read ahead')
    expect(all(untimed['stats'][f] == timed['stats'][f] for f in same), 'decisions depend on times')
    first, again = (replay('--ahead', 'value', '--io', 'emu:1G,20us') for _ in range(2))
    expect(first == again, 'a replay by value differs from itself')
    expect(first['predicted'] == untimed['predicted'], 'predictions depend on what was read ahead')
    recall, was = untimed['predicted'][0]['recall'], live['predicted'][0]['recall']
    expect(abs(recall - was) < 0.05, f'recall {recall:.3f} replayed, {was:.3f} live')
    return f'recall {100 * recall:.1f} % replayed, {100 * was:.1f} % live'


def flags_win():
    out, info = with_profile(PROFILE, '--policy', 'lfu', '--scope', 'global', '--predictor', 'none', '--ram', '8M')
    expect('lfu' in json.dumps(info), 'not the policy that was given')
    expect(out['stats']['n_prefetch'] == 0, 'something was read ahead')


def refused():
    other = WORK / 'tune-other.profile'
    profile = json.loads(PROFILE.read_text())
    for change, word in (({'model': profile['model'] | {'layers': 7}}, '7 layers'), ({'model': profile['model'] | {'name': 'other'}}, '"other"'),
                         ({'stoker_profile': 99}, 'version'), ({'policy': 'nosuch'}, 'nosuch')):
        other.write_text(json.dumps(profile | change))
        r = stoker(*RUN, '-n', 1, '--profile', other, '-q')
        expect(r.rc in (1, 2) and word in r.text(), f'{change}: {r.rc}, {r.last()}')
    other.write_text('no JSON at all')
    stoker(*RUN, '-n', 1, '--profile', other, '-q').expect_failure('tune-other.profile')
    stoker(*RUN, '-n', 1, '--profile', WORK / 'no-such.profile', '-q').expect_failure('no-such.profile')


def page(path):
    """A report is XML, refers to nothing outside of itself, and is of a decent size. Its pictures by their titles."""
    text = path.read_text()
    root = ET.fromstring(text)
    expect(root.tag == 'html', root.tag)
    foreign = re.findall(r'https?:|//|\bsrc\s*=|\bhref\s*=|url\(|@import|<script|<iframe|<link', text.split('</style>')[0] + re.sub(r'<code>.*?</code>', '', text.split('</style>')[1]))
    expect(not foreign, f'it refers to {foreign[:3]}')
    expect(10_000 < len(text) < 1_000_000, f'{len(text)} bytes')
    expect('prefers-color-scheme:dark' in text and '@media print' in text and "name='viewport'" in text, 'no dark mode, print or phone')
    for word in ('nan', 'inf'):
        expect(not re.search(rf"[ '=>,]-?{word}[ '<,]", text), f'a figure is {word}')
    titles = [e.text for e in root.iter('title')][1:]
    for svg in root.iter('svg'):
        _, _, width, height = map(float, svg.get('viewBox').split())
        expect(width == 400 and 40 < height < 800, f'a picture of {width} x {height}')
        for mark in svg.iter():
            for key, low, high in (('x', 0, width), ('y', 0, height), ('cx', 0, width), ('cy', 0, height)):
                if (v := mark.get(key)) is not None:
                    expect(low <= float(v) <= high, f'{mark.tag} at {key} {v} is outside of its picture')
    return titles


def report():
    titles = page(REPORT)
    for word in ('Hit rate', 'time of a token', 'Margin', 'reuse distance', 'each expert'):
        expect(any(word in t for t in titles), f'no picture of {word}: {titles}')
    return f'{len(titles)} pictures, {REPORT.stat().st_size} bytes'


def sample():
    """A trace of another tool, without times."""
    out = WORK / 'tune-sample.html'
    r = stoker('tune', SAMPLES / 'switch_base8.router-trace.json.zst', '--fraction', 0.4, '-o', WORK / 'sample.profile', '--report', out, '--json', '-q')
    r = json.loads(r.expect_success().out)
    expect(not r['timed'] and 0 < r['hit_rate'] <= 1, f'{r}')
    titles = page(out)
    expect(not any('time' in t for t in titles), f'times without a drive: {titles}')


def browser():
    """Headless Chromium lays it out without a bar at phone and desk width, and prints it."""
    chromium = next((shutil.which(x) for x in ('chromium', 'chromium-browser', 'google-chrome') if shutil.which(x)), None)
    if not chromium:
        raise Skipped('chromium is not here')
    args = [chromium, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', f'--user-data-dir={WORK / "chromium"}', '--hide-scrollbars']
    probe = WORK / 'tune-probe.html'
    for width in (PHONE, DESK):
        shot = WORK / f'tune-{width}.png'
        # A frame of this width: the window itself has a least width.
        probe.write_text(f'<iframe id=f src="{REPORT.name}" style="width:{width}px;height:4000px;border:0"></iframe><script>f.onload=()=>'
                         '{let d=f.contentDocument.documentElement;document.title=d.scrollWidth+" "+d.scrollHeight}</script>')
        out = subprocess.run([*args, '--allow-file-access-from-files', '--virtual-time-budget=2000', '--dump-dom', probe.as_uri()], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, timeout=180, check=True, text=True).stdout
        m = re.search(r'<title>(\d+) (\d+)</title>', out)
        expect(m, 'the page did not load')
        expect(int(m[1]) <= width, f'at {width} px it is {m[1]} px wide')
        subprocess.run([*args, f'--screenshot={shot}', f'--window-size={max(width, 500)},{min(int(m[2]) + 40, 8000)}', REPORT.as_uri()], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=180, check=True)
        expect(shot.stat().st_size > 10_000, 'an empty picture')
    pdf = WORK / 'tune.pdf'
    subprocess.run([*args, '--no-pdf-header-footer', f'--print-to-pdf={pdf}', REPORT.as_uri()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180, check=True)
    pages = len(re.findall(rb'/Type\s*/Page\b', pdf.read_bytes()))
    expect(1 <= pages <= 6, f'{pages} pages')
    return f'{pages} pages printed'


def interrupted():
    """Ctrl-C keeps what was done and says so; the same command goes on there and finds the same."""
    out, state = WORK / 'tune-int.profile', WORK / 'tune-int.profile.state'
    for f in (out, state):
        f.unlink(missing_ok=True)
    args = [STOKER, 'tune', SAMPLES / 'qwen.route.csv.zst', '--fraction', '0.2', '-o', out, '-j', '1', '-q']
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=120)
    if p.returncode == 0:
        raise Skipped('it was done before it could be interrupted')
    expect(p.returncode == 130, f'ended with {p.returncode}: {err}')
    expect(not out.exists(), 'a profile of half a search')
    if not state.exists():
        raise Skipped('it was interrupted before the first replay')
    expect(str(state) in err and 'goes on' in err, err)
    expect(json.loads(state.read_text())['stoker_tune'] == 1, 'no state')
    r = json.loads(stoker(*args[1:], '--json').expect_success().out)
    expect(not state.exists() and out.exists(), 'files are not as they should be at the end')
    n = len([p for p in WORK.glob('tune-int.profile*')])
    expect(n == 1, f'{n} files')
    return f'{r["resumed"]} of {r["replays"]} replays were there'


def usage():
    stoker('tune', '-q').expect_failure('which', rc=2)
    stoker('tune', TRACE, '--ram', '4M', '--fraction', 0.5, '-q').expect_failure('exclude', rc=2)
    stoker('tune', TRACE, '-o', TRACE, '-q').expect_failure('traces', rc=2)
    stoker('tune', TRACE, '--io', 'uring', '-q').expect_failure('emu', rc=2)
    stoker('tune', TRACE, '-m', EMBER, '--ram', '64K', '-q').expect_failure('few|small')
    stoker('tune', WORK / 'no-such.trace', '-q').expect_failure('no-such')


if check('records', record):
    check('finds', finds)
    check('runs', runs)
    check('resized', resized)
    check('mixed', mixed)
    check('flags win', flags_win)
    check('refused', refused)
    check('report', report)
    check('usage', usage)
    check('browser', browser)
check('sample', sample)
check('interrupted', interrupted)
finish()
