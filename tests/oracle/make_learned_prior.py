#!/usr/bin/env python3
"""Makes cache/learned_prior.c: records the bundled model's routing and fits the prior of cache policy `learned` on it and on real traces.

    python3 tests/oracle/make_learned_prior.py build DIR > learned_prior.c && mv learned_prior.c cache/

DIR holds qwen.route.csv, gemma.route.csv, gptoss.route.csv and switch_base8.router-trace.v2.json; each model counts alike. The prior is of features and
names no expert. The recorded text is sampled with fixed seeds, so the result depends on nothing but the sources.
"""
import pathlib
import subprocess
import sys
import tempfile

PROMPTS = ('Once upon a time there was a king who had three daughters', 'The sea was calm, and the captain',
           'In the deep forest an old woman lived alone', '"What do you want?" asked the wolf',
           'It was a cold winter morning when the soldier came home', 'The history of the town begins', 'A poor tailor had a son',
           'She opened the door and saw')
MODEL = pathlib.Path(__file__).parents[1] / 'data' / 'ember-q4_k_m.gguf'


def main(build, traces):
    build, traces = pathlib.Path(build), pathlib.Path(traces)
    with tempfile.TemporaryDirectory() as tmp:
        recorded = [f'{tmp}/{i}.trace' for i in range(1, len(PROMPTS) + 1)]
        for seed, (prompt, path) in enumerate(zip(PROMPTS, recorded), 1):
            subprocess.run([build / 'stoker', 'run', '-m', MODEL, '-p', prompt, '-n', '600', '--ignore-eos', '--seed', str(seed), '-t', '1', '-q',
                            '--trace', path], check=True, stdout=subprocess.DEVNULL)
        command = [build / 'tests' / 'learned_prior']
        for name in ('qwen.route.csv', 'gemma.route.csv', 'gptoss.route.csv', 'switch_base8.router-trace.v2.json'):
            command += ['--', traces / name]
        subprocess.run(command + ['--'] + recorded, check=True)


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
